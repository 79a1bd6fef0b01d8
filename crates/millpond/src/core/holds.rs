//! Holds: what keeps a live block where it is, also once it is freed.
//!
//! A block that is held has recorded uses, as far as its descriptor says: so each free of it comes under the lock, and
//! finds it here. It is *kept* then, allocated as before, until all holds on it are over. Its pages so stay where they are,
//! and nobody else gets them.

use std::fmt;
use std::time::Instant;

use crate::device::DevicePtr;
use crate::extents::Pointer;
use crate::order::Fence;
use crate::system::lock::Mutex;
use crate::system::process::OfProcess;

/// A reason to keep a block, for a time.
pub(crate) trait Hold: fmt::Debug + Send {
    /// Whether it is over, once and for all.
    fn is_over(&mut self, now: Instant) -> bool;
}

#[derive(Debug)]
struct HeldBlock {
    ptr: DevicePtr,
    holds: Vec<Box<dyn Hold>>,
    /// What the block's next owner waits for, once its present one has freed it.
    freed: Option<Fence>,
}

impl HeldBlock {
    fn is_over(&mut self, now: Instant) -> bool {
        self.holds.retain_mut(|hold| !hold.is_over(now));
        self.holds.is_empty()
    }
}

/// See the [module](self). Taken under the pool's lock, or without it; the pool's is never taken under this one.
#[derive(Debug, Default)]
pub(crate) struct Holds(OfProcess<Mutex<Vec<HeldBlock>>>);

impl Holds {
    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// Whether anything holds the block that starts here.
    pub(crate) fn has(&self, ptr: DevicePtr) -> bool {
        let now = Instant::now();
        self.0.lock().iter_mut().any(|block| block.ptr == ptr && !block.is_over(now))
    }

    /// Holds a live block from now on. Under the pool's lock. `false`, and nothing done, where it was freed.
    #[must_use]
    pub(crate) fn add(&self, ptr: DevicePtr, hold: Box<dyn Hold>) -> bool {
        let mut blocks = self.0.lock();
        match blocks.iter_mut().find(|block| block.ptr == ptr) {
            Some(block) if block.freed.is_some() => return false,
            Some(block) => block.holds.push(hold),
            None => blocks.push(HeldBlock { ptr, holds: vec![hold], freed: None }),
        }
        true
    }

    /// The owner of a live block frees it. Returns whether it is kept until the holds are over: else it is to be freed as any
    /// other. What the pointer is where it was freed before, and is kept. Under the pool's lock.
    pub(crate) fn keep(&self, ptr: DevicePtr, fence: impl FnOnce() -> Fence) -> Result<bool, Pointer> {
        let mut blocks = self.0.lock();
        let Some(at) = blocks.iter().position(|block| block.ptr == ptr) else { return Ok(false) };
        if blocks[at].freed.is_some() {
            return Err(Pointer::NotLive);
        }
        let is_kept = !blocks[at].is_over(Instant::now());
        if is_kept {
            blocks[at].freed = Some(fence());
        } else {
            blocks.swap_remove(at);
        }
        Ok(is_kept)
    }

    /// Forgets the blocks that nothing holds any more; or all, where the pool ends: whoever else uses their memory keeps it by
    /// what it has of it. Returns those of them that their owners freed.
    pub(crate) fn collect(&self, all: bool) -> Vec<(DevicePtr, Fence)> {
        let now = Instant::now();
        let mut blocks = self.0.lock();
        let over = blocks.extract_if(.., |block| all || block.is_over(now));
        over.filter_map(|block| Some((block.ptr, block.freed?))).collect()
    }
}
