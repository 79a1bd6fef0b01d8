//! Pools of managed memory beside those of the device: where their blocks lie, and what was said of them.

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{Call, SimDevice, SimOptions};
use millpond::device::{DeviceError, MemoryKind};
use millpond::testing::capturing::CapturingDevice;
use millpond::testing::checker::CheckerDevice;
use millpond::{Advice, Buffer, Context, Error, Limit, Place, Pool, Residency, Stream};

use crate::shared::{Freeing, MIB};

const LEN: usize = 100_000;

/// The host device with a pool of its own and of managed memory.
struct Bench {
    context: Context,
    pool: Pool,
    managed: Pool,
    stream: Stream,
    other: Stream,
}

impl Bench {
    fn new() -> Self {
        let device = HostDevice::with_options(HostOptions::default().capacity(256 * MIB)).unwrap();
        let context = Context::new(device);
        let pool = Pool::builder(&context).build().unwrap();
        let managed = context.managed().unwrap().build().unwrap();
        let (stream, other) = (context.create_stream().unwrap(), context.create_stream().unwrap());
        Self { context, pool, managed, stream, other }
    }

    fn buffer(&self, value: u8) -> Buffer<u8> {
        Buffer::from_slice(&self.managed, &vec![value; LEN], &self.stream).unwrap()
    }
}

#[test]
fn the_cpu_and_the_device_use_the_same_bytes_wherever_they_lie() {
    let bench = Bench::new();
    let mut data = bench.buffer(1);
    for (value, place) in [(2, Place::Device), (3, Place::Host), (4, Place::Device)] {
        data.as_mut_slice().unwrap().fill(value);
        data.prefetch(place, &bench.stream).unwrap();
        let mut copy = Buffer::<u8>::new(&bench.pool, LEN, &bench.other).unwrap();
        copy.copy_from(&data).unwrap();
        assert_eq!(copy.to_vec().unwrap(), vec![value; LEN]);
        assert_eq!(data.residency().unwrap().last_prefetch, Some(place));
        assert_eq!(data.as_slice().unwrap(), vec![value; LEN]);
    }
}

#[test]
fn a_buffer_is_prefetched_on_any_stream_of_its_context() {
    let bench = Bench::new();
    let data = bench.buffer(1);
    data.prefetch(Place::Device, &bench.other).unwrap();
    bench.other.synchronize().unwrap();
    assert_eq!(data.residency().unwrap().last_prefetch, Some(Place::Device));
    let elsewhere = Context::new(HostDevice::new().unwrap());
    let stream = elsewhere.create_stream().unwrap();
    assert!(matches!(data.prefetch(Place::Host, &stream), Err(Error::WrongDevice { .. })));
}

/// The memory is not given to others while a prefetch of it is pending.
#[test]
fn a_block_is_kept_until_prefetches_on_other_streams_are_done() {
    let (sim, context, stream) = crate::shared::sim(256 * MIB);
    let other = context.create_stream().unwrap();
    let pool = context.managed().unwrap().build().unwrap();
    let hold = sim.hold(other.handle()).unwrap();
    let buffer = Buffer::<u8>::new(&pool, 3 * MIB as usize, &stream).unwrap();
    let at = buffer.ptr();
    buffer.prefetch(Place::Device, &other).unwrap();
    drop(buffer);
    let third = context.create_stream().unwrap();
    let next = pool.alloc(3 * MIB, &third).unwrap();
    assert!(next != at || !third.is_idle().unwrap(), "it waits for the prefetch");
    sim.release(hold);
    pool.free_block(next, &third).unwrap();
    context.synchronize().unwrap();
    pool.check().unwrap();
}

#[test]
fn advice_goes_with_the_buffer() {
    let bench = Bench::new();
    for advice in [
        Advice::ReadMostly(true),
        Advice::PreferredLocation(Some(Place::Device)),
        Advice::AccessedBy(Place::Host, true),
    ] {
        let buffer = bench.buffer(1);
        let at = buffer.ptr();
        assert_eq!(buffer.residency().unwrap(), Residency::default(), "before {advice:?}");
        buffer.advise(advice).unwrap();
        let said = buffer.residency().unwrap();
        assert_eq!(said.read_mostly, advice == Advice::ReadMostly(true));
        assert_eq!(said.preferred.is_some(), matches!(advice, Advice::PreferredLocation(_)));
        drop(buffer);
        assert_eq!(bench.buffer(2).ptr(), at, "the next one has the same memory");
    }
}

