//! When long pages of a pool are exchanged for short ones: before a large block is looked for in the arena, where that is
//! due (see `arena/shorten.rs`). What threads cache stays there: while the pool is lenient, that is no large block.

use super::inner::{PoolInner, State};

impl PoolInner {
    #[cold]
    pub(super) fn shorten(&self, state: &mut State) {
        let device = self.timelines.device();
        let began = device.now();
        state.arena.shorten();
        self.note_waste(state, device.now().saturating_sub(began));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::device::sim::{Call, SimDevice, SimOptions};
    use crate::device::{DeviceError, DevicePtr};
    use crate::{Context, Pool, Stream};

    const MIB: u64 = 1 << 20;

    /// A job whose level falls to nothing again and again. No length comes twice, so that no magazine has it.
    struct Job {
        sim: Arc<SimDevice>,
        pool: Pool,
        stream: Stream,
        lengths: u64,
    }

    impl Job {
        /// In a pool that holds a gigabyte, gathered.
        fn new() -> Self {
            let sim = SimDevice::new(SimOptions::default()).unwrap();
            let context = Context::new(sim.clone());
            // Never in haste, whatever little it computes.
            let pool = Pool::builder(&context).spare(0).build().unwrap();
            let stream = context.create_stream().unwrap();
            let mut job = Self { sim, pool, stream, lengths: 0 };
            let whole = job.alloc(1023);
            job.free([whole]);
            (0..12).for_each(|_| job.tide());
            let inner = job.pool.inner();
            inner.gather(&mut inner.state.lock(), &job.stream);
            job.tide();
            job
        }

        fn alloc(&mut self, mebibytes: u64) -> DevicePtr {
            self.lengths += 1;
            self.pool.alloc(mebibytes * MIB + self.lengths * 512, &self.stream).unwrap()
        }

        fn free(&self, blocks: impl IntoIterator<Item = DevicePtr>) {
            blocks.into_iter().for_each(|ptr| self.pool.free(ptr, &self.stream).unwrap());
        }

        fn tide(&mut self) {
            let block = self.alloc(600);
            self.free([block]);
        }

        /// Holes of 16 MiB, and then, at high water, one block of so many. Then low water.
        fn high_water(&mut self, long: u64) {
            let pairs: Vec<_> = (0..7).map(|_| (self.alloc(20), self.alloc(16))).collect();
            let (stay, go): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            self.free(go);
            let long = self.alloc(long);
            self.free(stay.into_iter().chain([long]));
            for _ in 0..3 {
                let short = self.alloc(2);
                self.free([short]);
            }
        }

        fn pass_time(&self, seconds: u64) {
            self.sim.advance_to(self.sim.now() + Duration::from_secs(seconds));
        }

        fn pages(&self) -> u64 {
            let calls = self.pool.stats().calls;
            calls.create - calls.release
        }
    }

    #[test]
    fn what_long_pages_pinned_at_high_water_is_not_lacking_at_a_higher_one() {
        let mut job = Job::new();
        job.pass_time(60);
        let (reserved, pages) = (job.pool.reserved().high, job.pages());
        job.high_water(500);
        assert!(job.pages() > pages, "short ones in place of long ones");
        job.pool.check().unwrap();
        job.high_water(800);
        assert_eq!(job.pool.reserved().high, reserved);
        job.pool.check().unwrap();
    }

    #[test]
    fn pages_stay_long_where_they_pin_little() {
        let mut job = Job::new();
        job.pass_time(60);
        let pages = job.pages();
        (0..8).for_each(|_| job.tide());
        assert_eq!(job.pages(), pages);
    }

    #[test]
    fn it_takes_a_small_part_of_the_time() {
        let mut job = Job::new();
        let shortened = |job: &mut Job| {
            let before = job.pages();
            job.high_water(500);
            job.pages() - before
        };
        // One is exchanged in any case, for four.
        assert_eq!(shortened(&mut job), 3);
        assert_eq!(shortened(&mut job), 0);
        job.pass_time(1);
        let in_a_second = shortened(&mut job);
        assert!((3..60).contains(&in_a_second), "{in_a_second}");
    }

    #[test]
    fn a_page_that_work_still_uses_stays() {
        let mut job = Job::new();
        job.pass_time(60);
        let pages = job.pages();
        let block = job.alloc(1000);
        job.sim.launch(job.stream.handle(), Duration::from_secs(100)).unwrap();
        job.free([block]);
        let inner = job.pool.inner();
        inner.shorten(&mut inner.state.lock());
        assert_eq!(job.pages(), pages);
        job.pass_time(200);
        inner.shorten(&mut inner.state.lock());
        assert!(job.pages() > pages);
    }

    #[test]
    fn a_call_that_fails_amid_it_loses_nothing() {
        for call in [Call::Unmap, Call::ReleasePage, Call::CreatePage, Call::Map, Call::SetAccess] {
            for nth in 1..6 {
                let mut job = Job::new();
                job.pass_time(60);
                let reserved = job.pool.reserved().current;
                let name = "cuMem";
                job.sim.fail_next(call, nth, DeviceError::OutOfMemory { call: name, requested: 8 * MIB });
                let inner = job.pool.inner();
                inner.shorten(&mut inner.state.lock());
                job.pool.check().unwrap();
                assert!(job.pool.reserved().current <= reserved);
                let whole = job.alloc(1000);
                // A page that could not be given back may be too long for what is missing.
                assert!(job.pool.reserved().high <= reserved + 32 * MIB, "{call:?} {nth}");
                job.free([whole]);
                job.pool.check().unwrap();
            }
        }
    }
}
