//! The arenas of a pool: its own, and those that keep their pages. All stand under the pool's lock, limits and counters.
//!
//! What a graph uses must be where it was at every replay, which nobody tells the pool of. So an arena for captures *keeps*
//! its pages and their addresses (`Arena::that_keeps`): only captures that share the arena can reuse freed memory, at the same
//! addresses or at others. Once the last claim is gone, no replay can come. The host waits for those under way. Then the
//! arena *lets go*: free memory goes back, and live blocks once they are freed.

use std::collections::BTreeMap;

use crate::device::{DevicePtr, DeviceResult};
use crate::extents::{self, Arena, Gone, Leaving, Pointer};
use crate::log::log;
use crate::order::{Fence, Stream};

/// Names an arena that keeps its pages, among all of this process, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ArenaId(pub(crate) u64);

/// See the [module](self). The end of a claim, a free and a trim cost the same however many arenas keep their pages.
#[derive(Debug)]
pub(crate) struct Arenas {
    /// Whose pages move.
    pub(crate) own: Arena,
    keeping: BTreeMap<ArenaId, Box<Arena>>,
    /// Those whose last claim is gone, in that order, and that still keep their pages. With room for all.
    released: Vec<ArenaId>,
    /// Those that were let go, and are not gone yet. With room for all.
    let_go: Vec<ArenaId>,
    /// Those that keep their pages, and may hold some that a request in vain left parked. With room for all.
    failed: Vec<ArenaId>,
    /// How many segments were taken to be given back, and are not settled.
    under_way: usize,
}

