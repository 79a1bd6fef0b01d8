//! A gate: lets its owner pass at the cost of two stores and a load, and another thread close it.
//!
//! **The protocol.** The owner notes that it is inside, then looks whether the gate is closed. The other side
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

use super::sync::{self, AtomicBool, AtomicU8, Ordering};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Gate {
    inside: AtomicBool,
    /// `CLOSED`, and `FENCED` where the owner must issue a full barrier itself. 0 lets it pass.
    state: AtomicU8,
}

const CLOSED: u8 = 1;
const FENCED: u8 = 2;

/// The owner is inside as long as this lives.
#[derive(Debug)]
pub(super) struct Inside<'a>(&'a Gate);

impl Gate {
    /// A gate that is closed.
    pub(super) fn new() -> Self {
        let fenced = if sync::is_asymmetric() { 0 } else { FENCED };
        Self { inside: AtomicBool::new(false), state: AtomicU8::new(CLOSED | fenced) }
    }

    /// The owner's side; `None` where the gate is closed, or the owner must [issue a full barrier
    /// itself](Self::enter_fenced). Not to be nested.
    #[inline]
    pub(super) fn enter(&self) -> Option<Inside<'_>> {
        // Relaxed: the barrier orders this before the load below; see the module.
        self.inside.store(true, Ordering::Relaxed);
        sync::light_barrier();
        let inside = Inside(self);
        // Acquire: pairs with the Release in `open`, so that what was done while it was closed is seen.
        if self.state.load(Ordering::Acquire) == 0 { Some(inside) } else { None }
    }

    /// As [`enter`](Self::enter), also where the kernel issues no barriers.
    pub(super) fn enter_fenced(&self) -> Option<Inside<'_>> {
        // Relaxed: as in `enter`.
        self.inside.store(true, Ordering::Relaxed);
        sync::full_barrier();
        let inside = Inside(self);
        // Acquire: as in `enter`.
        if self.state.load(Ordering::Acquire) & CLOSED == 0 { Some(inside) } else { None }
    }

    /// Closes the gate to its owner, once a [`heavy_barrier`](super::sync::heavy_barrier) was issued and the owner
    /// [has left](Self::wait_until_left). One thread at a time.
    pub(super) fn close(&self) {
        // Relaxed: the heavy barrier orders this before the load in `wait_until_left`.
        let fenced = self.state.load(Ordering::Relaxed) & FENCED;
        self.state.store(fenced | CLOSED, Ordering::Relaxed);
    }

    /// Waits until the owner of a closed gate is outside: a few instructions of its, unless it was suspended.
    pub(super) fn wait_until_left(&self) {
        // Acquire: pairs with the Release in the drop of `Inside`: what the owner did inside is seen.
        while self.inside.load(Ordering::Acquire) {
            sync::yield_now();
        }
    }

    /// Lets the owner pass again.
    pub(super) fn open(&self) {
        let fenced = self.state.load(Ordering::Relaxed) & FENCED;
        // Release: see `enter`.
        self.state.store(fenced, Ordering::Release);
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: see `wait_until_left`.
        self.0.inside.store(false, Ordering::Release);
    }
}
