//! Small numbers for threads, so that a thread finds what belongs to it in a table; given back when it ends.
//!
//! A thread's end takes no lock, since it may come at any time. `exit` ends the calling thread. It may come in a signal
//! handler that interrupts a lock's holder, or in a forked child that lacks the holder. So a thread that gets an index also
//! gets an [id](thread_id), which no other thread ever has. Pools compare the ids of their caches' owners when they next
//! take their lock ([`has_ended`]).

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::table::Table;
use crate::policy::caching::NEAR_THREADS;
use crate::system::process::{self, Listeners};

/// The index of a thread that has none. Those of the others follow.
pub(super) const NO_THREAD: usize = 0;

thread_local! {
    // Not dropped, and constant at first: reading it is one load, or a call of the loader in a shared library.
    static NEAR: Cell<usize> = const { Cell::new(NO_THREAD) };
    static INDEX: Cell<usize> = const { Cell::new(NO_THREAD) };
    static END: End = const { End };
}

/// The id of the thread that has each index; 0 for none.
static IDS: Ids = Ids::new();

#[derive(Debug)]
struct Ids {
    near: [AtomicU64; NEAR_THREADS],
    far: Table<AtomicU64>,
}

/// The bits of an id that are its index.
const INDEX_BITS: u32 = 24;

impl Ids {
    const fn new() -> Self {
        Self { near: [const { AtomicU64::new(0) }; _], far: Table::new() }
    }

    /// The place for the id of an index, if there is one yet.
    fn at(&self, index: usize) -> Option<&AtomicU64> {
        self.near.get(index).or_else(|| self.far.get(index))
    }

    fn all(&self) -> impl Iterator<Item = &AtomicU64> {
        self.near.iter().chain(self.far.iter())
    }

    /// Takes the lowest index that no thread has; `None` where the host has no memory for more.
    fn take_lowest(&self) -> Option<usize> {
        /// Threads that ever asked.
        static ASKED: AtomicU64 = AtomicU64::new(0);
        // Relaxed: a count. It tells ids with the same index apart.
        let nth = ASKED.fetch_add(1, Ordering::Relaxed) + 1;
        let take = |index: usize, place: &AtomicU64| {
            let id = nth << INDEX_BITS | index as u64;
            // Relaxed: a look. Acquire: what the index's last owner did to its caches came before it was given back.
            let is_taken = place.load(Ordering::Relaxed) == 0
                && place.compare_exchange(0, id, Ordering::Acquire, Ordering::Relaxed).is_ok();
            is_taken.then_some(index)
        };
        let known = self.all().enumerate().skip(NO_THREAD + 1);
        let mut end = NEAR_THREADS;
        for (index, place) in known {
            if let Some(index) = take(index, place) {
                return Some(index);
            }
            end = index + 1;
        }
        // All that there are have owners. Another thread may have made the same chunk.
        (end..).find_map(|index| {
            self.far.get_or_make(index).map_or(Some(None), |place| take(index, place).map(Some))
        })?
    }
}

/// Threads that had an index and ended.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Who is told on each thread that ends, if it had an index.
static TOLD: Listeners = Listeners::new();

/// Has `tell` called on each thread that ends and had an index, which it needs for a [`Shortcut`](super::Shortcut), before
/// another one may get that. From then on it makes none. It must not lock: see the module. To name it again does nothing.
pub fn on_thread_end(tell: fn()) {
    TOLD.add(tell);
}

/// The calling thread's index, if it is below `NEAR_THREADS`; else [`NO_THREAD`]. For the fast path.
#[inline(always)]
pub(super) fn near_index() -> usize {
    NEAR.get()
}

/// The calling thread's index; [`NO_THREAD`] where it has none.
#[inline]
pub(super) fn thread_index() -> usize {
    INDEX.get()
}

/// The calling thread's id; 0 where it has no index.
pub(super) fn thread_id() -> u64 {
    // Relaxed, here and in `has_ended`: the thread wrote it itself.
    IDS.at(thread_index()).map_or(0, |id| id.load(Ordering::Relaxed))
}

/// How many threads have ended so far.
#[inline]
pub(super) fn ended() -> u64 {
    // Acquire: whose end is counted, that thread is seen to have ended, and what it did to its caches.
    ENDED.load(Ordering::Acquire)
}

/// Whether the thread that had this id has ended. Of one whose end was [counted](ended), it is known.
pub(super) fn has_ended(id: u64) -> bool {
    let index = id & ((1 << INDEX_BITS) - 1);
    IDS.at(index as usize).is_none_or(|place| place.load(Ordering::Acquire) != id)
}

/// Notes the calling thread's index.
fn set_index(index: usize) {
    INDEX.set(index);
    NEAR.set(if index < NEAR_THREADS { index } else { NO_THREAD });
}

/// The calling thread's index, which it gets if it has none; `None` where the thread is ending already, or the
/// host has no memory for it.
#[cold]
pub(super) fn find_index() -> Option<usize> {
    END.try_with(|_| ()).ok()?;
    if INDEX.get() == NO_THREAD {
        process::on_fork(forget_indices);
        set_index(IDS.take_lowest()?);
    }
    Some(INDEX.get())
}

/// Takes the forking thread's index away in a child, where the parent's caches must not be used. So it finds no cache,
/// and meets the check on the slow path. The other threads are gone, and their indices free.
fn forget_indices() {
    set_index(NO_THREAD);
    IDS.all().for_each(|id| id.store(0, Ordering::Relaxed));
}

/// Gives the thread's index back when the thread ends.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        let index = thread_index();
        set_index(NO_THREAD);
        if index == NO_THREAD {
            return;
        }
        // Before another thread may get the index.
        TOLD.each(|tell| tell());
        // Release, both: who gets the index, and who sees the count, also sees what this thread did to its caches.
        IDS.at(index).into_iter().for_each(|id| id.store(0, Ordering::Release));
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
    fn every_index_can_be_had_once_and_there_is_no_last_one() {
        let ids = Ids::new();
        let count = 3 * NEAR_THREADS + 5;
        let all: Vec<_> = (0..count).map(|_| ids.take_lowest().unwrap()).collect();
        assert_eq!(all, (1..=count).collect::<Vec<_>>());
        for index in [7, NEAR_THREADS, 2 * NEAR_THREADS + 1] {
            let before = ids.at(index).unwrap().swap(0, Ordering::Relaxed);
            assert_eq!(ids.take_lowest(), Some(index));
            assert_ne!(ids.at(index).unwrap().load(Ordering::Relaxed), before);
        }
        assert_eq!(ids.take_lowest(), Some(count + 1));
    }
}
