//! Every misuse is a typed error that says what is wrong, and changes nothing.

use std::sync::Arc;

use millpond::device::DevicePtr;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::testing::checker::CheckerDevice;
use millpond::{Budget, Buffer, Context, Error, Pool, Result, Stream, Workspace};

use crate::shared::{Freeing, MIB, sim};

/// A pool with some live and some free blocks, so that a change would show.
struct Bench {
    checker: Arc<CheckerDevice>,
    context: Context,
    stream: Stream,
    pool: Pool,
    /// Live, of 1000 bytes.
    live: DevicePtr,
    /// Freed.
    freed: DevicePtr,
}

impl Bench {
    fn new() -> Self {
        let (checker, context) = device();
        let stream = context.create_stream().unwrap();
        let pool = Pool::builder(&context).name("mine").build().unwrap();
        let live = pool.alloc(1000, &stream).unwrap();
        let freed = pool.alloc(3 * MIB, &stream).unwrap();
        pool.free_block(freed, &stream).unwrap();
        Self { checker, context, stream, pool, live, freed }
    }

    /// The error of a call, which has changed nothing.
    fn refused<T: std::fmt::Debug>(&self, call: impl FnOnce() -> Result<T>) -> Error {
        let before = self.pool.stats();
        let error = call().expect_err("the misuse was not seen");
        assert_eq!(self.pool.stats(), before, "{error}");
        self.pool.check().unwrap();
        self.checker.verify().unwrap();
        assert_eq!(self.pool.size_of(self.live).unwrap(), 1000);
        error
    }

    /// What a pointer gives that is no live block: the same whatever is asked of it.
    fn refused_pointer(&self, ptr: DevicePtr) -> Error {
        let error = self.refused(|| self.pool.free_block(ptr, &self.stream));
        assert_eq!(self.refused(|| self.pool.record_use(ptr, &self.stream)), error);
        assert_eq!(self.refused(|| self.pool.size_of(ptr)), error);
        // SAFETY: the pointer is refused, so that nothing is made of it.
        let made = self.refused(|| unsafe { Buffer::<u8>::from_raw(&self.pool, ptr, 1, &self.stream) });
        assert_eq!(made, error);
        error
    }
}

fn device() -> (Arc<CheckerDevice>, Context) {
    let sim = SimDevice::new(SimOptions::default().capacity(256 * MIB)).unwrap();
    let checker = CheckerDevice::new(sim);
    (checker.clone(), Context::new(checker))
}

fn mine() -> String {
    "mine".to_owned()
}

#[test]
fn a_block_cannot_be_freed_twice() {
    let bench = Bench::new();
    let error = bench.refused_pointer(bench.freed);
    assert_eq!(error, Error::DoubleFree { ptr: bench.freed, pool: mine() });
    assert_eq!(bench.refused(|| bench.context.free_block(bench.freed, &bench.stream)), error);
}

#[test]
fn a_pointer_into_a_free_block_is_no_live_block() {
    let bench = Bench::new();
    let ptr = bench.freed.offset(512);
    assert_eq!(bench.refused_pointer(ptr), Error::DoubleFree { ptr, pool: mine() });
}

#[test]
fn the_error_for_an_interior_pointer_names_the_block() {
    let bench = Bench::new();
    for offset in [1, 511, 512, 999, 1000, 1023] {
        let ptr = bench.live.offset(offset);
        let expected = Error::InteriorPointer { ptr, start: bench.live, offset, pool: mine() };
        assert_eq!(bench.refused_pointer(ptr), expected);
    }
}

#[test]
fn a_foreign_pointer_is_nobodys() {
    let bench = Bench::new();
    for raw in [1, 4096, u64::MAX, u64::MAX - 511] {
        let ptr = DevicePtr::new(raw);
        assert_eq!(bench.refused_pointer(ptr), Error::ForeignPointer { ptr, pool: mine() });
        let error = bench.refused(|| bench.context.free_block(ptr, &bench.stream));
        assert!(matches!(error, Error::ForeignPointer { .. }), "{error}");
    }
}

#[test]
fn a_pointer_of_another_pool_names_its_owner() {
    let bench = Bench::new();
    let other = Pool::builder(&bench.context).name("other").build().unwrap();
    let ptr = other.alloc(1000, &bench.stream).unwrap();
    let before = other.stats();
    let error = bench.refused_pointer(ptr);
    assert_eq!(error, Error::WrongPool { ptr, pool: mine(), owner: "other".to_owned() });
    assert_eq!(other.stats(), before);
    other.check().unwrap();
    bench.context.free_block(ptr, &bench.stream).unwrap();
}

