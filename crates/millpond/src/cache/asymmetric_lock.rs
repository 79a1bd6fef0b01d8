//! The asymmetric lock of a cache: its owner enters at the cost of two stores and a load. Another thread, rarely, closes
//! it.
//!
//! **Epochs.** The owner's epoch is odd while it is inside, and the next even number says that it has left. So epochs
//! count passages, which the statistics need anyway ([`Epoch`]). There is one epoch for each thing that is counted.
//!
//! **The protocol.** The lock has a row of *entries*. Each leads to the magazines of one stream or, while it is closed,
//! to a sentinel that is no stream's. Magazines have their stream's serial number. The owner makes its epoch odd, reads
//! the entry of its stream, and compares serial numbers. One comparison says that the entry is open, and that it leads
//! to this stream. The other side closes every entry, then looks whether the owner is inside, and waits until it has
//! left. Each side writes one place and reads the other (Dekker's algorithm). If neither's read comes before its own
//! write, at least one of them sees the other.
//!
//! A stream's entry is chosen by the slot of its timeline. Streams whose slots are [`ENTRIES`] apart share one: it is
//! that one's for which it was opened last, and the others use
//! [`enter_without_entry`](AsymmetricLock::enter_without_entry). An entry is one pointer, so it may be opened for
//! another stream while the owner passes. The owner sees one stream's magazines or the other's, and which they are.
//!
//! **Magazines that go.** An owner that read an entry is inside until it has left, also where the entry is not its
//! stream's. So who has closed the lock and waited may free magazines, or give them to other streams.
//!
//! **The barriers.** To keep a read behind a write takes a full barrier, which costs more than the whole of the fast
//! path. The owner has only a barrier for the compiler. The other side is rare. It issues a full barrier *in every
//! running thread of the process* (`membarrier`, Linux 4.14). After it, an owner either had an odd epoch, visibly, or
//! has yet to read whether the entry is closed. Where the kernel refuses it, no lock is ever opened.
//!
//! **The data.** Release stores of epochs and entries, and acquire loads of them on the other side, pass on what the
//! lock guards.

use std::hint::cold_path;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::sync::{self, AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use crate::order::StreamKey;
use crate::policy::caching::ENTRIES;

/// What an entry leads to.
pub(super) trait Guarded: Sized {
    /// [`StreamKey::serial`] of its stream, or 0, which no stream has, for [`closed`](Self::closed).
    ///
    /// # Safety
    /// It is there, and nobody gives it to another stream meanwhile.
    unsafe fn serial(guarded: NonNull<Self>) -> u64;

    /// The sentinel of closed entries. Only its serial number is read, and nothing is written.
    fn closed() -> NonNull<Self>;
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct AsymmetricLock<T> {
    /// For an owner that enters without an entry: whether the lock is open.
    is_open: AtomicBool,
    /// Entries up to the last one that may be open. Written under the pool's lock.
    used: AtomicUsize,
    /// What each entry leads to.
    entries: [AtomicPtr<T>; ENTRIES],
}

/// Counts an owner's passages of one kind: twice their number, and one more while it is inside.
/// The owner alone writes it; or, while it is not inside, whoever else may count for it.
#[derive(Debug, Default)]
pub(super) struct Epoch(AtomicU64);

/// The owner is inside as long as this lives. A passage that ends without [`complete`](Self::complete) does not count.
#[derive(Debug)]
pub(super) struct Passage<'a>(&'a Epoch);

impl Epoch {
    /// Twice the passages so far, and one more while the owner is inside.
    #[inline]
    pub(super) fn value(&self) -> u64 {
        // Relaxed: a count. What was done inside is seen by those who wait.
        self.0.load(Ordering::Relaxed)
    }

    /// Passages so far.
    pub(super) fn passages(&self) -> u64 {
        self.value() / 2
    }

    /// Counts half as many passages, of an owner that is not inside. No read-modify-write: one thread writes. It wraps, since
    /// all threads that have no cache write the sentinel's, which means nothing.
    #[inline]
    pub(super) fn add(&self, more: u64, order: Ordering) {
        self.0.store(self.value().wrapping_add(more), order);
    }

    /// Notes that the owner is inside, or about to look whether it may be.
    #[inline]
    fn enter(&self) -> Passage<'_> {
        // Relaxed: a count. What keeps it before the look is the caller's barrier; see the module.
        self.add(1, Ordering::Relaxed);
        Passage(self)
    }

    pub(super) fn is_inside(&self) -> bool {
        // Acquire: pairs with the Release where the owner leaves: what it did inside is seen.
        self.0.load(Ordering::Acquire) % 2 == 1
    }

    /// Waits until the owner of a closed lock has left: a few instructions of its, unless it was suspended. One epoch after the
    /// other will do, since the owner cannot enter again.
    pub(super) fn wait_until_left(&self) {
        let mut looks = 0;
        while self.is_inside() {
            sync::pause(looks);
            looks += 1;
        }
    }
}