#[test]
fn advice_of_a_plain_block_goes_when_it_is_taken_back() {
    let bench = Bench::new();
    let block = bench.managed.alloc(MIB, &bench.stream).unwrap();
    bench.managed.advise(block, Advice::ReadMostly(true)).unwrap();
    bench.managed.prefetch(block, Place::Host, &bench.other).unwrap();
    bench.other.synchronize().unwrap();
    let said = bench.managed.residency(block).unwrap();
    assert_eq!((said.read_mostly, said.last_prefetch), (true, Some(Place::Host)));
    bench.managed.take_back_advice(block).unwrap();
    assert!(!bench.managed.residency(block).unwrap().read_mostly);
    bench.managed.free_block(block, &bench.stream).unwrap();
    let freed = bench.managed.prefetch(block, Place::Host, &bench.stream);
    assert!(matches!(freed, Err(Error::DoubleFree { .. })), "{freed:?}");
    let null = millpond::device::DevicePtr::NULL;
    bench.managed.prefetch(null, Place::Host, &bench.stream).unwrap();
    assert_eq!(bench.managed.residency(null), Ok(Residency::default()));
}

/// Pages of the system are 4 KiB on most, and never smaller.
#[test]
fn advice_is_for_the_pages_that_are_the_buffers_alone() {
    let bench = Bench::new();
    let page = rustix::param::page_size();
    let small = [(); 2].map(|()| Buffer::<u8>::new(&bench.managed, 3 * page / 2, &bench.stream).unwrap());
    small[0].advise(Advice::ReadMostly(true)).unwrap();
    assert!(!small[1].residency().unwrap().read_mostly, "its neighbour");
    let tiny = Buffer::<u8>::new(&bench.managed, 100, &bench.stream).unwrap();
    tiny.advise(Advice::ReadMostly(true)).unwrap();
    assert!(!tiny.residency().unwrap().read_mostly, "it has no page of its own");
    let aligned = bench.context.managed().unwrap().min_alignment(page as u64).build().unwrap();
    let tiny = Buffer::<u8>::new(&aligned, 100, &bench.stream).unwrap();
    tiny.advise(Advice::ReadMostly(true)).unwrap();
    assert!(tiny.residency().unwrap().read_mostly);
}

#[test]
fn other_memory_is_refused() {
    let bench = Bench::new();
    let pinned = bench.context.pinned().unwrap().build().unwrap();
    for pool in [&bench.pool, &pinned] {
        let buffer = Buffer::<u8>::zeroed(pool, LEN, &bench.stream).unwrap();
        let name = pool.name().to_owned();
        let refused = |what| Error::NotManaged { what, pool: name.clone() };
        assert_eq!(buffer.prefetch(Place::Host, &bench.stream), Err(refused("Buffer::prefetch")));
        assert_eq!(buffer.advise(Advice::ReadMostly(true)), Err(refused("Buffer::advise")));
        assert_eq!(buffer.residency(), Err(refused("Buffer::residency")));
    }
    let mut data = bench.buffer(1);
    let device = Buffer::<u8>::zeroed(&bench.pool, LEN, &bench.stream).unwrap();
    assert!(matches!(device.copy_to_pinned(&mut data), Err(Error::NotPinned { .. })));
    // SAFETY: refused.
    let plain = unsafe { bench.context.prefetch_slice(&[1_u8; 4], Place::Device, &bench.stream) };
    assert!(matches!(plain, Err(Error::Device(DeviceError::Unsupported { .. }))), "{plain:?}");
}

#[test]
fn an_empty_buffer_moves_nowhere() {
    let bench = Bench::new();
    let buffer = Buffer::<u64>::new(&bench.managed, 0, &bench.stream).unwrap();
    buffer.prefetch(Place::Device, &bench.stream).unwrap();
    buffer.advise(Advice::ReadMostly(true)).unwrap();
    assert_eq!(buffer.residency(), Ok(Residency::default()));
}

#[test]
fn a_prefetch_is_refused_during_a_capture_which_goes_on() {
    let device = CapturingDevice::new(HostDevice::new().unwrap());
    let context = Context::new(device.clone());
    let stream = context.create_stream().unwrap();
    let managed = context.managed().unwrap().build().unwrap();
    let mut buffer = Buffer::<u8>::from_slice(&managed, &[1; 4], &stream).unwrap();
    let memory = managed.capture_pool();
    let capturing = memory.begin(&stream).unwrap();
    device.begin_capture(stream.handle()).unwrap();
    buffer.set_zero().unwrap();
    let refused = buffer.prefetch(Place::Device, &stream);
    assert!(matches!(refused, Err(Error::Device(DeviceError::Invalid { .. }))), "{refused:?}");
    device.end_capture(stream.handle()).expect("no rule was broken");
    drop(capturing);
    assert_eq!(buffer.as_slice().unwrap(), [1; 4]);
}

