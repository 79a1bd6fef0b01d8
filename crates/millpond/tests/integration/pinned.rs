//! Pools of pinned host memory beside those of the device: whose bytes the CPU reads and writes in place, and when.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{Call, SimDevice, SimOptions};
use millpond::device::{DeviceError, MemoryKind, StreamHandle};
use millpond::testing::capturing::CapturingDevice;
use millpond::testing::checker::CheckerDevice;
use millpond::{Budget, Buffer, Context, Error, Limit, Pool, Stream};

use crate::shared::{Freeing, MIB};

/// The host device with a pool of each kind of memory.
struct Bench {
    device: std::sync::Arc<HostDevice>,
    context: Context,
    pool: Pool,
    pinned: Pool,
    stream: Stream,
    other: Stream,
}

impl Bench {
    fn new() -> Self {
        let device = HostDevice::with_options(HostOptions::default().capacity(256 * MIB)).unwrap();
        let context = Context::new(device.clone());
        let pool = Pool::builder(&context).build().unwrap();
        let pinned = context.pinned().unwrap().build().unwrap();
        let (stream, other) = (context.create_stream().unwrap(), context.create_stream().unwrap());
        Self { device, context, pool, pinned, stream, other }
    }

    /// Work that is pending until the sender is used, or dropped.
    fn hold(&self, stream: &Stream) -> mpsc::Sender<()> {
        let (release, released) = mpsc::channel();
        self.device.launch(stream.handle(), move || _ = released.recv()).unwrap();
        release
    }

    fn buffer(&self, pool: &Pool, value: u8, stream: &Stream) -> Buffer<u8> {
        Buffer::from_slice(pool, &vec![value; LEN], stream).unwrap()
    }
}

const LEN: usize = 100_000;

/// Whether it returns only after the hold is released.
fn waits<R: Send>(hold: mpsc::Sender<()>, call: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        let calling = scope.spawn(call);
        thread::sleep(Duration::from_millis(50));
        assert!(!calling.is_finished());
        drop(hold);
        calling.join().unwrap()
    })
}

#[test]
fn the_cpu_reads_what_the_device_wrote_and_writes_what_it_reads() {
    let bench = Bench::new();
    let mut staging = bench.buffer(&bench.pinned, 1, &bench.stream);
    assert!(staging.as_slice().unwrap().iter().all(|byte| *byte == 1));
    staging.as_mut_slice().unwrap().fill(2);
    let mut inputs = Buffer::<u8>::new(&bench.pool, LEN, &bench.other).unwrap();
    inputs.copy_from_pinned(&staging).unwrap();
    let mut back = Buffer::<u8>::zeroed(&bench.pinned, LEN, &bench.stream).unwrap();
    inputs.copy_to_pinned(&mut back).unwrap();
    assert_eq!(back.as_slice().unwrap(), vec![2; LEN]);
}

#[test]
fn a_slice_waits_for_the_buffers_stream() {
    let bench = Bench::new();
    let mut buffer = bench.buffer(&bench.pinned, 1, &bench.stream);
    let hold = bench.hold(&bench.stream);
    buffer.set_zero().unwrap();
    assert_eq!(waits(hold, || buffer.as_slice().unwrap()[LEN - 1]), 0);
    let hold = bench.hold(&bench.stream);
    waits(hold, || buffer.as_mut_slice().unwrap().fill(3));
    assert_eq!(buffer.to_vec().unwrap(), vec![3; LEN]);
}

#[test]
fn a_slice_for_writing_waits_for_copies_on_other_streams() {
    let bench = Bench::new();
    let mut staging = bench.buffer(&bench.pinned, 1, &bench.stream);
    let mut inputs = Buffer::<u8>::new(&bench.pool, LEN, &bench.other).unwrap();
    let hold = bench.hold(&bench.other);
    inputs.copy_from_pinned(&staging).unwrap();
    assert_eq!(staging.as_slice().unwrap()[0], 1, "others may read it too");
    waits(hold, || staging.as_mut_slice().unwrap().fill(2));
    assert_eq!(inputs.to_vec().unwrap(), vec![1; LEN]);
}

