//! Parts of buffers: they read, write and copy what they name and nothing else, in the order of all other uses.

use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use millpond::device::DeviceError;
use millpond::device::host::HostDevice;
use millpond::device::sim::Call;
use millpond::{Buffer, BufferView, Context, Error, Pool, Stream, Workspace};

use crate::shared::{MIB, sim};

/// A host device whose pools and streams are its own, so that work on it can be made slow.
struct Bench {
    device: std::sync::Arc<HostDevice>,
    context: Context,
    pool: Pool,
    stream: Stream,
}

impl Bench {
    fn new() -> Self {
        let device = HostDevice::new().unwrap();
        let context = Context::new(device.clone());
        let (pool, stream) = (Pool::builder(&context).build().unwrap(), context.create_stream().unwrap());
        Self { device, context, pool, stream }
    }

    fn numbers(&self, len: u32) -> Buffer<u32> {
        Buffer::from_slice(&self.pool, &(0..len).collect::<Vec<_>>(), &self.stream).unwrap()
    }

    fn slow(&self, stream: &Stream) {
        self.device.launch(stream.handle(), || sleep(Duration::from_millis(50))).unwrap();
    }
}

#[test]
fn a_part_is_read_and_written_alone() {
    let bench = Bench::new();
    let mut buffer = bench.numbers(8);
    assert_eq!(buffer.slice(2..5).unwrap().to_vec().unwrap(), [2, 3, 4]);
    buffer.slice_mut(..2).unwrap().copy_from_slice(&[20, 21]).unwrap();
    buffer.slice_mut(6..).unwrap().set_zero().unwrap();
    buffer.slice_mut(3..=4).unwrap().fill(0x0102_0304).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [20, 21, 2, 0x0102_0304, 0x0102_0304, 5, 0, 0]);
    let (one, other) = buffer.slice(1..).unwrap().split_at(3).unwrap();
    assert_eq!((one.len(), other.len(), other.ptr()), (3, 4, buffer.ptr().offset(16)));
    let mut read = [0; 4];
    other.copy_to_slice(&mut read).unwrap();
    assert_eq!(read, [0x0102_0304, 5, 0, 0]);
}

#[test]
fn ranges_that_there_are_not_are_refused() {
    let bench = Bench::new();
    let mut buffer = bench.numbers(8);
    let refused = |result: millpond::Result<BufferView<'_, u32>>| {
        assert!(matches!(result, Err(Error::OutOfRange { len: 8, .. })), "{result:?}");
    };
    refused(buffer.slice(3..9));
    #[expect(clippy::reversed_empty_ranges, reason = "a mistake that is refused")]
    refused(buffer.slice(5..3));
    refused(buffer.slice(9..));
    refused(buffer.slice(..=usize::MAX));
    assert!(buffer.slice(8..).unwrap().is_empty());
    assert!(buffer.split_at_mut(9).is_err() && buffer.copy_within(0..5, 4).is_err());
    assert!(buffer.copy_within(0..2, usize::MAX).is_err());
    let text = buffer.slice(3..9).unwrap_err().to_string();
    assert!(text.contains("elements 3 to 9 were asked for, of 8"), "{text}");
    let other = bench.numbers(3);
    let copied = buffer.slice_mut(0..4).unwrap().copy_from(&other);
    assert!(matches!(copied, Err(Error::LengthMismatch { found: 3, expected: 4, .. })));
    assert_eq!(buffer.to_vec().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7], "nothing changed");
}

#[test]
fn every_length_is_filled_with_every_kind_of_value() {
    let bench = Bench::new();
    for len in [0, 1, 2, 1023, 1024, 1025, 5000] {
        let mut buffer = Buffer::<u32>::zeroed(&bench.pool, len + 2, &bench.stream).unwrap();
        for value in [0x0101_0101, 0x0102_0304] {
            buffer.slice_mut(1..=len).unwrap().fill(value).unwrap();
            let read = buffer.to_vec().unwrap();
            assert!(read[1..=len].iter().all(|element| *element == value), "{len}");
            assert_eq!((read[0], read[len + 1]), (0, 0), "{len}");
        }
    }
}

