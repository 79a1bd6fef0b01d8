//! A gate: lets its owner pass at the cost of two stores and a load, and another thread close it.
//!
//! **The protocol.** The gate has a row of *doors*, each to the lane of one stream. A door shows the serial number of
//! the stream whose lane is behind it, and is closed while it shows 0. The owner notes that it is inside, then looks
//! whether the door that it wants shows its stream: one comparison says that it is open, and where it leads. The
//! other side closes every door, then looks whether the owner is inside, and waits until it has left. Each side
//! writes one place and reads the other (Dekker's algorithm), so that at least one of them must see the other, if
//! neither's read comes before its own write.
//!
//! A stream has its door by the slot of its timeline. Streams whose slots are [`DOORS`] apart have the same one,
//! which is that one's for which it was opened last; the other ones pass by [`enter_wide`](Gate::enter_wide).
//!
//! **The barriers.** To keep a read behind a write takes a full barrier, which costs more than the whole of
//! the fast path. The owner has only a barrier for the compiler; the other side, which is rare, issues a full
//! barrier *in every running thread of the process* (`membarrier`, Linux 4.14). After it, an owner either had
//! noted that it is inside, visibly, or has yet to read whether the door is closed. Where there is no
//! `membarrier`, both sides issue a full barrier: the doors stay closed, and owners come in by
//! [`enter_wide`](Gate::enter_wide).
//!
//! **The data.** What lies behind the gate is passed on by the release stores of `inside` and of the doors and the
//! acquire loads of them on the other side.

use std::ptr::{self, NonNull};

use super::sync::{self, AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use crate::order::StreamKey;

/// Streams that have a door of their own. A power of two, so that finding one takes no division.
#[cfg(not(loom))]
pub(super) const DOORS: usize = 128;
/// A model tries what may happen at each of them.
#[cfg(loom)]
pub(super) const DOORS: usize = 1;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Gate<Lane> {
    inside: AtomicBool,
    is_fenced: bool,
    /// For an owner that takes no door: as many lanes as there are, or 0 while the gate is closed.
    width: AtomicUsize,
    /// For an owner that issues no barrier, by door: [`StreamKey::serial`] of the stream, or 0 while the door is
    /// closed, which no stream has. Never open where the kernel issues no barriers for the other side.
    doors: [AtomicU64; DOORS],
    /// What the owner finds behind each door. Written before the door is opened.
    lanes: [AtomicPtr<Lane>; DOORS],
}

/// The owner is inside as long as this lives.
#[derive(Debug)]
pub(super) struct Inside<'a>(&'a AtomicBool);

impl<Lane> Gate<Lane> {
    /// A gate that is closed.
    pub(super) fn new() -> Self {
        Self {
            inside: AtomicBool::new(false),
            is_fenced: !sync::is_asymmetric(),
            width: AtomicUsize::new(0),
            doors: std::array::from_fn(|_| AtomicU64::new(0)),
            lanes: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
        }
    }

    /// The owner's side: goes for the lane of this stream, as it was [opened](Self::open). `None` where its door is
    /// closed, or another stream's. Not to be nested.
    #[inline]
    pub(super) fn enter(&self, stream: StreamKey) -> Option<(NonNull<Lane>, Inside<'_>)> {
        // Relaxed: the barrier orders this before the load below; see the module.
        self.inside.store(true, Ordering::Relaxed);
        sync::light_barrier();
        let inside = Inside(&self.inside);
        let door = stream.slot % DOORS;
        // Acquire: pairs with the Release in `open_door`, so that what was done while it was closed is seen.
        if self.doors[door].load(Ordering::Acquire) != stream.serial {
            return None;
        }
        // Relaxed: written before the door, which was read with Acquire.
        let lane = self.lanes[door].load(Ordering::Relaxed);
        // SAFETY: a door that is open was opened, with a lane that is there (`open_door`).
        Some((unsafe { NonNull::new_unchecked(lane) }, inside))
    }

    /// As [`enter`](Self::enter), without a door, and also where the kernel issues no barriers for the other side: for
    /// the lane with the number `lane`, if there are more.
    pub(super) fn enter_wide(&self, lane: usize) -> Option<Inside<'_>> {
        // Relaxed: as in `enter`.
        self.inside.store(true, Ordering::Relaxed);
        if self.is_fenced {
            sync::full_barrier();
        } else {
            sync::light_barrier();
        }
        let inside = Inside(&self.inside);
        // Acquire: as in `enter`.
        (lane < self.width.load(Ordering::Acquire)).then_some(inside)
    }

    /// Closes the gate to its owner, once a [`heavy_barrier`](super::sync::heavy_barrier) was issued and the owner
    /// [has left](Self::wait_until_left). One thread at a time.
    pub(super) fn close(&self) {
        // Relaxed, all: the heavy barrier orders this before the load in `wait_until_left`.
        let lanes = self.width.load(Ordering::Relaxed);
        self.width.store(0, Ordering::Relaxed);
        for door in self.doors.iter().take(lanes) {
            door.store(0, Ordering::Relaxed);
        }
    }

    /// Waits until the owner of a closed gate is outside: a few instructions of its, unless it was suspended.
    pub(super) fn wait_until_left(&self) {
        // Acquire: pairs with the Release in the drop of `Inside`: what the owner did inside is seen.
        while self.inside.load(Ordering::Acquire) {
            sync::yield_now();
        }
    }

    /// Lets the owner pass to its first `lanes` lanes. Before [`open_door`](Self::open_door).
    pub(super) fn open(&self, lanes: usize) {
        // Release: see `enter_wide`.
        self.width.store(lanes, Ordering::Release);
    }

    /// Lets the owner pass to the lane of this stream, one of those for which the gate is [open](Self::open). Whoever
    /// enters by the door gets this pointer.
    pub(super) fn open_door(&self, stream: StreamKey, lane: NonNull<Lane>) {
        if self.is_fenced {
            return;
        }
        let door = stream.slot % DOORS;
        // Relaxed: the owner is outside, and reads it only after it has read the door.
        self.lanes[door].store(lane.as_ptr(), Ordering::Relaxed);
        // Release: see `enter`.
        self.doors[door].store(stream.serial, Ordering::Release);
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: see `wait_until_left`.
        self.0.store(false, Ordering::Release);
    }
}