#[cfg(test)]
thread_local! {
    /// Arenas besides the own that this thread looked at.
    static VISITS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Arenas {
    pub(crate) fn new(own: Arena) -> Self {
        let (keeping, released, let_go, failed, under_way) = Default::default();
        Self { own, keeping, released, let_go, failed, under_way }
    }

    /// Adds one that keeps its pages.
    pub(crate) fn add(&mut self, id: ArenaId) {
        self.keeping.insert(id, Box::new(self.own.that_keeps(id.0)));
        // Here, so that the end of a claim takes no memory.
        self.released.reserve(self.keeping.len() - self.released.len());
        self.let_go.reserve(self.keeping.len() - self.let_go.len());
        self.failed.reserve(self.keeping.len() - self.failed.len());
    }

    /// The one with this id, or the pool's own.
    pub(crate) fn named_mut(&mut self, id: Option<ArenaId>) -> Option<&mut Arena> {
        let Some(id) = id else { return Some(&mut self.own) };
        #[cfg(test)]
        VISITS.set(VISITS.get() + 1);
        self.keeping.get_mut(&id).map(|arena| &mut **arena)
    }

    /// All: first the pool's own, then the others in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Option<ArenaId>, &Arena)> {
        let others = self.keeping.iter().map(|(id, arena)| (Some(*id), &**arena));
        std::iter::once((None, &self.own)).chain(others)
    }

    /// The same, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Option<ArenaId>, &mut Arena)> {
        let others = self.keeping.iter_mut().map(|(id, arena)| (Some(*id), &mut **arena));
        std::iter::once((None, &mut self.own)).chain(others)
    }

    /// Notes that the stream uses all memory of all: see [`Arena::record_use_of_all`].
    #[must_use]
    pub(crate) fn record_use_of_all(&mut self, stream: &Stream) -> bool {
        self.iter_mut().all(|(_, arena)| arena.record_use_of_all(stream))
    }

    // ---- by address ------------------------------------------------------------------------------

    /// Which arena besides the own has the pointer in its address space.
    pub(crate) fn keeping_at(&self, ptr: DevicePtr) -> Option<ArenaId> {
        if self.keeping.is_empty() {
            return None;
        }
        let id = ArenaId(self.own.owner_of(ptr)?.memory?);
        self.keeping.contains_key(&id).then_some(id)
    }

    /// What the pointer is, and the arena in whose address space it lies; the pool's own if it lies in none.
    pub(crate) fn look_up(&mut self, ptr: DevicePtr) -> (Pointer, &mut Arena) {
        let id = self.keeping_at(ptr);
        let arena = self.named_mut(id).expect("one that was just found is there");
        (arena.look_up(ptr), arena)
    }

    /// Takes back a live block of any arena. Returns the bytes that were asked for and those allocated; what else the pointer is,
    /// and nothing done, where it is none.
    pub(crate) fn free(&mut self, ptr: DevicePtr, fence: Fence) -> Result<(u64, u64), Pointer> {
        let (pointer, arena) = self.look_up(ptr);
        let Pointer::Live(id) = pointer else { return Err(pointer) };
        let sizes = (arena.requested(id), arena.bytes(id));
        if !arena.free(id, fence) {
            return Err(pointer);
        }
        if !arena.keeps() && arena.blocks() == 0 {
            self.trim();
        }
        Ok(sizes)
    }

    // ---- claims ----------------------------------------------------------------------------------

    /// The last claim is gone.
    pub(crate) fn release(&mut self, id: ArenaId) {
        self.released.push(id);
    }

    /// The last one that nobody claims any more, and that still keeps its pages.
    pub(crate) fn newest_released(&self) -> Option<ArenaId> {
        self.released.last().copied()
    }

    /// Of those released until then, no replay can come any more, and none is under way: gives back what is free.
    pub(crate) fn let_go_until(&mut self, newest: ArenaId) {
        let until = self.released.iter().position(|id| *id == newest).map_or(0, |at| at + 1);
        for id in self.released.drain(..until) {
            self.keeping.get_mut(&id).into_iter().for_each(|arena| arena.let_go());
            self.let_go.push(id);
        }
        self.trim();
    }

    // ---- giving back -----------------------------------------------------------------------------

    /// Gives back what is free, and complete, of all arenas that were let go.
    pub(crate) fn trim(&mut self) {
        let Self { keeping, let_go, .. } = self;
        let_go.retain(|id| {
            let Some(arena) = keeping.get_mut(id) else { return false };
            #[cfg(test)]
            VISITS.set(VISITS.get() + 1);
            let torn_down = extents::tear_down(arena);
            let is_gone = torn_down.is_ok() && is_empty(arena);
            if let Err(error) = torn_down {
                log!(WARN, "memory of a capture could not be given back; it is tried again", error);
            }
            if is_gone {
                keeping.remove(id);
            }
            !is_gone
        });
    }

    /// A request to one that keeps its pages failed. The pages that it leaves parked go with the next trim.
    pub(crate) fn note_failed(&mut self, id: ArenaId) {
        if !self.failed.contains(&id) {
            self.failed.push(id);
        }
    }

    /// Gives back what requests in vain left parked, until at most `keep` bytes are reserved: no graph uses that.
    pub(crate) fn trim_parked(&mut self, keep: u64) {
        let Self { keeping, failed, .. } = self;
        failed.retain(|id| {
            let Some(arena) = keeping.get_mut(id).filter(|arena| arena.keeps()) else { return false };
            if let Err(error) = extents::trim(arena, keep) {
                log!(WARN, "memory of a capture could not be given back; it is tried again", error);
            }
            arena.has_parked()
        });
    }

    /// The work that must be complete before everything free can be given back.
    pub(crate) fn fence_of_all_free(&self) -> Fence {
        let mut fence = extents::fence_of_all_free(&self.own);
        for arena in self.let_go.iter().filter_map(|id| self.keeping.get(id)) {
            _ = fence.try_join(&extents::fence_of_all_free(arena));
        }
        fence
    }

    /// Forgets the pages that have no memory now, and hold no live byte. Those that a graph may use stay.
    pub(crate) fn forget_gone(&mut self) {
        for (id, arena) in self.iter_mut() {
            if (id.is_none() || !arena.keeps())
                && let Err(error) = extents::forget_gone(arena)
            {
                log!(WARN, "memory of a pool that sleeps could not be given back", error);
            }
        }
    }

    /// Takes the segments that leave, to be given back without the lock, and [settled](Self::settle).
    pub(crate) fn take_leaving(&mut self) -> Vec<Leaving> {
        let mut taken = Vec::new();
        // Nearly always there are none.
        if self.own.pages.counters.leaving.current() > 0 {
            self.iter_mut().for_each(|(_, arena)| extents::take_leaving(arena, &mut taken));
            self.under_way += taken.len();
        }
        taken
    }

    /// Whether segments are given back now.
    pub(crate) fn any_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// Ends what [`take_leaving`](Self::take_leaving) began, for one segment. Returns the bytes that the driver has again.
    pub(crate) fn settle(&mut self, gone: Gone) -> DeviceResult<u64> {
        self.under_way -= 1;
        let id = gone.leaving.memory.map(ArenaId);
        let arena = self.named_mut(id).expect("an arena stays as long as it holds memory");
        let freed = extents::settle(arena, gone);
        if let Some(id) = id
            && !arena.keeps()
            && is_empty(arena)
        {
            self.keeping.remove(&id);
            self.let_go.retain(|other| *other != id);
        }
        freed
    }

    /// The pool is at its end: gives everything back, but what a replay may still use. Better lost than taken from it.
    pub(crate) fn tear_down(&mut self) -> DeviceResult<()> {
        self.trim();
        extents::tear_down(&mut self.own)
    }
}

