//! The cache of one thread in one pool.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::asymmetric_lock::{AsymmetricLock, Epoch, Passage};
use super::stream_cache::{Magazines, StreamCaches};
use super::tally::Tally;
use crate::order::StreamKey;

/// See the [module](self). On cache lines of its own (two, since processors fetch lines in pairs).
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct ThreadCache {
    /// First, so that what the fast path reads of it is on one cache line.
    pub(super) tally: Tally,
    pub(super) lock: AsymmetricLock<Magazines>,
    /// The [id](super::thread_index::thread_id) of the thread that has it; 0 for none. Written under the pool's lock.
    owner: AtomicU64,
    /// For the owner while it is inside the asymmetric lock, and for whoever holds the pool's lock while that is closed,
    /// or is the owner.
    stream_caches: UnsafeCell<StreamCaches>,
}

// SAFETY: everything but `stream_caches` is made of atomics. That field is reached by one thread at a time: see there,
// `enter` and `stream_caches_under_lock`.
unsafe impl Sync for ThreadCache {}

impl ThreadCache {
    /// A cache without an owner: it is closed.
    pub(super) fn new() -> Self {
        Self {
            lock: AsymmetricLock::new(),
            tally: Tally::default(),
            owner: AtomicU64::new(0),
            stream_caches: UnsafeCell::new(StreamCaches::NEW),
        }
    }

    /// Enters the cache for a stream, and counts in this epoch of the tally's; `None` where it is closed, or has nothing
    /// of the stream. With `WITHOUT_ENTRY` also where the lock has no open entry for it. Once the [passage is
    /// complete](Passage::complete), anybody may take the magazines. So whatever completes it takes no reference to them, which would
    /// claim them until it returns.
    ///
    /// # Safety
    /// The calling thread owns the cache, and is not inside.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "they are the owner's as long as it is inside: see the passage")]
    pub(super) unsafe fn enter<const WITHOUT_ENTRY: bool>(
        &self,
        epoch: fn(&Tally) -> &Epoch,
        stream: StreamKey,
    ) -> Option<(&mut Magazines, Passage<'_>)> {
        let epoch = epoch(&self.tally);
        let (mut magazines, passage) = if WITHOUT_ENTRY {
            let passage = self.lock.enter_without_entry(epoch)?;
            // SAFETY: as below.
            (unsafe { &*self.stream_caches.get() }.of_stream(stream)?, passage)
        } else {
            self.lock.enter(epoch, stream)?
        };
        // It is no sentinel, which several threads may pass at once. A thread that is inside by another epoch has two odd
        // ones now, and one that is inside by this epoch none.
        #[cfg(debug_assertions)]
        if self.tally.epochs().iter().filter(|epoch| epoch.is_inside()).count() != 1 {
            crate::system::lock::end_interrupted();
        }
        // SAFETY: the owner is inside. Others reach the stream caches only after closing the lock and waiting until the
        // owner has left (`Threads::keep_out`). That is not before `passage` is dropped with the returned reference. So
        // long the magazines stay, too: see `asymmetric_lock`.
        Some((unsafe { magazines.as_mut() }, passage))
    }

    /// The stream caches, for whoever holds the pool's lock.
    ///
    /// # Safety
    /// The caller holds the pool's lock as long as the reference lives, and asks for no second one. One of three holds.
    /// The caller owns the cache and is not inside. The caller has closed the cache, and the owner has left. The cache
    /// has no owner.
    #[expect(clippy::mut_from_ref, reason = "an accessor of an UnsafeCell; the contract is above")]
    pub(super) unsafe fn stream_caches_under_lock(&self) -> &mut StreamCaches {
        // SAFETY: the caller's promise: nobody is inside, nobody can come in, and all others need the lock.
        unsafe { &mut *self.stream_caches.get() }
    }

    /// See [`StreamCaches::list`].
    ///
    /// # Safety
    /// The calling thread owns the cache, and is inside. The magazines are what it [entered](Self::enter) for the stream.
    pub(super) unsafe fn list(&self, stream: StreamKey, magazines: &mut Magazines) {
        // SAFETY: the caller's promise: the owner is inside, so nobody else reaches the stream caches. They only point to magazines.
        unsafe { &mut *self.stream_caches.get() }.list(stream, magazines);
    }

    pub(super) fn owner(&self) -> u64 {
        // Relaxed: written and read under the pool's lock.
        self.owner.load(Ordering::Relaxed)
    }

    pub(super) fn is_owned(&self) -> bool {
        self.owner() != 0
    }

    /// The thread with this id becomes the owner; or, for 0, a closed cache has none any more. Under the pool's lock.
    pub(super) fn set_owner(&self, id: u64) {
        self.owner.store(id, Ordering::Relaxed);
    }

    /// Lets the owner use the cache, and these streams' magazines by their lock entries. Under the pool's lock, with the stream
    /// caches.
    pub(super) fn open(&self, entries: impl IntoIterator<Item = (StreamKey, NonNull<Magazines>)>) {
        self.lock.open();
        entries.into_iter().for_each(|(stream, magazines)| self.lock.open_entry(stream, magazines));
    }

    /// Whether its owner is kept out, once it [has left](Epoch::wait_until_left). Under the pool's lock.
    pub(super) fn is_kept_out(&self) -> bool {
        self.is_owned() && !self.lock.is_open()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_an_owner_can_be_kept_out() {
        let cache = ThreadCache::new();
        assert!(!cache.is_kept_out(), "it is closed, and nobody's");
        cache.set_owner(1);
        assert!(cache.is_kept_out());
        cache.open([]);
        assert!(!cache.is_kept_out());
    }
}
