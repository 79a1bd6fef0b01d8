//! Memory that is taken in advance.

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
    let pages = [Call::CreatePage, Call::Map, Call::SetAccess, Call::Reserve].map(|call| (of_device, call));
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
