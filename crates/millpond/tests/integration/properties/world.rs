//! What a program acts on: the real context, pools and streams over the checker, and beside them the model
//! that says what they must report.

use std::sync::Arc;
use std::time::Duration;

use millpond::device::sim::{Call, Hold, SimDevice};
use millpond::device::{Device, DeviceError, DevicePtr, StreamHandle};
use millpond::testing::checker::{BlockId, CheckerDevice, Freeing};
use millpond::testing::recycling::RecyclingDevice;
use millpond::{Budget, Buffer, Context, Error, Event, Pool, RegisteredStream, Result, Stream, Workspace};

use super::options::Options;
use super::order::{Clock, Key, Order, Work};
use super::program::{Kind, POOLS, STREAMS};
use crate::shared::Freeing as _;

/// A sentence that says what did not hold.
pub(crate) type Verdict<T = ()> = std::result::Result<T, String>;

pub(crate) struct StreamSlot {
    pub(crate) stream: Stream,
    /// Of the device below, which never gives it to another stream.
    pub(crate) handle: StreamHandle,
    pub(crate) registration: Option<RegisteredStream>,
    pub(crate) key: Key,
    pub(crate) kind: Kind,
    pub(crate) hold: Option<Hold>,
}

pub(crate) struct PoolSlot {
    pub(crate) pool: Pool,
    /// Tells the pools apart that had this slot.
    pub(crate) id: usize,
    pub(crate) destroyed: bool,
    pub(crate) allocations: u64,
    pub(crate) requested_high: u64,
}

/// Who frees the block, and how.
pub(crate) enum Owner {
    Program,
    Buffer(Buffer<u8>),
    Workspace(Workspace),
}

pub(crate) struct Block {
    pub(crate) at: DevicePtr,
    pub(crate) bytes: u64,
    pub(crate) pool: usize,
    pub(crate) owner: Owner,
    pub(crate) checked: BlockId,
    pub(crate) begun: Work,
    /// The last use on each stream.
    pub(crate) uses: Vec<Work>,
    pub(crate) recorded: Vec<Key>,
    /// The program gave advice on it, and takes it back.
    pub(crate) advised: bool,
}

/// See the [module](self).
pub(crate) struct World {
    pub(crate) options: Options,
    pub(crate) sim: Arc<SimDevice>,
    /// The device's other memory.
    pub(crate) others: [Arc<dyn Device>; 2],
    pub(crate) checker: Arc<CheckerDevice>,
    /// Over the checker.
    pub(crate) device: Arc<RecyclingDevice>,
    pub(crate) context: Context,
    pub(crate) budget: Option<Budget>,
    pub(crate) pools: Vec<PoolSlot>,
    pub(crate) streams: Vec<StreamSlot>,
    pub(crate) events: Vec<(Event, Clock)>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) order: Order,
    /// Holds of streams that are gone.
    pub(crate) stray_holds: Vec<Hold>,
    default_streams: Vec<(Kind, Key)>,
    /// Calls were made to fail: what the model cannot foresee is not compared.
    pub(crate) faulty: bool,
    pools_made: usize,
}

impl World {
    pub(crate) fn new(options: &Options) -> Verdict<Self> {
        let sim = options.device();
        let checker = CheckerDevice::new(sim.clone());
        let device = RecyclingDevice::new(checker.clone());
        let mut world = Self {
            options: options.clone(),
            others: [sim.pinned(None), sim.managed()].map(|memory| memory.expect("it has every kind")),
            sim,
            context: Context::new(device.clone()),
            checker,
            device,
            budget: options.budget(),
            pools: Vec::new(),
            streams: Vec::new(),
            events: Vec::new(),
            blocks: Vec::new(),
            order: Order::default(),
            stray_holds: Vec::new(),
            default_streams: Vec::new(),
            faulty: false,
            pools_made: 0,
        };
        for _ in 0..STREAMS {
            let made = world.make_stream(Kind::Own).map_err(|error| error.to_string())?;
            world.streams.push(made);
        }
        for _ in 0..POOLS {
            let made = world.make_pool().map_err(|error| error.to_string())?;
            world.pools.push(made);
        }
        world.sim.seed_failures(options.seed);
        world.faulty = options.failures > 0;
        world.fail_as_asked();
        Ok(world)
    }

    fn fail_as_asked(&self) {
        let chance = f64::from(self.options.failures) / 1000.0;
        for call in Call::ALL.into_iter().filter(|_| chance > 0.0) {
            self.sim.fail_randomly(call, chance);
        }
    }

