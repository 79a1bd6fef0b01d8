//! Small numbers for threads, so that a thread finds what belongs to it in a table; given back when it ends.
//!
//! A thread's end takes no lock, since it may come at any time. `exit` ends the calling thread. It may come in a signal
//! handler that interrupts a lock's holder, or in a forked child that lacks the holder. So the end only leaves notes
//! ([`visit`]), which each pool finds when it next takes its lock.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::policy::caching::MOST_THREADS;
use crate::process::{self, Listeners};

/// The index of a thread that has none. Those of the others follow, up to `MOST_THREADS`.
pub(super) const NO_THREAD: usize = 0;

thread_local! {
    // Not dropped, and constant at first: reading it is one load, or a call of the loader in a shared library.
    static INDEX: Cell<usize> = const { Cell::new(NO_THREAD) };
    static VISITS: RefCell<Visits> = const { RefCell::new(Visits { pools: Vec::new() }) };
}

/// The indices in use.
static INDICES: Indices = Indices::new();

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

/// A set of indices, without a lock: those in use, or for one pool those whose threads ended. Such a thread will not come back.
/// Another one may get its index, and go on where it left.
#[derive(Debug)]
pub(super) struct Indices([AtomicU64; MOST_THREADS / 64 + 1]);

impl Default for Indices {
    fn default() -> Self {
        Self::new()
    }
}

impl Indices {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; _])
    }

    /// Adds the lowest index that is not in it; `None` where all are.
    fn add_lowest(&self) -> Option<usize> {
        (NO_THREAD + 1..=MOST_THREADS).find(|index| {
            let (word, bit) = (&self.0[index / 64], 1 << (index % 64));
            // Relaxed: a glance, which saves the write.
            // Acquire: what the index's last owner did to its caches came before it was removed.
            word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Acquire) & bit == 0
        })
    }

    fn add(&self, index: usize) {
        // Release: who finds the index also finds what its owner did to its caches.
        self.0[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
    }

    pub(super) fn remove(&self, index: usize) {
        // Release: see `add_lowest`.
        self.0[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Release);
    }

    /// Whether any is in it. A glance.
    #[inline]
    pub(super) fn any(&self) -> bool {
        // Relaxed: `take` looks again.
        self.0.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Empties it, and calls `each` with what was in it. What is added from now on is seen another time.
    #[cold]
    pub(super) fn take(&self, mut each: impl FnMut(usize)) {
        for (at, word) in self.0.iter().enumerate() {
            // Acquire: pairs with the Release of `add`.
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                each(at * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}

/// The pools that the calling thread used, to be told of its end.
struct Visits {
    pools: Vec<Weak<Indices>>,
}

/// Sees to it that the pool finds a note when the calling thread has ended. Returns the thread's index; `None` where there
/// is none left, the thread is ending already, or the host has no memory for it.
#[cold]
pub(super) fn visit(pool: &Arc<Indices>) -> Option<usize> {
    VISITS
        .try_with(|visits| {
            let mut visits = visits.try_borrow_mut().ok()?;
            visits.pools.retain(|pool| pool.strong_count() > 0);
            visits.pools.try_reserve(1).ok()?;
            if INDEX.get() == NO_THREAD {
                process::on_fork(forget_indices);
                INDEX.set(INDICES.add_lowest()?);
            }
            let pool = Arc::downgrade(pool);
            // One that was refused a cache asks at each request.
            if !visits.pools.iter().any(|known| known.ptr_eq(&pool)) {
                visits.pools.push(pool);
            }
            Some(INDEX.get())
        })
        .ok()
        .flatten()
}

/// Takes the forking thread's index away in a child, where the parent's caches must not be used. So it finds no cache,
/// and meets the check on the slow path. The other threads are gone, and their indices free.
fn forget_indices() {
    INDEX.set(NO_THREAD);
    INDICES.take(|_| ());
}

impl Drop for Visits {
    fn drop(&mut self) {
        let index = INDEX.replace(NO_THREAD);
        if index == NO_THREAD {
            return;
        }
        // Before another thread may get the index.
        TOLD.each(|tell| tell());
        for pool in std::mem::take(&mut self.pools) {
            if let Some(ended) = pool.upgrade() {
                ended.add(index);
            }
        }
        INDICES.remove(index);
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
        let ended = Arc::new(Indices::default());
        let pool = ended.clone();
        let visited = move || {
            IS_MINE.set(true);
            visit(&pool)
        };
        std::thread::spawn(visited).join().unwrap();
        assert_eq!(TIMES.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn ten_thousand_threads_in_turn_use_few_indices() {
        let ended = Arc::new(Indices::default());
        let count = if cfg!(miri) { 20 } else { 10_000 };
        for _ in 0..count {
            let pool = ended.clone();
            let thread = std::thread::spawn(move || {
                assert_eq!(thread_index(), NO_THREAD);
                let index = visit(&pool);
                assert_eq!(Some(thread_index()), index);
                index
            });
            let index = thread.join().unwrap().expect("an index is free");
            // Other tests run beside this one.
            assert!(index < 256);
            assert!(ended.any());
            let mut noted = Vec::new();
            ended.take(|index| noted.push(index));
            assert_eq!(noted, [index]);
            assert!(!ended.any());
        }
    }

    #[test]
    fn a_thread_that_asks_again_and_again_notes_a_pool_once() {
        let ended = Arc::new(Indices::default());
        let pool = ended.clone();
        let noted = std::thread::spawn(move || {
            (0..100).for_each(|_| _ = visit(&pool));
            VISITS.with_borrow(|visits| visits.pools.len())
        });
        assert_eq!(noted.join().unwrap(), 1);
    }

    #[test]
    fn every_index_can_be_had_once() {
        let indices = Indices::new();
        let all: Vec<_> = std::iter::from_fn(|| indices.add_lowest()).collect();
        assert_eq!(all, (1..=MOST_THREADS).collect::<Vec<_>>());
        indices.remove(7);
        assert_eq!(indices.add_lowest(), Some(7));
        let mut taken = Vec::new();
        indices.take(|index| taken.push(index));
        assert_eq!(taken, all);
        assert_eq!(indices.add_lowest(), Some(1));
    }
}
