//! A gate: lets its owner pass at the cost of two stores and a load, counts how often it did, and lets another thread
//! close it.
//!
//! **The marks.** The owner's mark that it is inside is odd, and the next even number says that it has left: so its
//! marks count its passages, which somebody wants to know anyway ([`Way`]). It has a way for each thing that is
//! counted.
//!
//! **The protocol.** The gate has a row of *doors*, each of which leads to the lane of one stream, or, while it is
//! closed, to a sentinel lane that is no stream's. A lane has its stream's serial number. The owner notes that it is
//! inside, then reads the door that it wants, and looks whether the lane behind it is the stream's: one comparison
//! says that the door is open, and that it leads to this stream. The other side closes every door, then looks whether
//! the owner is inside, and waits until it has left. Each side writes one place and reads the other (Dekker's
//! algorithm), so that at least one of them must see the other, if neither's read comes before its own write.
//!
//! A stream has its door by the slot of its timeline. Streams whose slots are [`DOORS`] apart have the same one,
//! which is that one's for which it was opened last; the other ones pass by [`enter_wide`](Gate::enter_wide). A door
//! is one pointer, so that it may be opened for another stream while the owner passes: the owner sees one lane or the
//! other, and which it is.
//!
//! **Lanes that go.** An owner that read a lane from a door is inside until it has left, also where the lane is not
//! the one that it wants. So who has closed the gate and waited may free lanes, or give them to other streams.
//!
//! **The barriers.** To keep a read behind a write takes a full barrier, which costs more than the whole of
//! the fast path. The owner has only a barrier for the compiler; the other side, which is rare, issues a full
//! barrier *in every running thread of the process* (`membarrier`, Linux 4.14). After it, an owner either had
//! noted that it is inside, visibly, or has yet to read whether the door is closed. Where there is no
//! `membarrier`, both sides issue a full barrier: the doors stay closed, and owners come in by
//! [`enter_wide`](Gate::enter_wide).
//!
//! **The data.** What lies behind the gate is passed on by the release stores of the marks and of the doors and the
//! acquire loads of them on the other side.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::sync::{self, AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, Patience};
use crate::order::StreamKey;

/// Streams that have a door of their own: as many as a byte tells apart, so that finding one takes no instruction.
#[cfg(not(loom))]
pub(super) const DOORS: usize = if cfg!(miri) { 4 } else { 256 };
/// A model tries what may happen at each of them.
#[cfg(loom)]
pub(super) const DOORS: usize = 1;

/// Ways that an owner has.
pub(super) const WAYS: usize = 2;

/// What lies behind a door.
pub(super) trait Behind: Sized {
    /// Of a lane behind a door that is open, or of [`closed`](Self::closed): [`StreamKey::serial`] of its stream, or 0
    /// for the sentinel, which no stream has.
    ///
    /// # Safety
    /// The lane is there, and nobody gives it to another stream meanwhile.
    unsafe fn serial(lane: NonNull<Self>) -> u64;

    /// The sentinel. Nothing is read of it but its serial number, and nothing is written.
    fn closed() -> NonNull<Self>;
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Gate<Lane> {
    is_fenced: bool,
    /// For an owner that takes no door: whether the gate is open.
    is_open: AtomicBool,
    /// Doors up to the last one that may be open. Written under the pool's lock.
    used: AtomicUsize,
    /// For an owner that issues no barrier: the lane that each door leads to. All lead to the sentinel where the kernel
    /// issues no barriers for the other side.
    doors: [AtomicPtr<Lane>; DOORS],
}

/// One of its owner's ways through a gate, and how often it passed there: twice that, and one more while it is inside.
/// The owner alone writes it; or, while it is not inside, whoever else may count for it.
#[derive(Debug, Default)]
pub(super) struct Way(AtomicU64);

/// The owner is inside as long as this lives. A passage that ends without [`pass`](Self::pass) does not count.
#[derive(Debug)]
pub(super) struct Inside<'a> {
    way: &'a Way,
    before: u64,
}

impl Way {
    /// Twice the passages so far, and one more while the owner is inside.
    #[inline]
    pub(super) fn mark(&self) -> u64 {
        // Relaxed: a count. What was done inside is seen by those who wait.
        self.0.load(Ordering::Relaxed)
    }

    /// Passages so far.
    pub(super) fn passed(&self) -> u64 {
        self.mark() / 2
    }

    /// Counts a passage of an owner that is not inside. By the owner.
    #[inline]
    pub(super) fn count(&self) {
        // Relaxed, and no read-modify-write: one thread writes.
        self.0.store(self.0.load(Ordering::Relaxed) + 2, Ordering::Relaxed);
    }