#[test]
fn zero_bytes_are_null_and_null_is_ignored() {
    let bench = Bench::new();
    let before = bench.pool.stats();
    assert_eq!(bench.pool.alloc(0, &bench.stream).unwrap(), DevicePtr::NULL);
    bench.pool.free_block(DevicePtr::NULL, &bench.stream).unwrap();
    bench.context.free_block(DevicePtr::NULL, &bench.stream).unwrap();
    bench.pool.record_use(DevicePtr::NULL, &bench.stream).unwrap();
    assert_eq!(bench.pool.size_of(DevicePtr::NULL), Ok(0));
    assert_eq!(bench.pool.stats(), before);
}

#[test]
fn sizes_that_overflow_are_refused() {
    let bench = Bench::new();
    let text = bench.refused(|| bench.pool.alloc(u64::MAX, &bench.stream)).to_string();
    assert_eq!(
        text,
        "18446744073709551615 bytes are more than an address can hold: check how the size is computed"
    );
    for bytes in [u64::MAX, u64::MAX - 511, 1 << 63, (1 << 62) + 1] {
        let error = bench.refused(|| bench.pool.alloc(bytes, &bench.stream));
        assert_eq!(error, Error::SizeOverflow { bytes, count: 1 });
        let error = bench.refused(|| bench.pool.alloc_aligned(bytes, 4096, &bench.stream));
        assert_eq!(error, Error::SizeOverflow { bytes, count: 1 });
        let error = bench.refused(|| bench.pool.alloc_zeroed(bytes, &bench.stream));
        assert_eq!(error, Error::SizeOverflow { bytes, count: 1 });
    }
    let len = usize::MAX / 2;
    let error = bench.refused(|| Buffer::<u64>::new(&bench.pool, len, &bench.stream));
    assert_eq!(error, Error::SizeOverflow { bytes: u64::MAX, count: len as u64 });
    let error = bench.refused(|| Buffer::<f32>::zeroed(&bench.pool, usize::MAX, &bench.stream));
    assert!(matches!(error, Error::SizeOverflow { .. }), "{error}");
}

#[test]
fn a_size_beyond_the_device_is_out_of_memory() {
    let bench = Bench::new();
    let before = bench.pool.stats();
    let error = bench.pool.alloc(1 << 50, &bench.stream).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    let after = bench.pool.stats();
    assert_eq!(after.out_of_memory, before.out_of_memory + 1);
    assert_eq!(
        (after.requested, after.allocated, after.blocks),
        (before.requested, before.allocated, before.blocks)
    );
    bench.pool.check().unwrap();
    bench.checker.verify().unwrap();
}

#[test]
fn alignments_are_powers_of_two_up_to_the_granularity() {
    let bench = Bench::new();
    for align in [0, 3, 511, 4 * MIB, u64::MAX, 1 << 63] {
        let error = bench.refused(|| bench.pool.alloc_aligned(64, align, &bench.stream));
        assert_eq!(error, Error::BadAlignment { align, largest: 2 * MIB });
    }
}

#[test]
fn streams_of_another_context_are_refused() {
    let bench = Bench::new();
    let (_checker, elsewhere) = device();
    let theirs = elsewhere.create_stream().unwrap();
    let expected = Error::WrongDevice { what: "stream", pool: mine() };
    assert_eq!(bench.refused(|| bench.pool.alloc(64, &theirs)), expected);
    assert_eq!(bench.refused(|| bench.pool.alloc(0, &theirs)), expected);
    assert_eq!(bench.refused(|| bench.pool.alloc_aligned(64, 512, &theirs)), expected);
    assert_eq!(bench.refused(|| bench.pool.alloc_zeroed(64, &theirs)), expected);
    assert_eq!(bench.refused(|| bench.pool.free_block(bench.live, &theirs)), expected);
    assert_eq!(bench.refused(|| bench.pool.record_use(bench.live, &theirs)), expected);
    assert_eq!(bench.refused(|| Buffer::<u8>::new(&bench.pool, 1, &theirs)), expected);
    assert_eq!(bench.refused(|| Workspace::new(&bench.pool, 1, &theirs)), expected);
    // SAFETY: the stream is refused, so that nothing is made of the block.
    let made = bench.refused(|| unsafe { Buffer::<u8>::from_raw(&bench.pool, bench.live, 1, &theirs) });
    assert_eq!(made, expected);
    let event = theirs.record().unwrap();
    bench.refused(|| bench.stream.wait(&event));
    bench.refused(|| bench.stream.wait_for(&theirs));
    let pool = Pool::builder(&elsewhere).build().unwrap();
    let error = bench.refused(|| bench.context.set_current_pool(Some(&pool)));
    assert!(matches!(error, Error::WrongDevice { what: "context", .. }), "{error}");
}

