//! Work that is done on all cores at once.
//!
//! What is done for one item may itself be done on all cores. All of it shares the same threads: one whose own work is done takes
//! over part of another's, before it begins with a new item.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;

use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// Does `work` for each item, as many at a time as there are cores, and returns what came of each, in the items' order.
pub fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let on_this_pool = || items.par_iter().with_max_len(1).map(&work).collect();
    if rayon::current_thread_index().is_some() {
        return on_this_pool();
    }
    if items.len() == 1 {
        return items.iter().map(work).collect();
    }
    // Without threads, this one does it.
    with_all_cores(|pool| pool.install(on_this_pool)).unwrap_or_else(|_| items.iter().map(&work).collect())
}

/// Does `work` for each item, and hands what came of each to `each` on the calling thread, in the items' order, as soon as that
/// and all before it are done.
pub fn in_order<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync, mut each: impl FnMut(R)) {
    let done = with_all_cores(|pool| in_order_on(pool, items, &work, &mut each));
    if done.is_err() {
        // Without threads, this one does it.
        items.iter().map(work).for_each(each);
    }
}

fn in_order_on<T: Sync, R: Send>(
    pool: &ThreadPool,
    items: &[T],
    work: &(impl Fn(&T) -> R + Sync),
    each: &mut impl FnMut(R),
) {
    let (done, results) = mpsc::channel();
    pool.in_place_scope(|scope| {
        for (at, item) in items.iter().enumerate() {
            let done = done.clone();
            // There is a receiver as long as there is work.
            scope.spawn(move |_| drop(done.send((at, work(item)))));
        }
        drop(done);
        let (mut early, mut next) = (BTreeMap::new(), 0);
        // A task that panics sends nothing, and the scope passes its panic on.
        for (at, result) in results {
            early.insert(at, result);
            while let Some(result) = early.remove(&next) {
                each(result);
                next += 1;
            }
        }
    });
}

/// Threads on all cores. They end before this does: a process that forks later has none of them.
fn with_all_cores<R>(run: impl FnOnce(&ThreadPool) -> R) -> Result<R, ThreadPoolBuildError> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    ThreadPoolBuilder::new().num_threads(threads).build_scoped(|thread| thread.run(), run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..1000).collect();
        let doubled: Vec<u64> = items.iter().map(|item| 2 * item).collect();
        assert_eq!(on_all_cores(&items, |item| 2 * item), doubled);
        assert!(on_all_cores(&[], |item: &u64| *item).is_empty());
    }

    #[test]
    fn results_are_handed_over_in_order_on_this_thread() {
        let items: Vec<u64> = (0..100).collect();
        let (mut seen, here) = (Vec::new(), thread::current().id());
        // What each item does is itself done on all cores.
        let sum = |&item: &u64| on_all_cores(&[item, 1], |part| *part).into_iter().sum::<u64>();
        in_order(&items, sum, |sum| {
            assert_eq!(thread::current().id(), here);
            seen.push(sum);
        });
        assert_eq!(seen, (1..=100).collect::<Vec<u64>>());
    }
}
