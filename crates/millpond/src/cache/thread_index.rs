//! Small numbers for threads, so that a thread finds what belongs to it in a table; given back when it ends.
//!
//! A thread's end takes no lock, since it may come at any time. `exit` ends the calling thread. It may come in a signal
//! handler that interrupts a lock's holder, or in a forked child that lacks the holder. So a thread that gets an index also
//! gets an [id](thread_id), which no other thread ever has. Pools compare the ids of their caches' owners when they next
//! take their lock ([`has_ended`]).

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::policy::caching::MOST_THREADS;
use crate::process::{self, Listeners};

/// The index of a thread that has none. Those of the others follow, up to `MOST_THREADS`.
pub(super) const NO_THREAD: usize = 0;

thread_local! {
    // Not dropped, and constant at first: reading it is one load, or a call of the loader in a shared library.
    static INDEX: Cell<usize> = const { Cell::new(NO_THREAD) };
    static END: End = const { End };
}

/// The id of the thread that has each index; 0 for none.
static IDS: Ids = [const { AtomicU64::new(0) }; _];

type Ids = [AtomicU64; MOST_THREADS + 1];

/// Threads that had an index and ended.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Who is told on each thread that ends, if it had an index.
static TOLD: Listeners = Listeners::new();

/// Has `tell` called on each thread that ends and had an index, which it needs for a [`Shortcut`](super::Shortcut), before
/// another one may get that. From then on it makes none. It must not lock: see the module. To name it again does nothing.
pub fn on_thread_end(tell: fn()) {
    TOLD.add(tell);
}

/// The calling thread's index, at most `MOST_THREADS`; [`NO_THREAD`] where it has none.
#[inline(always)]
pub(crate) fn thread_index() -> usize {
    INDEX.get()
}

/// The calling thread's id; 0 where it has no index.
pub(super) fn thread_id() -> u64 {
    // Relaxed, here and in `has_ended`: the thread wrote it itself.
    IDS[thread_index()].load(Ordering::Relaxed)
}

/// How many threads have ended so far.
#[inline]
pub(super) fn ended() -> u64 {
    // Acquire: whose end is counted, that thread is seen to have ended, and what it did to its caches.
    ENDED.load(Ordering::Acquire)
}

/// Whether the thread that had this id has ended. Of one whose end was [counted](ended), it is known.
pub(super) fn has_ended(id: u64) -> bool {
    IDS[id as usize % IDS.len()].load(Ordering::Acquire) != id
}

/// Takes the lowest index that no thread has; `None` where all are taken.
fn take_lowest(ids: &Ids) -> Option<usize> {
    /// Threads that ever asked.
    static ASKED: AtomicU64 = AtomicU64::new(0);
    // Relaxed: a count. It tells ids with the same index apart.
    let nth = ASKED.fetch_add(1, Ordering::Relaxed) + 1;
    (NO_THREAD + 1..=MOST_THREADS).find(|index| {
        let id = nth * ids.len() as u64 + *index as u64;
        // Acquire: what the index's last owner did to its caches came before it was given back.
        ids[*index].compare_exchange(0, id, Ordering::Acquire, Ordering::Relaxed).is_ok()
    })
}

/// The calling thread's index, which it gets if it has none; `None` where there is none left, the thread is ending already,
/// or the host has no memory for it.
#[cold]
pub(super) fn find_index() -> Option<usize> {
    END.try_with(|_| ()).ok()?;
    if INDEX.get() == NO_THREAD {
        process::on_fork(forget_indices);
        INDEX.set(take_lowest(&IDS)?);
    }
    Some(INDEX.get())
}

/// Takes the forking thread's index away in a child, where the parent's caches must not be used. So it finds no cache,
/// and meets the check on the slow path. The other threads are gone, and their indices free.
fn forget_indices() {
    INDEX.set(NO_THREAD);
    IDS.iter().for_each(|id| id.store(0, Ordering::Relaxed));
}

/// Gives the thread's index back when the thread ends.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        let index = INDEX.replace(NO_THREAD);
        if index == NO_THREAD {
            return;
        }
        // Before another thread may get the index.
        TOLD.each(|tell| tell());
        // Release, both: who gets the index, and who sees the count, also sees what this thread did to its caches.
        IDS[index].store(0, Ordering::Release);
        ENDED.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    thread_local! {
        static IS_TOLD: Cell<bool> = const { Cell::new(false) };
    }

    #[test]
    fn each_listener_to_a_threads_end_is_told_once() {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static IS_MINE: Cell<bool> = const { Cell::new(false) };
        }
        on_thread_end(|| {
            assert!(!IS_TOLD.replace(true), "once");
            TIMES.fetch_add(usize::from(IS_MINE.get()), Ordering::Relaxed);
        });
        let with_index = || {
            IS_MINE.set(true);
            find_index()
        };
        std::thread::spawn(with_index).join().unwrap();
        assert_eq!(TIMES.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn ten_thousand_threads_in_turn_use_few_indices() {
        let count = if cfg!(miri) { 20 } else { 10_000 };
        for _ in 0..count {
            let before = ended();
            let thread = std::thread::spawn(|| {
                assert_eq!(thread_index(), NO_THREAD);
                let index = find_index();
                assert_eq!((Some(thread_index()), find_index()), (index, index));
                assert!(!has_ended(thread_id()));
                (index, thread_id())
            });
            let (index, id) = thread.join().unwrap();
            // Other tests run beside this one.
            assert!(index.is_some_and(|index| index < 256));
            assert!(ended() > before && has_ended(id));
        }
    }

    #[test]
    fn every_index_can_be_had_once() {
        let ids: Ids = [const { AtomicU64::new(0) }; _];
        let all: Vec<_> = std::iter::from_fn(|| take_lowest(&ids)).collect();
        assert_eq!(all, (1..=MOST_THREADS).collect::<Vec<_>>());
        let before = ids[7].swap(0, Ordering::Relaxed);
        assert_eq!(take_lowest(&ids), Some(7));
        assert_ne!(ids[7].load(Ordering::Relaxed), before);
        assert_eq!(take_lowest(&ids), None);
    }
}
