//! The same for many, by several threads: most of the time of a look goes to files that the system keeps of each process.

use std::iter::from_fn;
use std::thread::{Builder, available_parallelism, scope};

use crate::system::lock::Mutex;

/// A thread for each so many: to start one takes as long as to look at two or three.
const OF_A_THREAD: usize = 50;

/// What `one` makes of each of them, in no order.
pub(super) fn each<T: Send, U: Send>(all: Vec<T>, one: impl Fn(T) -> Option<U> + Sync) -> Vec<U> {
    let most = available_parallelism().map_or(1, Into::into);
    let threads = (all.len() / OF_A_THREAD).clamp(1, most);
    let left = Mutex::new(all.into_iter());
    let next = || left.lock().next();
    let work = || from_fn(next).filter_map(&one).collect::<Vec<_>>();
    scope(|scope| {
        // Where there is no thread to have, the others do it.
        let others: Vec<_> =
            (1..threads).map_while(|_| Builder::new().spawn_scoped(scope, work).ok()).collect();
        let mut made = work();
        for other in others {
            match other.join() {
                Ok(more) => made.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        made
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_done_once() {
        for count in [0, 1, OF_A_THREAD, 20 * OF_A_THREAD] {
            let mut made = each((0..count).collect(), |at| (at % 3 != 0).then_some(at));
            made.sort_unstable();
            assert_eq!(made, (0..count).filter(|at| at % 3 != 0).collect::<Vec<_>>());
        }
    }
}