impl<T: Guarded> AsymmetricLock<T> {
    /// A lock that is closed.
    pub(super) fn new() -> Self {
        Self {
            is_open: AtomicBool::new(false),
            used: AtomicUsize::new(0),
            entries: std::array::from_fn(|_| AtomicPtr::new(T::closed().as_ptr())),
        }
    }

    /// The owner's side: enters by this stream's entry, as it was [opened](Self::open_entry), and counts in `epoch`.
    /// `None` where the entry is closed, or another stream's. Not to be nested.
    #[inline]
    pub(super) fn enter<'a>(&self, epoch: &'a Epoch, stream: StreamKey) -> Option<(NonNull<T>, Passage<'a>)> {
        let passage = epoch.enter();
        sync::light_barrier();
        // Acquire: pairs with the Release in `open_entry`, so that what was done while it was closed is seen.
        let guarded = self.entries[stream.slot % ENTRIES].load(Ordering::Acquire);
        // SAFETY: an entry leads to the sentinel, or to something that is there (`open_entry`).
        let guarded = unsafe { NonNull::new_unchecked(guarded) };
        // SAFETY: the sentinel never changes. Anything else was read while the entry was open, and so stays as it is
        // until the owner has left: see the module.
        if unsafe { T::serial(guarded) } != stream.serial {
            cold_path();
            return None;
        }
        Some((guarded, passage))
    }

    /// As [`enter`](Self::enter), without an entry.
    pub(super) fn enter_without_entry<'a>(&self, epoch: &'a Epoch) -> Option<Passage<'a>> {
        let passage = epoch.enter();
        sync::light_barrier();
        // Acquire: as in `enter`.
        self.is_open.load(Ordering::Acquire).then_some(passage)
    }

    /// Closes the lock to its owner, once a [`heavy_barrier`](super::sync::heavy_barrier) was issued and the owner
    /// [has left](Epoch::wait_until_left). Returns whether it was open. One thread at a time.
    pub(super) fn close(&self) -> bool {
        // Relaxed, all: the heavy barrier orders this before the load in `is_inside`.
        let was_open = self.is_open.swap(false, Ordering::Relaxed);
        let used = self.used.load(Ordering::Relaxed);
        self.used.store(0, Ordering::Relaxed);
        for entry in self.entries.iter().take(used) {
            entry.store(T::closed().as_ptr(), Ordering::Relaxed);
        }
        was_open
    }

    /// Whether it is open. Under the pool's lock.
    pub(super) fn is_open(&self) -> bool {
        // Relaxed: written under the lock, too.
        self.is_open.load(Ordering::Relaxed)
    }

    /// Lets the owner enter without an entry.
    pub(super) fn open(&self) {
        // Release: see `enter_without_entry`.
        self.is_open.store(true, Ordering::Release);
    }

    /// Lets the owner enter by this stream's entry, which then is no other stream's. Under the pool's lock. The guarded
    /// data stays, and stays this stream's, until the lock is closed and the owner has left. The owner itself, while
    /// outside, may also give it to another stream.
    pub(super) fn open_entry(&self, stream: StreamKey, guarded: NonNull<T>) {
        let entry = stream.slot % ENTRIES;
        // Relaxed: read under the lock, as it is written.
        self.used.store(self.used.load(Ordering::Relaxed).max(entry + 1), Ordering::Relaxed);
        // Release: see `enter`.
        self.entries[entry].store(guarded.as_ptr(), Ordering::Release);
    }
}

impl Passage<'_> {
    /// Leaves, and counts the passage.
    #[inline]
    pub(super) fn complete(self) {
        let epoch = ManuallyDrop::new(self).0;
        // Release: see `is_inside`. Read anew: so it is one instruction, as in `enter`.
        epoch.add(1, Ordering::Release);
    }
}

impl Drop for Passage<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: as in `complete`.
        self.0.add(1u64.wrapping_neg(), Ordering::Release);
    }
}