#[test]
fn a_slice_for_writing_waits_for_recorded_uses() {
    let bench = Bench::new();
    let mut staging = bench.buffer(&bench.pinned, 1, &bench.stream);
    let hold = bench.hold(&bench.other);
    staging.record_use(&bench.other).unwrap();
    waits(hold, || staging.as_mut_slice().unwrap()[0] = 2);
}

#[test]
fn a_write_comes_after_copies_on_other_streams() {
    let bench = Bench::new();
    for pool in [&bench.pool, &bench.pinned] {
        let mut source = bench.buffer(pool, 1, &bench.stream);
        let two = bench.buffer(pool, 2, &bench.stream);
        let mut copies = [(); 3].map(|()| Buffer::<u8>::new(&bench.pool, LEN, &bench.other).unwrap());
        for (at, copy) in copies.iter_mut().enumerate() {
            let hold = bench.hold(&bench.other);
            copy.copy_from(&source).unwrap();
            match at {
                0 => source.set_zero().unwrap(),
                1 => source.copy_from_slice(&vec![9; LEN]).unwrap(),
                _ => source.copy_from(&two).unwrap(),
            }
            thread::sleep(Duration::from_millis(20));
            assert!(!bench.stream.is_idle().unwrap(), "it waits for the copy");
            drop(hold);
        }
        assert_eq!(copies.map(|copy| copy.to_vec().unwrap()[LEN - 1]), [1, 0, 9]);
        assert_eq!(source.to_vec().unwrap(), vec![2; LEN]);
    }
}

#[test]
fn memory_that_the_cpu_cannot_read_is_refused() {
    let bench = Bench::new();
    let mut buffer = bench.buffer(&bench.pool, 1, &bench.stream);
    let refused = Error::NoHostAccess { pool: "pool".to_owned() };
    assert_eq!(buffer.as_slice().unwrap_err(), refused);
    assert_eq!(buffer.as_mut_slice().unwrap_err(), refused);
    let mut other = bench.buffer(&bench.pool, 2, &bench.stream);
    assert!(matches!(other.copy_from_pinned(&buffer), Err(Error::NotPinned { .. })));
    assert!(matches!(other.copy_to_pinned(&mut buffer), Err(Error::NotPinned { .. })));
    // A simulated device has no bytes.
    let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
    let stream = context.create_stream().unwrap();
    let pinned = context.pinned().unwrap().build().unwrap();
    let buffer = Buffer::<u8>::zeroed(&pinned, 4, &stream).unwrap();
    assert!(matches!(buffer.as_slice(), Err(Error::NoHostAccess { .. })));
}

#[test]
fn an_empty_buffer_is_an_empty_slice() {
    let bench = Bench::new();
    let mut buffer = Buffer::<u64>::new(&bench.pinned, 0, &bench.stream).unwrap();
    assert!(buffer.as_slice().unwrap().is_empty() && buffer.as_mut_slice().unwrap().is_empty());
}

#[test]
fn elements_of_wide_alignment_are_aligned() {
    #[derive(Clone, Copy)]
    #[repr(C, align(4096))]
    struct Wide([u8; 4096]);
    // SAFETY: bytes without padding, of which any are valid.
    unsafe impl bytemuck::Zeroable for Wide {}
    // SAFETY: as above.
    unsafe impl bytemuck::Pod for Wide {}
    let bench = Bench::new();
    // So that one of the next two would start at an odd multiple of 512 bytes.
    let _before = Buffer::<u8>::new(&bench.pinned, 512, &bench.stream).unwrap();
    let buffers = [(); 2].map(|()| Buffer::<Wide>::zeroed(&bench.pinned, 2, &bench.stream).unwrap());
    for buffer in &buffers {
        let slice = buffer.as_slice().unwrap();
        assert_eq!((slice.as_ptr().addr() % 4096, slice[1].0[4095]), (0, 0));
    }
}

