//! What must hold after every step: the checker is content, and what the pools report is what the model
//! counts.

use millpond::device::sim::Call;
use millpond::device::{Device, DevicePtr};
use millpond::{DeviceCalls, OutOfMemory, Pool, Stats};

use super::options::GRANULARITY;
use super::program::How;
use super::world::{PoolSlot, Verdict, World};

/// Fails with a sentence unless it holds.
macro_rules! ensure {
    ($holds:expr, $($sentence:tt)+) => {
        if !$holds {
            return Err(format!($($sentence)+));
        }
    };
}
pub(crate) use ensure;

impl World {
    pub(crate) fn check(&self) -> Verdict {
        self.checker.verify().map_err(|report| report.to_string())?;
        for slot in &self.pools {
            slot.pool.check().map_err(|why| format!("{}: {why}", slot.pool.name()))?;
            self.check_counts(slot)?;
        }
        self.check_device()
    }

    pub(crate) fn requested_of(&self, pool: usize) -> u64 {
        self.blocks.iter().filter(|block| block.pool == pool).map(|block| block.bytes).sum()
    }

    fn check_counts(&self, slot: &PoolSlot) -> Verdict {
        let stats = slot.pool.stats();
        let name = slot.pool.name();
        let live = || self.blocks.iter().filter(|block| block.pool == slot.id);
        let unit = self.options.min_alignment;
        let requested = self.requested_of(slot.id);
        let least: u64 = live().map(|block| block.bytes.next_multiple_of(unit)).sum();
        // Small blocks may be rounded up to a size class, by less than an eighth; large ones that seem to grow get less
        // than a 32nd more.
        let part = |bytes: u64| if bytes < 1 << 20 { 8 } else { 32 };
        let spare: u64 = live().map(|block| block.bytes.next_multiple_of(unit)).map(|b| b / part(b)).sum();
        let (allocated, most) = (stats.allocated.current, least + spare);
        let blocks = live().count() as u64;
        ensure!(stats.requested.current == requested, "{name}: {requested} requested, {:?}", stats.requested);
        ensure!(least <= allocated && allocated <= most, "{name}: {least} to {most}, not {allocated}");
        ensure!(stats.blocks.current == blocks, "{name}: {blocks} live blocks, {:?}", stats.blocks);
        ensure!(stats.allocations - stats.frees == blocks, "{name}: frees do not add up: {stats:?}");
        ensure!(stats.hits + stats.misses == stats.allocations, "{name}: hits and misses: {stats:?}");
        ensure!(stats.reserved.current >= allocated, "{name}: more allocated than reserved: {stats:?}");
        ensure!(slot.pool.allocated() == stats.allocated, "{name}: used and allocated differ");
        ensure!(slot.pool.reserved() == stats.reserved, "{name}: reserved differs");
        if !self.faulty {
            ensure!(
                stats.allocations == slot.allocations,
                "{name}: {} allocations, {stats:?}",
                slot.allocations
            );
            let high = slot.requested_high;
            ensure!(stats.requested.high == high, "{name}: at most {high} requested, {:?}", stats.requested);
        }
        self.check_high_water(name, &stats)?;
        if let Some(limit) = self.options.hard_limit {
            ensure!(stats.reserved.high <= limit * GRANULARITY, "{name}: beyond its hard limit: {stats:?}");
        }
        Ok(())
    }

    fn check_high_water(&self, name: &str, stats: &Stats) -> Verdict {
        for level in [stats.requested, stats.allocated, stats.reserved, stats.blocks] {
            ensure!(level.high >= level.current, "{name}: a high-water mark below the level: {stats:?}");
        }
        Ok(())
    }

    /// The device and the pools agree on who holds what.
    fn check_device(&self) -> Verdict {
        let [pinned, managed] = &self.others;
        let infos = [self.sim.memory_info(), pinned.memory_info(), managed.memory_info()];
        let [Ok(own), Ok(pinned), Ok(managed)] = infos else { return Ok(()) };
        let held: u64 = [own, pinned, managed].iter().map(|info| info.total - info.free).sum();
        let reserved: u64 = self.pools.iter().map(|slot| slot.pool.reserved().current).sum();
        // Pools whose last handle is gone, with blocks live, hold the rest.
        let orphans = self.blocks.iter().any(|block| self.pools.iter().all(|slot| slot.id != block.pool));
        ensure!(reserved <= held, "the pools say {reserved} bytes, the device {held}");
        if !orphans && self.all_pools_known() {
            ensure!(reserved == held, "the pools say {reserved} bytes, the device {held}");
        }
        if !self.faulty && self.all_pools_known() {
            self.check_calls()?;
        }
        if let Some(budget) = &self.budget {
            ensure!(budget.held() <= budget.limit(), "{budget:?} is exceeded");
            ensure!(budget.held() == held, "{budget:?}, but {held} bytes are held");
        }
        // A device that cannot say what is free stops no growth.
        let headroom = self.options.headroom * GRANULARITY;
        for info in [own, pinned, managed].into_iter().filter(|info| info.free < info.total && !self.faulty) {
            ensure!(info.free >= headroom, "{} bytes are free of {headroom} kept free", info.free);
        }
        Ok(())
    }