/// Whether an arena holds nothing, addresses included: those stay while its memory is away with its tag.
fn is_empty(arena: &Arena) -> bool {
    arena.held() == 0 && !arena.has_addresses()
}

#[cfg(test)]
mod tests {
    use super::VISITS;
    use crate::device::DevicePtr;
    use crate::device::sim::{SimDevice, SimOptions};
    use crate::extents::LOOKS;
    use crate::fixtures::{Bench, Freeing, MIB};
    use crate::order::Stream;
    use crate::pool::{Context, Pool};

    #[test]
    fn blocks_of_a_capture_are_live_again_where_they_were() {
        let Bench { context, pool, stream, .. } = Bench::new(|pool| pool);
        let other = context.create_stream().unwrap();
        let memory = pool.capture_pool();
        let alloc = |sizes: &[u64], stream: &Stream| -> Vec<DevicePtr> {
            let _capturing = memory.begin_where(|_| true).unwrap();
            sizes.iter().map(|bytes| pool.alloc(*bytes, stream).unwrap()).collect()
        };
        let sizes = [1000, 3 * MIB, 5 * MIB, 512, 2 * MIB];
        let blocks = alloc(&sizes, &stream);
        let live = || memory.allocated();
        let used = live();
        blocks.iter().for_each(|block| pool.free_block(*block, &stream).unwrap());
        // The memory is cut up otherwise, and freed by several streams.
        let others = alloc(&[MIB; 9], &other);
        let again = || {
            let each = blocks.iter().zip(sizes);
            each.map(|(block, bytes)| memory.alloc_at((*block, bytes), &stream).unwrap()).collect::<Vec<_>>()
        };
        assert!(!memory.alloc_at((blocks[1], sizes[1]), &stream).unwrap(), "something else lies there");
        for (turn, block) in others.into_iter().enumerate() {
            pool.free_block(block, if turn % 2 == 0 { &stream } else { &other }).unwrap();
        }
        assert_eq!(again(), [true; 5]);
        assert_eq!(live(), used);
        assert_eq!(again(), [false; 5], "they are live");
        pool.check().unwrap();
        assert!(!memory.alloc_at((DevicePtr::new(1 << 50), 1000), &stream).unwrap());
        assert!(!memory.alloc_at((blocks[0], 0), &stream).unwrap(), "no bytes lie nowhere");
        blocks.iter().for_each(|block| pool.free_block(*block, &stream).unwrap());
        assert_eq!(live(), 0);
        pool.check().unwrap();
    }

