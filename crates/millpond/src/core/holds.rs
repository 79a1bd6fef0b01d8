//! Holds: what keeps a live block where it is, also once it is freed.
//!
//! A block that is held has recorded uses, as far as its descriptor says: so each free of it comes under the lock, and
//! finds it here. It is *kept* then, allocated as before, until all holds on it are over. Its pages so stay where they are,
//! and nobody else gets them.

use std::fmt;
use std::time::Instant;

use rustc_hash::FxHashMap;

use crate::device::DevicePtr;
use crate::extents::Pointer;
use crate::order::Fence;
use crate::policy::other_processes::ASKED_AT_ONCE;
use crate::system::lock::Mutex;
use crate::system::process::OfProcess;

/// A reason to keep a block, for a time.
pub(crate) trait Hold: fmt::Debug + Send {
    /// Whether it is over, once and for all.
    fn is_over(&mut self, now: Instant) -> bool;
}

/// A block's, which is not empty while the block is held.
#[derive(Debug, Default)]
struct HeldBlock {
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

#[derive(Debug, Default)]
struct HeldBlocks {
    by_start: FxHashMap<DevicePtr, HeldBlock>,
    /// How many blocks may be asked about, by the calls of [`Holds::collect_some`].
    credit: usize,
}

/// See the [module](self). Taken under the pool's lock, or without it; the pool's is never taken under this one.
#[derive(Debug, Default)]
pub(crate) struct Holds(OfProcess<Mutex<HeldBlocks>>);

impl Holds {
    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        !self.0.lock().by_start.is_empty()
    }

    /// Whether anything holds the block that starts here.
    pub(crate) fn has(&self, ptr: DevicePtr) -> bool {
        self.0.lock().by_start.get_mut(&ptr).is_some_and(|block| !block.is_over(Instant::now()))
    }

    /// Holds a live block from now on. Under the pool's lock. `false`, and nothing done, where it was freed.
    #[must_use]
    pub(crate) fn add(&self, ptr: DevicePtr, hold: Box<dyn Hold>) -> bool {
        let mut blocks = self.0.lock();
        let block = blocks.by_start.entry(ptr).or_default();
        if block.freed.is_none() {
            block.holds.push(hold);
        }
        block.freed.is_none()
    }

    /// The owner of a live block frees it. Returns whether it is kept until the holds are over: else it is to be freed as any
    /// other. What the pointer is where it was freed before, and is kept. Under the pool's lock.
    pub(crate) fn keep(&self, ptr: DevicePtr, fence: impl FnOnce() -> Fence) -> Result<bool, Pointer> {
        let mut blocks = self.0.lock();
        // No `entry`: that takes the host's memory where the block is not held.
        let Some(block) = blocks.by_start.get_mut(&ptr) else { return Ok(false) };
        if block.freed.is_some() {
            return Err(Pointer::NotLive);
        }
        let is_kept = !block.is_over(Instant::now());
        if is_kept {
            block.freed = Some(fence());
        } else {
            blocks.by_start.remove(&ptr);
        }
        Ok(is_kept)
    }

    /// Forgets the blocks that nothing holds any more; or all, where the pool ends: whoever else uses their memory keeps it by
    /// what it has of it. Returns those of them that their owners freed.
    pub(crate) fn collect(&self, all: bool) -> Vec<(DevicePtr, Fence)> {
        let now = Instant::now();
        let mut blocks = self.0.lock();
        let over = blocks.by_start.extract_if(|_, block| all || block.is_over(now));
        over.filter_map(|(ptr, block)| Some((ptr, block.freed?))).collect()
    }

    /// As [`collect`](Self::collect), as often as it costs no more than some questions a call: each is a call of the system.
    pub(crate) fn collect_some(&self) -> Vec<(DevicePtr, Fence)> {
        let mut blocks = self.0.lock();
        blocks.credit += ASKED_AT_ONCE;
        if blocks.credit < blocks.by_start.len() {
            return Vec::new();
        }
        blocks.credit = 0;
        drop(blocks);
        self.collect(false)
    }

    /// As [`collect`](Self::collect), of one block.
    pub(crate) fn collect_at(&self, ptr: DevicePtr) -> Option<(DevicePtr, Fence)> {
        let mut blocks = self.0.lock();
        if !blocks.by_start.get_mut(&ptr)?.is_over(Instant::now()) {
            return None;
        }
        let fence = blocks.by_start.remove(&ptr)?.freed?;
        Some((ptr, fence))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    /// Counts how often it is asked.
    #[derive(Debug)]
    struct Counting(Arc<(AtomicUsize, AtomicBool)>);

    impl Hold for Counting {
        fn is_over(&mut self, _: Instant) -> bool {
            self.0.0.fetch_add(1, Ordering::Relaxed);
            self.0.1.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn to_hold_one_more_block_asks_about_few_others() {
        let (holds, asked) = (Holds::default(), Arc::<(AtomicUsize, AtomicBool)>::default());
        let ptr = |number: usize| DevicePtr::new(512 * (number as u64 + 1));
        for number in 0..2000 {
            assert!(holds.collect_some().is_empty());
            assert!(holds.add(ptr(number), Box::new(Counting(asked.clone()))));
        }
        let count = asked.0.load(Ordering::Relaxed);
        assert!(count <= 2000 * ASKED_AT_ONCE, "{count} questions");
        // What is over is found all the same, and at once where it is asked for.
        for number in 0..2000 {
            assert_eq!(holds.keep(ptr(number), Fence::default), Ok(true));
        }
        asked.1.store(true, Ordering::Relaxed);
        assert_eq!(holds.collect_at(ptr(7)).unwrap().0, ptr(7));
        let found: usize = (0..=2000 / ASKED_AT_ONCE).map(|_| holds.collect_some().len()).sum();
        assert!(found == 1999 && !holds.any(), "{found}");
    }
}
