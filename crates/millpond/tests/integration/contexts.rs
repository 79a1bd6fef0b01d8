//! A context lives as long as anything of it, and is one for each device of the process.

use std::sync::{Arc, Weak};

use millpond::device::Device;
use millpond::device::sim::{Call, SimDevice, SimOptions};
use millpond::{Buffer, Context, Error, Pool, Result, Stream};

use crate::processes::alone;
use crate::shared::{Freeing, MIB, sim};

fn is_same(one: &Context, other: &Context) -> bool {
    Arc::ptr_eq(one.device(), other.device())
}

/// Keeps a pool, and asks for the device again where it needs a stream.
struct Server {
    pool: Pool,
}

impl Server {
    fn new() -> Result<Self> {
        Ok(Self { pool: Pool::builder(&Context::host()?).build()? })
    }

    fn stream(&self) -> Result<Stream> {
        Context::host()?.create_stream()
    }
}

#[test]
fn a_pool_keeps_the_context_that_is_asked_for_again() {
    alone("a_pool_keeps_the_context_that_is_asked_for_again", || {
        let server = Server::new().unwrap();
        let buffer = Buffer::<f32>::zeroed(&server.pool, 16, &server.stream().unwrap()).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [0.0; 16]);
        let context = server.pool.context();
        assert!(is_same(&context, &Context::host().unwrap()));
    });
}

#[test]
fn buffers_streams_and_events_keep_their_context() {
    alone("buffers_streams_and_events_keep_their_context", || {
        let device = Arc::downgrade(Context::host().unwrap().device());
        assert!(device.upgrade().is_none(), "nobody had it");
        let is_kept = |device: &Weak<dyn Device>| {
            let here = Context::host().unwrap();
            device.upgrade().is_some_and(|device| Arc::ptr_eq(&device, here.device()))
        };
        let stream = Context::host().unwrap().create_stream().unwrap();
        let device = Arc::downgrade(stream.device());
        assert!(is_kept(&device), "by a stream");
        let event = stream.record().unwrap();
        drop(stream);
        assert!(is_kept(&device), "by an event");
        let buffer = {
            let context = Context::host().unwrap();
            let pool = Pool::builder(&context).build().unwrap();
            Buffer::from_slice(&pool, &[1_u32; 4], &pool.create_stream().unwrap()).unwrap()
        };
        drop(event);
        assert!(is_kept(&device), "by a buffer");
        assert_eq!(buffer.to_vec().unwrap(), [1; 4]);
        drop(buffer);
        assert!(device.upgrade().is_none(), "nobody has anything of it");
    });
}

#[test]
fn the_default_pool_is_one_while_anybody_has_it_or_a_stream() {
    alone("the_default_pool_is_one_while_anybody_has_it_or_a_stream", || {
        let default = || Context::host().unwrap().default_pool().unwrap();
        let allocations = |pool: Pool| pool.stats().allocations;
        let stream = Context::host().unwrap().create_stream().unwrap();
        drop(Buffer::<u8>::zeroed(&default(), 100, &stream).unwrap());
        assert_eq!(allocations(stream.context().default_pool().unwrap()), 1);
        let pool = default();
        drop(stream);
        assert_eq!(allocations(default()), 1, "by the pool itself");
        assert_eq!(allocations(pool.context().default_pool().unwrap()), 1);
        drop(pool);
        assert_eq!(allocations(default()), 0, "a new one");
    });
}

#[test]
fn the_current_pool_stays_current_while_it_is_held() {
    alone("the_current_pool_stays_current_while_it_is_held", || {
        let mine = Pool::builder(&Context::host().unwrap()).name("mine").build().unwrap();
        mine.context().set_current_pool(Some(&mine)).unwrap();
        assert_eq!(Context::host().unwrap().current_pool().unwrap().name(), "mine");
        assert_eq!(mine.context().set_current_pool(None).unwrap().unwrap().name(), "mine");
        assert_eq!(Context::host().unwrap().current_pool().unwrap().name(), "default");
    });
}

#[test]
fn a_stream_finds_its_context_and_its_pools_find_each_other() {
    let (_sim, context, stream) = sim(64 * MIB);
    let pool = Pool::builder(&context).build().unwrap();
    drop(context);
    assert!(is_same(&stream.context(), &pool.context()));
    let other = Pool::builder(&pool.context()).name("other").build().unwrap();
    let block = other.alloc(100, &stream).unwrap();
    assert!(matches!(pool.free_block(block, &stream), Err(Error::WrongPool { .. })));
    stream.context().free_block(block, &stream).unwrap();
}

#[test]
fn a_block_that_is_never_freed_does_not_keep_its_device() {
    let (sim, context, stream) = sim(64 * MIB);
    let kept = Pool::builder(&context).name("kept").build().unwrap();
    let pool = Pool::builder(&context).build().unwrap();
    let block = pool.alloc(MIB, &stream).unwrap();
    drop((pool, context, stream));
    // Whoever still has a pool finds the one that has the block.
    let (context, stream) = (kept.context(), kept.create_stream().unwrap());
    let error = kept.free_block(block, &stream).unwrap_err();
    assert!(matches!(error, Error::WrongPool { .. }), "{error}");
    drop((context, stream, kept));
    assert_eq!(Arc::strong_count(&sim), 1);
}

#[test]
fn a_stream_that_cannot_be_made_leaves_pool_and_context_as_they_are() {
    let (sim, context, stream) = sim(64 * MIB);
    let pool = Pool::builder(&context).build().unwrap();
    let failure = millpond::device::DeviceError::Unavailable("planned".to_owned());
    sim.fail_next(Call::CreateStream, 1, failure.clone());
    assert_eq!(pool.create_stream().unwrap_err(), Error::Device(failure));
    let made = pool.create_stream().unwrap();
    assert_ne!(made.id(), stream.id());
    let block = pool.alloc(100, &made).unwrap();
    pool.free_block(block, &made).unwrap();
    pool.check().unwrap();
}

#[test]
fn a_stream_of_another_context_of_the_device_is_told_so() {
    let (sim, context, _stream) = sim(64 * MIB);
    let pool = Pool::builder(&context).name("mine").build().unwrap();
    let other = Context::new(sim).create_stream().unwrap();
    let error = pool.alloc(100, &other).unwrap_err();
    assert!(
        error.to_string().contains("another context of the same device: use one of Pool::context"),
        "{error}"
    );
}

#[test]
fn a_default_pool_with_evicted_memory_does_not_keep_its_device() {
    let (sim, context, stream) = sim(64 * MIB);
    let pool = context.default_pool().unwrap();
    let part = pool.tagged("part").unwrap();
    let buffer = Buffer::<u8>::zeroed(&part, 4 << 20, &stream).unwrap();
    part.evict(&stream).unwrap();
    assert_eq!(part.reserved().current, 0);
    drop((buffer, part, pool, context, stream));
    assert_eq!(Arc::strong_count(&sim), 1);
}

#[test]
fn current_pools_that_are_for_all_devices_keep_none_of_them() {
    let sims = SimDevice::group(2, SimOptions::default()).unwrap();
    let contexts = [0, 1].map(|number| Context::new(sims[number].clone()));
    for context in &contexts {
        let pool = Pool::builder(context).accessible_from(&contexts).build().unwrap();
        context.set_current_pool(Some(&pool)).unwrap();
    }
    drop(contexts);
    assert!(sims.iter().all(|sim| Arc::strong_count(sim) == 1));
}
