//! Two devices of a group, as two GPUs of a process: who may use whose memory, and copies between them in stream order.
//!
//! On simulated devices each call is checked (`CheckerDevice`), and may fail. On host devices there are bytes. The tests for
//! real GPUs are in `cuda_peers.rs`.

use std::sync::{Arc, mpsc};

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{Call, SimDevice, SimOptions};
use millpond::device::{Device, DeviceError, DevicePtr, StreamHandle};
use millpond::testing::capturing::CapturingDevice;
use millpond::testing::checker::CheckerDevice;
use millpond::{Buffer, CapturePool, Context, Error, Keep, Pool, PoolBuilder, ReusePolicies, Stream};

use crate::shared::{Freeing, MIB};

const PAGE: u64 = 2 * MIB;
const CAPACITY: u64 = 256 * MIB;

/// One of the devices, with a pool and a stream.
struct Gpu {
    context: Context,
    pool: Pool,
    stream: Stream,
}

impl Gpu {
    fn new(device: Arc<dyn Device>, options: impl Fn(PoolBuilder) -> PoolBuilder) -> Self {
        let context = Context::new(device);
        let pool = options(Pool::builder(&context).page_sizes(PAGE, PAGE)).build().unwrap();
        let stream = context.create_stream().unwrap();
        Self { context, pool, stream }
    }

    fn zeroed(&self, bytes: u64) -> Buffer<u8> {
        Buffer::zeroed(&self.pool, bytes as usize, &self.stream).unwrap()
    }

    fn is_accessible_from(&self, buffer: &Buffer<u8>, other: &Self) -> bool {
        self.pool.is_accessible_from(buffer.ptr(), &other.context).unwrap()
    }
}

/// Simulated devices under the eyes of a checker.
struct Sim {
    sims: Vec<Arc<SimDevice>>,
    checkers: Vec<Arc<CheckerDevice>>,
    gpus: [Gpu; 2],
}

impl Sim {
    fn new() -> Self {
        Self::with(SimOptions::default(), |pool| pool)
    }

    fn with(options: SimOptions, pool: impl Fn(PoolBuilder) -> PoolBuilder) -> Self {
        let sims = SimDevice::group(2, options.capacity(CAPACITY)).unwrap();
        let checkers = CheckerDevice::group(sims.iter().map(|sim| sim.clone() as _));
        let gpus = [0, 1].map(|number| Gpu::new(checkers[number].clone(), &pool));
        Self { sims, checkers, gpus }
    }

    /// A kernel of a device uses a block of a buffer.
    fn uses(&self, number: usize, buffer: &Buffer<u8>, stream: &Stream) {
        let device: &dyn Device = &*self.checkers[number];
        // SAFETY: there are no bytes.
        unsafe { device.memset(buffer.ptr(), 1, buffer.byte_len(), stream.handle()) }.unwrap();
    }

    fn calls(&self, call: Call) -> u64 {
        self.sims[0].calls()[call]
    }

    /// Makes the `nth` next call of a kind fail.
    fn fail(&self, call: Call, nth: u64) {
        let error =
            DeviceError::Driver { call: "planned", code: 1, name: "PLANNED".to_owned(), text: String::new() };
        self.sims[0].fail_next(call, nth, error);
    }

    /// Every rule was kept; once the pools are gone, nothing is left.
    fn ends_well(self) {
        let Self { checkers, gpus, .. } = self;
        for gpu in &gpus {
            gpu.pool.check().unwrap();
        }
        checkers[0].verify().unwrap();
        drop(gpus);
        checkers[0].verify_nothing_left().unwrap();
    }
}

/// Host devices, whose streams can be held.
struct Host {
    devices: [Arc<HostDevice>; 2],
    gpus: [Gpu; 2],
}

