//! A gate: lets its owner pass at the cost of two stores and a load, and another thread close it.
//!
//! **The protocol.** The gate is as wide as the owner has lanes, and closed when it is 0 wide. The owner notes
//! that it is inside, then looks whether the gate is wide enough for the lane that it wants. The other side
//! closes the gate, then looks whether the owner is inside, and waits until it has left. Each side writes one
//! place and reads the other (Dekker's algorithm), so that at least one of them must see the other, if
//! neither's read comes before its own write.
//!
//! **The barriers.** To keep a read behind a write takes a full barrier, which costs more than the whole of
//! the fast path. The owner has only a barrier for the compiler; the other side, which is rare, issues a full
//! barrier *in every running thread of the process* (`membarrier`, Linux 4.14). After it, an owner either had
//! noted that it is inside, visibly, or has yet to read whether the gate is closed. Where there is no
//! `membarrier`, both sides issue a full barrier.
//!
//! **The data.** What lies behind the gate is passed on by the release stores of `inside` and `closed` and the
//! acquire loads of them on the other side.

use super::sync::{self, AtomicBool, AtomicUsize, Ordering};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Gate {
    inside: AtomicBool,
    /// For an owner that issues no barrier; always 0 where the kernel issues none for the other side.
    width: AtomicUsize,
    /// For an owner that issues a full barrier.
    fenced_width: AtomicUsize,
    is_fenced: bool,
}

/// The owner is inside as long as this lives.
#[derive(Debug)]
pub(super) struct Inside<'a>(&'a Gate);

impl Gate {
    /// A gate that is closed.
    pub(super) fn new() -> Self {
        let (width, fenced_width) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { inside: AtomicBool::new(false), width, fenced_width, is_fenced: !sync::is_asymmetric() }
    }

    /// The owner's side: goes for the lane with this number. `None` where the gate is closed or too narrow. Not
    /// to be nested. With `FENCED` also where the kernel issues no barriers for the other side.
    #[inline]
    pub(super) fn enter<const FENCED: bool>(&self, lane: usize) -> Option<Inside<'_>> {
        // Relaxed: the barrier orders this before the load below; see the module.
        self.inside.store(true, Ordering::Relaxed);
        let width = if FENCED {
            sync::full_barrier();
            &self.fenced_width
        } else {
            sync::light_barrier();
            &self.width
        };
        let inside = Inside(self);
        // Acquire: pairs with the Release in `open`, so that what was done while it was closed is seen.
        if lane < width.load(Ordering::Acquire) { Some(inside) } else { None }
    }

    /// Closes the gate to its owner, once a [`heavy_barrier`](super::sync::heavy_barrier) was issued and the owner
    /// [has left](Self::wait_until_left). One thread at a time.
    pub(super) fn close(&self) {
        // Relaxed: the heavy barrier orders this before the load in `wait_until_left`.
        self.width.store(0, Ordering::Relaxed);
        self.fenced_width.store(0, Ordering::Relaxed);
    }

    /// Waits until the owner of a closed gate is outside: a few instructions of its, unless it was suspended.
    pub(super) fn wait_until_left(&self) {
        // Acquire: pairs with the Release in the drop of `Inside`: what the owner did inside is seen.
        while self.inside.load(Ordering::Acquire) {
            sync::yield_now();
        }
    }

    /// Lets the owner pass to its first `lanes` lanes.
    pub(super) fn open(&self, lanes: usize) {
        // Release: see `enter`.
        self.width.store(if self.is_fenced { 0 } else { lanes }, Ordering::Release);
        self.fenced_width.store(lanes, Ordering::Release);
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: see `wait_until_left`.
        self.0.inside.store(false, Ordering::Release);
    }
}