    /// The pools count the device's calls as the device does; where memory is short it counts tries as well.
    fn check_calls(&self) -> Verdict {
        let seen = self.sim.calls();
        let all: Vec<_> = self.pools.iter().map(|slot| slot.pool.stats().calls).collect();
        let sum = |of: fn(&DeviceCalls) -> u64| all.iter().map(of).sum::<u64>();
        let counted = [
            (Call::Reserve, sum(|calls| calls.reserve)),
            (Call::Unreserve, sum(|calls| calls.unreserve)),
            (Call::Map, sum(|calls| calls.map)),
            (Call::SetAccess, sum(|calls| calls.set_access)),
            (Call::Unmap, sum(|calls| calls.unmap)),
            (Call::ReleasePage, sum(|calls| calls.release)),
        ];
        for (call, counted) in counted {
            ensure!(
                seen[call] == counted,
                "{}: the device saw {}, counted {counted}",
                call.name(),
                seen[call]
            );
        }
        // The device refuses to free a segment while a stream is held.
        let (freed, tried) = (sum(|calls| calls.free), seen[Call::FreeSegment]);
        ensure!(freed <= tried, "{freed} segments were counted as freed, of {tried}");
        let tried = seen[Call::CreatePage] + seen[Call::AllocSegment];
        let made = sum(|calls| calls.create + calls.alloc);
        ensure!(made <= tried, "{made} pages and segments were counted, {tried} asked for");
        Ok(())
    }

    /// A hit moves no memory, unless memory was short before it.
    pub(crate) fn check_hit(&self, pool: usize, before: &Stats) -> Verdict {
        let after = self.pools[pool].pool.stats();
        let moved = after.calls.memory() - before.calls.memory();
        let hit = after.misses == before.misses && after.retries == before.retries;
        ensure!(!hit || moved == 0, "a hit made {moved} calls that move memory");
        Ok(())
    }

    /// Whether no pool was replaced: one that is gone may hold memory until its work is complete.
    fn all_pools_known(&self) -> bool {
        self.pools.iter().enumerate().all(|(index, slot)| slot.id == index + 1)
    }

    pub(crate) fn check_address(&self, pool: usize, at: DevicePtr, bytes: u64, how: How) -> Verdict {
        let asked = if let How::Aligned(log) = how { 1 << log } else { 1 };
        let align = self.options.min_alignment.max(asked);
        ensure!(at.raw().is_multiple_of(align), "{at} is no multiple of {align}");
        ensure!(!at.is_null(), "{bytes} bytes at null");
        let size = self.pools[pool].pool.size_of(at).map_err(|error| error.to_string())?;
        ensure!(size == bytes, "a block of {bytes} bytes says that it has {size}");
        Ok(())
    }

    /// An error for want of memory tells the truth, and comes only when nothing could have been given back.
    pub(crate) fn check_out_of_memory(&self, pool: usize, bytes: u64, report: &OutOfMemory) -> Verdict {
        let slot = &self.pools[pool];
        let stats = slot.pool.stats();
        ensure!(report.requested == bytes, "{report}: {bytes} bytes were requested");
        ensure!(report.live == stats.allocated.current, "{report}: {stats:?}");
        ensure!(report.reserved == stats.reserved.current, "{report}: {stats:?}");
        ensure!(report.live + report.cached == report.reserved, "{report}: the parts do not add up");
        if self.faulty || self.any_held() {
            return Ok(());
        }
        let info = slot.pool.memory_info().map_err(|error| error.to_string())?;
        let most = |limit: Option<u64>, held: u64| limit.map_or(u64::MAX, |pages| pages * GRANULARITY - held);
        let budget_held = self.budget.as_ref().map_or(0, |budget| budget.held());
        let room = info.free.saturating_sub(self.options.headroom * GRANULARITY);
        let room = room.min(most(self.options.hard_limit, stats.reserved.current));
        let room = room.min(most(self.options.budget, budget_held));
        let page = self.options.smallest_page();
        // A segment needs room to align its first block.
        let extra = if slot.pool.device().properties().virtual_memory { 0 } else { page };
        let need = bytes.next_multiple_of(page) + extra;
        ensure!(room < need, "{report}: but there was room for {room} bytes");
        Ok(())
    }

    /// An error for want of memory comes only when the program could not help by waiting and trimming either.
    pub(crate) fn check_no_more_could_be_done(
        &mut self,
        pool: usize,
        succeeds: impl Fn(&Pool) -> bool,
    ) -> Verdict {
        if self.faulty || self.any_held() || !self.synchronize()? {
            return Ok(());
        }
        for slot in &self.pools {
            slot.pool.trim_to(0).map_err(|error| format!("a trim failed: {error}"))?;
        }
        let again = succeeds(&self.pools[pool].pool);
        ensure!(!again, "out of memory, though it sufficed to synchronise and trim all pools");
        Ok(())
    }
}
