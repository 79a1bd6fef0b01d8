//! What programs ask of pools, streams and figures, as they would write it.

use std::collections::HashSet;
use std::panic::catch_unwind;

use millpond::device::sim::Call;
use millpond::device::{DeviceError, DevicePtr, MemoryInfo};
use millpond::{Budget, Buffer, Context, Error, HumanBytes, Pool, ReusePolicies, Stats, Workspace};

use crate::shared::{Freeing, MIB, sim};

#[test]
fn no_request_sees_what_another_left_in_a_zeroed_pool() {
    let context = Context::host().unwrap();
    let build = |zeroed| Pool::builder(&context).zeroed(zeroed).build().unwrap();
    let seen = |pool: &Pool| {
        let stream = pool.create_stream().unwrap();
        for len in [64, 1 << 20] {
            drop(Buffer::from_slice(pool, &vec![7_u8; len], &stream).unwrap());
        }
        let small = Buffer::<u8>::uninit(pool, 64, &stream).unwrap().to_vec().unwrap();
        let large = Buffer::<u8>::new(pool, 1 << 20, &stream).unwrap().to_vec().unwrap();
        small.into_iter().chain(large).any(|byte| byte == 7)
    };
    assert!(seen(&build(false)), "the blocks come again");
    assert!(!seen(&build(true)));
}

#[test]
fn a_simulated_device_has_no_elements_to_read() {
    let (sim, context, stream) = sim(64 * MIB);
    let pool = Pool::builder(&context).build().unwrap();
    let workspace = Workspace::new(&pool, 4096, &stream).unwrap();
    let buffer = Buffer::from_slice(&pool, &[7_u32; 4], &stream).unwrap();
    let mut seen = [1; 4];
    let before = sim.calls()[Call::CopyToHost];
    let reads = [
        buffer.copy_to_slice(&mut seen),
        buffer.to_vec().map(drop),
        buffer.slice(1..2).unwrap().to_vec().map(drop),
        workspace.alloc::<u32>(4).unwrap().to_vec().map(drop),
    ];
    for read in reads {
        let refused = read.unwrap_err();
        assert!(matches!(refused, Error::Device(DeviceError::Unsupported { .. })), "{refused}");
        assert!(refused.to_string().contains("Context::host()"), "it says which device to use: {refused}");
    }
    assert_eq!((seen, sim.calls()[Call::CopyToHost]), ([1; 4], before), "nothing was asked of it");
    // Copies between buffers cost what they cost, and no elements can be read.
    buffer.try_clone().unwrap().fill(9).unwrap();
    assert_eq!(buffer.slice(..0).unwrap().to_vec(), Ok(vec![]));
}

#[test]
fn a_block_that_cannot_be_zeroed_is_given_back() {
    let (sim, context, stream) = sim(64 * MIB);
    let pool = Pool::builder(&context).zeroed(true).build().unwrap();
    let failure = DeviceError::Unavailable("planned".to_owned());
    for _ in 0..2 {
        sim.fail_next(Call::Memset, 1, failure.clone());
        assert_eq!(pool.alloc(MIB, &stream), Err(Error::Device(failure.clone())));
        sim.fail_next(Call::Memset, 1, failure.clone());
        assert_eq!(pool.alloc_zeroed(MIB, &stream), Err(Error::Device(failure.clone())));
        assert_eq!(pool.stats().blocks.current, 0);
        pool.check().unwrap();
    }
    let before = sim.calls()[Call::Memset];
    let block = pool.alloc_zeroed(MIB, &stream).unwrap();
    assert_eq!(sim.calls()[Call::Memset], before + 1, "it is set once");
    pool.free_block(block, &stream).unwrap();
}