#[test]
fn elements_move_within_a_buffer_also_over_each_other() {
    let bench = Bench::new();
    for (from, to) in [(0..3, 4), (1..6, 3), (3..8, 1), (2..2, 7), (0..8, 0)] {
        let mut buffer = bench.numbers(8);
        let mut expected: Vec<u32> = (0..8).collect();
        expected.copy_within(from.clone(), to);
        buffer.copy_within(from.clone(), to).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), expected, "{from:?} to {to}");
    }
    assert_eq!(bench.pool.stats().blocks.current, 0, "what was taken for it is free");
    bench.pool.check().unwrap();
}

#[test]
fn a_part_read_on_another_stream_is_not_written_before() {
    let bench = Bench::new();
    let other = bench.context.create_stream().unwrap();
    for round in 0..5 {
        let mut source = bench.numbers(8);
        let mut target = Buffer::<u32>::zeroed(&bench.pool, 2, &other).unwrap();
        bench.slow(&other);
        target.as_view_mut().copy_from(source.slice(4..6).unwrap()).unwrap();
        let (mut first, mut second) = source.split_at_mut(5).unwrap();
        // Either half waits for the copy, whose part lies in both.
        if round % 2 == 0 {
            first.fill(9).unwrap()
        } else {
            second.fill(9).unwrap()
        }
        first.fill(8).unwrap();
        second.fill(8).unwrap();
        assert_eq!(target.to_vec().unwrap(), [4, 5]);
        assert_eq!(source.to_vec().unwrap(), [8; 8]);
    }
}

#[test]
fn threads_write_parts_while_others_read_them_elsewhere() {
    let bench = Bench::new();
    let mut buffer = Buffer::<u32>::zeroed(&bench.pool, 4096, &bench.stream).unwrap();
    let (mut low, mut high) = buffer.split_at_mut(2048).unwrap();
    scope(|scope| {
        for (part, seed) in [(&mut low, 1), (&mut high, 1 << 16)] {
            let bench = &bench;
            scope.spawn(move || {
                let other = bench.context.create_stream().unwrap();
                for round in 0..50 {
                    part.fill(seed + round).unwrap();
                    let mut copy = Buffer::<u32>::uninit(&bench.pool, 2048, &other).unwrap();
                    copy.as_view_mut().copy_from(&*part).unwrap();
                    part.fill(0).unwrap();
                    assert!(copy.to_vec().unwrap().iter().all(|element| *element == seed + round), "{round}");
                }
            });
        }
    });
    assert_eq!(buffer.to_vec().unwrap(), [0; 4096]);
}

#[test]
fn a_clone_a_longer_buffer_and_another_stream_keep_the_elements() {
    let bench = Bench::new();
    let mut buffer = bench.numbers(4);
    let clone = buffer.try_clone().unwrap();
    buffer.resize(6).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [0, 1, 2, 3, 0, 0]);
    buffer.resize(2).unwrap();
    assert_eq!((buffer.to_vec().unwrap(), buffer.byte_len()), (vec![0, 1], 8));
    assert_eq!(clone.to_vec().unwrap(), [0, 1, 2, 3]);
    let other = bench.context.create_stream().unwrap();
    bench.slow(&bench.stream);
    buffer.fill(7).unwrap();
    let buffer = buffer.on_stream(&other).unwrap();
    assert_eq!(buffer.stream(), &other);
    assert_eq!(buffer.to_vec().unwrap(), [7, 7], "it waits for what its stream was given before");
    assert_eq!(buffer.pool().unwrap(), bench.pool);
    let (stranger, _kept) =
        (Context::new(HostDevice::new().unwrap()).create_stream().unwrap(), buffer.pool());
    assert!(matches!(buffer.on_stream(&stranger), Err(Error::WrongDevice { .. })));
    drop(clone);
    assert_eq!(bench.pool.stats().blocks.current, 0);
}