    #[test]
    fn blocks_whose_pages_moved_are_live_again_where_they_were() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let memory = pool.capture_pool();
        let alloc = |bytes| {
            let _capturing = memory.begin_where(|_| true).unwrap();
            pool.alloc(bytes, &stream).unwrap()
        };
        let blocks = [8 * MIB; 3].map(alloc);
        pool.free_block(blocks[0], &stream).unwrap();
        pool.free_block(blocks[2], &stream).unwrap();
        let long = alloc(16 * MIB);
        assert!(pool.stats().pages_remapped > 0);
        assert_eq!(memory.reserved(), 24 * MIB);
        let again = |at: usize| memory.alloc_at((blocks[at], 8 * MIB), &stream).unwrap();
        assert_eq!([0, 1, 2].map(again), [false; 3], "their pages are in use");
        pool.free_block(long, &stream).unwrap();
        assert_eq!([0, 1, 2].map(again), [true, false, true]);
        assert_eq!((memory.allocated(), memory.reserved()), (24 * MIB, 24 * MIB));
        assert!(!memory.alloc_at((long, 16 * MIB), &stream).unwrap());
        pool.check().unwrap();
        blocks.iter().for_each(|block| pool.free_block(*block, &stream).unwrap());
        let both = long.raw() + 16 * MIB - blocks[0].raw();
        assert!(!memory.alloc_at((blocks[0], both), &stream).unwrap(), "a page cannot be at both addresses");
        pool.check().unwrap();
        assert!(memory.alloc_at((long, 16 * MIB), &stream).unwrap());
        pool.check().unwrap();
    }

    #[test]
    fn a_free_in_segments_looks_for_no_block_under_the_lock() {
        let context = Context::new(SimDevice::new(SimOptions::default().virtual_memory(false)).unwrap());
        let (pool, stream) = (Pool::builder(&context).build().unwrap(), context.create_stream().unwrap());
        let blocks = [3 * MIB, 512, 40 * MIB].map(|bytes| pool.alloc(bytes, &stream).unwrap());
        let before = LOOKS.get();
        blocks.into_iter().for_each(|block| pool.free_block(block, &stream).unwrap());
        assert_eq!(LOOKS.get(), before);
    }

    #[test]
    fn backed_ranges_hold_every_block_and_what_is_reserved() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let memory = pool.capture_pool();
        let own = pool.alloc(3 << 20, &stream).unwrap();
        let capturing = memory.begin(&stream).unwrap();
        let captured = pool.alloc(5 << 20, &stream).unwrap();
        drop(capturing);
        let backed = pool.inner().backed();
        assert_eq!(backed.iter().map(|(_, bytes, _)| bytes).sum::<u64>(), pool.reserved().current);
        for (block, of) in [(own, None), (captured, Some(memory.number()))] {
            let around = backed
                .iter()
                .find(|(start, bytes, _)| (start.raw()..start.raw() + bytes).contains(&block.raw()));
            assert_eq!(around.unwrap().2, of);
            assert_eq!(pool.inner().memory_of(block), of);
            pool.free_block(block, &stream).unwrap();
        }
    }

    /// How many captures' memory is looked at by: the end of a claim on empty memory, a free of a captured block, a free of
    /// the pool's own, the free of the last block of memory that nobody claims any more, and a wait of the host's.
    fn visits_beside(captures: usize) -> [usize; 5] {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let make = || {
            let memory = pool.capture_pool();
            let capturing = memory.begin(&stream).unwrap();
            let block = pool.alloc(1 << 20, &stream).unwrap();
            drop(capturing);
            (memory, block)
        };
        let beside: Vec<_> = (0..captures).map(|_| make()).collect();
        let visits = |act: &dyn Fn()| {
            let before = VISITS.get();
            act();
            VISITS.get() - before
        };
        let free = |block| visits(&|| pool.free_block(block, &stream).unwrap());
        let empty = std::cell::Cell::new(Some(pool.capture_pool()));
        let end = visits(&|| drop(empty.take()));
        let own = free(pool.alloc(3 << 20, &stream).unwrap());
        let (released, last) = make();
        drop(released);
        let held = pool.reserved().current;
        let last = free(last);
        assert!(pool.reserved().current < held);
        let waited = visits(&|| stream.synchronize().unwrap());
        [end, free(beside[0].1), own, last, waited]
    }

    #[test]
    fn what_ends_or_is_freed_visits_no_other_capture() {
        let visits = visits_beside(3);
        assert_eq!(visits_beside(300), visits);
        assert!(visits.iter().all(|visits| *visits <= 6), "{visits:?}");
    }

    #[test]
    fn a_captured_blocks_owner_is_found_in_few_looks() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let own = pool.alloc(3 << 20, &stream).unwrap();
        let captures: Vec<_> = (0..50)
            .map(|_| {
                let memory = pool.capture_pool();
                let capturing = memory.begin(&stream).unwrap();
                let block = pool.alloc(1 << 20, &stream).unwrap();
                drop(capturing);
                (memory, block)
            })
            .collect();
        for block in captures.iter().map(|(_, block)| *block).chain([own]) {
            let before = LOOKS.get();
            pool.free_block(block, &stream).unwrap();
            assert!(LOOKS.get() - before <= 2, "{} looks", LOOKS.get() - before);
        }
        pool.check().unwrap();
        assert!(captures.iter().all(|(memory, _)| memory.allocated() == 0 && memory.reserved() > 0));
        // Also where some of them are gone.
        let kept: Vec<_> =
            captures.into_iter().enumerate().filter(|(at, _)| at % 3 == 0).map(|(_, kept)| kept.0).collect();
        let capturing = kept[7].begin(&stream).unwrap();
        let block = pool.alloc(1 << 20, &stream).unwrap();
        assert!(kept[7].allocated() > 0);
        drop(capturing);
        pool.free_block(block, &stream).unwrap();
        drop(kept);
        assert!(pool.inner().state.lock().arenas.iter().count() == 1);
        pool.check().unwrap();
    }
}
