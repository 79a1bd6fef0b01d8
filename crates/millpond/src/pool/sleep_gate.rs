//! The gate of a pool that may sleep: who gives work on its memory to the device holds it open for that long.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Set while the pool sleeps. The other bits count who is inside.
const CLOSED: u32 = 1 << 31;

/// See the [module](self). Nobody waits for it but the thread that closes it, so that it can be entered with any lock held.
#[derive(Debug, Default)]
pub(crate) struct SleepGate(AtomicU32);

/// While it lives, the pool does not fall asleep.
#[derive(Debug)]
#[must_use = "the pool may sleep once this is dropped"]
pub(crate) struct Awake<'a>(&'a SleepGate);

impl SleepGate {
    /// Enters; `None` where the pool sleeps.
    // Acquire: what the wake did comes before the work. All changes are read-modify-writes of one word: who enters comes
    // before the close, which waits for it, or finds the gate closed.
    pub(crate) fn enter(&self) -> Option<Awake<'_>> {
        let entered = Awake(self);
        (self.0.fetch_add(1, Ordering::Acquire) & CLOSED == 0).then_some(entered)
    }

    /// Closes the gate, and waits until nobody is inside: for as long as it takes to give work to the device.
    pub(super) fn close(&self) {
        self.0.fetch_or(CLOSED, Ordering::Relaxed);
        // Acquire: pairs with the Release of who leaves.
        while self.0.load(Ordering::Acquire) != CLOSED {
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    pub(super) fn open(&self) {
        // Release: pairs with `enter`.
        self.0.fetch_and(!CLOSED, Ordering::Release);
    }

    /// Whether the pool sleeps, or is about to. A glance.
    pub(super) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed) & CLOSED != 0
    }
}

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}
