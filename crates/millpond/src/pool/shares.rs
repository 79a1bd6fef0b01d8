//! Which blocks of a pool other processes may use.
//!
//! A block that is shared has recorded uses, as far as its descriptor says: so each free of it comes under the lock, and
//! finds it here. It is *kept* then, allocated as before, until all leases on it are over. Its pages so stay where they are,
//! and nobody else gets them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::device::{DevicePtr, EventHandle};
use crate::lock::Mutex;
use crate::order::{Fence, Timelines};
use crate::process::OfProcess;
use crate::sharing::Lent;

/// An event that other processes may have opened, or that this one opened.
#[derive(Debug)]
pub(super) struct OwnedEvent {
    pub(super) timelines: Arc<Timelines>,
    pub(super) handle: EventHandle,
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        if !self.timelines.is_here() {
            // The event is the parent's.
            return;
        }
        // SAFETY: the event is this object's alone, and goes with it.
        if let Err(error) = unsafe { self.timelines.device().destroy_event(self.handle) } {
            tracing::warn!(%error, "an event could not be destroyed");
        }
    }
}

/// What others may do with a block, until they are done.
#[derive(Debug)]
pub(super) struct Loan {
    pub(super) lent: Lent,
    /// Others may use it as long as the lease lasts.
    pub(super) _event: Arc<OwnedEvent>,
}

#[derive(Debug)]
struct SharedBlock {
    ptr: DevicePtr,
    loans: Vec<Loan>,
    /// What the block's next owner waits for, once its present one has freed it.
    freed: Option<Fence>,
}

impl SharedBlock {
    fn is_over(&mut self, now: Instant) -> bool {
        self.loans.retain_mut(|loan| !loan.lent.is_over(now));
        self.loans.is_empty()
    }
}

/// What became of a free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freed {
    /// Nobody else uses the block: it is to be freed as any other.
    Now,
    /// It is kept until the others are done.
    Later,
    /// It was freed before, and is kept.
    Twice,
}

/// See the [module](self). Taken under the pool's lock, or without it; the pool's is never taken under this one.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// How many there are, for a look without the lock.
    count: AtomicUsize,
    blocks: OfProcess<Mutex<Vec<SharedBlock>>>,
}

impl Shares {
    /// Whether there are any.
    pub(super) fn any(&self) -> bool {
        // Relaxed: who shares a block and frees it comes after itself.
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether other processes may use the block that starts here.
    pub(super) fn has(&self, ptr: DevicePtr) -> bool {
        let now = Instant::now();
        self.any() && self.blocks.lock().iter_mut().any(|block| block.ptr == ptr && !block.is_over(now))
    }

    /// Others may use a live block from now on. Under the pool's lock. `false`, and nothing done, where it was freed.
    #[must_use]
    pub(super) fn add(&self, ptr: DevicePtr, loan: Loan) -> bool {
        let mut blocks = self.blocks.lock();
        match blocks.iter_mut().find(|block| block.ptr == ptr) {
            Some(block) if block.freed.is_some() => return false,
            Some(block) => block.loans.push(loan),
            None => blocks.push(SharedBlock { ptr, loans: vec![loan], freed: None }),
        }
        self.count.store(blocks.len(), Ordering::Relaxed);
        true
    }

    /// The owner of a live block frees it. Under the pool's lock.
    pub(super) fn free(&self, ptr: DevicePtr, fence: impl FnOnce() -> Fence) -> Freed {
        let mut blocks = self.blocks.lock();
        let Some(at) = blocks.iter().position(|block| block.ptr == ptr) else { return Freed::Now };
        if blocks[at].freed.is_some() {
            return Freed::Twice;
        }
        if blocks[at].is_over(Instant::now()) {
            blocks.swap_remove(at);
            self.count.store(blocks.len(), Ordering::Relaxed);
            return Freed::Now;
        }
        blocks[at].freed = Some(fence());
        Freed::Later
    }

    /// Forgets the blocks that nobody else uses any more. Returns those of them that their owners freed.
    pub(super) fn collect(&self) -> Vec<(DevicePtr, Fence)> {
        let now = Instant::now();
        let mut freed = Vec::new();
        let mut blocks = self.blocks.lock();
        blocks.retain_mut(|block| {
            let is_over = block.is_over(now);
            if is_over {
                freed.extend(block.freed.take().map(|fence| (block.ptr, fence)));
            }
            !is_over
        });
        self.count.store(blocks.len(), Ordering::Relaxed);
        freed
    }
}