#[test]
fn buffers_of_another_context_are_not_copied() {
    let bench = Bench::new();
    let (_checker, elsewhere) = device();
    let pool = Pool::builder(&elsewhere).build().unwrap();
    let theirs = Buffer::<u8>::new(&pool, 8, &elsewhere.create_stream().unwrap()).unwrap();
    let mut ours = Buffer::<u8>::new(&bench.pool, 8, &bench.stream).unwrap();
    let error = bench.refused(|| ours.copy_from(&theirs));
    assert!(matches!(error, Error::WrongDevice { .. }), "{error}");
}

#[test]
fn lengths_that_differ_are_refused() {
    let bench = Bench::new();
    let mut buffer = Buffer::<u32>::new(&bench.pool, 8, &bench.stream).unwrap();
    let other = Buffer::<u32>::new(&bench.pool, 9, &bench.stream).unwrap();
    let lengths = |error| match error {
        Error::LengthMismatch { found, expected, .. } => (found, expected),
        other => panic!("{other}"),
    };
    assert_eq!(lengths(bench.refused(|| buffer.copy_from_slice(&[0; 7]))), (7, 8));
    assert_eq!(lengths(bench.refused(|| buffer.copy_to_slice(&mut [0; 9]))), (9, 8));
    assert_eq!(lengths(bench.refused(|| buffer.copy_from(&other))), (9, 8));
    // SAFETY: the length is refused, so that nothing is made of the block.
    let made =
        bench.refused(|| unsafe { Buffer::<u64>::from_raw(&bench.pool, bench.live, 126, &bench.stream) });
    // Of 1000 bytes, at eight each.
    assert_eq!(lengths(made), (126, 125));
}

#[test]
fn a_full_workspace_says_what_is_left() {
    let bench = Bench::new();
    let workspace = Workspace::new(&bench.pool, 2048, &bench.stream).unwrap();
    workspace.alloc::<u8>(1000).unwrap();
    let error = bench.refused(|| workspace.alloc::<u32>(257).map(drop));
    // 257 of four bytes; the 1000 bytes before took 1024.
    assert_eq!(error, Error::WorkspaceFull { requested: 1028, left: 1024, capacity: 2048 });
    let error = bench.refused(|| workspace.alloc::<u64>(usize::MAX).map(drop));
    assert!(matches!(error, Error::SizeOverflow { .. }), "{error}");
    assert_eq!(workspace.used(), 1024);
    workspace.alloc::<u32>(256).unwrap();
    let odd = Workspace::new(&bench.pool, 1000, &bench.stream).unwrap();
    odd.alloc::<u8>(1000).unwrap();
    assert_eq!(odd.alloc::<u8>(0).unwrap().len(), 0, "nothing is always left");
    assert!(matches!(
        odd.alloc::<u8>(1),
        Err(Error::WorkspaceFull { requested: 1, left: 0, capacity: 1000 })
    ));
}

#[test]
fn a_destroyed_pool_only_frees_what_is_live() {
    let bench = Bench::new();
    let error = bench.pool.destroy().unwrap_err();
    assert_eq!(error, Error::LiveBlocks { pool: mine(), blocks: 1, bytes: 1000 });
    assert!(
        error
            .to_string()
            .contains("with live blocks (1, 1000 B in all): free them, and their memory goes back"),
        "{error}"
    );
    let expected = Error::PoolDestroyed { pool: mine() };
    assert_eq!(bench.refused(|| bench.pool.alloc(64, &bench.stream)), expected);
    assert_eq!(bench.refused(|| bench.pool.alloc_zeroed(64, &bench.stream)), expected);
    assert_eq!(bench.refused(|| Buffer::<u8>::new(&bench.pool, 1, &bench.stream)), expected);
    bench.pool.record_use(bench.live, &bench.stream).unwrap();
    bench.pool.free_block(bench.live, &bench.stream).unwrap();
    bench.context.synchronize().unwrap();
    assert_eq!(bench.pool.reserved().current, 0, "its memory went with the last block");
    let Bench { checker, context, stream, pool, .. } = bench;
    drop((context, stream, pool));
    checker.verify_nothing_left().unwrap();
}

#[test]
fn a_dropped_pool_lives_until_its_last_block_is_freed() {
    let Bench { checker, context, stream, pool, live, freed } = Bench::new();
    drop(pool);
    let twice = context.free_block(freed, &stream).unwrap_err();
    assert!(matches!(twice, Error::DoubleFree { .. }), "{twice}");
    context.free_block(live, &stream).unwrap();
    context.synchronize().unwrap();
    let gone = context.free_block(live, &stream).unwrap_err();
    assert!(matches!(gone, Error::ForeignPointer { .. }), "{gone}");
    drop((context, stream));
    checker.verify_nothing_left().unwrap();
}