#[test]
fn a_buffer_of_a_pool_that_is_gone_says_so() {
    let bench = Bench::new();
    let mut buffer = bench.numbers(4);
    let Bench { pool, .. } = bench;
    let named = pool.name().to_owned();
    drop(pool);
    assert_eq!(buffer.pool().unwrap_err(), Error::PoolDestroyed { pool: named });
    assert!(matches!(buffer.try_clone(), Err(Error::PoolDestroyed { .. })));
    assert!(matches!(buffer.resize(8), Err(Error::PoolDestroyed { .. })));
    buffer.slice_mut(1..2).unwrap().fill(9).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [0, 9, 2, 3]);
}

#[test]
fn bytes_are_elements_of_other_types_where_they_fit() {
    let bench = Bench::new();
    let mut buffer = Buffer::from_slice(&bench.pool, &[1.0_f32, 2.0, 4.0], &bench.stream).unwrap();
    assert_eq!(buffer.as_view().cast::<u32>().unwrap().to_vec().unwrap()[0], 1.0_f32.to_bits());
    assert!(matches!(buffer.as_view().cast::<u64>(), Err(Error::LengthMismatch { found: 12, .. })));
    assert!(matches!(buffer.as_view().cast::<()>(), Err(Error::LengthMismatch { .. })));
    let odd = buffer.slice(1..).unwrap();
    assert!(matches!(odd.cast::<u64>(), Err(Error::BadAlignment { align: 8, .. })));
    buffer.as_view_mut().cast::<u8>().unwrap().slice_mut(0..4).unwrap().set_zero().unwrap();
    let bits = buffer.cast::<u32>().unwrap();
    assert_eq!(bits.to_vec().unwrap(), [0, 2.0_f32.to_bits(), 4.0_f32.to_bits()]);
    drop(bits);
    assert_eq!(bench.pool.stats().blocks.current, 0);
    assert_eq!(Buffer::<()>::uninit(&bench.pool, 3, &bench.stream).unwrap().to_vec().unwrap(), [(); 3]);
}

#[test]
fn the_cpu_reads_and_writes_a_part_of_pinned_memory() {
    let bench = Bench::new();
    let pinned = bench.context.pinned().unwrap().build().unwrap();
    let mut buffer = Buffer::<u32>::zeroed(&pinned, 8, &bench.stream).unwrap();
    let (mut low, mut high) = buffer.split_at_mut(4).unwrap();
    low.as_mut_slice().unwrap().copy_from_slice(&[1, 2, 3, 4]);
    high.fill(5).unwrap();
    assert_eq!(high.as_view().as_slice().unwrap(), [5; 4]);
    assert_eq!(buffer.slice(3..5).unwrap().as_slice().unwrap(), [4, 5]);
    let plain = bench.numbers(2);
    assert!(matches!(plain.as_view().as_slice(), Err(Error::NoHostAccess { .. })));
}

#[test]
fn slices_of_a_workspace_are_filled_and_copied() {
    let bench = Bench::new();
    let pinned = bench.context.pinned().unwrap().build().unwrap();
    let workspace = Workspace::new(&pinned, 1 << 16, &bench.stream).unwrap();
    let (one, other) = (workspace.alloc::<u32>(4).unwrap(), workspace.alloc::<u32>(4).unwrap());
    one.as_view_mut().fill(3).unwrap();
    other.as_view_mut().copy_from(one).unwrap();
    let mut buffer = bench.numbers(8);
    buffer.slice_mut(2..6).unwrap().copy_from(other).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [0, 1, 3, 3, 3, 3, 6, 7]);
    // Another copy of the slice could have the device write there.
    assert!(matches!(one.as_view().as_slice(), Err(Error::NoHostAccess { .. })));
    assert!(matches!(one.as_view_mut().as_mut_slice(), Err(Error::NoHostAccess { .. })));
}