    /// Does something on a device that works.
    pub(crate) fn undisturbed(&mut self, act: impl FnOnce(&mut Self)) {
        self.sim.fail_no_more();
        act(self);
        self.fail_as_asked();
    }

    pub(crate) fn release_holds(&mut self) {
        let holds: Vec<_> = self.streams.iter_mut().filter_map(|slot| slot.hold.take()).collect();
        holds.into_iter().chain(self.stray_holds.drain(..)).for_each(|hold| self.sim.release(hold));
    }

    // ---- what it is made of ----------------------------------------------------------------------

    pub(crate) fn make_pool(&mut self) -> Result<PoolSlot> {
        self.pools_made += 1;
        let id = self.pools_made;
        let pool = self.options.pool(&self.context, self.budget.as_ref(), id)?;
        Ok(PoolSlot { pool, id, destroyed: false, allocations: 0, requested_high: 0 })
    }

    pub(crate) fn make_stream(&mut self, kind: Kind) -> Result<StreamSlot> {
        let stream = match kind {
            Kind::Own => self.context.create_stream()?,
            Kind::Legacy => self.context.default_stream()?,
            Kind::PerThread => self.context.per_thread_stream()?,
            Kind::Foreign | Kind::Registered | Kind::Raw => self.adopt_stream(kind)?,
        };
        // The default streams are always the same.
        let known = self.default_streams.iter().find(|(of, _)| *of == kind).map(|(_, key)| *key);
        let key = known.unwrap_or_else(|| self.order.new_stream());
        if known.is_none() && matches!(kind, Kind::Legacy | Kind::PerThread) {
            self.default_streams.push((kind, key));
        }
        let handle = self.device.handle_below(stream.handle());
        let registration = (kind == Kind::Registered).then(|| self.register(&stream)).transpose();
        let registration = registration.inspect_err(|_| {
            // SAFETY: nobody else knows the stream, and its only clone makes no call.
            unsafe { self.device.destroy_stream(stream.handle()) }.ok();
        })?;
        Ok(StreamSlot { handle, stream, registration, key, kind, hold: None })
    }

    pub(crate) fn stream(&self, slot: usize) -> &StreamSlot {
        &self.streams[slot % STREAMS]
    }

    /// A stream that somebody else made.
    fn adopt_stream(&self, kind: Kind) -> Result<Stream> {
        let handle = self.device.create_stream()?;
        let adopted = if kind != Kind::Raw {
            // SAFETY: the slot destroys the stream, after its last use of it.
            unsafe { self.context.foreign_stream(handle) }
        } else {
            // SAFETY: the slot destroys the stream, after it gave up its only clone.
            unsafe { self.context.stream_from_raw(handle) }
        };
        if adopted.is_err() {
            // SAFETY: nobody knows the stream.
            unsafe { self.device.destroy_stream(handle) }.ok();
        }
        adopted
    }

    pub(crate) fn register(&self, stream: &Stream) -> Result<RegisteredStream> {
        // SAFETY: the slot drops it before it destroys the stream.
        unsafe { self.context.register_stream(stream.handle()) }
    }

    /// The slot's stream as a program would present it now.
    pub(crate) fn present(&self, slot: usize) -> Result<Stream> {
        let slot = self.stream(slot);
        match slot.kind {
            Kind::Foreign | Kind::Registered => {
                // SAFETY: the slot's stream is destroyed only when the slot is given another.
                Ok(unsafe { self.context.foreign_stream(slot.stream.handle()) }?)
            }
            _ => Ok(slot.stream.clone()),
        }
    }

    pub(crate) fn any_held(&self) -> bool {
        !self.stray_holds.is_empty() || self.streams.iter().any(|slot| slot.hold.is_some())
    }

    pub(crate) fn pool_slot(&mut self, id: usize) -> Option<&mut PoolSlot> {
        self.pools.iter_mut().find(|slot| slot.id == id)
    }

    /// What a call gave, if the program can go on without it: a call may fail where failures were asked for,
    /// and a wait is refused where a stream is held.
    pub(crate) fn allow<T, E: Into<Error>>(
        &self,
        what: &str,
        result: std::result::Result<T, E>,
    ) -> Verdict<Option<T>> {
        let error = match result {
            Ok(value) => return Ok(Some(value)),
            Err(error) => error.into(),
        };
        let held = |what: &str| what.contains("stream that is held");
        match &error {
            Error::Device(DeviceError::Invalid { what, .. }) if self.any_held() && held(what) => Ok(None),
            Error::Device(DeviceError::Driver { .. } | DeviceError::OutOfMemory { .. }) if self.faulty => {
                Ok(None)
            }
            _ => Err(format!("{what} failed: {error}")),
        }
    }