    /// Marks that the owner is inside, or about to look whether it may be.
    #[inline]
    fn enter(&self) -> Inside<'_> {
        // Relaxed: as in `count`. What keeps it before the look is the caller's barrier; see the module.
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before + 1, Ordering::Relaxed);
        Inside { way: self, before }
    }

    fn is_inside(&self) -> bool {
        // Acquire: pairs with the Release where the owner leaves: what it did inside is seen.
        self.0.load(Ordering::Acquire) % 2 == 1
    }
}

impl<Lane: Behind> Gate<Lane> {
    /// A gate that is closed.
    pub(super) fn new() -> Self {
        Self {
            is_fenced: !sync::is_asymmetric(),
            is_open: AtomicBool::new(false),
            used: AtomicUsize::new(0),
            doors: std::array::from_fn(|_| AtomicPtr::new(Lane::closed().as_ptr())),
        }
    }

    /// The owner's side: goes by one of its ways for the lane of this stream, as it was [opened](Self::open_door).
    /// `None` where its door is closed, or another stream's. Not to be nested.
    #[inline]
    pub(super) fn enter<'a>(&self, way: &'a Way, stream: StreamKey) -> Option<(NonNull<Lane>, Inside<'a>)> {
        let inside = way.enter();
        sync::light_barrier();
        // Acquire: pairs with the Release in `open_door`, so that what was done while it was closed is seen.
        let lane = self.doors[stream.slot % DOORS].load(Ordering::Acquire);
        // SAFETY: a door leads to the sentinel, or to a lane that is there (`open_door`).
        let lane = unsafe { NonNull::new_unchecked(lane) };
        // SAFETY: the sentinel never changes. Any other lane was read while the door was open, and so stays as it is
        // until the owner has left: see the module.
        (unsafe { Lane::serial(lane) } == stream.serial).then_some((lane, inside))
    }

    /// As [`enter`](Self::enter), without a door, and also where the kernel issues no barriers for the other side.
    pub(super) fn enter_wide<'a>(&self, way: &'a Way) -> Option<Inside<'a>> {
        let inside = way.enter();
        if self.is_fenced {
            sync::full_barrier();
        } else {
            sync::light_barrier();
        }
        // Acquire: as in `enter`.
        self.is_open.load(Ordering::Acquire).then_some(inside)
    }

    /// Closes the gate to its owner, once a [`heavy_barrier`](super::sync::heavy_barrier) was issued and the owner
    /// [has left](Self::wait_until_left). One thread at a time.
    pub(super) fn close(&self) {
        // Relaxed, all: the heavy barrier orders this before the load in `wait_until_left`.
        self.is_open.store(false, Ordering::Relaxed);
        let used = self.used.load(Ordering::Relaxed);
        self.used.store(0, Ordering::Relaxed);
        for door in self.doors.iter().take(used) {
            door.store(Lane::closed().as_ptr(), Ordering::Relaxed);
        }
    }

    /// Waits until the owner of a closed gate is inside by none of its ways: a few instructions of its, unless it was
    /// suspended. One way after the other will do, since it comes in by none of them any more.
    pub(super) fn wait_until_left(ways: [&Way; WAYS]) {
        for way in ways {
            let mut patience = Patience::default();
            while way.is_inside() {
                patience.wait();
            }
        }
    }

    /// Lets the owner pass where it takes no door.
    pub(super) fn open(&self) {
        // Release: see `enter_wide`.
        self.is_open.store(true, Ordering::Release);
    }

    /// Lets the owner pass to the lane of this stream by its door, which then is no other stream's. Under the pool's
    /// lock. The lane stays, and stays this stream's, until the gate is closed and the owner has left, or until its
    /// owner itself, outside, gives it to another stream.
    pub(super) fn open_door(&self, stream: StreamKey, lane: NonNull<Lane>) {
        if self.is_fenced {
            return;
        }
        let door = stream.slot % DOORS;
        // Relaxed: read under the lock, as it is written.
        self.used.store(self.used.load(Ordering::Relaxed).max(door + 1), Ordering::Relaxed);
        // Release: see `enter`.
        self.doors[door].store(lane.as_ptr(), Ordering::Release);
    }
}

impl Inside<'_> {
    /// What the [mark](Way::mark) was before this passage.
    #[inline]
    pub(super) fn before(&self) -> u64 {
        self.before
    }

    /// What the [mark](Way::mark) will be once this passage is counted.
    #[inline]
    fn next_mark(&self) -> u64 {
        self.before + 2
    }

    /// Leaves, and counts the passage.
    #[inline]
    pub(super) fn pass(self) {
        let left = ManuallyDrop::new(self);
        // Release: see `is_inside`.
        left.way.0.store(left.next_mark(), Ordering::Release);
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: as in `pass`.
        self.way.0.store(self.before, Ordering::Release);
    }
}