impl Host {
    fn new() -> Self {
        let devices =
            [0, 1].map(|_| HostDevice::with_options(HostOptions::default().capacity(CAPACITY)).unwrap());
        let gpus = [0, 1].map(|number| Gpu::new(devices[number].clone(), |pool| pool));
        Self { devices, gpus }
    }

    fn hold(&self, number: usize, stream: StreamHandle) -> mpsc::Sender<()> {
        let (release, released) = mpsc::channel();
        self.devices[number].launch(stream, move || _ = released.recv()).unwrap();
        release
    }
}

// ---- access ------------------------------------------------------------------------------------------

#[test]
fn a_pool_is_for_its_own_device_alone_by_default() {
    let sim = Sim::new();
    let [first, second] = &sim.gpus;
    let buffer = first.zeroed(3 * PAGE);
    assert!(!first.is_accessible_from(&buffer, second) && first.is_accessible_from(&buffer, first));
    assert_eq!(sim.calls(Call::SetPeerAccess), 0);
    let device: &dyn Device = &*sim.checkers[1];
    // SAFETY: there are no bytes.
    let refused = unsafe { device.memset(buffer.ptr(), 1, PAGE, second.stream.handle()) };
    assert!(matches!(refused, Err(DeviceError::Invalid { .. })), "{refused:?}");
}

#[test]
fn a_block_is_given_to_a_peer_page_by_page() {
    let sim = Sim::new();
    let [first, second] = &sim.gpus;
    let (shared, other) = (first.zeroed(3 * PAGE), first.zeroed(3 * PAGE));
    shared.allow_access(&second.context).unwrap();
    assert_eq!(sim.calls(Call::SetPeerAccess), 3);
    assert!(first.is_accessible_from(&shared, second) && !first.is_accessible_from(&other, second));
    shared.allow_access(&second.context).unwrap();
    assert_eq!(sim.calls(Call::SetPeerAccess), 3, "each page once");
    second.stream.wait_for(&first.stream).unwrap();
    sim.uses(1, &shared, &second.stream);
    shared.record_use(&second.stream).unwrap();
    drop((shared, other));
    sim.ends_well();
}

#[test]
fn pages_keep_the_access_for_later_blocks_on_them() {
    let sim = Sim::new();
    let [first, second] = &sim.gpus;
    let shared = first.zeroed(3 * PAGE);
    shared.allow_access(&second.context).unwrap();
    let at = shared.ptr();
    drop(shared);
    let next = first.zeroed(3 * PAGE);
    assert_eq!(next.ptr(), at);
    assert!(first.is_accessible_from(&next, second));
    drop(next);
    sim.ends_well();
}

#[test]
fn a_remapped_page_loses_the_access() {
    let sim = Sim::new();
    let [first, second] = &sim.gpus;
    let blocks: Vec<_> = (0..4).map(|_| first.zeroed(2 * PAGE)).collect();
    for block in &blocks {
        block.allow_access(&second.context).unwrap();
    }
    // Every other one is free, so that a long block needs their pages elsewhere.
    let kept: Vec<_> = blocks.into_iter().enumerate().filter(|(at, _)| at % 2 == 0).collect();
    let before = first.pool.reserved().current;
    let long = first.zeroed(4 * PAGE);
    assert_eq!(first.pool.reserved().current, before, "pages were remapped");
    assert!(!first.is_accessible_from(&long, second));
    assert!(kept.iter().all(|(_, block)| first.is_accessible_from(block, second)));
    long.allow_access(&second.context).unwrap();
    second.stream.wait_for(&first.stream).unwrap();
    sim.uses(1, &long, &second.stream);
    long.record_use(&second.stream).unwrap();
    drop((kept, long));
    sim.ends_well();
}