    // ---- order -----------------------------------------------------------------------------------

    /// Makes later work on `slot` come after `work`, by the program's own means. `false` where it cannot be
    /// done now.
    pub(crate) fn order_after(&mut self, work: Work, slot: usize) -> Verdict<bool> {
        let key = self.stream(slot).key;
        if self.order.is_before(work, key) {
            return Ok(true);
        }
        let other = self.streams.iter().position(|other| other.key == work.key);
        match other {
            Some(other) => self.wait_for(slot, other),
            None => self.synchronize(),
        }
    }

    pub(crate) fn wait_for(&mut self, slot: usize, other: usize) -> Verdict<bool> {
        let Some(stream) = self.allow("presenting a stream", self.present(slot))? else { return Ok(false) };
        let Some(other_stream) = self.allow("presenting a stream", self.present(other))? else {
            return Ok(false);
        };
        if self.allow("wait_for", stream.wait_for(&other_stream))?.is_none() {
            return Ok(false);
        }
        let event = self.order.snapshot(self.stream(other).key);
        let key = self.stream(slot).key;
        self.order.wait(key, &event);
        Ok(true)
    }

    pub(crate) fn synchronize(&mut self) -> Verdict<bool> {
        let done = self.allow("synchronising the device", self.context.synchronize())?.is_some();
        if done {
            self.order.complete_all();
        }
        Ok(done)
    }

    /// A kernel on the block, which is ordered already.
    pub(crate) fn launch(&mut self, block: usize, slot: usize, micros: u64) -> Verdict {
        let StreamSlot { handle, key, .. } = *self.stream(slot);
        self.sim.launch(handle, Duration::from_micros(micros)).map_err(|error| error.to_string())?;
        let work = self.order.submit(key);
        let block = &mut self.blocks[block];
        self.checker.used(block.checked, handle);
        block.uses.retain(|known| known.key != work.key);
        block.uses.push(work);
        Ok(())
    }

    // ---- blocks ----------------------------------------------------------------------------------

    /// Frees a block on a stream that is ordered after its uses. `false` where the pool refused.
    pub(crate) fn free(&mut self, block: usize, slot: usize, by_context: bool) -> Verdict<bool> {
        let Some(stream) = self.allow("presenting a stream", self.present(slot))? else { return Ok(false) };
        let StreamSlot { handle, key, .. } = *self.stream(slot);
        self.take_back_advice(block)?;
        let block = self.blocks.swap_remove(block);
        let freeing = self.checker.freed(block.checked, handle);
        self.order.submit(key);
        let pool = self.pool_slot(block.pool).map(|slot| slot.pool.clone());
        let freed = match pool {
            Some(pool) if !by_context => pool.free_block(block.at, &stream),
            _ => self.context.free_block(block.at, &stream),
        };
        let done = self.allow("a free", freed)?.is_some();
        if !done {
            self.take_back(block, freeing);
        }
        Ok(done)
    }

    fn take_back(&mut self, block: Block, freeing: Freeing) {
        self.checker.free_refused(freeing);
        self.blocks.push(block);
    }

    /// Drops the object that owns the block, which frees it on its own stream.
    pub(crate) fn drop_owner(&mut self, block: usize) {
        let block = self.blocks.swap_remove(block);
        let handle = match &block.owner {
            Owner::Buffer(buffer) => buffer.stream().handle(),
            Owner::Workspace(workspace) => workspace.stream().handle(),
            Owner::Program => unreachable!("the program frees its own blocks"),
        };
        let _freed = self.checker.freed(block.checked, self.device.handle_below(handle));
        self.order.submit(block.begun.key);
        drop(block.owner);
    }

    /// Orders everything that the program did with the block before what comes next on the stream, except
    /// what the pool was told of. `false` where that cannot be done now.
    pub(crate) fn order_free(&mut self, block: usize, slot: usize) -> Verdict<bool> {
        let block = &self.blocks[block];
        let uses = block.uses.iter().copied().filter(|work| !block.recorded.contains(&work.key));
        let uses: Vec<_> = uses.chain([block.begun]).collect();
        for work in uses {
            if !self.order_after(work, slot)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