#[test]
fn a_slice_is_refused_during_a_capture_which_goes_on() {
    let host = HostDevice::new().unwrap();
    let device = CapturingDevice::new(host);
    let context = Context::new(device.clone());
    let stream = context.create_stream().unwrap();
    let pinned = context.pinned().unwrap().build().unwrap();
    let mut buffer = Buffer::<u8>::from_slice(&pinned, &[1; 4], &stream).unwrap();
    let memory = pinned.capture_pool();
    let capturing = memory.begin(&stream).unwrap();
    device.begin_capture(stream.handle()).unwrap();
    buffer.set_zero().unwrap();
    assert!(matches!(buffer.as_slice(), Err(Error::Device(DeviceError::Invalid { .. }))));
    assert!(matches!(buffer.as_mut_slice(), Err(Error::Device(DeviceError::Invalid { .. }))));
    let graph = device.end_capture(stream.handle()).expect("no rule was broken");
    drop(capturing);
    assert_eq!(buffer.as_slice().unwrap(), [1; 4]);
    // SAFETY: the buffer is live, and no slice of it.
    unsafe { device.launch(&graph, stream.handle()) }.unwrap();
    assert_eq!(buffer.as_slice().unwrap(), [0; 4]);
}

#[test]
fn a_slice_for_writing_is_refused_while_another_streams_capture_uses_it() {
    let device = CapturingDevice::new(HostDevice::new().unwrap());
    let context = Context::new(device.clone());
    let (stream, other) = (context.create_stream().unwrap(), context.create_stream().unwrap());
    let pinned = context.pinned().unwrap().build().unwrap();
    let mut buffer = Buffer::<u8>::from_slice(&pinned, &[1; 4], &stream).unwrap();
    let memory = pinned.capture_pool();
    let capturing = memory.begin(&other).unwrap();
    device.begin_capture(other.handle()).unwrap();
    buffer.record_use(&other).unwrap();
    assert!(matches!(buffer.as_mut_slice(), Err(Error::Device(DeviceError::Invalid { .. }))));
    device.end_capture(other.handle()).expect("no rule was broken");
    drop(capturing);
    buffer.as_mut_slice().unwrap().fill(2);
}

#[test]
fn limits_hold_for_pinned_memory_and_errors_name_it() {
    let bench = Bench::new();
    let limited = bench.context.pinned().unwrap().name("staging").hard_limit(8 * MIB).build().unwrap();
    let Err(Error::OutOfMemory(report)) = limited.alloc(9 * MIB, &bench.stream) else { panic!("it fits") };
    assert_eq!((report.memory, report.limit), (MemoryKind::Pinned, Limit::HardLimit(8 * MIB)));
    let text = report.to_string();
    assert!(
        text.starts_with("out of pinned host memory in pool 'staging'") && text.contains("The host has"),
        "{text}"
    );
    let Err(Error::OutOfMemory(report)) = bench.pinned.alloc(257 * MIB, &bench.stream) else {
        panic!("it fits")
    };
    assert_eq!((report.pool.as_str(), report.device_total), ("pinned", 256 * MIB));
    assert!(format!("{:?}", bench.pinned).contains("host:0 (pinned host memory)"));
    // One budget may be of both.
    let budget = Budget::bytes(16 * MIB);
    let both = [Pool::builder(&bench.context), bench.context.pinned().unwrap()]
        .map(|builder| builder.budget(&budget).build().unwrap());
    let block = both[0].alloc(10 * MIB, &bench.stream).unwrap();
    assert!(matches!(both[1].alloc(10 * MIB, &bench.stream), Err(Error::OutOfMemory(_))));
    both[0].free_block(block, &bench.stream).unwrap();
}