#[test]
fn a_page_that_comes_back_has_the_access_of_its_pool() {
    for is_for_all in [false, true] {
        let sim = Sim::new();
        let second = &sim.gpus[1];
        let peers = is_for_all.then_some(&second.context);
        let first = Gpu::new(sim.checkers[0].clone(), |pool| pool.accessible_from(peers));
        let pages = |count| {
            let block = first.zeroed(count * PAGE);
            assert_eq!(first.is_accessible_from(&block, second), is_for_all);
            block
        };
        drop(pages(6));
        let mut mapped = Vec::new();
        for turn in 0..4 {
            let mut six: Vec<_> = (0..6).map(|_| pages(1)).collect();
            if turn == 0 {
                // To where it was shared, no page comes back.
                six[1].allow_access(&second.context).unwrap();
            }
            [5, 3, 1].into_iter().for_each(|at| drop(six.remove(at)));
            drop((pages(3), six));
            let whole = pages(6);
            if is_for_all {
                second.stream.wait_for(&first.stream).unwrap();
                sim.uses(1, &whole, &second.stream);
                whole.record_use(&second.stream).unwrap();
            }
            mapped.push(sim.calls(Call::Map));
        }
        assert!(mapped[0] > 6 && mapped[1..] == [mapped[1]; 3], "{mapped:?} by each turn's end");
        assert_eq!(first.pool.reserved().current, 6 * PAGE);
        drop(first);
        sim.ends_well();
    }
}

#[test]
fn a_pool_for_a_peer_gives_access_as_it_maps() {
    let sim = Sim::new();
    let [first, second] = &sim.gpus;
    let pool = Pool::builder(&first.context).accessible_from([&second.context]).build().unwrap();
    let all = Pool::builder(&first.context).accessible_from_all().build().unwrap();
    for pool in [pool, all] {
        let buffer = Buffer::<u8>::zeroed(&pool, 3 << 20, &first.stream).unwrap();
        assert!(pool.is_accessible_from(buffer.ptr(), &second.context).unwrap());
        second.stream.wait_for(&first.stream).unwrap();
        sim.uses(1, &buffer, &second.stream);
        buffer.record_use(&second.stream).unwrap();
        drop(buffer);
        pool.check().unwrap();
    }
    sim.ends_well();
}

#[test]
fn access_to_a_pool_is_given_and_taken_back_on_live_memory() {
    let sim = Sim::new();
    let [first, second] = &sim.gpus;
    let before = first.zeroed(PAGE);
    first.pool.allow_access(&second.context).unwrap();
    let after = first.zeroed(3 * PAGE);
    assert!(first.is_accessible_from(&before, second) && first.is_accessible_from(&after, second));
    second.stream.wait_for(&first.stream).unwrap();
    sim.uses(1, &before, &second.stream);
    before.record_use(&second.stream).unwrap();
    first.pool.take_back_access(&second.context).unwrap();
    assert!(!first.is_accessible_from(&before, second) && !first.is_accessible_from(&after, second));
    let later = first.zeroed(5 * PAGE);
    assert!(!first.is_accessible_from(&later, second));
    drop((before, after, later));
    sim.ends_well();
}

/// Has pages move in the memory of a capture; returns a block whose pages did.
fn moves_in_a_capture(gpu: &Gpu, memory: &CapturePool) -> DevicePtr {
    let capturing = memory.begin_where(|_| true).unwrap();
    let alloc = |pages| gpu.pool.alloc(pages * PAGE, &gpu.stream).unwrap();
    let free = |block| gpu.pool.free_block(block, &gpu.stream).unwrap();
    let blocks = [4; 3].map(alloc);
    free(blocks[0]);
    free(blocks[2]);
    free(alloc(8));
    free(blocks[1]);
    drop(capturing);
    blocks[0]
}

