//! Where blocks go and what backs them, seen through a pool on the simulated device.

use std::sync::Arc;

use crate::device::sim::{Call, SimDevice, SimOptions};
use crate::device::{Device, DeviceError, DevicePtr};
use crate::fixtures::{self, Freeing, MIB};
use crate::order::{LOOKS, ReusePolicies, Stream};
use crate::pool::{Context, Pool, PoolBuilder};

struct Bench {
    sim: Arc<SimDevice>,
    context: Context,
    pool: Pool,
    stream: Stream,
}

/// A pool with pages of 2 to 32 MiB: a 64th of a block, as long as the pool has time.
fn bench(options: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Bench {
    let fixtures::Bench { sim, context, pool, stream } = fixtures::Bench::new(options);
    assert_eq!(sim.properties().granularity, 2 * MIB);
    Bench { sim, context, pool, stream }
}

impl Bench {
    fn alloc(&self, bytes: u64) -> DevicePtr {
        let ptr = self.pool.alloc(bytes, &self.stream).unwrap();
        self.check();
        ptr
    }

    fn free(&self, ptr: DevicePtr) {
        self.free_on(ptr, &self.stream);
        self.check();
    }

    fn free_on(&self, ptr: DevicePtr, stream: &Stream) {
        self.pool.free_block(ptr, stream).unwrap();
    }

    /// Recounts everything. Under Miri, which takes seconds for it, only at the end.
    fn check(&self) {
        if !cfg!(miri) {
            self.pool.check().unwrap();
        }
    }

    /// With what the thread keeps.
    fn largest_free_mib(&self) -> u64 {
        let inner = self.pool.inner();
        inner.empty_caches(&mut inner.state.lock());
        inner.largest_free() / MIB
    }

    fn reserved_mib(&self) -> u64 {
        self.pool.reserved().current / MIB
    }

    /// One page of 32 MiB is free, 63 are in use.
    fn with_a_long_page_free(&self) {
        let whole = self.alloc(2048 * MIB);
        self.free(whole);
        let long = self.alloc(32 * MIB);
        let _rest = self.alloc(2016 * MIB);
        self.free(long);
        assert_eq!(self.reserved_mib(), 2048);
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.pool.check().unwrap();
        }
    }
}

#[test]
fn the_hole_that_fits_best_is_taken_unless_it_lacks_pages() {
    let bench = bench(|builder| builder.page_sizes(2 * MIB, 2 * MIB));
    let whole = bench.alloc(512 * MIB);
    bench.free(whole);
    let sizes = [60, 4, 40, 4, 20, 4, 376].map(|mib| mib * MIB);
    let blocks = sizes.map(|bytes| bench.alloc(bytes));
    [4, 2].into_iter().for_each(|at| bench.free(blocks[at]));
    assert_eq!(bench.alloc(14 * MIB), blocks[4], "of 20 MiB, rather than of 40");
    assert_eq!((bench.pool.stats().misses, bench.pool.stats().pages_remapped), (1, 0));
    bench.free(blocks[4]);
    // All pages of both holes go behind the last block.
    assert_eq!(bench.alloc(64 * MIB), whole.offset(508 * MIB));
    assert_eq!((bench.reserved_mib(), bench.pool.stats().pages_remapped), (512, 30));
    bench.free(blocks[0]);
    // That of 20 MiB lacks ten pages. That is more than the 20 base pages that stay over of 60 MiB.
    assert_eq!(bench.alloc(20 * MIB), blocks[0]);
    // But one page is less than these.
    assert_eq!(bench.alloc(2 * MIB), blocks[4]);
    assert_eq!((bench.reserved_mib(), bench.pool.stats().pages_remapped), (512, 31));
}

#[test]
fn the_best_fit_is_cut_at_its_start_anywhere() {
    let bench = bench(|builder| builder);
    let whole = bench.alloc(512 * MIB);
    bench.free(whole);
    let blocks = [100 * MIB, 7 * MIB, 19 * MIB].map(|bytes| bench.alloc(bytes));
    assert_eq!(blocks, [0, 100 * MIB, 107 * MIB].map(|offset| whole.offset(offset)));
    bench.free(blocks[1]);
    assert_eq!(bench.alloc(6 * MIB), blocks[1], "rather than of the 386 MiB");
    assert_eq!((bench.pool.stats().misses, bench.pool.stats().pages_remapped), (1, 0));
}

