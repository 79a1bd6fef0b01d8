//! Long free pages are split while there is time.

use std::sync::Arc;
use std::time::Duration;

use crate::core::allocating::shorten;
use crate::core::pool_core::PoolState;
use crate::device::sim::{Call, SimDevice};
use crate::device::{DeviceError, DevicePtr};
use crate::extents;
use crate::fixtures::{Bench, Freeing, MIB};
use crate::order::Stream;
use crate::pool::Pool;

/// Mebibytes that the job holds at first: long enough for pages of 32 MiB.
const HELD: u64 = 2111;

/// A job whose level falls to nothing again and again. No length comes twice, so that no magazine has it.
struct Job {
    sim: Arc<SimDevice>,
    pool: Pool,
    stream: Stream,
    lengths: u64,
}

impl Job {
    /// In a pool that holds two gigabytes, in pages of 32 MiB.
    fn new() -> Self {
        // Never in throughput mode, whatever little it computes.
        let Bench { sim, pool, stream, .. } = Bench::new(|pool| pool.growth_allowance(0));
        let mut job = Self { sim, pool, stream, lengths: 0 };
        let whole = job.alloc(HELD);
        job.free([whole]);
        job
    }

    fn alloc(&mut self, mebibytes: u64) -> DevicePtr {
        self.lengths += 1;
        self.pool.alloc(mebibytes * MIB + self.lengths * 512, &self.stream).unwrap()
    }

    fn free(&self, blocks: impl IntoIterator<Item = DevicePtr>) {
        blocks.into_iter().for_each(|ptr| self.pool.free_block(ptr, &self.stream).unwrap());
    }

    /// Holes of 16 MiB on long pages, and then, at high water, one block of so many. Then low water.
    fn high_water(&mut self, long: u64) {
        let pairs: Vec<_> = (0..7).map(|_| (self.alloc(20), self.alloc(16))).collect();
        let (stay, go): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        self.free(go);
        let long = self.alloc(long);
        self.free(stay.into_iter().chain([long]));
    }

    /// Asks for blocks while nothing else is out, so often that long pages are searched for.
    fn low_water(&mut self) {
        for at in 0..80 {
            // No two in a row near each other, or they would seem to grow.
            let short = self.alloc(2 + at % 3);
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

    fn shorten(&self) {
        let inner = self.pool.inner();
        shorten(inner, &mut inner.state.lock());
    }
}

#[test]
fn memory_in_split_pages_serves_a_higher_high_water_mark() {
    let grown_at_the_second = |seconds| {
        let mut job = Job::new();
        // It must grow, with all holes free.
        job.high_water(HELD - 223);
        job.pass_time(seconds);
        job.low_water();
        job.pool.check().unwrap();
        let reserved = job.pool.reserved().high;
        job.high_water(HELD - 193);
        job.pool.check().unwrap();
        job.pool.reserved().high - reserved
    };
    // A base page at most, where the long block ends.
    assert!(grown_at_the_second(60) <= 2 * MIB);
    // One page, as long as suits the block.
    assert!(grown_at_the_second(0) >= 16 * MIB, "where there is no time for it");
}

#[test]
fn vain_searches_take_a_small_part_of_the_time() {
    let mut job = Job::new();
    job.high_water(HELD - 223);
    // What was earned by the byte is spent.
    job.pool.inner().state.lock().ledger.pay_for_pages(Duration::from_millis(40), 0);
    let block = job.alloc(HELD);
    job.sim.launch(job.stream.handle(), Duration::from_secs(100)).unwrap();
    job.free([block]);
    let asked = |job: &Job| {
        let calls = job.sim.calls();
        calls[Call::QueryEvent] + calls[Call::StreamIsIdle]
    };
    let before = asked(&job);
    while asked(&job) == before {
        job.sim.advance_to(job.sim.now() + Duration::from_millis(1));
        job.shorten();
    }
    // It just had the time for it: of the last millisecond 5 µs are left, at 157 ns a question: 32.
    (0..1000).for_each(|_| job.shorten());
    assert!(asked(&job) - before < 40, "{}", asked(&job) - before);
}

#[test]
fn it_ends_when_no_long_page_is_left() {
    let mut job = Job::new();
    job.high_water(HELD - 223);
    job.pass_time(600);
    let held = job.pool.reserved().current;
    (0..20).for_each(|_| job.low_water());
    let pages = job.pages();
    // Two base pages are the longest then; what was created for small blocks is shorter.
    assert!(pages >= held / (4 * MIB), "{pages} pages of {held} bytes");
    job.pass_time(600);
    job.low_water();
    assert_eq!((job.pages(), job.pool.reserved().current), (pages, held));
}

#[test]
fn it_takes_a_small_part_of_the_time() {
    let mut job = Job::new();
    job.high_water(HELD - 223);
    let pages = job.pages();
    job.low_water();
    assert_eq!(job.pages(), pages, "what there is was just created");
    job.pass_time(2);
    let before = job.sim.time_spent().total();
    job.low_water();
    assert!(job.pages() > pages);
    let spent = job.sim.time_spent().total() - before;
    // A hundredth of the two seconds, and what one search takes.
    assert!(spent < Duration::from_micros(20_500), "{spent:?}");
}

#[test]
fn a_page_that_work_still_uses_stays() {
    let mut job = Job::new();
    job.high_water(HELD - 223);
    let block = job.alloc(HELD);
    let pages = job.pages();
    job.sim.launch(job.stream.handle(), Duration::from_secs(100)).unwrap();
    job.free([block]);
    job.pass_time(60);
    job.shorten();
    assert_eq!(job.pages(), pages);
    job.pass_time(200);
    job.shorten();
    assert!(job.pages() > pages);
}

/// Shortens, and then takes the short pages, while the calls of these kinds with these numbers fail. What was held is held no more
/// than before, or less. Only a miss maps short pages.
fn shorten_while_failing(calls: &[(Call, u64)]) {
    let mut job = Job::new();
    job.high_water(HELD - 223);
    job.pass_time(60);
    let reserved = job.pool.reserved().current;
    let name = "cuMem";
    for (call, nth) in calls {
        job.sim.fail_next(*call, *nth, DeviceError::OutOfMemory { call: name, requested: 8 * MIB });
    }
    job.shorten();
    job.pool.check().unwrap();
    assert!(job.pool.reserved().current <= reserved);
    let whole = job.alloc(HELD - 23);
    // A page that could not be given back may be too long for what is missing.
    assert!(job.pool.reserved().high <= reserved + 32 * MIB, "{calls:?}");
    job.free([whole]);
    job.pool.check().unwrap();
}

#[test]
fn a_call_that_fails_amid_it_loses_nothing() {
    for call in [Call::Unmap, Call::ReleasePage, Call::CreatePage, Call::Map, Call::SetAccess] {
        (1..6).for_each(|nth| shorten_while_failing(&[(call, nth)]));
    }
}

#[test]
fn a_mapping_that_cannot_be_undone_is_removed_later() {
    // The first `unmap` is the long page's.
    (1..6).for_each(|nth| shorten_while_failing(&[(Call::SetAccess, nth), (Call::Unmap, 2)]));
}

#[test]
fn it_says_that_it_exchanged_pages() {
    let mut job = Job::new();
    job.high_water(HELD - 223);
    job.pass_time(60);
    let inner = job.pool.inner();
    let mut state = inner.state.lock();
    let PoolState { arenas, ledger, .. } = &mut *state;
    let mut shorten = || extents::shorten(&mut arenas.own, ledger);
    assert!(shorten());
    // There are a few more than go at once.
    assert_eq!([shorten(), shorten()], [true, false]);
}
