//! What keeps a pool or a stream for blocks that own themselves, as the buffers of C++ do, although its handle was given up.
//!
//! No allocation counts where other threads count. On the fast path, each thread counts beside what it remembers of a pool
//! and a stream (`place`), by a plain addition. What it counts there is meant for both. Only who gives a handle up has to
//! know the sum. It lets no thread remember the handle any more, waits until all have left the fast path, and takes over
//! what they counted (`place::collect`). From then on each free counts here, and the last one ends the handle.

use std::ffi::c_void;

use super::sync::{AtomicI64, AtomicU8, Mutex, Ordering, fence};

/// Called with its data once a handle that was given up is gone, on any thread, without locks held. It must not throw.
pub type Ended = Option<unsafe extern "C" fn(data: *mut c_void)>;

/// What [`Holds::end`] gives back: whom to tell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToTell {
    pub(crate) ended: Ended,
    pub(crate) data: *mut c_void,
}

// SAFETY: the header asks that the callback may be called with its data on any thread.
unsafe impl Send for ToTell {}

/// Nobody gave the handle up.
const IN_USE: u8 = 0;
/// No thread may remember it any more, and what some counted may be missing in the sum.
const GIVEN_UP: u8 = 1;
/// The sum is whole. At 0, the handle ends.
const COLLECTED: u8 = 2;
/// Somebody ends it.
const ENDED: u8 = 3;

/// What holds one pool, or one stream.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    count: AtomicI64,
    stage: AtomicU8,
    to_tell: Mutex<Option<ToTell>>,
}

impl Holds {
    pub(crate) fn add(&self, by: i64) {
        // Release: what was done with a block comes before the end.
        self.count.fetch_add(by, Ordering::Release);
    }

    /// Whether threads may remember the handle.
    pub(crate) fn is_in_use(&self) -> bool {
        // Relaxed: who asks has a fence before (`Place::remember`).
        self.stage.load(Ordering::Relaxed) == IN_USE
    }

    /// The handle is given up. `false` where it was before, and nothing changed.
    pub(crate) fn give_up(&self, to_tell: ToTell) -> bool {
        // Relaxed: the fences that follow come before each look at other threads.
        let is_first =
            self.stage.compare_exchange(IN_USE, GIVEN_UP, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_first {
            *self.to_tell.lock() = Some(to_tell);
        }
        is_first
    }

    /// What threads counted is in the sum.
    pub(crate) fn collected(&self) {
        // Release: who sees the stage sees the whole sum.
        self.stage.store(COLLECTED, Ordering::Release);
    }

    /// Whether nothing holds the handle any more. One caller is told so, with whom to tell, and ends it.
    pub(crate) fn end(&self) -> Option<ToTell> {
        // Of whoever counts last and whoever collects, one sees what the other did: both come here afterwards.
        fence(Ordering::SeqCst);
        // Acquire, both: see `collected` and `add`.
        let is_over =
            self.stage.load(Ordering::Acquire) == COLLECTED && self.count.load(Ordering::Acquire) <= 0;
        // Relaxed, both: only that one thread comes first matters.
        let is_first =
            || self.stage.compare_exchange(COLLECTED, ENDED, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_over && is_first() { self.to_tell.lock().take() } else { None }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const NOBODY: ToTell = ToTell { ended: None, data: std::ptr::null_mut() };

    #[test]
    fn a_handle_ends_once_after_it_was_given_up_and_nothing_holds_it() {
        let holds = Holds::default();
        holds.add(2);
        assert!(holds.is_in_use() && holds.end().is_none());
        assert!(holds.give_up(NOBODY) && !holds.give_up(NOBODY) && !holds.is_in_use());
        holds.add(-2);
        assert!(holds.end().is_none(), "other threads may have counted more");
        holds.add(1);
        holds.collected();
        assert!(holds.end().is_none());
        holds.add(-1);
        assert!(holds.end().is_some() && holds.end().is_none());
    }
    #[test]
    fn who_gives_a_handle_up_first_is_told_of_its_end() {
        let holds = Holds::default();
        let tells = |number: usize| ToTell { data: std::ptr::without_provenance_mut(number), ..NOBODY };
        assert!(holds.give_up(tells(1)) && !holds.give_up(tells(2)));
        holds.collected();
        assert_eq!(holds.end().map(|to_tell| to_tell.data.addr()), Some(1));
    }
}
