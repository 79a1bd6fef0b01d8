//! Where blocks go and what backs them, seen through a pool on the simulated device.

use std::sync::Arc;

use crate::device::Device;
use crate::device::sim::{SimDevice, SimOptions};
use crate::{Context, Pool, PoolBuilder, Stream};

const MIB: u64 = 1 << 20;

struct Bench {
    sim: Arc<SimDevice>,
    pool: Pool,
    stream: Stream,
}

/// A pool with pages of 2 to 32 MiB. A block of 64 MiB is backed by pages of 32, 16, 8, 4, 2 and 2 MiB.
fn bench(options: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Bench {
    let sim = SimDevice::new(SimOptions::default()).unwrap();
    assert_eq!(sim.properties().granularity, 2 * MIB);
    let context = Context::new(sim.clone());
    let stream = context.create_stream().unwrap();
    Bench { sim, pool: options(Pool::builder(&context)).build().unwrap(), stream }
}

impl Bench {
    fn alloc(&self, bytes: u64) -> crate::device::DevicePtr {
        let ptr = self.pool.alloc(bytes, &self.stream).unwrap();
        self.check();
        ptr
    }

    fn free(&self, ptr: crate::device::DevicePtr) {
        self.pool.free(ptr, &self.stream).unwrap();
        self.check();
    }

    /// Recounts everything. Under Miri, which takes seconds for it, only at the end.
    fn check(&self) {
        if !cfg!(miri) {
            self.pool.check().unwrap();
        }
    }

    fn reserved_mib(&self) -> u64 {
        self.pool.reserved().current / MIB
    }

    /// The page of 32 MiB is free, the shorter ones are in use.
    fn with_a_long_page_free(&self) {
        let whole = self.alloc(64 * MIB);
        self.free(whole);
        let long = self.alloc(32 * MIB);
        let _short = self.alloc(32 * MIB);
        self.free(long);
        assert_eq!(self.reserved_mib(), 64);
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
fn pages_move_where_a_hit_would_pin_too_much() {
    let bench = bench(|builder| builder);
    let whole = bench.alloc(512 * MIB);
    bench.free(whole);
    // At either end of the free block, 28 MiB of a page of 32 MiB are left over: less than may be pinned in any
    // case.
    let first = bench.alloc(100 * MIB);
    assert_eq!((bench.pool.stats().misses, bench.pool.stats().pages_stolen), (1, 0));
    // The same again would be more than that, than a 56th of what is reserved, and than a 32nd of the block.
    let second = bench.alloc(100 * MIB);
    assert_eq!(bench.pool.stats().misses, 2);
    assert!(bench.pool.stats().pages_stolen > 0);
    // So the rest is all there for a block that needs it.
    let rest = bench.alloc((512 - 28 - 200) * MIB);
    assert_eq!(bench.reserved_mib(), 512);
    for block in [first, second, rest] {
        bench.free(block);
    }
}

#[test]
fn a_hit_that_pins_little_moves_no_page() {
    let bench = bench(|builder| builder);
    let whole = bench.alloc(256 * MIB);
    bench.free(whole);
    let part = bench.alloc(127 * MIB);
    assert_eq!((bench.pool.stats().misses, bench.pool.stats().pages_stolen), (1, 0));
    bench.free(part);
}

#[test]
fn pages_are_taken_from_what_has_been_free_for_longest_its_last_first() {
    let bench = bench(|builder| builder.page_sizes(2 * MIB, 2 * MIB));
    let [young, _, old, _] = [(); 4].map(|()| bench.alloc(4 * MIB));
    bench.free(old);
    bench.free(young);
    let _long = bench.alloc(6 * MIB);
    assert_eq!((bench.pool.stats().pages_stolen, bench.reserved_mib()), (3, 16));
    // The first page of the younger one is left.
    assert_eq!(bench.alloc(2 * MIB), young);
    assert_eq!(bench.reserved_mib(), 16);
}

#[test]
fn a_page_that_is_too_long_is_exchanged_for_a_short_one() {
    let bench = bench(|builder| builder);
    bench.with_a_long_page_free();
    let _small = bench.alloc(1000);
    assert_eq!(bench.reserved_mib(), 64 - 32 + 2);
    assert_eq!(bench.pool.reserved().high / MIB, 64);
}

#[test]
fn a_page_in_use_is_not_exchanged_and_the_pool_grows() {
    let bench = bench(|builder| builder);
    let hold = bench.sim.hold(bench.stream.handle()).unwrap();
    bench.with_a_long_page_free();
    let _small = bench.alloc(1000);
    assert_eq!(bench.reserved_mib(), 64 + 2);
    bench.sim.release(hold);
}

#[test]
fn at_the_limit_a_hit_may_pin_anything() {
    let bench = bench(|builder| builder.hard_limit(64 * MIB));
    let hold = bench.sim.hold(bench.stream.handle()).unwrap();
    bench.with_a_long_page_free();
    // The page cannot be exchanged while its work is pending, and it is too long to be moved.
    let block = bench.alloc(17 * MIB);
    assert_eq!(bench.reserved_mib(), 64);
    bench.free(block);
    bench.sim.release(hold);
}

/// Holes of 2.5 MiB between blocks that stay; of each, 1.5 MiB in the mean are pinned. The last block ends with its
/// slot.
fn with_holes(bench: &Bench, holes: usize) {
    let blocks: Vec<_> = (0..2 * holes).map(|_| bench.alloc(5 * MIB / 2)).collect();
    blocks.iter().step_by(2).for_each(|ptr| bench.free(*ptr));
    assert_eq!(bench.reserved_mib(), 5 * holes as u64);
}

#[test]
fn a_block_grows_from_another_ones_slot_however_many_holes_are_closed_in() {
    let bench = bench(|builder| builder);
    with_holes(&bench, 20);
    // Too long for any hole: it ends in the middle of a slot.
    let first = bench.alloc(7 * MIB);
    assert_eq!(bench.alloc(7 * MIB), first.offset(7 * MIB));
}

#[test]
fn once_much_is_pinned_the_misses_of_a_stream_lie_side_by_side() {
    let bench = bench(|builder| builder);
    with_holes(&bench, 40);
    let blocks: Vec<_> = (0..6).map(|_| bench.alloc(5 * MIB)).collect();
    for pair in blocks.windows(2) {
        assert_eq!(pair[1], pair[0].offset(5 * MIB));
    }
}
