//! Whichever call of the device fails, and however often it was made before: nothing is lost, and the error says so.

use std::sync::Arc;
use std::time::Duration;

use millpond::device::sim::{Call, SimDevice, SimOptions};
use millpond::device::{Device, DeviceError, DevicePtr};
use millpond::testing::capturing::CapturingDevice;
use millpond::{Advice, Buffer, Context, Error, Place, Pool, PoolBuilder, Received, Stream};

use crate::processes::until;
use crate::shared::{Freeing, MIB};

const TOTAL: u64 = 256 * MIB;

/// Two pools of one device, and what is live.
struct World {
    sim: Arc<SimDevice>,
    device: Arc<CapturingDevice>,
    context: Context,
    pool: Pool,
    other: Pool,
    streams: [Stream; 2],
    live: Vec<DevicePtr>,
}

impl World {
    fn new(virtual_memory: bool) -> Self {
        let options = SimOptions::default().capacity(TOTAL).virtual_memory(virtual_memory);
        let sim = SimDevice::new(options).unwrap();
        let device = CapturingDevice::new(sim.clone());
        let context = Context::new(device.clone());
        let pool = Pool::builder(&context).release_threshold(64 * MIB).build().unwrap();
        let other = Pool::builder(&context).name("other").build().unwrap();
        let streams = [(); 2].map(|()| context.create_stream().unwrap());
        Self { sim, device, context, pool, other, streams, live: Vec::new() }
    }