#[test]
fn a_page_is_a_64th_of_its_block_given_time() {
    let bench = bench(|builder| builder);
    bench.sim.advance_to(bench.sim.now() + std::time::Duration::from_secs(1));
    let created = |bytes| {
        let before = bench.pool.stats().calls.create;
        _ = bench.alloc(bytes);
        bench.pool.stats().calls.create - before
    };
    // 64ths of 0.1, 4 and 8 MiB: pages of 2 (the shortest), 4 and 8 MiB.
    assert_eq!([6 * MIB, 256 * MIB, 512 * MIB].map(created), [3, 64, 64]);
    assert_eq!(created(4096 * MIB), 128, "of 32 MiB, the longest");
    assert_eq!(created(33 * MIB), 17, "of 2 MiB, the shortest");
}

#[test]
fn a_long_block_takes_more_pages_than_a_miss_considers() {
    let bench = bench(|builder| builder.page_sizes(2 * MIB, 2 * MIB));
    // Not checked one by one: there are ten thousand.
    let blocks: Vec<_> = (0..10_000).map(|_| bench.pool.alloc(2 * MIB, &bench.stream).unwrap()).collect();
    let (stay, go): (Vec<_>, Vec<_>) = blocks.chunks(2).map(|pair| (pair[0], pair[1])).unzip();
    go.into_iter().for_each(|ptr| bench.free_on(ptr, &bench.stream));
    let reserved = bench.reserved_mib();
    let long = bench.alloc(9_900 * MIB);
    // It takes 4,950 pages. It ends in the last of the holes, which has one.
    assert_eq!((bench.reserved_mib(), bench.pool.stats().pages_remapped), (reserved, 4_949));
    stay.into_iter().chain([long]).for_each(|ptr| bench.free_on(ptr, &bench.stream));
}

#[test]
fn how_long_pages_are_depends_on_the_ledger() {
    let bench = bench(|builder| builder);
    // 15 ms for each GiB, at 35.8 µs a page.
    let blocks: Vec<_> = (0..1200).map(|_| bench.pool.alloc(2 * MIB, &bench.stream).unwrap()).collect();
    assert_eq!(bench.pool.stats().calls.create, 1200);
    let created = |bytes| {
        let before = bench.pool.stats().calls.create;
        _ = bench.alloc(bytes);
        bench.pool.stats().calls.create - before
    };
    // That is more than a sixth too much, so a page is twice as long.
    assert_eq!(created(64 * MIB), 16);
    // Three seconds later there is time again: a 64th of the block. That is 2 MiB, the shortest, and 8 MiB.
    bench.sim.advance_to(bench.sim.now() + std::time::Duration::from_secs(3));
    assert_eq!([64 * MIB, 512 * MIB].map(created), [32, 64]);
    blocks.into_iter().for_each(|ptr| bench.free_on(ptr, &bench.stream));
}

#[test]
fn pages_are_short_under_a_limit_that_is_near() {
    const LIMIT: u64 = 16 << 30;
    // A 64th of the block, unless a 512th of what is left is less.
    for (left, page) in [(8 << 30, 8 * MIB), (2 << 30, 4 * MIB), (1 << 30, 2 * MIB)] {
        let bench = bench(|builder| builder.hard_limit(LIMIT));
        let _most = bench.alloc(LIMIT - left);
        let before = bench.pool.stats().calls.create;
        let _block = bench.alloc(512 * MIB);
        assert_eq!(bench.pool.stats().calls.create - before, 512 * MIB / page, "{left} bytes left");
    }
}

#[test]
fn what_is_free_for_longest_gives_first_its_last_page_first() {
    for is_lower_older in [false, true] {
        let bench = bench(|builder| builder.page_sizes(2 * MIB, 2 * MIB));
        let [lower, _, higher, _] = [(); 4].map(|()| bench.alloc(4 * MIB));
        let (old, young) = if is_lower_older { (lower, higher) } else { (higher, lower) };
        bench.free(old);
        bench.free(young);
        let _long = bench.alloc(6 * MIB);
        // 6 MiB are three pages of 2 MiB; the four blocks were 16 MiB.
        assert_eq!((bench.pool.stats().pages_remapped, bench.reserved_mib()), (3, 16));
        // The first page of the younger one is left.
        assert_eq!(bench.alloc(2 * MIB), young);
        assert_eq!(bench.reserved_mib(), 16);
    }
}

