//! Impossible requests: what no step can satisfy is refused before anything is given back, remapped or asked for.
//!
//! A live block cannot move. So a request is impossible if it and all live blocks exceed a limit, whatever is free or
//! cached. It is possible if the pool holds that much already (a budget may have been lowered since): then nothing has
//! to grow. Other allocators and processes may give memory back, so all of the device's memory counts that is not live
//! in a pool of the context.
//!
//! A callback of the program may free live blocks. If one can be asked, only what alone exceeds a limit is impossible.

use crate::budgets::{Limits, Live, Shortage};
use crate::cache::Sizes;
use crate::extents::MOST_UNITS;

/// The limit that makes a request for so many bytes impossible, for a pool that holds so many, beside what is live there and in other
/// pools. That is counted without the lock: the last handle of another pool may be dropped then.
pub(super) fn limit_exceeded(
    limits: &Limits,
    sizes: Sizes,
    (bytes, held): (u64, u64),
    count_live: impl FnOnce() -> Live,
) -> Option<Shortage> {
    let units = sizes.units(bytes);
    let bytes = sizes.bytes(units);
    // Nearly always.
    let is_far = limits.have_room(bytes);
    let exceeded = || limits.verdict(bytes, count_live(), held);
    // A region has no room for a longer block, whatever the device has.
    let too_long = (units >= MOST_UNITS).then_some(Shortage::Device);
    if is_far { too_long } else { exceeded().or(too_long) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use crate::budgets::Budget;
    use crate::device::sim::{Call, PerCall, SimDevice, SimOptions};
    use crate::error::Error;
    use crate::figures::stats::Stats;
    use crate::fixtures::{Freeing, MIB};
    use crate::order::Stream;
    use crate::out_of_memory::Limit;
    use crate::pool::{Context, Pool, PoolBuilder};
    use std::sync::Arc;

    const TOTAL: u64 = 1 << 30;

    /// A pool with blocks live, free and cached, and another one that caches.
    struct TwoPools {
        sim: Arc<SimDevice>,
        /// Pools know of each other as long as it lives.
        _context: Context,
        stream: Stream,
        pool: Pool,
        other: Pool,
    }

    impl TwoPools {
        fn new(options: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
            let sim = SimDevice::new(SimOptions { capacity: TOTAL, ..SimOptions::default() }).unwrap();
            let context = Context::new(sim.clone());
            let stream = context.create_stream().unwrap();
            let other = Pool::builder(&context).name("other").build().unwrap();
            let pool = options(Pool::builder(&context)).build().unwrap();
            let bench = Self { sim, _context: context, stream, pool, other };
            // 100 MiB are live here and in the other pool each, and as much is free.
            for pool in [&bench.pool, &bench.other] {
                let free = pool.alloc(100 * MIB, &bench.stream).unwrap();
                _ = pool.alloc(99 * MIB, &bench.stream).unwrap();
                _ = pool.alloc(MIB, &bench.stream).unwrap();
                let small = pool.alloc(4096, &bench.stream).unwrap();
                pool.free_block(free, &bench.stream).unwrap();
                pool.free_block(small, &bench.stream).unwrap();
                assert!(pool.inner().caches.holds_any());
            }
            bench
        }

        /// All that a refused request must leave as it is.
        fn state(&self) -> ([Stats; 2], PerCall<u64>, [bool; 2], [u64; 2]) {
            let pools = [&self.pool, &self.other];
            let mut calls = self.sim.calls();
            // The error says what the device has free.
            calls[Call::MemoryInfo] = 0;
            let stats = pools.map(|pool| Stats { out_of_memory: 0, ..pool.stats() });
            let cached = pools.map(|pool| pool.inner().caches.holds_any());
            (stats, calls, cached, pools.map(|pool| pool.inner().largest_free()))
        }

        fn is_refused_at_once(&self, bytes: u64) -> Limit {
            let (before, refused) = (self.state(), self.pool.stats().out_of_memory);
            let Err(Error::OutOfMemory(report)) = self.pool.alloc(bytes, &self.stream) else {
                panic!("{bytes} bytes were found")
            };
            assert_eq!(self.state(), before, "{bytes} bytes");
            assert_eq!(self.pool.stats().out_of_memory, refused + 1);
            assert_eq!(report.requested, bytes);
            report.limit
        }

        fn is_served(&self, bytes: u64) {
            let block = self.pool.alloc(bytes, &self.stream).unwrap();
            self.pool.check().unwrap();
            self.pool.free_block(block, &self.stream).unwrap();
        }
    }

    #[test]
    fn what_the_device_cannot_hold_is_refused_at_once() {
        let bench = TwoPools::new(|builder| builder);
        // 200 MiB are live, in both pools together.
        for bytes in [32 << 40, 1 << 50, TOTAL + 1, TOTAL - 199 * MIB] {
            assert_eq!(bench.is_refused_at_once(bytes), Limit::Device);
        }
        // Less than what is left, since live blocks share pages with free ones.
        bench.is_served(TOTAL - 210 * MIB);
    }

    #[test]
    fn what_the_hard_limit_forbids_is_refused_at_once() {
        let bench = TwoPools::new(|builder| builder.hard_limit(300 * MIB));
        // Of 300 MiB, 100 are live.
        for bytes in [32 << 40, 301 * MIB, 201 * MIB] {
            assert_eq!(bench.is_refused_at_once(bytes), Limit::HardLimit(300 * MIB));
        }
        bench.is_served(198 * MIB);
    }

    #[test]
    fn what_the_budget_forbids_is_refused_at_once() {
        let budget = Budget::bytes(300 * MIB);
        let bench = TwoPools::new(|builder| builder.budget(&budget));
        // Of 300 MiB, 100 are live.
        for bytes in [32 << 40, 301 * MIB, 201 * MIB] {
            assert!(matches!(bench.is_refused_at_once(bytes), Limit::Budget { .. }));
        }
        bench.is_served(198 * MIB);
    }

    #[test]
    fn what_the_headroom_forbids_is_refused_at_once() {
        let bench = TwoPools::new(|builder| builder.headroom(200 * MIB));
        for bytes in [TOTAL - 199 * MIB, TOTAL - 399 * MIB] {
            assert_eq!(bench.is_refused_at_once(bytes), Limit::Headroom(200 * MIB));
        }
        bench.is_served(TOTAL - 410 * MIB);
    }

    #[test]
    fn what_is_held_beyond_a_lowered_budget_still_serves() {
        let budget = Budget::bytes(300 * MIB);
        let bench = TwoPools::new(|builder| builder.budget(&budget));
        budget.set_limit(10 * MIB);
        let held = bench.pool.reserved().current;
        bench.is_served(99 * MIB);
        assert_eq!(bench.pool.reserved().current, held);
        assert!(matches!(bench.is_refused_at_once(203 * MIB), Limit::Budget { .. }));
    }

    #[test]
    fn only_callbacks_that_might_help_are_asked_observers_told_once() {
        let bench = TwoPools::new(|builder| builder.hard_limit(300 * MIB));
        let (asked, told) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let counts = |count: &Arc<AtomicU64>| {
            let count = count.clone();
            move || _ = count.fetch_add(1, Ordering::Relaxed)
        };
        let (ask, tell) = (counts(&asked), counts(&told));
        bench.pool.on_reclaim(move |_| {
            ask();
            false
        });
        bench.pool.on_out_of_memory(move |_| tell());
        bench.is_refused_at_once(301 * MIB);
        assert_eq!((asked.load(Ordering::Relaxed), told.load(Ordering::Relaxed)), (0, 1));
        // It might free what is live.
        assert!(bench.pool.alloc(201 * MIB, &bench.stream).is_err());
        assert_eq!((asked.load(Ordering::Relaxed), told.load(Ordering::Relaxed)), (1, 2));
    }

    #[test]
    fn what_a_capture_cannot_have_is_refused_at_once() {
        let bench = TwoPools::new(|builder| builder.hard_limit(300 * MIB));
        let memory = bench.pool.capture_pool();
        let capturing = memory.begin(&bench.stream).unwrap();
        for bytes in [32 << 40, 201 * MIB] {
            let before = bench.state();
            assert!(matches!(bench.pool.alloc(bytes, &bench.stream), Err(Error::OutOfMemory(_))));
            assert_eq!(bench.state(), before);
        }
        bench.is_served(90 * MIB);
        drop(capturing);
    }
}