#[test]
fn what_a_pool_gives_reaches_all_addresses_of_a_graph() {
    for sleeps in [false, true] {
        let sim = Sim::new();
        let [first, second] = &sim.gpus;
        let memory = first.pool.capture_pool();
        let block = moves_in_a_capture(first, &memory);
        assert!(first.pool.stats().pages_remapped > 0);
        first.pool.allow_access(&second.context).unwrap();
        if sleeps {
            first.pool.sleep(Keep::InPinnedMemory).unwrap();
            first.pool.wake().unwrap();
        }
        second.stream.wait_for(&first.stream).unwrap();
        // A replay: a kernel of the second device uses what was the first block.
        let device: &dyn Device = &*sim.checkers[1];
        // SAFETY: there are no bytes.
        unsafe { device.memset(block, 1, 4 * PAGE, second.stream.handle()) }.unwrap();
        second.context.synchronize().unwrap();
        first.pool.take_back_access(&second.context).unwrap();
        // SAFETY: as above; it is refused.
        assert!(unsafe { device.memset(block, 1, 4 * PAGE, second.stream.handle()) }.is_err());
        drop(memory);
    }
}

#[test]
fn a_page_that_was_given_to_a_peer_stays_in_a_captures_memory() {
    for is_given in [false, true] {
        let sim = Sim::new();
        let [first, second] = &sim.gpus;
        let memory = first.pool.capture_pool();
        let alloc = |pages| {
            let _capturing = memory.begin_where(|_| true).unwrap();
            first.pool.alloc(pages * PAGE, &first.stream).unwrap()
        };
        let free = |block| first.pool.free_block(block, &first.stream).unwrap();
        let blocks = [4, 1].map(alloc);
        if is_given {
            first.pool.allow_access_to(blocks[0], &second.context).unwrap();
        }
        free(blocks[0]);
        free(alloc(6));
        let moved = if is_given { 0 } else { 4 };
        assert_eq!(first.pool.stats().pages_remapped, moved);
        assert_eq!(memory.reserved(), (11 - moved) * PAGE);
        free(blocks[1]);
        drop(memory);
        sim.ends_well();
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let sim = Sim::new();
    let [first, second] = &sim.gpus;
    let alone = Sim::new();
    let stranger = &alone.gpus[0];
    let refused = first.pool.allow_access(&stranger.context).unwrap_err();
    assert!(matches!(refused, Error::Device(DeviceError::Unsupported { .. })), "{refused}");
    let refused = Pool::builder(&first.context).accessible_from([&stranger.context]).build().unwrap_err();
    assert!(matches!(refused, Error::Device(DeviceError::Unsupported { .. })), "{refused}");
    let mut buffer = first.zeroed(100);
    let refused = buffer.copy_from(&stranger.zeroed(100)).unwrap_err();
    assert!(matches!(refused, Error::WrongDevice { what: "stream", .. }), "{refused}");
    assert!(matches!(buffer.record_use(&stranger.stream), Err(Error::WrongDevice { .. })));
    let event = stranger.stream.record().unwrap();
    assert!(matches!(first.stream.wait(&event), Err(Error::Device(DeviceError::Invalid { .. }))));
    let all = Pool::builder(&first.context).accessible_from_all().build().unwrap();
    let refused = all.take_back_access(&second.context).unwrap_err();
    assert!(matches!(refused, Error::BadOption { option: "accessible_from_all", .. }), "{refused}");
    // A block of another device is freed there.
    let block = first.pool.alloc(100, &first.stream).unwrap();
    assert!(matches!(first.pool.free_block(block, &second.stream), Err(Error::WrongDevice { .. })));
    first.pool.free_block(block, &first.stream).unwrap();
    drop(buffer);
    drop(event);
    drop(all);
    sim.ends_well();
    alone.ends_well();
}

#[test]
fn devices_that_do_not_reach_each_other_copy_by_way_of_the_host() {
    let sim = Sim::with(SimOptions::default().peer_access(false), |pool| pool);
    let [first, second] = &sim.gpus;
    let from = first.zeroed(PAGE);
    let refused = from.allow_access(&second.context).unwrap_err();
    assert!(matches!(refused, Error::Device(DeviceError::Unsupported { .. })), "{refused}");
    assert!(first.pool.allow_access(&second.context).is_err());
    let mut to = second.zeroed(PAGE);
    to.copy_from(&from).unwrap();
    assert!(!first.is_accessible_from(&from, second));
    // Nobody is left out of what is for all.
    let all = Pool::builder(&first.context).accessible_from_all().build().unwrap();
    drop(Buffer::<u8>::zeroed(&all, 100, &first.stream).unwrap());
    drop((from, to, all));
    sim.ends_well();
}

// ---- copies ------------------------------------------------------------------------------------------

#[test]
fn a_copy_gives_the_source_s_pages_access_once() {
    let sim = Sim::new();
    let [first, second] = &sim.gpus;
    let (from, mut to) = (first.zeroed(3 * PAGE), second.zeroed(3 * PAGE));
    for _ in 0..3 {
        to.copy_from(&from).unwrap();
    }
    assert_eq!((sim.calls(Call::SetPeerAccess), sim.calls(Call::CopyFromPeer)), (3, 3));
    assert!(first.is_accessible_from(&from, second) && !second.is_accessible_from(&to, first));
    drop((from, to));
    sim.ends_well();
}

#[test]
fn bytes_go_from_device_to_device_and_back() {
    let host = Host::new();
    let [first, second] = &host.gpus;
    let bytes: Vec<u8> = (0..3 * MIB).map(|at| (at % 251) as u8).collect();
    let from = Buffer::from_slice(&first.pool, &bytes, &first.stream).unwrap();
    let mut there = Buffer::<u8>::new(&second.pool, bytes.len(), &second.stream).unwrap();
    let mut back = Buffer::<u8>::new(&first.pool, bytes.len(), &first.stream).unwrap();
    there.copy_from(&from).unwrap();
    back.copy_from(&there).unwrap();
    assert_eq!(back.to_vec().unwrap(), bytes);
}

#[test]
fn a_copy_waits_for_the_source_and_later_writes_wait_for_the_copy() {
    let host = Host::new();
    let [first, second] = &host.gpus;
    let mut from = first.zeroed(MIB);
    let mut to = second.zeroed(MIB);
    let source_is_held = host.hold(0, first.stream.handle());
    from.copy_from_slice(&vec![1; MIB as usize]).unwrap();
    let copy_is_held = host.hold(1, second.stream.handle());
    to.copy_from(&from).unwrap();
    from.copy_from_slice(&vec![2; MIB as usize]).unwrap(); // must not overtake the copy
    copy_is_held.send(()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!second.stream.is_idle().unwrap(), "the copy waits for the source");
    source_is_held.send(()).unwrap();
    assert!(to.to_vec().unwrap().iter().all(|byte| *byte == 1));
    assert!(from.to_vec().unwrap().iter().all(|byte| *byte == 2));
}

#[test]
fn a_write_to_the_source_does_not_overtake_the_copy() {
    let host = Host::new();
    let [first, second] = &host.gpus;
    let (mut from, mut to) = (first.zeroed(MIB), second.zeroed(MIB));
    let held = host.hold(1, second.stream.handle());
    to.copy_from(&from).unwrap();
    from.copy_from_slice(&vec![2; MIB as usize]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!first.stream.is_idle().unwrap(), "the write waits for the copy");
    held.send(()).unwrap();
    assert!(to.to_vec().unwrap().iter().all(|byte| *byte == 0));
    assert!(from.to_vec().unwrap().iter().all(|byte| *byte == 2));
}

#[test]
fn a_capture_takes_no_copy_between_devices_and_goes_on() {
    let devices = [0, 1].map(|_| {
        let options = HostOptions::default().capacity(CAPACITY);
        CapturingDevice::new(HostDevice::with_options(options).unwrap())
    });
    let [first, second] = devices.clone().map(|device| Gpu::new(device, |pool| pool));
    let (from, mut to) = (first.zeroed(1000), second.zeroed(1000));
    for (device, gpu) in devices.iter().zip([&first, &second]) {
        device.begin_capture(gpu.stream.handle()).unwrap();
        let refused = to.copy_from(&from).unwrap_err();
        assert!(refused.to_string().contains("being captured"), "{refused}");
        device.end_capture(gpu.stream.handle()).unwrap();
    }
    devices[1].begin_capture(second.stream.handle()).unwrap();
    assert!(from.record_use(&second.stream).unwrap_err().to_string().contains("being captured"));
    devices[1].end_capture(second.stream.handle()).unwrap();
    to.copy_from(&from).unwrap();
    let memory = second.pool.capture_pool();
    let capturing = memory.begin(&second.stream).unwrap();
    let refused = first.pool.take_back_access(&second.context).unwrap_err();
    assert!(refused.to_string().contains("being captured"), "{refused}");
    assert!(first.is_accessible_from(&from, &second));
    drop(capturing);
    first.pool.take_back_access(&second.context).unwrap();
    assert!(!first.is_accessible_from(&from, &second));
}

#[test]
fn other_work_of_the_source_s_stream_does_not_wait_for_the_copy() {
    let host = Host::new();
    let [first, second] = &host.gpus;
    let (from, mut to) = (first.zeroed(MIB), second.zeroed(MIB));
    let held = host.hold(1, second.stream.handle());
    to.copy_from(&from).unwrap();
    assert_eq!(first.zeroed(100).to_vec().unwrap(), [0; 100]);
    held.send(()).unwrap();
}

#[test]
fn a_source_that_is_freed_stays_until_the_copy_is_done() {
    let sim = Sim::with(SimOptions::default(), |pool| pool.reuse(ReusePolicies::NONE));
    let [first, second] = &sim.gpus;
    let (from, mut to) = (first.zeroed(PAGE), second.zeroed(PAGE));
    let hold = sim.sims[1].hold(second.stream.handle()).unwrap();
    to.copy_from(&from).unwrap();
    let at = from.ptr();
    drop(from);
    first.stream.synchronize().unwrap();
    let next = first.zeroed(PAGE);
    assert_ne!(next.ptr(), at, "the copy reads it still");
    assert_eq!(first.pool.trim_to(0).unwrap(), 0);
    sim.sims[1].release(hold);
    second.stream.synchronize().unwrap();
    assert_eq!(first.pool.trim_to(0).unwrap(), PAGE);
    drop((next, to));
    sim.ends_well();
}

#[test]
fn pinned_and_managed_memory_goes_to_another_device_too() {
    let host = Host::new();
    let [first, second] = &host.gpus;
    for builder in [first.context.pinned().unwrap(), first.context.managed().unwrap()] {
        let pool = builder.build().unwrap();
        let mut staging = Buffer::<u8>::zeroed(&pool, 1000, &first.stream).unwrap();
        staging.as_mut_slice().unwrap().fill(7);
        let mut there = second.zeroed(1000);
        there.copy_from(&staging).unwrap();
        staging.as_mut_slice().unwrap().fill(8); // waits for the copy
        let mut back = Buffer::<u8>::zeroed(&pool, 1000, &first.stream).unwrap();
        back.copy_from(&there).unwrap();
        assert_eq!(back.as_slice().unwrap(), [7; 1000]);
    }
}

#[test]
fn contexts_of_one_device_copy_as_devices_do() {
    let host = Host::new();
    let (first, again) = (&host.gpus[0], Gpu::new(host.devices[0].clone() as Arc<dyn Device>, |pool| pool));
    let mut from = first.zeroed(1000);
    let mut to = again.zeroed(1000);
    from.copy_from_slice(&[3; 1000]).unwrap();
    let held = host.hold(0, again.stream.handle());
    to.copy_from(&from).unwrap();
    from.copy_from_slice(&[4; 1000]).unwrap();
    held.send(()).unwrap();
    assert_eq!(to.to_vec().unwrap(), [3; 1000]);
    from.allow_access(&again.context).unwrap();
    assert!(first.is_accessible_from(&from, &again));
}

#[test]
fn segments_are_within_reach_all_or_none() {
    let sim = Sim::with(SimOptions::default().virtual_memory(false), |pool| pool);
    let [first, second] = &sim.gpus;
    let (from, mut to) = (first.zeroed(PAGE), second.zeroed(PAGE));
    to.copy_from(&from).unwrap();
    second.stream.wait_for(&first.stream).unwrap();
    sim.uses(1, &from, &second.stream);
    from.record_use(&second.stream).unwrap();
    first.pool.allow_access(&second.context).unwrap();
    assert!(first.is_accessible_from(&from, second));
    drop((from, to));
    sim.ends_well();
}

// ---- failures ----------------------------------------------------------------------------------------

#[test]
fn a_copy_goes_on_where_access_is_refused() {
    let sim = Sim::new();
    let [first, second] = &sim.gpus;
    let (from, mut to) = (first.zeroed(PAGE), second.zeroed(PAGE));
    sim.fail(Call::SetPeerAccess, 1);
    to.copy_from(&from).unwrap();
    assert!(!first.is_accessible_from(&from, second), "by way of the host");
    to.copy_from(&from).unwrap();
    assert!(first.is_accessible_from(&from, second), "it is tried again");
    drop((from, to));
    sim.ends_well();
}

#[test]
fn each_call_of_a_copy_may_fail() {
    const CALLS: [Call; 8] = [
        Call::CanBeReachedFrom,
        Call::CopyFromPeer,
        Call::CreateEvent,
        Call::RecordEvent,
        Call::WaitEvent,
        Call::CreateStream,
        Call::StreamId,
        Call::DestroyEvent,
    ];
    for call in CALLS {
        for nth in 1..5 {
            let sim = Sim::new();
            let [first, second] = &sim.gpus;
            let (from, mut to) = (first.zeroed(PAGE), second.zeroed(PAGE));
            sim.fail(call, nth);
            _ = to.copy_from(&from);
            drop(from);
            drop(first.zeroed(PAGE));
            sim.sims[0].fail_no_more();
            to.copy_from(&first.zeroed(PAGE)).unwrap();
            drop(to);
            for gpu in &sim.gpus {
                gpu.context.synchronize().unwrap();
            }
            sim.ends_well();
        }
    }
}

#[test]
fn access_that_was_refused_can_be_asked_for_again() {
    let sim = Sim::new();
    let [first, second] = &sim.gpus;
    let buffer = first.zeroed(4 * PAGE);
    sim.fail(Call::SetPeerAccess, 1);
    assert!(buffer.allow_access(&second.context).is_err());
    buffer.allow_access(&second.context).unwrap();
    first.pool.allow_access(&second.context).unwrap();
    sim.fail(Call::SetPeerAccess, 1);
    assert!(first.pool.take_back_access(&second.context).is_err());
    first.pool.take_back_access(&second.context).unwrap();
    assert!(!first.is_accessible_from(&buffer, second));
    // A page that is for a peer is not mapped without access for it.
    first.pool.allow_access(&second.context).unwrap();
    sim.fail(Call::SetPeerAccess, 1);
    assert!(Buffer::<u8>::new(&first.pool, 9 * PAGE as usize, &first.stream).is_err());
    let next = first.zeroed(9 * PAGE);
    assert!(first.is_accessible_from(&next, second));
    drop((buffer, next));
    sim.ends_well();
}

// ---- costs -------------------------------------------------------------------------------------------

#[test]
fn a_peer_s_access_costs_what_was_measured() {
    let sims = SimDevice::group(2, SimOptions::default()).unwrap();
    let gpus = [0, 1].map(|number| Gpu::new(sims[number].clone(), |pool| pool));
    let buffer = gpus[0].zeroed(PAGE);
    buffer.allow_access(&gpus[1].context).unwrap();
    assert_eq!(sims[0].time_spent().by_call[Call::SetPeerAccess], 916_000);
    drop(buffer);
    gpus[0].pool.trim_to(0).unwrap();
    assert_eq!(sims[0].time_spent().by_call[Call::Unmap], 66_000, "a page that a peer has access to");
}

#[test]
fn on_demand_only_what_is_copied_costs_more() {
    let device_time = |for_all: bool| {
        let sims = SimDevice::group(2, SimOptions::default()).unwrap();
        let options = |pool: PoolBuilder| if for_all { pool.accessible_from_all() } else { pool };
        let gpus = [0, 1].map(|number| Gpu::new(sims[number].clone(), options));
        let mut inputs = gpus[1].zeroed(PAGE);
        let blocks: Vec<_> = (0..100).map(|_| gpus[0].zeroed(PAGE)).collect();
        blocks.iter().step_by(10).for_each(|block| inputs.copy_from(block).unwrap());
        let by_call = sims[0].time_spent().by_call;
        let calls = [Call::CreatePage, Call::Map, Call::SetAccess, Call::SetPeerAccess];
        calls.into_iter().map(|call| by_call[call]).sum::<u64>()
    };
    let (all, on_demand) = (device_time(true), device_time(false));
    println!("{} µs for all peers, {} µs on demand", all / 1000, on_demand / 1000);
    assert!(7 * on_demand < all, "{on_demand} and {all} ns");
}

// ---- sleep -------------------------------------------------------------------------------------------

#[test]
fn access_comes_back_when_a_pool_wakes() {
    let sim = Sim::new();
    let [first, second] = &sim.gpus;
    let (given, kept) = (first.zeroed(8 * MIB), first.zeroed(8 * MIB));
    given.allow_access(&second.context).unwrap();
    first.pool.sleep(Keep::Nothing).unwrap();
    assert!(matches!(second.zeroed(MIB).copy_from(&kept), Err(Error::LengthMismatch { .. })));
    assert!(matches!(second.zeroed(8 * MIB).copy_from(&kept), Err(Error::Asleep { .. })));
    // What is given meanwhile holds from the wake on.
    kept.allow_access(&second.context).unwrap();
    first.pool.wake().unwrap();
    second.stream.wait_for(&first.stream).unwrap();
    for buffer in [&given, &kept] {
        assert!(first.is_accessible_from(buffer, second));
        sim.uses(1, buffer, &second.stream);
        buffer.record_use(&second.stream).unwrap();
    }
    drop((given, kept));
    sim.ends_well();
}

#[test]
fn access_that_changes_while_a_tag_is_evicted_holds_when_it_is_back() {
    let sim = Sim::new();
    let [first, second] = &sim.gpus;
    let tag = first.pool.tagged("optimizer").unwrap();
    let buffer = Buffer::<u8>::zeroed(&tag, 8 << 20, &first.stream).unwrap();
    for allowed in [true, false, true] {
        tag.evict(&first.stream).unwrap();
        match allowed {
            true => buffer.allow_access(&second.context).unwrap(),
            false => tag.take_back_access(&second.context).unwrap(),
        }
        // Nobody used the pages, which come back.
        tag.restore(&first.stream).unwrap();
        second.stream.wait_for(&first.stream).unwrap();
        assert_eq!(tag.is_accessible_from(buffer.ptr(), &second.context), Ok(allowed));
        // SAFETY: there are no bytes, and what has no access is refused.
        let used = unsafe { sim.sims[1].memset(buffer.ptr(), 1, 1, second.stream.handle()) };
        assert_eq!(used.is_ok(), allowed, "{used:?}");
        buffer.record_use(&second.stream).unwrap();
        first.context.synchronize().unwrap();
    }
    drop(buffer);
    tag.check().unwrap();
    drop(tag);
    sim.ends_well();
}