#[test]
fn what_is_ready_gives_before_what_has_been_free_for_longer() {
    let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
    let [own, other] = [(); 2].map(|()| context.create_stream().unwrap());
    let reuse = ReusePolicies { opportunistic: false, ..ReusePolicies::ALL };
    let pool = Pool::builder(&context).page_sizes(2 * MIB, 2 * MIB).reuse(reuse).build().unwrap();
    let alloc = |bytes, stream| pool.alloc(bytes, stream).unwrap();
    let blocks = [(); 4].map(|()| alloc(4 * MIB, &own));
    pool.free_block(blocks[0], &other).unwrap();
    pool.free_block(blocks[2], &own).unwrap();
    let _long = alloc(6 * MIB, &own);
    assert_eq!(pool.stats().pages_remapped, 3);
    // Of the one that the stream waits for, only the last page went.
    assert_eq!(alloc(2 * MIB, &other), blocks[0]);
    assert_eq!((pool.stats().pages_remapped, pool.reserved().current), (3, 16 * MIB));
}

#[test]
fn a_page_too_long_goes_where_a_limit_leaves_no_room_for_a_short_one() {
    for (limit, reserved) in [(4096, 2048 + 2), (2048, 2048 - 32 + 2)] {
        let bench = bench(|builder| builder);
        bench.with_a_long_page_free();
        bench.pool.set_hard_limit(Some(limit * MIB));
        let _small = bench.alloc(1000);
        assert_eq!(bench.reserved_mib(), reserved);
    }
}