#[test]
fn limits_are_read_and_changed() {
    let (_sim, context, stream) = sim(64 * MIB);
    let budget = Budget::bytes(48 * MIB);
    let pool = Pool::builder(&context).hard_limit(8 * MIB).headroom(2 * MIB).budget(&budget).build().unwrap();
    assert_eq!((pool.hard_limit(), pool.headroom()), (Some(8 * MIB), 2 * MIB));
    assert_eq!(pool.budget().map(Budget::limit), Some(48 * MIB));
    assert!(matches!(pool.alloc(16 * MIB, &stream), Err(Error::OutOfMemory(_))));
    pool.set_hard_limit(Some(16 * MIB));
    let block = pool.alloc(16 * MIB, &stream).unwrap();
    pool.set_hard_limit(None);
    assert_eq!(pool.hard_limit(), None);
    pool.set_headroom(56 * MIB);
    assert_eq!(pool.headroom(), 56 * MIB);
    let error = pool.alloc(4 * MIB, &stream).unwrap_err();
    assert!(error.to_string().contains("headroom"), "{error}");
    pool.set_headroom(0);
    let more = pool.alloc(4 * MIB, &stream).unwrap();
    for block in [block, more] {
        pool.free_block(block, &stream).unwrap();
    }
    assert!(Pool::builder(&context).build().unwrap().budget().is_none());
}

#[test]
fn an_idle_pool_is_not_fragmented() {
    let (_sim, context, stream) = sim(64 * MIB);
    let pool = Pool::builder(&context).build().unwrap();
    let block = pool.alloc(1000, &stream).unwrap();
    assert!(pool.stats().fragmentation() > 0.9);
    pool.free_block(block, &stream).unwrap();
    let stats = pool.stats();
    assert_eq!((stats.fragmentation(), stats.cached()), (0.0, pool.reserved().current));
    assert_eq!((stats.allocated, stats.reserved.current > 0), (pool.allocated(), true));
}

#[test]
fn handles_are_equal_where_they_name_the_same() {
    let (device, context, stream) = sim(64 * MIB);
    let pools = ["one", "other"].map(|name| Pool::builder(&context).name(name).build().unwrap());
    assert!(pools[0] == pools[0].clone() && pools[0] != pools[1]);
    assert!(context == pools[0].context() && context != Context::new(device));
    #[expect(clippy::mutable_key_type, reason = "a stream is known by what does not change")]
    let streams = HashSet::from([stream.clone(), pools[0].create_stream().unwrap(), stream.clone()]);
    assert_eq!(streams.len(), 2);
}

#[test]
fn a_panic_may_be_caught_beside_pools_and_buffers() {
    let (_sim, context, stream) = sim(64 * MIB);
    let pool = Pool::builder(&context).build().unwrap();
    let event = stream.record().unwrap();
    let caught = catch_unwind(|| {
        let buffer = Buffer::<u8>::zeroed(&pool, 100, &stream).unwrap();
        assert!(event.query().unwrap() && buffer.is_empty(), "planned");
    });
    assert!(caught.is_err());
    assert_eq!(pool.stats().blocks.current, 0, "it was freed");
    pool.check().unwrap();
}

#[test]
fn figures_convert_and_are_written_and_read() {
    assert_eq!(HumanBytes::from(3 << 20).to_string(), "3.00 MiB");
    assert_eq!(u64::from(DevicePtr::from(0x1000)), 0x1000);
    let (_sim, context, _stream) = sim(64 * MIB);
    let info = context.memory_info().unwrap();
    let told = serde_json::to_string(&(info, ReusePolicies::NONE, Stats::default())).unwrap();
    let read: (MemoryInfo, ReusePolicies, Stats) = serde_json::from_str(&told).unwrap();
    assert_eq!(read, (info, ReusePolicies::NONE, Stats::default()));
}

#[test]
fn a_fraction_is_of_a_context_or_its_device() {
    let (sim, context, _stream) = sim(64 * MIB);
    let half = |budget: millpond::Result<Budget>| assert_eq!(budget.unwrap().limit(), 32 * MIB);
    half(Budget::fraction(&context, 0.5));
    half(Budget::fraction(context.device(), 0.5));
    half(Budget::fraction(context.device().as_ref(), 0.5));
    half(Budget::fraction(sim.as_ref(), 0.5));
    assert!(matches!(Budget::fraction(&context, 1.5), Err(Error::BadOption { option: "budget", .. })));
}