#[test]
fn limits_hold_for_managed_memory_and_errors_name_it() {
    let bench = Bench::new();
    let limited = bench.context.managed().unwrap().name("tables").hard_limit(8 * MIB).build().unwrap();
    let Err(Error::OutOfMemory(report)) = limited.alloc(9 * MIB, &bench.stream) else { panic!("it fits") };
    assert_eq!((report.memory, report.limit), (MemoryKind::Managed, Limit::HardLimit(8 * MIB)));
    assert!(report.to_string().starts_with("out of managed memory in pool 'tables'"), "{report}");
    assert!(format!("{:?}", bench.managed).contains("host:0 (managed memory)"));
    let block = bench.managed.alloc(3 * MIB, &bench.stream).unwrap();
    bench.managed.free_block(block, &bench.stream).unwrap();
    bench.context.synchronize().unwrap();
    bench.managed.trim_to(0).unwrap();
    let info = bench.managed.memory_info().unwrap();
    assert_eq!(info.free, info.total);
}

#[test]
fn managed_memory_that_cannot_be_had_is_an_error() {
    let (sim, context, _) = crate::shared::sim(64 * MIB);
    sim.fail_next(Call::Managed, 1, DeviceError::Unavailable("none today".to_owned()));
    assert!(matches!(context.managed(), Err(Error::Device(DeviceError::Unavailable(_)))));
    let _builders = [(); 2].map(|()| context.managed().unwrap());
    assert_eq!(sim.calls()[Call::Managed], 2, "one device for all pools");
}

/// More than the card has: what a job would wait for its pages.
#[test]
fn a_job_larger_than_the_simulated_card_runs_and_says_what_it_costs() {
    let run = |card: u64| {
        let (sim, context, stream) = crate::shared::sim(card);
        let pool = context.managed().unwrap().build().unwrap();
        let blocks = [(); 8].map(|()| pool.alloc(16 * MIB, &stream).unwrap());
        for _ in 0..3 {
            for block in blocks {
                sim.touch(block, 16 * MIB, stream.handle()).unwrap();
            }
        }
        blocks.into_iter().for_each(|block| pool.free_block(block, &stream).unwrap());
        sim.managed_stats()
    };
    let (small, large) = (run(64 * MIB), run(256 * MIB));
    assert_eq!((large.faults, large.bytes_to_device, large.bytes_to_host), (64, 0, 0));
    assert_eq!((small.faults, small.bytes_to_device), (3 * 64, 2 * 128 * MIB));
    assert!(small.time > 3 * large.time, "{:?} and {:?}", small.time, large.time);
}

/// Prefetches in both directions beside work on other streams, watched by the checker.
#[test]
fn moves_beside_work_keep_the_order_and_the_contents() {
    let options = HostOptions::default().capacity(256 * MIB);
    let checker = CheckerDevice::new(HostDevice::with_options(options).unwrap());
    {
        let context = Context::new(checker.clone());
        let managed = context.managed().unwrap().build().unwrap();
        let [mover, compute] = [(); 2].map(|()| context.create_stream().unwrap());
        let mut inputs = [(); 2].map(|()| Buffer::<u8>::new(&managed, LEN, &compute).unwrap());
        for batch in 0..20_u8 {
            let input = &mut inputs[usize::from(batch) % 2];
            input.as_mut_slice().unwrap().fill(batch);
            input.prefetch(Place::Device, &mover).unwrap();
            compute.wait_for(&mover).unwrap();
            let mut output = Buffer::<u8>::new(&managed, LEN, &compute).unwrap();
            output.advise(Advice::PreferredLocation(Some(Place::Host))).unwrap();
            output.copy_from(input).unwrap();
            output.prefetch(Place::Host, &compute).unwrap();
            assert_eq!(output.as_slice().unwrap(), vec![batch; LEN]);
        }
    }
    checker.verify_nothing_left().unwrap();
}

#[test]
fn a_simulated_device_has_no_slices() {
    let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
    let stream = context.create_stream().unwrap();
    let managed = context.managed().unwrap().build().unwrap();
    let buffer = Buffer::<u8>::zeroed(&managed, 4, &stream).unwrap();
    assert!(matches!(buffer.as_slice(), Err(Error::NoHostAccess { .. })));
}