#[test]
fn an_error_leaves_no_page_that_is_free() {
    const LIMIT: u64 = 1 << 30;
    for seed in 1..if cfg!(miri) { 2 } else { 16 } {
        let bench = bench(|builder| builder.hard_limit(LIMIT));
        let mut random: u64 = seed;
        let mut next = |below: u64| {
            // Knuth's (TAOCP 3.3.4).
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut live = Vec::new();
        let refused = loop {
            // More is allocated than freed. What exceeds the limit together with live blocks is refused before anything goes.
            let bytes = 1 + next(24 * MIB);
            let is_possible = bench.pool.stats().allocated.current + bytes <= LIMIT;
            if !is_possible || !live.is_empty() && next(5) < 2 {
                bench.free_on(live.swap_remove(next(live.len() as u64) as usize), &bench.stream);
                continue;
            }
            match bench.pool.alloc(bytes, &bench.stream) {
                Ok(ptr) => live.push(ptr),
                Err(_) => break bytes,
            }
        };
        let held = bench.pool.reserved().current;
        assert!(held + refused > LIMIT, "{held} are held, and {refused} were refused");
        assert_eq!(bench.pool.trim_to(0).unwrap(), 0, "all that could go back went before the error");
    }
}

/// Holes of 2.5 MiB between blocks that stay. The last block ends with its base page.
fn with_holes(bench: &Bench, holes: usize) {
    let blocks: Vec<_> = (0..2 * holes).map(|_| bench.alloc(5 * MIB / 2)).collect();
    blocks.iter().step_by(2).for_each(|ptr| bench.free(*ptr));
    assert_eq!(bench.reserved_mib(), 5 * holes as u64);
}

#[test]
fn a_block_grows_from_a_shared_base_page_beside_holes() {
    let bench = bench(|builder| builder);
    with_holes(&bench, 20);
    // Too long for any hole: it ends in the middle of a base page.
    let first = bench.alloc(7 * MIB);
    assert_eq!(bench.alloc(7 * MIB), first.offset(7 * MIB));
}

#[test]
fn misses_lie_side_by_side() {
    let bench = bench(|builder| builder);
    with_holes(&bench, 40);
    let blocks: Vec<_> = (0..6).map(|_| bench.alloc(5 * MIB)).collect();
    for pair in blocks.windows(2) {
        assert_eq!(pair[1], pair[0].offset(5 * MIB));
    }
}

#[test]
fn an_aligned_block_is_found_behind_many_that_lie_badly() {
    for virtual_memory in [true, false] {
        let sim = SimDevice::new(SimOptions { virtual_memory, ..SimOptions::default() }).unwrap();
        let context = Context::new(sim);
        let stream = context.create_stream().unwrap();
        let pool = Pool::builder(&context).hard_limit(256 * MIB).build().unwrap();
        let alloc = |bytes| pool.alloc(bytes, &stream).unwrap();
        let free = |ptr| pool.free_block(ptr, &stream).unwrap();
        free(alloc(250 * MIB));
        // Long enough, but a multiple of two mebibytes lies in the midst of each.
        let pairs: Vec<_> = (0..40).map(|_| (alloc(MIB + 1536), alloc(2 * MIB + 3584))).collect();
        let [_, long, _] = [MIB, 7 * MIB, MIB].map(alloc);
        // All the rest.
        for bytes in [64 * MIB, 16 * MIB, 4 * MIB, MIB] {
            while pool.alloc(bytes, &stream).is_ok() {}
        }
        pairs.into_iter().for_each(|(_, hole)| free(hole));
        free(long);
        let aligned = pool.alloc_aligned(2 * MIB + 512, 2 * MIB, &stream).unwrap();
        assert_eq!(aligned.raw(), long.raw().next_multiple_of(2 * MIB));
        pool.check().unwrap();
    }
}

// ---- pages that come back ---------------------------------------------------------------------------

/// Six blocks of a page each, side by side, in what was one block.
fn six_pages() -> (Bench, [DevicePtr; 6]) {
    let bench = bench(|builder| builder.page_sizes(2 * MIB, 2 * MIB).growth_allowance(0));
    let whole = bench.alloc(12 * MIB);
    bench.free(whole);
    let pages = bench.six();
    assert_eq!(pages, std::array::from_fn(|at| whole.offset(at as u64 * 2 * MIB)));
    (bench, pages)
}

impl Bench {
    fn six(&self) -> [DevicePtr; 6] {
        std::array::from_fn(|_| self.alloc(2 * MIB))
    }

    /// Frees the second, the fourth and the last of six. The block that is then allocated begins with the last, and has
    /// the pages of the two others.
    fn move_two(&self, six: [DevicePtr; 6]) -> DevicePtr {
        [1, 3, 5].into_iter().for_each(|at| self.free(six[at]));
        let moved = self.alloc(6 * MIB);
        assert_eq!(moved, six[5]);
        moved
    }

    /// Calls that map, unmap, create or release pages.
    fn page_calls(&self) -> [u64; 4] {
        let calls = self.pool.stats().calls;
        [calls.create, calls.map, calls.unmap, calls.release]
    }
}

#[test]
fn a_job_that_repeats_itself_moves_its_pages_once() {
    for is_busy in [false, true] {
        let (bench, six) = six_pages();
        let hold = is_busy.then(|| bench.sim.hold(bench.stream.handle()).unwrap());
        let before = bench.page_calls();
        for turn in 0..5 {
            let moved = bench.move_two(six);
            [0, 2, 4].into_iter().for_each(|at| bench.free(six[at]));
            bench.free(moved);
            // All six are free: in three places, and behind them.
            let whole = bench.alloc(12 * MIB);
            assert_eq!(whole, six[0], "in turn {turn}");
            bench.free(whole);
            assert_eq!(bench.six(), six);
            let [created, mapped, unmapped, released] = bench.page_calls();
            assert_eq!([created, mapped - 2, unmapped, released], before, "in turn {turn}, busy: {is_busy}");
        }
        assert_eq!((bench.pool.stats().pages_remapped, bench.reserved_mib()), (2, 12));
        hold.into_iter().for_each(|hold| bench.sim.release(hold));
    }
}

/// The first, third and fifth of six pages are free, and between them are the old mappings of pages that are in use.
fn two_dormant() -> (Bench, [DevicePtr; 6]) {
    let (bench, six) = six_pages();
    _ = bench.move_two(six);
    [0, 2, 4].into_iter().for_each(|at| bench.free(six[at]));
    (bench, six)
}

#[test]
fn an_old_mapping_goes_where_its_page_cannot_come_back() {
    let (bench, six) = two_dormant();
    let [created, mapped, unmapped, _] = bench.page_calls();
    assert_eq!(bench.alloc(10 * MIB), six[0]);
    assert_eq!(bench.page_calls(), [created + 2, mapped + 2, unmapped + 2, 0]);
}

#[test]
fn a_place_whose_old_mapping_cannot_be_removed_is_left_alone() {
    let (bench, six) = two_dormant();
    let what = "a test asked for it".to_owned();
    bench.sim.fail_next(Call::Unmap, 1, DeviceError::Invalid { call: "unmap", what });
    let elsewhere = bench.alloc(10 * MIB);
    assert!(elsewhere > six[5] || elsewhere < six[0], "{elsewhere} among {six:?}");
    // It is removed with the next miss.
    let before = bench.page_calls()[2];
    _ = bench.alloc(20 * MIB);
    assert!(bench.page_calls()[2] > before);
}

#[test]
fn a_busy_old_mapping_is_in_nobodys_way() {
    let (bench, six) = six_pages();
    let hold = bench.sim.hold(bench.stream.handle()).unwrap();
    _ = bench.move_two(six);
    [0, 2, 4].into_iter().for_each(|at| bench.free(six[at]));
    let before = bench.page_calls()[2];
    assert_ne!(bench.alloc(10 * MIB), six[0]);
    assert_eq!(bench.page_calls()[2], before, "work uses it");
    bench.sim.release(hold);
}

#[test]
fn what_is_given_back_is_mapped_nowhere() {
    let (bench, six) = six_pages();
    let moved = bench.move_two(six);
    [six[0], six[2], six[4], moved].into_iter().for_each(|ptr| bench.free(ptr));
    bench.pool.trim_to(0).unwrap();
    let [created, mapped, unmapped, released] = bench.page_calls();
    assert_eq!((bench.reserved_mib(), created, mapped), (0, released, unmapped));
}

#[test]
fn old_mappings_are_about_as_many_as_pages_at_most() {
    let bench = bench(|builder| builder.page_sizes(2 * MIB, 2 * MIB).growth_allowance(0));
    let mut live = std::collections::VecDeque::new();
    // A multiplicative generator: sizes from 1 to 33 MiB, of which 20 blocks are live.
    let sizes = std::iter::successors(Some(1_u64), |last| Some(last * 48_271 % 0x7fff_ffff));
    for bytes in sizes.map(|number| MIB + number % 64 * (MIB / 2)).take(if cfg!(miri) { 60 } else { 600 }) {
        live.push_back(bench.alloc(bytes));
        if live.len() > 20 {
            let oldest = live.remove(bytes as usize / 512 % 7).unwrap();
            bench.free(oldest);
        }
    }
    let [created, mapped, unmapped, released] = bench.page_calls();
    let (pages, old) = (created - released, mapped - unmapped - (created - released));
    // One miss may add as many as it takes.
    assert!(pages / 8 < old && old <= pages + 17, "{old} old mappings of {pages} pages");
    live.into_iter().for_each(|ptr| bench.free(ptr));
}

// ---- what different streams freed ------------------------------------------------------------------

/// Two streams of a pool that holds 64 MiB, of which nothing is live.
fn two_streams(reuse: ReusePolicies) -> (Bench, Stream) {
    let bench = bench(|builder| builder.reuse(reuse));
    let other = bench.context.create_stream().unwrap();
    let whole = bench.alloc(64 * MIB);
    bench.free(whole);
    (bench, other)
}

#[test]
fn neighbours_of_two_streams_join_once_one_is_complete() {
    let (bench, other) = two_streams(ReusePolicies::ALL);
    let [below, above, rest] = [10 * MIB, 10 * MIB, 44 * MIB].map(|bytes| bench.alloc(bytes));
    let hold = bench.sim.hold(bench.stream.handle()).unwrap();
    let others_hold = bench.sim.hold(other.handle()).unwrap();
    bench.free(below);
    bench.free_on(above, &other);
    bench.check();
    assert_eq!(bench.largest_free_mib(), 10, "both are pending");
    bench.sim.release(hold);
    // Freed on the stream that still has work, beside what has none.
    bench.free_on(rest, &other);
    bench.check();
    assert_eq!(bench.largest_free_mib(), 54, "the same stream freed those");
    let again = bench.pool.alloc(54 * MIB, &other).unwrap();
    assert_eq!(again, above);
    bench.free_on(again, &other);
    assert_eq!(bench.largest_free_mib(), 64, "the lowest is complete");
    bench.sim.release(others_hold);
}

#[test]
fn a_complete_block_is_taken_before_a_pending_shorter_one() {
    let (bench, other) = two_streams(ReusePolicies::ALL);
    let [long, short, _last] = [100 * MIB, 2 * MIB, 2 * MIB].map(|bytes| bench.alloc(bytes));
    bench.free(long);
    let hold = bench.sim.hold(other.handle()).unwrap();
    bench.free_on(short, &other);
    assert_eq!(bench.alloc(100 * MIB), long);
    assert_eq!(bench.pool.stats().stream_waits, 0);
    bench.sim.release(hold);
}

/// How often the device was asked, or given an event to be asked about.
fn asked(sim: &SimDevice) -> u64 {
    let calls = sim.calls();
    [Call::QueryEvent, Call::StreamIsIdle, Call::RecordEvent].map(|call| calls[call]).iter().sum()
}

/// Frees what lies side by side on two busy streams. Then asks on one of them for what would fit best into what the
/// other one freed. Returns how often the device was asked.
fn asked_about_another_stream(reuse: ReusePolicies) -> u64 {
    let (bench, other) = two_streams(reuse);
    let [small, _, side, long] = [4 * MIB, 4 * MIB, 16 * MIB, 40 * MIB].map(|bytes| bench.alloc(bytes));
    let holds = [&bench.stream, &other].map(|stream| bench.sim.hold(stream.handle()).unwrap());
    let before = asked(&bench.sim);
    bench.free_on(small, &other);
    bench.free_on(side, &other);
    bench.free(long);
    assert_eq!(bench.alloc(4 * MIB), long, "what the other one freed is pending");
    assert_eq!(bench.pool.stats().misses, 1);
    let asked = asked(&bench.sim) - before;
    holds.into_iter().for_each(|hold| bench.sim.release(hold));
    asked
}

#[test]
fn without_the_policy_the_device_is_not_asked() {
    assert!(asked_about_another_stream(ReusePolicies::ALL) > 0);
    assert_eq!(asked_about_another_stream(ReusePolicies { opportunistic: false, ..ReusePolicies::ALL }), 0);
    assert_eq!(asked_about_another_stream(ReusePolicies::NONE), 0);
}

#[test]
fn if_the_device_cannot_be_asked_the_next_best_serves() {
    let (bench, other) = two_streams(ReusePolicies::ALL);
    let [better, _, longer] = [4 * MIB, 4 * MIB, 56 * MIB].map(|bytes| bench.alloc(bytes));
    let hold = bench.sim.hold(other.handle()).unwrap();
    bench.free_on(better, &other);
    bench.free(longer);
    let fails = [Call::QueryEvent, Call::StreamIsIdle, Call::RecordEvent];
    for call in fails {
        let what = "a test asked for it".to_owned();
        bench.sim.fail_next(call, 1, DeviceError::Invalid { call: call.name(), what });
    }
    assert_eq!(bench.alloc(4 * MIB), longer);
    bench.sim.fail_no_more();
    bench.sim.release(hold);
    assert_eq!(bench.alloc(4 * MIB), better);
}

#[test]
fn the_cost_of_a_block_per_stream_is_constant() {
    let looks = |streams: u64| {
        let bench = bench(|pool| pool.growth_allowance(0));
        let whole = bench.pool.alloc(streams * 2 * MIB, &bench.stream).unwrap();
        bench.pool.free_block(whole, &bench.stream).unwrap();
        bench.stream.synchronize().unwrap();
        let streams: Vec<_> = (0..streams).map(|_| bench.context.create_stream().unwrap()).collect();
        let blocks: Vec<_> =
            streams.iter().map(|stream| bench.pool.alloc(2 * MIB, stream).unwrap()).collect();
        for (stream, block) in streams.iter().zip(blocks) {
            bench.sim.launch(stream.handle(), std::time::Duration::from_secs(100)).unwrap();
            bench.pool.free_block(block, stream).unwrap();
        }
        let before = LOOKS.get();
        let again = bench.pool.alloc(whole_of(&streams), &bench.stream).unwrap();
        assert_eq!(again, whole, "of what they freed");
        assert_eq!(bench.sim.calls()[Call::WaitEvent], streams.len() as u64);
        (LOOKS.get() - before) / streams.len()
    };
    let (few, many) = if cfg!(miri) { (4, 16) } else { (32, 2000) };
    assert!(looks(many) <= looks(few) + 8, "{} and {}", looks(many), looks(few));
}

fn whole_of(streams: &[Stream]) -> u64 {
    streams.len() as u64 * 2 * MIB
}