#[test]
fn options_that_make_no_sense_are_named() {
    let bench = Bench::new();
    let option = |error| match error {
        Error::BadOption { option, .. } => option,
        other => panic!("{other}"),
    };
    let build = |sizes: (u64, u64)| Pool::builder(&bench.context).page_sizes(sizes.0, sizes.1).build();
    for sizes in [(0, 0), (MIB, 2 * MIB), (3 * MIB, 4 * MIB), (4 * MIB, 2 * MIB), (2 * MIB, 5 * MIB)] {
        assert_eq!(option(bench.refused(|| build(sizes))), "page_sizes", "{sizes:?}");
    }
    for alignment in [0, 1, 128, 300, 4 * MIB, u64::MAX] {
        let build = || Pool::builder(&bench.context).min_alignment(alignment).build();
        assert_eq!(option(bench.refused(build)), "min_alignment", "{alignment}");
    }
    for fraction in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        let budget = || Budget::fraction(bench.context.device().as_ref(), fraction);
        assert_eq!(option(bench.refused(budget)), "budget", "{fraction}");
    }
}

#[test]
fn every_error_says_which_pool_and_what_to_do() {
    let bench = Bench::new();
    let other = Pool::builder(&bench.context).name("other").build().unwrap();
    let theirs = other.alloc(64, &bench.stream).unwrap();
    for ptr in [bench.freed, bench.live.offset(8), DevicePtr::new(4096), theirs] {
        let text = bench.refused(|| bench.pool.free_block(ptr, &bench.stream)).to_string();
        assert!(text.contains("'mine'") && text.contains(&ptr.to_string()), "{text}");
    }
    let text = bench.pool.alloc(1 << 40, &bench.stream).unwrap_err().to_string();
    assert!(text.contains("'mine'") && text.contains("request less"), "{text}");
    other.free_block(theirs, &bench.stream).unwrap();
}

#[test]
fn nobody_is_told_to_free_more_than_there_could_be() {
    let (_, context, stream) = sim(256 * MIB);
    let advice = |pool: &Pool, bytes| match pool.alloc(bytes, &stream).unwrap_err() {
        Error::OutOfMemory(report) => report.advice(),
        other => panic!("{other}"),
    };
    let pool = Pool::builder(&context).build().unwrap();
    assert_eq!(advice(&pool, 257 * MIB), "request less");
    let small = Pool::builder(&context).hard_limit(64 * MIB).build().unwrap();
    assert_eq!(advice(&small, 65 * MIB), "raise hard_limit, or request less");
    let live = small.alloc(64 * MIB, &stream).unwrap();
    assert_eq!(advice(&small, 2 * MIB), "free 2.00 MiB of live blocks, or raise hard_limit");
    small.free_block(live, &stream).unwrap();
    let tiny = Pool::builder(&context).hard_limit(MIB).build().unwrap();
    assert_eq!(advice(&tiny, 512), "raise hard_limit: memory is taken in whole pages");
    let budget = Budget::bytes(64 * MIB);
    let shared = Pool::builder(&context).budget(&budget).build().unwrap();
    assert_eq!(advice(&shared, 65 * MIB), "raise the budget, or request less");
    let most = pool.alloc(250 * MIB, &stream).unwrap();
    assert_eq!(advice(&shared, 64 * MIB), "free memory elsewhere on the device");
    let little = shared.alloc(4 * MIB, &stream).unwrap();
    assert_eq!(advice(&shared, 60 * MIB), "free the live blocks, which alone is not enough");
    shared.free_block(little, &stream).unwrap();
    pool.free_block(most, &stream).unwrap();
    let modest = Pool::builder(&context).headroom(256 * MIB).build().unwrap();
    assert_eq!(advice(&modest, MIB), "lower headroom");
}

#[test]
fn the_advice_names_shared_pages_where_only_holes_are_free() {
    let (_, context, stream) = sim(8 * MIB);
    let pool = Pool::builder(&context).build().unwrap();
    let blocks: Vec<_> = (0..16).map(|_| pool.alloc(MIB / 2, &stream).unwrap()).collect();
    let (kept, freed): (Vec<_>, Vec<_>) = blocks.chunks_exact(2).map(|pair| (pair[0], pair[1])).unzip();
    freed.iter().for_each(|&ptr| pool.free_block(ptr, &stream).unwrap());
    let Err(Error::OutOfMemory(report)) = pool.alloc(MIB, &stream) else { panic!("there is no such room") };
    assert!((report.cached, report.largest_free) == (4 * MIB, MIB / 2), "{report}");
    assert!(
        report.advice().starts_with("free live blocks that share a page with what is cached"),
        "{report}"
    );
    assert!(report.to_string().contains("live in 8 blocks,"), "{report}");
    kept[1..].iter().for_each(|&ptr| pool.free_block(ptr, &stream).unwrap());
    let Err(Error::OutOfMemory(report)) = pool.alloc(8 * MIB, &stream) else { panic!("one is live") };
    assert!(report.to_string().contains("live in 1 block,"), "{report}");
    pool.free_block(kept[0], &stream).unwrap();
}