    /// What may come of a call while another one of the device fails.
    fn expect<T>(&self, result: Result<T, Error>) -> Option<T> {
        self.pool.check().unwrap();
        self.other.check().unwrap();
        match result {
            Ok(result) => Some(result),
            Err(Error::Device(_) | Error::OutOfMemory(_) | Error::MemoryInUse { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn alloc(&mut self, pool: usize, bytes: u64, stream: usize) {
        let pool = [&self.pool, &self.other][pool].clone();
        let block = self.expect(pool.alloc(bytes, &self.streams[stream]));
        self.live.extend(block);
    }

    /// Frees every `step`th block. A free cannot fail.
    fn free(&mut self, step: usize, stream: usize) {
        for (at, block) in std::mem::take(&mut self.live).into_iter().enumerate() {
            if at % step == 0 {
                self.context.free_block(block, &self.streams[stream]).unwrap();
            } else {
                self.live.push(block);
            }
        }
        self.pool.check().unwrap();
    }

    fn work(&self, stream: usize) {
        self.sim.launch(self.streams[stream].handle(), Duration::from_millis(50)).unwrap();
    }

    /// Uses all that a pool can do.
    fn run(&mut self) {
        // Both zones, and both streams.
        for bytes in [512, 40_000, 3 * MIB, 5 * MIB, 17 * MIB, 700_000, 9 * MIB] {
            self.alloc(0, bytes, 0);
            self.alloc(0, 2 * bytes, 1);
        }
        self.work(0);
        self.free(2, 0);
        // Pages of free blocks, which a busy stream freed.
        self.alloc(0, 60 * MIB, 1);
        self.work(1);
        self.free(2, 1);
        self.expect(self.streams[1].synchronize());
        let event = self.expect(self.streams[0].record());
        if let Some(event) = event {
            self.expect(self.streams[1].wait(&event));
        }
        self.capture();
        // Pressure: the other pool has to give back.
        self.alloc(1, 120 * MIB, 0);
        self.free(1, 0);
        self.alloc(0, 200 * MIB, 1);
        self.alloc(0, 150 * MIB, 0);
        self.free(1, 1);
        self.expect(self.pool.trim_to(32 * MIB));
        self.short_lived();
        self.stage();
        self.roam();
        self.share();
        self.expect(self.context.synchronize());
        self.alloc(0, 6 * MIB, 0);
        self.expect(self.pool.trim_to(0));
    }

    fn capture(&mut self) {
        let memory = self.pool.capture_pool();
        let Some(capturing) = self.expect(memory.begin(&self.streams[0])) else { return };
        let handle = self.streams[0].handle();
        self.device.begin_capture(handle).unwrap();
        self.alloc(0, 20 * MIB, 0);
        // More than there is beside what others have.
        self.expect(self.pool.alloc(200 * MIB, &self.streams[0])).inspect(|block| self.live.push(*block));
        self.free(3, 0);
        self.alloc(0, 10 * MIB, 0);
        self.device.end_capture(handle).expect("no rule was broken");
        drop(capturing);
        drop(memory);
        self.pool.check().unwrap();
        self.free(2, 0);
    }

    /// A stream and a pool come and go, with work under way.
    fn short_lived(&self) {
        let Some(stream) = self.expect(self.context.create_stream()) else { return };
        let Some(pool) = self.expect(Pool::builder(&self.context).build()) else { return };
        if let Some(block) = self.expect(pool.alloc(7 * MIB, &stream)) {
            self.sim.launch(stream.handle(), Duration::from_millis(50)).unwrap();
            pool.free_block(block, &stream).unwrap();
        }
        drop(stream);
        self.expect(pool.destroy());
    }

    /// A pool of pinned memory, and copies from it on another stream.
    fn stage(&self) {
        let Some(pool) = self.expect(self.context.pinned().and_then(PoolBuilder::build)) else { return };
        let [one, other] = &self.streams;
        self.expect(pool.reserve(40 * MIB, one));
        let staging = self.expect(Buffer::<u8>::new(&pool, 3 * MIB as usize, one));
        let inputs = self.expect(Buffer::<u8>::new(&self.pool, 3 * MIB as usize, other));
        if let (Some(mut staging), Some(mut inputs)) = (staging, inputs) {
            self.expect(inputs.copy_from_pinned(&staging));
            self.expect(staging.set_zero());
            self.expect(inputs.copy_to_pinned(&mut staging));
        }
        pool.check().unwrap();
        self.expect(pool.destroy());
    }

    /// A pool of managed memory, which is moved, and advised about.
    fn roam(&self) {
        let Some(pool) = self.expect(self.context.managed().and_then(PoolBuilder::build)) else { return };
        let [one, other] = &self.streams;
        let buffer = self.expect(Buffer::<u8>::new(&pool, 3 * MIB as usize, one));
        if let Some(mut buffer) = buffer {
            self.expect(buffer.prefetch(Place::Device, other));
            self.expect(buffer.advise(Advice::ReadMostly(true)));
            self.expect(buffer.residency());
            self.expect(buffer.set_zero());
            self.expect(buffer.prefetch(Place::Host, one));
        }
        pool.check().unwrap();
        self.expect(pool.destroy());
    }

    /// A buffer that is shared, opened by another owner, and freed while that one has it.
    fn share(&self) {
        let [one, other] = &self.streams;
        let Some(buffer) = self.expect(Buffer::<u8>::new(&self.pool, 9 * MIB as usize, one)) else { return };
        let shared = match buffer.share() {
            // Of segments.
            Err(Error::NotShareable { .. }) => return,
            shared => self.expect(shared),
        };
        let Some(shared) = shared else { return };
        let descriptors =
            shared.descriptors().iter().map(|file| file.try_clone_to_owned().unwrap()).collect();
        let received = Received::new(shared.token().clone(), descriptors).unwrap();
        drop(buffer);
        if let Some(opened) = self.expect(self.context.open_shared::<u8>(received, other)) {
            self.expect(opened.event.record(other));
            self.expect(shared.event().wait(one));
        }
    }

    /// Once nothing fails any more, a synchronise and a trim give everything back.
    fn finish(&mut self) {
        self.sim.fail_no_more();
        self.free(1, 0);
        self.context.synchronize().unwrap();
        self.other.trim_to(0).unwrap();
        // A process that another test is about to begin has the descriptors of a lease for a moment.
        until("nothing of the pool is held", || {
            self.pool.trim_to(0).unwrap();
            self.pool.reserved().current == 0
        });
        self.pool.check().unwrap();
        assert_eq!(self.other.reserved().current, 0);
        assert_eq!(self.sim.memory_info().unwrap().free, TOTAL, "lost");
        for other in [self.sim.pinned(None), self.sim.managed()] {
            let info = other.unwrap().memory_info().unwrap();
            assert_eq!(info.free, info.total, "lost");
        }
        assert_eq!(self.device.taken_from_graphs(), []);
    }
}

fn driver(call: Call) -> DeviceError {
    DeviceError::Driver {
        call: call.name(),
        code: 999,
        name: "TEST".to_owned(),
        text: "asked for".to_owned(),
    }
}

fn out_of_memory(call: Call) -> DeviceError {
    DeviceError::OutOfMemory { call: call.name(), requested: 2 * MIB }
}

/// Runs the program once for each call that it makes, which then fails.
fn fail_each(virtual_memory: bool, error: fn(Call) -> DeviceError, before: impl Fn(&SimDevice)) {
    let mut whole = World::new(virtual_memory);
    let first = whole.sim.calls();
    whole.run();
    let last = whole.sim.calls();
    whole.finish();
    for call in Call::ALL {
        for nth in 1..=last[call] - first[call] {
            let mut world = World::new(virtual_memory);
            before(&world.sim);
            world.sim.fail_next(call, nth, error(call));
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                world.run();
                world.finish();
            }));
            assert!(ran.is_ok(), "number {nth} of {}", call.name());
        }
    }
}

#[test]
fn whichever_call_fails_nothing_is_lost() {
    for virtual_memory in [true, false] {
        fail_each(virtual_memory, driver, |_| ());
    }
}

#[test]
fn whichever_call_finds_no_memory_nothing_is_lost() {
    for virtual_memory in [true, false] {
        fail_each(virtual_memory, out_of_memory, |_| ());
    }
}

#[test]
fn whichever_call_fails_while_others_fail_often_nothing_is_lost() {
    fail_each(true, driver, |sim| {
        sim.seed_failures(7);
        for call in [Call::Unmap, Call::ReleasePage, Call::Synchronize, Call::SynchronizeEvent] {
            sim.fail_randomly(call, 0.3);
        }
    });
}
