//! The memory of a capture: an arena beside the pool's own and under the same lock, limits and counters.
//!
//! What a graph uses must be where it was at every replay, which nobody tells the pool of. So the arena *keeps* its
//! pages (`Arena::that_keeps`): only captures that share the arena can reuse a freed block. Once the last claim is
//! gone, no replay can come. The host waits for those under way. Then the arena *lets go*: free memory goes back, and
//! live blocks once they are freed.

use std::collections::BTreeMap;

use crate::extents::Arena;

/// Names the memory of a capture, in one pool, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemoryId(pub(super) u64);

/// The memory of all captures of a pool. What concerns one of them costs the same however many there are.
#[derive(Debug, Default)]
pub(super) struct CaptureMemory {
    all: BTreeMap<MemoryId, Box<Arena>>,
    /// Those whose last claim is gone. In order, with room for all.
    released: Vec<MemoryId>,
    /// Whether others may hold pages that are mapped nowhere.
    has_loose_pages: bool,
}

#[cfg(test)]
thread_local! {
    /// Captures whose memory this thread looked at.
    pub(super) static VISITS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[inline]
fn note_visits(_captures: usize) {
    #[cfg(test)]
    VISITS.set(VISITS.get() + _captures);
}

impl CaptureMemory {
    pub(super) fn add(&mut self, id: MemoryId, arena: Arena) {
        self.all.insert(id, Box::new(arena));
        // Here, so that the end of a claim takes no memory.
        self.released.reserve(self.all.len() - self.released.len());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn get(&self, id: MemoryId) -> Option<&Arena> {
        note_visits(1);
        self.all.get(&id).map(|arena| &**arena)
    }

    pub(super) fn get_mut(&mut self, id: MemoryId) -> Option<&mut Arena> {
        note_visits(1);
        self.all.get_mut(&id).map(|arena| &mut **arena)
    }

    /// All, in the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (MemoryId, &Arena)> {
        self.all.iter().inspect(|_| note_visits(1)).map(|(id, arena)| (*id, &**arena))
    }

    /// The same, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (MemoryId, &mut Arena)> {
        self.all.iter_mut().inspect(|_| note_visits(1)).map(|(id, arena)| (*id, &mut **arena))
    }

    /// The last claim is gone.
    pub(super) fn release(&mut self, id: MemoryId) {
        if self.all.contains_key(&id)
            && let Err(at) = self.released.binary_search(&id)
        {
            self.released.insert(at, id);
        }
    }

    /// Those that nobody claims any more.
    pub(super) fn released(&self) -> impl Iterator<Item = (MemoryId, &Arena)> {
        self.released.iter().filter_map(|id| self.get(*id).map(|arena| (*id, arena)))
    }

    /// No replay can come any more, and none is under way: gives back what is free.
    pub(super) fn let_go(&mut self, id: MemoryId) {
        if let Some(arena) = self.get_mut(id) {
            arena.let_go();
            self.trim(id);
        }
    }

    /// Gives back what is free, and complete, of memory that was let go.
    pub(super) fn trim(&mut self, id: MemoryId) {
        if self.get_mut(id).is_some_and(trim) {
            self.all.remove(&id);
            self.released.retain(|other| *other != id);
        }
    }

    /// The same of all that was let go; of other memory, what is mapped nowhere.
    pub(super) fn trim_all(&mut self) {
        if self.has_loose_pages {
            let loose = self.iter_mut().filter(|(_, arena)| arena.keeps()).filter_map(|(_, arena)| {
                trim(arena);
                arena.has_loose_pages().then_some(())
            });
            self.has_loose_pages = loose.count() > 0;
        }
        for at in (0..self.released.len()).rev() {
            self.trim(self.released[at]);
        }
    }

    /// Memory that was allocated from may hold pages that are mapped nowhere: what a request left that failed.
    pub(super) fn note_loose_pages(&mut self, of: MemoryId) {
        self.has_loose_pages |= self.get(of).is_some_and(Arena::has_loose_pages);
    }

    /// The pool is at its end: gives everything back, but what a replay may still use. Better lost than taken from it.
    pub(super) fn tear_down(&mut self) {
        for arena in self.all.values_mut().filter(|arena| !arena.keeps()) {
            tear_down(arena);
        }
    }
}

/// Gives back what is free, and complete. Returns whether nothing is left of memory that was let go.
fn trim(arena: &mut Arena) -> bool {
    if let Err(error) = arena.trim(0) {
        tracing::warn!(%error, "memory of a capture could not be given back; it is tried again");
    }
    let is_left = |arena: &Arena| arena.keeps() || arena.allocated().0 > 0 || arena.held() > 0;
    // Only addresses are left else. Where they cannot be given back, that is tried again.
    !is_left(arena) && tear_down(arena)
}

/// Gives everything back, of memory without live blocks that nothing uses any more. Returns whether that succeeded.
fn tear_down(arena: &mut Arena) -> bool {
    let done = arena.tear_down();
    if let Err(error) = &done {
        tracing::warn!(%error, "the memory of a capture could not be given back");
    }
    done.is_ok()
}
