//! The memory of captures: an arena each, beside the pool's own and under the same lock, limits and counters.
//!
//! What a graph uses must be where it was at every replay, which nobody tells the pool of. So the arena *keeps* its
//! pages (`Arena::that_keeps`): a block that is freed can be had again by the captures that share the arena, and by
//! nobody else. Once the last claim is gone no replay can come; the host waits for those under way, and then the
//! arena *lets go*: what is free goes back, and what is still live once it is freed.

use super::inner::{PoolInner, State};
use crate::arena::{Arena, BlockId, MOST_UNITS, Pointer, Refusal};
use crate::device::DevicePtr;
use crate::order::Stream;
use crate::pages::Shortage;

/// Names the memory of a capture, in one pool, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryId(pub(super) u64);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Captured {
    pub(super) id: MemoryId,
    pub(super) arena: Arena,
    /// Whether nobody claims it any more.
    pub(super) is_released: bool,
}

impl Captured {
    fn is_bare(&self) -> bool {
        self.arena.out().0 == 0 && self.arena.held() == 0
    }

    /// Gives everything back, for memory without live blocks; waits for work on it.
    pub(super) fn tear_down(&mut self, pool: &str) {
        self.arena.let_go();
        if let Err(error) = self.arena.tear_down() {
            tracing::warn!(%error, pool, "the memory of a capture could not be given back");
        }
    }
}

impl State {
    /// Where the memory is in the list.
    pub(super) fn captured(&self, id: MemoryId) -> Option<usize> {
        self.captured.iter().position(|captured| captured.id == id)
    }

    /// The memory of a capture in whose address space the pointer lies.
    pub(super) fn captured_at(&self, ptr: DevicePtr) -> Option<usize> {
        // Nearly always: there may be many captures, but most pointers are none of theirs.
        if self.captured.is_empty() || self.arena.look_up(ptr) != Pointer::Foreign {
            return None;
        }
        self.captured.iter().position(|captured| captured.arena.look_up(ptr) != Pointer::Foreign)
    }

    /// The pool's own arena, and those of captures.
    pub(super) fn arenas(&self) -> impl Iterator<Item = &Arena> {
        std::iter::once(&self.arena).chain(self.captured.iter().map(|captured| &captured.arena))
    }

    /// What the pointer is to any of them.
    pub(super) fn look_up(&self, ptr: DevicePtr) -> Pointer {
        let mut known = self.arenas().map(|arena| arena.look_up(ptr));
        known.find(|pointer| *pointer != Pointer::Foreign).unwrap_or(Pointer::Foreign)
    }

    /// The arena in whose address space the pointer lies; the pool's own if it lies in none.
    pub(super) fn arena_of(&mut self, ptr: DevicePtr) -> &mut Arena {
        match self.captured_at(ptr) {
            Some(at) => &mut self.captured[at].arena,
            None => &mut self.arena,
        }
    }

    /// The memory that was let go, but for what is live there.
    pub(super) fn released(&self) -> impl Iterator<Item = &Captured> {
        self.captured.iter().filter(|captured| !captured.arena.keeps())
    }

    /// Gives back what is free, and complete, of the memory that was let go.
    pub(super) fn trim_released(&mut self) {
        for captured in self.captured.iter_mut().filter(|captured| !captured.arena.keeps()) {
            if let Err(error) = captured.arena.trim(0) {
                tracing::warn!(%error, "memory of a capture could not be given back; it is tried again");
            }
        }
        let bare = |captured: &mut Captured| !captured.arena.keeps() && captured.is_bare();
        // Only addresses are left of it, so that nothing is waited for.
        self.captured.extract_if(.., bare).for_each(|mut captured| captured.tear_down("captured"));
    }
}

impl PoolInner {
    /// Allocates from the memory of a capture.
    pub(super) fn alloc_captured(
        &self,
        state: &mut State,
        at: usize,
        (bytes, align): (u64, u64),
        stream: &Stream,
    ) -> Result<DevicePtr, Refusal> {
        let units = self.caches.sizes().units(bytes);
        if units >= MOST_UNITS {
            return Err(Refusal::Short { what: Shortage::Device, bytes });
        }
        let out = state.captured[at].arena.alloc(units, align, stream)?;
        // SAFETY: the block is out, and the arena is this pool's.
        unsafe { out.entry.get() }.make_live(out.ptr, bytes);
        self.caches.count_alloc(&mut state.locked, bytes, out.bytes);
        self.counters.misses.add(out.misses);
        Ok(out.ptr)
    }

    /// Frees a live block of the memory of a capture.
    /// `false`, and nothing done, where it is none.
    pub(super) fn free_captured(&self, state: &mut State, at: usize, id: BlockId, stream: &Stream) -> bool {
        let arena = &mut state.captured[at].arena;
        let (requested, size) = (arena.requested(id), arena.bytes(id));
        if !arena.free(id, stream.fence()) {
            return false;
        }
        let last_of_released = !arena.keeps() && arena.out().0 == 0;
        self.caches.count_free(&mut state.locked, requested, size);
        if last_of_released {
            state.trim_released();
        }
        true
    }

    /// Lets go of the memory of captures that nobody claims any more, once the work that was under way when the last
    /// claim went is complete. While a capture is under way the device cannot be waited for: the end of the last one
    /// calls this again.
    pub(super) fn let_go_of_released(&self) {
        let to_let_go = |captured: &&mut Captured| captured.is_released && captured.arena.keeps();
        let waiting: Vec<_> =
            self.state.lock().captured.iter_mut().filter(to_let_go).map(|captured| captured.id).collect();
        if waiting.is_empty() {
            return;
        }
        // Without the pool's lock.
        match self.timelines.synchronize_device_unless_capturing() {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(%error, pool = self.name, "the memory of a capture is kept: the device cannot be waited for");
                return;
            }
        }
        let mut state = self.state.lock();
        let now = state.captured.iter_mut().filter(|captured| waiting.contains(&captured.id));
        now.for_each(|captured| captured.arena.let_go());
        state.trim_released();
    }
}
