//! Memory taken in advance.

use super::allocating::{check_request, refuse_impossible};
use super::making_room::under_pressure;
use super::pool_core::Core;
use crate::device::MemoryKind;
use crate::error::Result;
use crate::extents::Effort;
use crate::order::Stream;
use crate::physical::Refusal;

/// See [`Pool::reserve`](crate::Pool::reserve).
pub(crate) fn reserve(core: &Core, bytes: u64, stream: &Stream) -> Result<()> {
    core.check_process()?;
    check_request(core, bytes, 1, stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let attempt = || try_reserve(core, bytes, stream);
    match attempt()? {
        Ok(()) => Ok(()),
        Err(first) => under_pressure(core, (bytes, 1), stream, first, attempt),
    }
}

/// Makes a free range of `bytes`, without a block of the program's.
fn try_reserve(core: &Core, bytes: u64, stream: &Stream) -> Result<std::result::Result<(), Refusal>> {
    refuse_impossible(core, bytes, stream)?;
    let mut state = core.state.lock();
    core.check_allocates(&state)?;
    core.empty_caches(&mut state);
    // A device takes a segment of pinned memory several times as fast as pages of it.
    let effort = match core.device.properties().memory {
        MemoryKind::Pinned => Effort::TakeSegment,
        MemoryKind::Device | MemoryKind::Managed => Effort::Map(state.ledger.balance(core.now())),
    };
    let arena = &mut state.arenas.own;
    let found = arena.alloc((core.caches.sizes().units(bytes), 1), stream, effort);
    Ok(found.map(|found| {
        // SAFETY: the block is allocated, and the arena is this pool's.
        let is_free =
            found.is_some_and(|found| arena.take_back(unsafe { found.descriptor.get() }, stream.fence()));
        debug_assert!(is_free, "it was just allocated, and nobody was told");
    }))
}

#[cfg(test)]
mod tests {
    use crate::device::sim::{Call, SimDevice, SimOptions};
    use crate::error::Error;
    use crate::pool::{Context, Pool};

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_was_reserved_is_allocated_without_a_device_call() {
        for virtual_memory in [true, false] {
            let sim = SimDevice::new(SimOptions::default().virtual_memory(virtual_memory)).unwrap();
            let context = Context::new(sim.clone());
            let stream = context.create_stream().unwrap();
            let others = [context.pinned(), context.managed()].map(Result::unwrap);
            for builder in others.into_iter().chain([Pool::builder(&context)]) {
                let pool = builder.build().unwrap();
                pool.reserve(100 * MIB, &stream).unwrap();
                pool.check().unwrap();
                let (reserved, peak) = (pool.reserved().current, pool.allocated().high);
                assert!((100 * MIB..=102 * MIB).contains(&reserved), "{reserved}");
                assert_eq!(peak, 0, "no block of the program's was live");
                let calls = sim.calls().memory_management();
                let blocks: Vec<_> = (0..4).map(|_| pool.alloc(25 * MIB, &stream).unwrap()).collect();
                assert_eq!((sim.calls().memory_management(), pool.reserved().current), (calls, reserved));
                // SAFETY: nobody else has the blocks, and there is no work on them.
                blocks.into_iter().for_each(|block| unsafe { pool.free(block, &stream) }.unwrap());
                pool.reserve(100 * MIB, &stream).unwrap();
                assert_eq!(pool.reserved().current, reserved, "it is there already");
                pool.check().unwrap();
            }
        }
    }

    #[test]
    fn blocks_in_segments_are_found_without_the_lock() {
        for virtual_memory in [true, false] {
            let sim = SimDevice::new(SimOptions::default().virtual_memory(virtual_memory)).unwrap();
            let context = Context::new(sim);
            let stream = context.create_stream().unwrap();
            let pool = context.pinned().unwrap().build().unwrap();
            for round in 0..8 {
                pool.reserve(100 * MIB, &stream).unwrap();
                // Without pages, there are more segments than that one.
                let count = if virtual_memory { 4 } else { 40 };
                let blocks: Vec<_> = (0..count).map(|_| pool.alloc(25 * MIB, &stream).unwrap()).collect();
                // SAFETY: null is no block.
                unsafe { pool.free(crate::device::DevicePtr::NULL, &stream) }.unwrap();
                let is_found = |ptr| pool.inner().caches.page_map.find_plain(ptr).is_some();
                assert!(blocks.iter().all(|&ptr| is_found(ptr)), "round {round}");
                // SAFETY: nobody else has the blocks, and there is no work on them.
                blocks.into_iter().for_each(|block| unsafe { pool.free(block, &stream) }.unwrap());
                stream.synchronize().unwrap();
                pool.trim_to(0).unwrap();
                pool.check().unwrap();
                assert_eq!(pool.reserved().current, 0);
            }
        }
    }

    #[test]
    fn a_reserve_beyond_a_limit_is_out_of_memory() {
        let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
        let stream = context.create_stream().unwrap();
        let pool = context.pinned().unwrap().hard_limit(64 * MIB).build().unwrap();
        assert!(matches!(pool.reserve(65 * MIB, &stream), Err(Error::OutOfMemory(_))));
        pool.check().unwrap();
        assert_eq!(pool.reserved().current, 0);
    }

    #[test]
    fn a_reserve_that_fails_half_way_loses_nothing() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let context = Context::new(sim.clone());
        let stream = context.create_stream().unwrap();
        let pools = [Pool::builder(&context), context.pinned().unwrap()].map(|pool| pool.build().unwrap());
        let [of_device, pinned] = &pools;
        let pages =
            [Call::CreatePage, Call::Map, Call::SetAccess, Call::Reserve].map(|call| (of_device, call));
        for (pool, call) in pages.into_iter().chain([(pinned, Call::AllocSegment)]) {
            let error = crate::device::DeviceError::Unavailable("asked for".to_owned());
            sim.fail_next(call, 3.min(1 + sim.calls()[call]), error);
            let done = pool.reserve(300 * MIB, &stream);
            assert!(done.is_err() || call == Call::Reserve, "{}", call.name());
            sim.fail_no_more();
            pool.check().unwrap();
            pool.trim_to(0).unwrap();
            assert_eq!(pool.reserved().current, 0);
        }
    }
}
