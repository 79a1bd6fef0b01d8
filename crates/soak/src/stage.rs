//! What the threads of a program share: the device, the checker that watches it, and the pools.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond::device::sim::SimDevice;
use millpond::device::{Device, DeviceError, DevicePtr, StreamHandle};
use millpond::testing::capturing::CapturingDevice;
use millpond::testing::checker::{BlockId, CheckerDevice};
use millpond::{Budget, Context, Error, Event, Pool, Stream};
use parking_lot::{Mutex, RwLock};

use crate::failing::{FailingDevice, Faults, SparedDevice};
use crate::finding::{Finding, Verdict};
use crate::order::Ticks;
use crate::refusing::spared;
use crate::setup::{GRANULARITY, POOLS, SLOTS, Setup};

/// A pool, and which of those it is that had its place.
#[derive(Debug)]
pub(crate) struct PoolSlot {
    pub(crate) pool: Pool,
    pub(crate) id: u32,
    /// Of a tag: which pool it is a part of.
    pub(crate) whole: u32,
    /// Of a tag: it was destroyed with that.
    pub(crate) is_destroyed: bool,
}

impl PoolSlot {
    fn new(pool: Pool) -> Self {
        Self { pool, id: 0, whole: 0, is_destroyed: false }
    }
}

/// A block of a program.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) at: DevicePtr,
    pub(crate) bytes: u64,
    /// The place of its pool, and which of those it is.
    pub(crate) pool: (usize, u32),
    /// The stream that it was allocated on.
    pub(crate) stream: usize,
    pub(crate) checked: BlockId,
    /// Its first work there.
    pub(crate) begun: u32,
    /// The last work on each stream.
    pub(crate) uses: Ticks,
    /// Streams of which the pool was told, one bit each.
    pub(crate) recorded: u8,
    /// Places of streams whose former stream used it: the program orders such uses itself.
    pub(crate) outlived: u8,
    /// What the bytes at its edges are, where they are kept.
    pub(crate) value: u8,
    /// Its memory is away. For the checker it has ended, until it comes back.
    pub(crate) is_away: bool,
}

impl Block {
    /// Where its bytes are watched, and how many: at its beginning, at its end, and at each page between.
    pub(crate) fn edges(&self) -> impl Iterator<Item = (DevicePtr, u64)> + use<> {
        let (at, bytes, length) = (self.at, self.bytes, self.bytes.min(EDGE));
        let pages = (0..bytes - length).step_by(GRANULARITY as usize);
        pages.chain([bytes - length]).map(move |offset| (at.offset(offset), length))
    }
}

/// A block on its way to another thread, and the event behind all work on it.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) block: Block,
    pub(crate) event: Event,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) setup: Setup,
    pub(crate) checker: Arc<CheckerDevice>,
    pub(crate) capturing: Arc<CapturingDevice>,
    pub(crate) context: Context,
    pub(crate) pools: [RwLock<PoolSlot>; SLOTS],
    pub(crate) parcels: Mutex<Vec<Parcel>>,
    pub(crate) faults: Arc<Faults>,
    sim: Option<Arc<SimDevice>>,
    budget: Option<Budget>,
}

impl Stage {
    pub(crate) fn new(setup: Setup) -> Verdict<Self> {
        let wrong = |error: Error| Finding::wrong(format!("the pools could not be built: {error}"));
        let (device, sim) = setup.open().map_err(wrong)?;
        let faults = Arc::new(Faults::new(setup.seed, setup.faults));
        let below = Arc::new(FailingDevice { below: device, faults: faults.clone() });
        let checker = CheckerDevice::new(below);
        let watched: Arc<dyn Device> = checker.clone();
        #[cfg(test)]
        let watched = crate::tests::plant(watched);
        let capturing = CapturingDevice::new(watched);
        let context = Context::new(Arc::new(SparedDevice(capturing.clone())));
        let budget = setup.budget().map_err(wrong)?;
        let mut pools = Vec::with_capacity(SLOTS);
        for slot in 0..POOLS {
            let pool = setup.pool(&context, budget.as_ref(), slot).map_err(wrong)?;
            pools.push(RwLock::new(PoolSlot::new(pool)));
        }
        for slot in POOLS..SLOTS {
            let tag = pools[0].read().pool.tagged(&tag_in(slot)).map_err(wrong)?;
            pools.push(RwLock::new(PoolSlot::new(tag)));
        }
        let pools = pools.try_into().expect("as many as were built");
        let parcels = Mutex::default();
        Ok(Self { setup, checker, capturing, context, pools, parcels, faults, sim, budget })
    }

    /// A new pool in a place. Returns the one that was there, and whether it is to be destroyed while others hold it.
    pub(crate) fn replace_pool(&self, slot: usize) -> millpond::Result<(Pool, bool)> {
        let pool = self.setup.pool(&self.context, self.budget.as_ref(), slot)?;
        let mut there = self.pools[slot].write();
        // Its tags outlive it, or are destroyed with it.
        let is_destroyed = there.id.is_multiple_of(2);
        for tag in &self.pools[POOLS..] {
            let mut tag = tag.write();
            tag.is_destroyed |= is_destroyed && slot == 0 && tag.whole == there.id;
        }
        there.id += 1;
        Ok((std::mem::replace(&mut there.pool, pool), is_destroyed))
    }

    /// The tag of the present pool in the place of one whose pool is gone. `None` where that is not gone.
    pub(crate) fn replace_tag(&self, slot: usize) -> millpond::Result<Option<Pool>> {
        let whole = self.pools[0].read();
        let mut there = self.pools[slot].write();
        if there.whole == whole.id {
            return Ok(None);
        }
        let pool = whole.pool.tagged(&tag_in(slot))?;
        let id = there.id + 1;
        Ok(Some(std::mem::replace(&mut *there, PoolSlot { id, whole: whole.id, ..PoolSlot::new(pool) }).pool))
    }

