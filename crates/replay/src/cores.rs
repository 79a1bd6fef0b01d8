//! Work that is done on all cores at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;

/// Does `work` for each item, as many at a time as there are cores, and returns what came of each, in the items' order. The
/// threads end before this does: a process that forks later has none of them.
pub fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let one_after_another = || {
        // Relaxed: the numbers are handed out once each, and nothing else depends on them.
        let numbers = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
        for (at, item) in numbers.map_while(|at| Some((at, items.get(at)?))) {
            let result = work(item);
            done.lock().push((at, result));
        }
    };
    thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(one_after_another)));
        one_after_another();
    });
    let mut done = done.into_inner();
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
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
}
