//! The memory of a capture: an arena beside the pool's own and under the same lock, limits and counters.
//!
//! What a graph uses must be where it was at every replay, which nobody tells the pool of. So the arena *keeps* its
//! pages (`Arena::that_keeps`): only captures that share the arena can reuse a freed block. Once the last claim is
//! gone, no replay can come. The host waits for those under way. Then the arena *lets go*: free memory goes back, and
//! live blocks once they are freed.

use crate::extents::Arena;

/// Names the memory of a capture, in one pool, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemoryId(pub(super) u64);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Captured {
    pub(super) id: MemoryId,
    pub(super) arena: Arena,
    /// Whether the last claim is gone.
    pub(super) is_released: bool,
}

impl Captured {
    pub(super) fn is_bare(&self) -> bool {
        self.arena.allocated().0 == 0 && self.arena.held() == 0
    }

    /// Gives everything back, for memory without live blocks that nothing uses any more. Returns whether that succeeded.
    pub(super) fn tear_down(&mut self) -> bool {
        self.arena.let_go();
        let done = self.arena.tear_down();
        if let Err(error) = &done {
            tracing::warn!(%error, "the memory of a capture could not be given back");
        }
        done.is_ok()
    }
}