#[test]
fn whatever_call_fails_a_buffer_keeps_its_block() {
    let (sim, context, stream) = sim(64 * MIB);
    let pool = Pool::builder(&context).build().unwrap();
    let other = context.create_stream().unwrap();
    let mut buffer = Buffer::<u32>::zeroed(&pool, 4096, &stream).unwrap();
    let ptr = buffer.ptr();
    let failure = DeviceError::Unavailable("planned".to_owned());
    let failed = Err(Error::Device(failure.clone()));
    for call in [Call::Copy, Call::Memset] {
        sim.fail_next(call, 1, failure.clone());
        assert_eq!(buffer.resize(8192), failed, "{call:?}");
        assert_eq!((buffer.ptr(), buffer.len()), (ptr, 4096));
    }
    sim.fail_next(Call::Copy, 1, failure.clone());
    assert_eq!(buffer.copy_within(0..100, 50), failed);
    sim.fail_next(Call::CopyFromHost, 1, failure.clone());
    assert_eq!(buffer.fill(0x0102_0304), failed);
    sim.fail_next(Call::Copy, 1, failure.clone());
    assert_eq!(buffer.fill(0x0102_0304), failed);
    sim.fail_next(Call::Copy, 1, failure.clone());
    assert_eq!(buffer.try_clone().map(drop), failed);
    assert_eq!(pool.stats().blocks.current, 1, "nothing else is left");
    sim.fail_next(Call::CreateEvent, 1, failure.clone());
    assert_eq!(buffer.on_stream(&other).map(drop), failed);
    assert_eq!(pool.stats().blocks.current, 0, "it was freed");
    pool.check().unwrap();
}

/// Other handles of a workspace's bytes may write to them on other threads, at any time.
#[test]
fn a_copy_of_a_workspace_on_another_stream_is_of_what_was_there() {
    let bench = Bench::new();
    let other = bench.context.create_stream().unwrap();
    copy_a_workspace_and_write_to_it(&bench, &bench.pool, &other);
}

/// Each device numbers its streams by itself.
#[test]
fn a_stream_of_another_device_is_not_taken_for_a_workspaces_own() {
    let (bench, elsewhere) = (Bench::new(), Bench::new());
    assert_eq!(elsewhere.stream.id(), bench.stream.id());
    copy_a_workspace_and_write_to_it(&bench, &elsewhere.pool, &elsewhere.stream);
}

/// Copies a workspace to a buffer of this pool on this stream, which is busy, and then writes to the workspace.
fn copy_a_workspace_and_write_to_it(bench: &Bench, to: &Pool, other: &Stream) {
    let workspace = Workspace::new(&bench.pool, MIB, &bench.stream).unwrap();
    let slice = workspace.alloc::<u8>(4096).unwrap();
    slice.fill(1).unwrap();
    let mut copy = Buffer::<u8>::new(to, 4096, other).unwrap();
    let (tell, told) = std::sync::mpsc::channel::<()>();
    other.launch_host(move || told.recv().unwrap()).unwrap();
    copy.as_view_mut().copy_from(slice.as_view()).unwrap();
    slice.fill(2).unwrap();
    // The workspace's stream waits for no other, so none reads its bytes.
    let (written, until) = (bench.stream.record().unwrap(), Instant::now() + Duration::from_secs(20));
    while !written.query().unwrap() {
        assert!(Instant::now() < until, "it waits for the other stream");
        sleep(Duration::from_millis(1));
    }
    tell.send(()).unwrap();
    assert_eq!(copy.to_vec().unwrap(), [1; 4096]);
    assert_eq!(slice.to_vec().unwrap(), [2; 4096]);
    bench.pool.check().unwrap();
}

#[test]
fn what_two_threads_write_and_copy_of_a_workspace_is_never_torn() {
    const LEN: usize = 1 << 20;
    let bench = Bench::new();
    let (workspace, other) = (
        Workspace::new(&bench.pool, LEN as u64, &bench.stream).unwrap(),
        bench.context.create_stream().unwrap(),
    );
    let slice = workspace.alloc::<u8>(LEN).unwrap();
    slice.fill(0).unwrap();
    let (mut written, read) = (slice.as_view_mut(), slice.as_view());
    let mut copy = Buffer::<u8>::new(&bench.pool, LEN, &other).unwrap();
    scope(|scope| {
        let writes = scope.spawn(|| (0..300).for_each(|step| written.fill(step as u8).unwrap()));
        while !writes.is_finished() {
            copy.as_view_mut().copy_from(read).unwrap();
            let copied = copy.to_vec().unwrap();
            assert!(copied[1..] == copied[..LEN - 1]);
        }
    });
}
