//! Beside many pages, old mappings and blocks.

use std::sync::Arc;
use std::time::Duration;

use millpond::device::DevicePtr;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Context, Pool, PoolBuilder, ReusePolicies, Stream};

use super::Meter;
use crate::Result;

/// Bytes of a page.
const PAGE: u64 = 2 << 20;

/// More memory than any device has.
pub(super) const CAPACITY: u64 = 64 << 40;

/// Calls that are watched.
const CALLS: u64 = 20;

/// A pool that gives nothing back by itself.
struct Bench {
    sim: Arc<SimDevice>,
    context: Context,
    pool: Pool,
    stream: Stream,
}

impl Bench {
    fn new(options: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Result<Self> {
        let sim = SimDevice::new(SimOptions::default().capacity(CAPACITY))?;
        let context = Context::new(sim.clone());
        let pool = options(Pool::builder(&context).release_threshold(u64::MAX)).build()?;
        Ok(Self { sim, pool, stream: context.create_stream()?, context })
    }

    fn of_short_pages() -> Result<Self> {
        Self::new(|pool| pool.page_sizes(PAGE, PAGE))
    }

    fn alloc(&self, bytes: u64) -> Result<DevicePtr> {
        Ok(self.pool.alloc(bytes, &self.stream)?)
    }

    fn free(&self, block: DevicePtr) -> Result<()> {
        // SAFETY: each block is freed once, and no work uses it.
        Ok(unsafe { self.pool.free(block, &self.stream) }?)
    }

    /// The job computes for a while, so that device calls take little of the time.
    fn compute(&self) {
        self.sim.advance_to(self.sim.now() + Duration::from_millis(50));
    }

    /// Leaves so many old mappings; the last misses that do are watched.
    fn leave_old_mappings(&self, meter: &mut Meter, mappings: u64) -> Result<()> {
        let blocks = (0..2 * mappings).map(|_| self.alloc(PAGE)).collect::<Result<Vec<_>>>()?;
        blocks.iter().step_by(2).try_for_each(|block| self.free(*block))?;
        // Each takes two pages, each of which leaves its old mapping.
        for left in (0..mappings / 2).rev() {
            self.compute();
            match left < CALLS {
                true => _ = meter.watch(1, || self.alloc(2 * PAGE))?,
                false => _ = self.alloc(2 * PAGE)?,
            }
        }
        Ok(())
    }
}

pub(super) fn idle(meter: &mut Meter, mappings: u64) -> Result<()> {
    Bench::of_short_pages()?.leave_old_mappings(meter, mappings)
}

pub(super) fn pending(meter: &mut Meter, mappings: u64) -> Result<()> {
    let bench = Bench::of_short_pages()?;
    let _hold = bench.sim.hold(bench.stream.handle())?;
    bench.leave_old_mappings(meter, mappings)
}

/// No policy lets a request use the holes, whose memory another stream still uses.
pub(super) fn pending_holes(meter: &mut Meter, holes: u64) -> Result<()> {
    let bench = Bench::new(|pool| pool.page_sizes(PAGE, PAGE).reuse(ReusePolicies::NONE))?;
    let other = bench.context.create_stream()?;
    let _hold = bench.sim.hold(other.handle())?;
    let blocks = (0..2 * holes).map(|_| bench.alloc(PAGE)).collect::<Result<Vec<_>>>()?;
    // SAFETY: each is freed once, behind all that uses it.
    blocks.iter().step_by(2).try_for_each(|block| unsafe { bench.pool.free(*block, &other) })?;
    (0..CALLS).try_for_each(|_| meter.watch(1, || bench.alloc(PAGE)).map(drop))
}

/// Holes are long enough, and begin and end in the middle of what is asked for.
pub(super) fn aligned(meter: &mut Meter, holes: u64) -> Result<()> {
    let bench = Bench::of_short_pages()?;
    let mut between = Vec::new();
    for _ in 0..holes {
        _ = bench.alloc(PAGE * 3 / 2)?;
        between.push(bench.alloc(PAGE)?);
        _ = bench.alloc(PAGE * 3 / 2)?;
    }
    between.into_iter().try_for_each(|block| bench.free(block))?;
    (0..CALLS).try_for_each(|_| {
        meter.watch(1, || Ok(bench.pool.alloc_aligned(PAGE, PAGE, &bench.stream)?)).map(drop)
    })
}

pub(super) fn block(meter: &mut Meter, gib: u64) -> Result<()> {
    let bench = Bench::new(|pool| pool)?;
    _ = meter.watch(gib, || bench.alloc(gib << 30))?;
    Ok(())
}

pub(super) fn come_back(meter: &mut Meter, pages: u64) -> Result<()> {
    let bench = Bench::of_short_pages()?;
    let first = bench.alloc(8 * PAGE)?;
    let many = bench.alloc(pages * PAGE)?;
    let _last = bench.alloc(PAGE)?;
    bench.free(many)?;
    // All pages move, and come back to where they were, behind the first block.
    let elsewhere = bench.alloc((pages + 1) * PAGE)?;
    bench.free(elsewhere)?;
    bench.free(first)?;
    _ = meter.watch(pages, || bench.alloc((pages + 8) * PAGE))?;
    Ok(())
}

/// A long block comes and goes, beside many short ones, and its memory is given back.
fn trims(blocks: u64, mut each: impl FnMut(&Bench) -> Result<()>) -> Result<()> {
    let bench = Bench::new(|pool| pool)?;
    (0..blocks).try_for_each(|_| bench.alloc(512).map(drop))?;
    // The first trim may give back what growing left.
    let long = bench.alloc(64 << 20)?;
    bench.free(long)?;
    bench.pool.trim_to(0)?;
    (0..CALLS).try_for_each(|_| each(&bench))
}

pub(super) fn trim(meter: &mut Meter, blocks: u64) -> Result<()> {
    trims(blocks, |bench| {
        let long = bench.alloc(64 << 20)?;
        bench.free(long)?;
        meter.watch(1, || Ok(bench.pool.trim_to(0)?)).map(drop)
    })
}

pub(super) fn after_trim(meter: &mut Meter, blocks: u64) -> Result<()> {
    trims(blocks, |bench| {
        let long = meter.watch(1, || bench.alloc(64 << 20))?;
        bench.free(long)?;
        Ok(bench.pool.trim_to(0).map(drop)?)
    })
}

pub(super) fn growing(meter: &mut Meter, blocks: u64) -> Result<()> {
    let bench = Bench::new(|pool| pool)?;
    (0..blocks).try_for_each(|_| meter.watch(1, || bench.alloc(512)).map(drop))
}
