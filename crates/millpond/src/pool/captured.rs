//! How a pool finds, frees and lets go of the memory of captures: see `capture_memory`.

use super::capture_memory::MemoryId;
use super::inner::{PoolInner, PoolState};
use crate::device::DevicePtr;
use crate::extents::{Arena, ExtentId, Pointer};
use crate::order::Stream;

impl PoolState {
    /// The memory of a capture in whose address space the pointer lies.
    pub(super) fn captured_at(&self, ptr: DevicePtr) -> Option<MemoryId> {
        if self.captured.is_empty() {
            return None;
        }
        let id = MemoryId(self.arena.owner_of(ptr)?.memory?);
        self.captured.get(id).map(|_| id)
    }

    /// The pool's own arena, and those of captures.
    #[cfg(feature = "record")]
    pub(super) fn arenas(&self) -> impl Iterator<Item = &Arena> {
        std::iter::once(&self.arena).chain(self.captured.iter().map(|(_, arena)| arena))
    }

    /// The same, to be changed.
    pub(super) fn arenas_mut(&mut self) -> impl Iterator<Item = &mut Arena> {
        std::iter::once(&mut self.arena).chain(self.captured.iter_mut().map(|(_, arena)| arena))
    }

    /// The ranges of addresses that pages back: first address, bytes, and the memory of a capture that they belong to.
    pub(super) fn backed(&self) -> Vec<(DevicePtr, u64, Option<u64>)> {
        let own = self.arena.backed().into_iter().map(|(start, bytes)| (start, bytes, None));
        let of_captures = self.captured.iter().flat_map(|(id, arena)| {
            arena.backed().into_iter().map(move |(start, bytes)| (start, bytes, Some(id.0)))
        });
        own.chain(of_captures).collect()
    }

    /// What the pointer is to any of them.
    pub(super) fn look_up(&self, ptr: DevicePtr) -> Pointer {
        let captured = self.captured_at(ptr).and_then(|id| self.captured.get(id));
        captured.unwrap_or(&self.arena).look_up(ptr)
    }

    /// The arena in whose address space the pointer lies; the pool's own if it lies in none.
    pub(super) fn arena_of(&mut self, ptr: DevicePtr) -> &mut Arena {
        let captured = self.captured_at(ptr).and_then(|id| self.captured.get_mut(id));
        captured.unwrap_or(&mut self.arena)
    }
}

impl PoolInner {
    /// Frees a live block of the memory of a capture. `false`, and nothing done, where it is none.
    pub(super) fn free_captured(
        &self,
        state: &mut PoolState,
        memory: MemoryId,
        id: ExtentId,
        stream: &Stream,
    ) -> bool {
        let Some(arena) = state.captured.get_mut(memory) else { return false };
        let (requested, size) = (arena.requested(id), arena.bytes(id));
        if !arena.free(id, stream.fence()) {
            return false;
        }
        let last_of_released = !arena.keeps() && arena.allocated().0 == 0;
        self.caches.count_free(&mut state.locked, requested, size);
        if last_of_released {
            state.captured.trim(memory);
        }
        true
    }

    /// Lets go of the memory of captures that nobody claims any more. It does so once the work that was under way when
    /// the last claim went is complete. Returns whether there was any. While a capture is under way the device cannot
    /// be waited for: the end of the last one calls this again. The wait may also fail: so does whoever has waited for
    /// the device, or is short of memory.
    pub(super) fn let_go_of_released(&self) -> bool {
        let mut waiting = Vec::new();
        if self.sleep_gate.is_closed() {
            // The wake calls this again.
            return false;
        }
        {
            let state = self.state.lock();
            for (id, _) in state.captured.released().filter(|(_, arena)| arena.keeps()) {
                // Without memory for the list, the others go another time.
                if waiting.try_reserve(1).is_err() {
                    break;
                }
                waiting.push(id);
            }
        }
        if waiting.is_empty() {
            return false;
        }
        // Without the pool's lock.
        match self.timelines.synchronize_device_unless_capturing() {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                tracing::warn!(%error, pool = self.name, "the memory of a capture is kept: the device cannot be waited for");
                return false;
            }
        }
        let mut state = self.state.lock();
        if state.asleep.is_some() {
            return false;
        }
        waiting.into_iter().for_each(|id| state.captured.let_go(id));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::capture_memory::VISITS;
    use crate::device::DevicePtr;
    use crate::extents::LOOKS;
    use crate::fixtures::{Bench, Freeing, MIB};
    use crate::order::Stream;

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
        let live = || memory.used();
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
        blocks.iter().for_each(|block| pool.free_block(*block, &stream).unwrap());
        assert_eq!(live(), 0);
        pool.check().unwrap();
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
        assert!(captures.iter().all(|(memory, _)| memory.used() == 0 && memory.reserved() > 0));
        // Also where some of them are gone.
        let kept: Vec<_> =
            captures.into_iter().enumerate().filter(|(at, _)| at % 3 == 0).map(|(_, kept)| kept.0).collect();
        let capturing = kept[7].begin(&stream).unwrap();
        let block = pool.alloc(1 << 20, &stream).unwrap();
        assert!(kept[7].used() > 0);
        drop(capturing);
        pool.free_block(block, &stream).unwrap();
        drop(kept);
        assert!(pool.inner().state.lock().captured.is_empty());
        pool.check().unwrap();
    }
}