    /// Whether the place has a tag of the present pool.
    pub(crate) fn is_part(&self, slot: usize) -> bool {
        let whole = self.pools[0].read().id;
        slot >= POOLS && self.pools[slot].read().whole == whole
    }

    /// Whether bytes can be read back.
    pub(crate) fn keeps_bytes(&self) -> bool {
        self.sim.is_none()
    }

    /// A kernel that takes so long and uses a block, on the simulated device; elsewhere the device fills the block's first bytes.
    pub(crate) fn launch(&self, block: &Block, handle: StreamHandle, micros: u16) -> Result<(), DeviceError> {
        match &self.sim {
            Some(sim) => {
                sim.launch(handle, Duration::from_micros(micros.into()))?;
                self.checker.used(block.checked, handle);
                Ok(())
            }
            // SAFETY: the block is live, and the program has ordered its allocation before this.
            None => unsafe { self.capturing.memset(block.at, block.value, block.bytes.min(EDGE), handle) },
        }
    }

    pub(crate) fn set_threshold(&self, slot: usize, pages: u8) {
        self.pools[slot].read().pool.set_release_threshold(u64::from(pages) * GRANULARITY);
    }

    pub(crate) fn advance(&self, micros: u16) -> bool {
        let advance = |sim: &Arc<SimDevice>| sim.advance_to(sim.now() + Duration::from_micros(micros.into()));
        self.sim.as_ref().map(advance).is_some()
    }

    /// Frees a block: by its pool, or by the context where that pool has no handle any more.
    pub(crate) fn free(&self, block: &Block, stream: &Stream) -> millpond::Result<()> {
        let slot = self.pools[block.pool.0].read();
        // SAFETY: nobody else has the block, and all work on it is ordered before the free, or was recorded.
        unsafe {
            if slot.id == block.pool.1 {
                slot.pool.free(block.at, stream)
            } else {
                self.context.free(block.at, stream)
            }
        }
    }

    /// What a call gave, if the program can go on without it: calls fail where they are made to, and memory runs out.
    pub(crate) fn allow<T, E: Into<Error>>(&self, what: &str, result: Result<T, E>) -> Verdict<Option<T>> {
        let error = match result {
            Ok(value) => return Ok(Some(value)),
            Err(error) => error.into(),
        };
        match error {
            Error::OutOfMemory(_) | Error::HostMemory { .. } => Ok(None),
            Error::Device(DeviceError::HostMemory { .. } | DeviceError::OutOfMemory { .. }) => Ok(None),
            Error::Device(DeviceError::Driver { code: 999, .. }) => Ok(None),
            error => Err(spared(|| Finding::wrong(format!("{what} failed: {error}")))),
        }
    }

    /// Asks the checker, and each pool for its own recount.
    pub(crate) fn check(&self) -> Verdict {
        self.checker.verify()?;
        for slot in &self.pools {
            let slot = slot.read();
            slot.pool.check().map_err(|why| Finding::wrong(format!("{}: {why}", slot.pool.name())))?;
        }
        if let Some(error) = self.capturing.taken_from_graphs().first() {
            return Err(Finding::new(crate::finding::Kind::Overlapping, error.to_string()));
        }
        match &self.budget {
            Some(budget) if budget.held() > budget.limit() && !self.setup.has_named_budget() => {
                Err(Finding::wrong(format!("{budget:?} is exceeded")))
            }
            _ => Ok(()),
        }
    }

    /// Ends the pools, whose blocks are free, and asks what is left.
    pub(crate) fn finish(self) -> Verdict {
        self.check()?;
        // What was shared is the pool's again once what was opened is unmapped, and once no process that is just being started has
        // copies of its descriptors.
        let is_settled = || self.pools.iter().all(|slot| slot.read().pool.stats().blocks.current == 0);
        let began = Instant::now();
        self.allow("the last synchronise", self.context.synchronize())?;
        while !is_settled() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
            self.allow("the last synchronise", self.context.synchronize())?;
        }
        for slot in &self.pools {
            let pool = &slot.read().pool;
            let stats = pool.stats();
            if (stats.blocks.current, stats.requested.current) != (0, 0) || stats.allocations != stats.frees {
                return Err(Finding::wrong(format!("blocks are live at the end: {stats:?}")));
            }
            pool.trim_to(0).map_err(|error| Finding::wrong(format!("the last trim failed: {error}")))?;
            let left = pool.reserved().current;
            if left > 0 {
                return Err(Finding::lost(
                    left,
                    format!("{left} bytes of {} were not released", pool.name()),
                ));
            }
            pool.check().map_err(|why| Finding::wrong(format!("{}: {why}", pool.name())))?;
        }
        let has_named_budget = self.setup.has_named_budget();
        let Self { checker, .. } = self;
        drop((self.pools, self.budget, self.context, self.capturing));
        // A thread that answers other processes may have a pool for a moment longer.
        let began = Instant::now();
        while has_named_budget && checker.verify_nothing_left().is_err() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(checker.verify_nothing_left()?)
    }
}

/// How long the last memory may take to go back, where other processes are in the way.
const PATIENCE: Duration = Duration::from_secs(5);

/// The name of the tag in this place.
fn tag_in(slot: usize) -> String {
    format!("tag {slot}")
}

/// Bytes at each of a block's edges.
pub(crate) const EDGE: u64 = 4096;
