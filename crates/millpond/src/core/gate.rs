//! The gate of a pool's memory: who gives work on it to the device holds it open for that long. It is closed while the pool
//! sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering, fence};
use std::time::Duration;

use crate::log::Quiet;

/// See the [module](self). Nobody waits for it but the thread that closes it, so that it can be entered with any lock held.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// How many are inside. Less than 0 while the pool sleeps: counted up from the least number then.
    inside: AtomicI32,
    /// Cloned by who uses the pool's memory for long, without entering each time: until the clone goes, the pool is not put to
    /// sleep. To be cloned inside.
    pub(crate) resident: Arc<()>,
    /// Whether the pool is evicted, while the gate is closed.
    is_evicted: AtomicBool,
}

/// While it lives, the pool does not fall asleep.
#[derive(Debug)]
#[must_use = "the pool may sleep once this is dropped"]
pub(crate) struct Awake<'a> {
    gate: &'a Gate,
    /// A subscriber that puts the pool to sleep would wait for its own thread to leave.
    _quiet: Quiet,
}

impl Gate {
    /// Enters; `None` where the pool sleeps.
    // Acquire: what the wake did comes before the work. All changes are read-modify-writes of one word: who enters comes
    // before the close, which waits for it, or finds the gate closed.
    pub(crate) fn enter(&self) -> Option<Awake<'_>> {
        let entered = Awake { gate: self, _quiet: Quiet::begin() };
        (self.inside.fetch_add(1, Ordering::Acquire) >= 0).then_some(entered)
    }

    /// Whether anybody lives here. While the gate is closed nobody comes.
    pub(crate) fn has_residents(&self) -> bool {
        let any = Arc::strong_count(&self.resident) > 1;
        // Pairs with the Release by which each clone goes: the work that the resident gave to the device comes before.
        fence(Ordering::Acquire);
        any
    }

    /// Why the memory stays, where anybody lives here, and what to do about it.
    pub(crate) fn why_it_stays(&self) -> Option<&'static str> {
        self.has_residents().then_some(
            "its blocks are used without asking the pool, by the program's libraries (millpond_global::movable_pool lets them), by buffers \
             of the module cudarc or views in Python: drop them first",
        )
    }

    /// Closes the gate, and waits until nobody is inside: for as long as it takes to give work to the device.
    pub(crate) fn close(&self) {
        self.inside.fetch_or(i32::MIN, Ordering::Relaxed);
        // Acquire: pairs with the Release of who leaves.
        while self.inside.load(Ordering::Acquire) != i32::MIN {
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    pub(crate) fn open(&self) {
        // Release: pairs with `enter`.
        self.inside.fetch_and(i32::MAX, Ordering::Release);
    }

    /// Whether the pool is evicted: then its memory comes back by a restore only. It changes under the lock of who evicts, and while
    /// sleep is excluded. Where the gate is open, it says nothing.
    pub(crate) fn is_evicted(&self) -> bool {
        // Relaxed: a setting. To who finds the gate closed it says which error that is.
        self.is_evicted.load(Ordering::Relaxed)
    }

    pub(crate) fn note_evicted(&self, is_evicted: bool) {
        // Relaxed: as in `is_evicted`.
        self.is_evicted.store(is_evicted, Ordering::Relaxed);
    }

    /// Whether the pool sleeps, or is about to. A glance.
    pub(crate) fn is_closed(&self) -> bool {
        self.inside.load(Ordering::Relaxed) < 0
    }
}

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.gate.inside.fetch_sub(1, Ordering::Release);
    }
}