/// Of another memory nothing would be gained.
#[test]
fn shortage_of_one_memory_takes_nothing_from_pools_of_the_other() {
    let options = SimOptions::default().capacity(256 * MIB).pinned_capacity(128 * MIB);
    let (sim, context, stream) = crate::shared::sim_with(options);
    let pool = Pool::builder(&context).build().unwrap();
    let pinned = [(); 2].map(|()| context.pinned().unwrap().build().unwrap());
    for (pool, bytes) in [(&pool, 200 * MIB), (&pinned[0], 100 * MIB)] {
        let block = pool.alloc(bytes, &stream).unwrap();
        pool.free_block(block, &stream).unwrap();
    }
    let kept = pinned[1].alloc(120 * MIB, &stream).unwrap();
    assert_eq!(pool.reserved().current, 200 * MIB);
    assert_eq!(pinned[0].reserved().current, 0, "the other pool of the same memory gave way");
    let Err(Error::OutOfMemory(report)) = pinned[0].alloc(20 * MIB, &stream) else { panic!("it fits") };
    assert_eq!((report.other_pools, report.device_total), (120 * MIB, 128 * MIB));
    context.free_block(kept, &stream).expect("the context finds its pool");
    assert_eq!(sim.calls()[Call::Pinned], 1, "one device for all pools");
}

#[test]
fn pinned_memory_that_cannot_be_had_is_an_error() {
    let (sim, context, _) = crate::shared::sim(MIB * 64);
    sim.fail_next(Call::Pinned, 1, DeviceError::Unavailable("none today".to_owned()));
    assert!(matches!(context.pinned(), Err(Error::Device(DeviceError::Unavailable(_)))));
    let _builder = context.pinned().unwrap();
    let error = context.pinned_on_node(1).unwrap_err();
    assert!(matches!(error, Error::Device(DeviceError::Unsupported { .. })), "{error}");
}

#[test]
fn pinned_memory_outlives_the_handles_of_device_and_pool() {
    let bench = Bench::new();
    let buffer = bench.buffer(&bench.pinned, 5, &bench.stream);
    drop(bench);
    assert_eq!(buffer.as_slice().unwrap()[LEN - 1], 5);
}

/// Copies in both directions and fills, on three streams without a wait of the host, watched by the checker.
#[test]
fn overlapped_copies_keep_the_order_and_their_contents() {
    for virtual_memory in [true, false] {
        let options = HostOptions::default().capacity(256 * MIB).virtual_memory(virtual_memory);
        let checker = CheckerDevice::new(HostDevice::with_options(options).unwrap());
        {
            let context = Context::new(checker.clone());
            let pool = Pool::builder(&context).build().unwrap();
            let pinned = context.pinned().unwrap().build().unwrap();
            let [upload, compute, download] = [(); 3].map(|()| context.create_stream().unwrap());
            let mut staging = [(); 2].map(|()| Buffer::<u8>::new(&pinned, LEN, &upload).unwrap());
            let mut results = Vec::new();
            for batch in 0..20_u8 {
                let staging = &mut staging[usize::from(batch) % 2];
                staging.as_mut_slice().unwrap().fill(batch);
                let mut inputs = Buffer::<u8>::new(&pool, LEN, &upload).unwrap();
                inputs.copy_from_pinned(staging).unwrap();
                let mut outputs = Buffer::<u8>::new(&pool, LEN, &compute).unwrap();
                outputs.copy_from(&inputs).unwrap();
                let mut result = Buffer::<u8>::new(&pinned, LEN, &download).unwrap();
                outputs.copy_to_pinned(&mut result).unwrap();
                results.push(result);
            }
            for (batch, result) in results.iter().enumerate() {
                assert!(result.as_slice().unwrap().iter().all(|byte| usize::from(*byte) == batch));
            }
        }
        checker.verify_nothing_left().unwrap();
    }
}

#[test]
fn a_pinned_pool_trims_and_applies_its_threshold() {
    let bench = Bench::new();
    let pool = bench.context.pinned().unwrap().release_threshold(4 * MIB).build().unwrap();
    drop(Buffer::<u8>::zeroed(&pool, 40 * MIB as usize, &bench.stream).unwrap());
    bench.stream.synchronize().unwrap();
    assert!(pool.reserved().current <= 4 * MIB);
    pool.reserve(40 * MIB, &bench.stream).unwrap();
    assert!(pool.trim_to(0).unwrap() >= 40 * MIB);
    let free = pool.memory_info().unwrap();
    assert_eq!(free.free, free.total);
    // SAFETY: every device has it.
    assert!(unsafe { pool.device().stream_is_idle(StreamHandle::LEGACY) }.unwrap());
}
