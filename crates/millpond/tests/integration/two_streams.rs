//! What two streams get from one pool, on every device: they share pages, and what one freed the other gets
//! under each of the three reuse policies, and not without. On devices with bytes, nobody's bytes are touched
//! too early.
//!
//! The streams are *held*: work on them is pending until the test releases it. On a GPU:
//! `cargo test --test integration two_streams:: -- --ignored --test-threads=1`.

use std::cell::RefCell;
use std::sync::{Arc, mpsc};

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{Device, DevicePtr, MemoryKind, StreamHandle};
use millpond::{Buffer, Context, Pool, PoolBuilder, RegisteredStream, ReusePolicies, Stream};

use crate::shared::Freeing;

/// Work that is pending until this is called.
type Hold = Box<dyn FnOnce()>;

/// A device under test. The tests take it as `dyn`, so that there is no copy of each for each device.
trait Bench {
    /// What was written can be read.
    fn keeps_bytes(&self) -> bool;

    fn device(&self) -> Arc<dyn Device>;

    /// Whose memory the pools take.
    fn memory(&self) -> Arc<dyn Device> {
        self.device()
    }

    fn builder(&self, context: &Context) -> PoolBuilder {
        Pool::builder(context)
    }

    fn stream(&self, context: &Context) -> Stream {
        context.create_stream().unwrap()
    }

    fn hold(&self, stream: StreamHandle) -> Hold;
}

struct Sim(Arc<SimDevice>);

impl Sim {
    fn new(virtual_memory: bool) -> Self {
        Self(SimDevice::new(SimOptions::default().capacity(CAPACITY).virtual_memory(virtual_memory)).unwrap())
    }
}

impl Bench for Sim {
    fn keeps_bytes(&self) -> bool {
        false
    }

    fn device(&self) -> Arc<dyn Device> {
        self.0.clone()
    }

    fn hold(&self, stream: StreamHandle) -> Hold {
        let (sim, hold) = (self.0.clone(), self.0.hold(stream).unwrap());
        Box::new(move || sim.release(hold))
    }
}

struct Host(Arc<HostDevice>);

impl Host {
    fn new(virtual_memory: bool) -> Self {
        let options = HostOptions::default().capacity(CAPACITY).virtual_memory(virtual_memory);
        Self(HostDevice::with_options(options).unwrap())
    }
}

impl Bench for Host {
    fn keeps_bytes(&self) -> bool {
        true
    }

    fn device(&self) -> Arc<dyn Device> {
        self.0.clone()
    }

    fn hold(&self, stream: StreamHandle) -> Hold {
        let (release, released) = mpsc::channel();
        // A hold that a failing test drops releases too: `recv` fails then.
        self.0.launch(stream, move || _ = released.recv()).unwrap();
        Box::new(move || release.send(()).unwrap())
    }
}

/// Pools of another memory of the device's.
struct Other<B>(B, MemoryKind);

impl<B: Bench> Bench for Other<B> {
    fn keeps_bytes(&self) -> bool {
        self.0.keeps_bytes()
    }

    fn device(&self) -> Arc<dyn Device> {
        self.0.device()
    }

    fn memory(&self) -> Arc<dyn Device> {
        let device = self.device();
        if self.1 == MemoryKind::Pinned { device.pinned(None) } else { device.managed() }.unwrap()
    }

    fn builder(&self, context: &Context) -> PoolBuilder {
        if self.1 == MemoryKind::Pinned { context.pinned() } else { context.managed() }.unwrap()
    }

    fn hold(&self, stream: StreamHandle) -> Hold {
        self.0.hold(stream)
    }
}

/// Streams of somebody else's, registered and found by their handles.
struct Registered<B: Bench>(B, RefCell<Vec<RegisteredStream>>);

impl<B: Bench> Registered<B> {
    fn new(bench: B) -> Self {
        Self(bench, RefCell::default())
    }
}

impl<B: Bench> Bench for Registered<B> {
    fn keeps_bytes(&self) -> bool {
        self.0.keeps_bytes()
    }

    fn device(&self) -> Arc<dyn Device> {
        self.0.device()
    }

    fn stream(&self, context: &Context) -> Stream {
        let handle = context.device().create_stream().unwrap();
        // SAFETY: it is destroyed after its registration.
        let (registered, found) =
            unsafe { (context.register_stream(handle).unwrap(), context.foreign_stream(handle).unwrap()) };
        self.1.borrow_mut().push(registered);
        found
    }

    fn hold(&self, stream: StreamHandle) -> Hold {
        self.0.hold(stream)
    }
}

impl<B: Bench> Drop for Registered<B> {
    fn drop(&mut self) {
        for registered in self.1.take() {
            let (device, handle) = (registered.device().clone(), registered.handle());
            drop(registered);
            // SAFETY: nobody uses it any more.
            unsafe { device.destroy_stream(handle) }.unwrap();
        }
    }
}

#[cfg(feature = "cuda")]
mod gpu {
    use millpond::device::cuda::{CudaDevice, CudaOptions};

    use super::*;

    pub(crate) struct Cuda(Arc<CudaDevice>);

    impl Cuda {
        pub(crate) fn new(virtual_memory: bool) -> Self {
            let options = CudaOptions::default().virtual_memory((!virtual_memory).then_some(false));
            Self(CudaDevice::with_options(0, options).unwrap())
        }
    }

    impl Bench for Cuda {
        fn keeps_bytes(&self) -> bool {
            true
        }

        fn device(&self) -> Arc<dyn Device> {
            self.0.clone()
        }

        fn hold(&self, stream: StreamHandle) -> Hold {
            let (release, released) = mpsc::channel();
            // SAFETY: the stream lives, and there are no captures.
            unsafe { self.0.launch_host(stream, move || _ = released.recv()) }.unwrap();
            Box::new(move || release.send(()).unwrap())
        }
    }
}

/// Little, so that the simulated and the host device run out soon where a test wants that.
const CAPACITY: u64 = 256 << 20;
const PAGE: u64 = 2 << 20;
/// A block that leaves less than another one needs, on pages as in a segment.
const BLOCK: u64 = 3 << 20;

/// Two streams of one pool with these policies.
fn two_streams(bench: &dyn Bench, reuse: ReusePolicies) -> (Context, Pool, Stream, Stream) {
    let context = Context::new(bench.device());
    let granularity = bench.memory().properties().granularity;
    let pool = bench.builder(&context).reuse(reuse).page_sizes(granularity, granularity).build().unwrap();
    let (first, second) = (bench.stream(&context), bench.stream(&context));
    (context, pool, first, second)
}

fn only_follow() -> ReusePolicies {
    ReusePolicies { follow_event_dependencies: true, ..ReusePolicies::NONE }
}

fn only_opportunistic() -> ReusePolicies {
    ReusePolicies { opportunistic: true, ..ReusePolicies::NONE }
}

fn only_internal() -> ReusePolicies {
    ReusePolicies { internal_dependencies: true, ..ReusePolicies::NONE }
}

/// Allocates and frees a block on `stream`.
fn freed_block(pool: &Pool, stream: &Stream) -> DevicePtr {
    let freed = pool.alloc(BLOCK, stream).unwrap();
    pool.free_block(freed, stream).unwrap();
    freed
}

/// The next block on `stream`. A test keeps it, so that what it frees itself is not what it gets next.
fn next(pool: &Pool, stream: &Stream) -> Buffer<u8> {
    let block = Buffer::new(pool, BLOCK as usize, stream).unwrap();
    pool.check().unwrap();
    block
}

// ---- the tests ---------------------------------------------------------------------------------------

fn small_blocks_of_two_streams_share_a_page(bench: &dyn Bench) {
    let (_context, pool, first, second) = two_streams(bench, ReusePolicies::ALL);
    let one = pool.alloc(576, &first).unwrap();
    let reserved = pool.reserved().current;
    let other = pool.alloc(576, &second).unwrap();
    assert_eq!(pool.reserved().current, reserved, "one page is enough for both");
    assert_eq!(reserved, bench.memory().properties().granularity);
    pool.free_block(one, &first).unwrap();
    pool.free_block(other, &second).unwrap();
}

fn a_stream_gets_what_it_freed_while_that_is_pending(bench: &dyn Bench) {
    let (_context, pool, first, _) = two_streams(bench, ReusePolicies::NONE);
    let hold = bench.hold(first.handle());
    let freed = freed_block(&pool, &first);
    assert_eq!(next(&pool, &first).ptr(), freed);
    hold();
}

fn without_policies_pending_memory_is_not_given_to_another_stream(bench: &dyn Bench) {
    let (context, pool, first, second) = two_streams(bench, ReusePolicies::NONE);
    let hold = bench.hold(first.handle());
    let freed = freed_block(&pool, &first);
    let other = next(&pool, &second);
    assert_ne!(other.ptr(), freed);
    second.wait_for(&first).unwrap();
    let another = next(&pool, &second);
    assert_ne!(another.ptr(), freed, "also where the streams are ordered");
    hold();
    context.synchronize().unwrap();
    assert_eq!(next(&pool, &second).ptr(), freed, "the host has waited");
}

fn event_dependencies_are_followed(bench: &dyn Bench) {
    let (context, pool, first, second) = two_streams(bench, only_follow());
    let between = context.create_stream().unwrap();
    let hold = bench.hold(first.handle());
    let freed = freed_block(&pool, &first);
    let other = next(&pool, &second);
    assert_ne!(other.ptr(), freed, "nothing orders the streams yet");
    between.wait_for(&first).unwrap();
    second.wait_for(&between).unwrap();
    assert_eq!(next(&pool, &second).ptr(), freed);
    assert_eq!(pool.stats().stream_waits, 0);
    hold();
}

fn an_event_recorded_before_the_free_is_no_dependency(bench: &dyn Bench) {
    let (_context, pool, first, second) = two_streams(bench, only_follow());
    let hold = bench.hold(first.handle());
    let block = pool.alloc(BLOCK, &first).unwrap();
    let early = first.record().unwrap();
    pool.free_block(block, &first).unwrap();
    second.wait(&early).unwrap();
    let other = next(&pool, &second);
    assert_ne!(other.ptr(), block);
    hold();
}

fn complete_memory_is_seen_to_be_complete(bench: &dyn Bench) {
    let (context, pool, first, second) = two_streams(bench, only_opportunistic());
    let hold = bench.hold(first.handle());
    let freed = freed_block(&pool, &first);
    let other = next(&pool, &second);
    assert_ne!(other.ptr(), freed, "it is pending");
    hold();
    // Not through the context, so that the pool has to look for itself.
    context.device().synchronize().unwrap();
    assert_eq!(next(&pool, &second).ptr(), freed);
    assert_eq!(pool.stats().stream_waits, 0);
}

/// A block of `parts` blocks' length, and behind it one that stays.
fn part(pool: &Pool, parts: u64, stream: &Stream) -> DevicePtr {
    let part = pool.alloc(parts * BLOCK, stream).unwrap();
    _ = pool.alloc(BLOCK, stream).unwrap();
    part
}

fn another_streams_better_fit_is_taken_once_complete(bench: &dyn Bench) {
    let (context, pool, first, second) = two_streams(bench, ReusePolicies::ALL);
    let (better, longer) = (part(&pool, 1, &first), part(&pool, 3, &second));
    let hold = bench.hold(first.handle());
    pool.free_block(better, &first).unwrap();
    pool.free_block(longer, &second).unwrap();
    let one = next(&pool, &second);
    assert_eq!(one.ptr(), longer, "rather than to wait");
    hold();
    // Not through the context, so that the pool has to look for itself.
    context.device().synchronize().unwrap();
    let other = next(&pool, &second);
    assert_eq!(other.ptr(), better, "rather than to cut up what is left of the longer one");
    assert_eq!(pool.stats().stream_waits, 0);
}

fn complete_neighbours_of_two_streams_join_before_growth(bench: &dyn Bench) {
    let (context, pool, first, second) = two_streams(bench, only_opportunistic());
    let whole = pool.alloc(2 * BLOCK, &first).unwrap();
    pool.free_block(whole, &first).unwrap();
    context.synchronize().unwrap();
    let streams = [&first, &second];
    let parts = streams.map(|stream| pool.alloc(BLOCK, stream).unwrap());
    assert_eq!(parts, [whole, whole.offset(BLOCK)]);
    let holds = streams.map(|stream| bench.hold(stream.handle()));
    streams.iter().zip(parts).for_each(|(stream, part)| pool.free_block(part, stream).unwrap());
    holds.into_iter().for_each(|hold| hold());
    // Not through the context, so that the pool has to look for itself.
    context.device().synchronize().unwrap();
    let both = pool.alloc(2 * BLOCK, &second).unwrap();
    assert_eq!((both, pool.stats().misses), (whole, 1));
    pool.free_block(both, &second).unwrap();
    pool.check().unwrap();
}

fn the_pool_makes_the_other_stream_wait(bench: &dyn Bench) {
    let (context, pool, first, second) = two_streams(bench, only_internal());
    let hold = bench.hold(first.handle());
    let freed = freed_block(&pool, &first);
    assert!(second.is_idle().unwrap());
    assert_eq!(next(&pool, &second).ptr(), freed);
    assert_eq!(pool.stats().stream_waits, 1);
    assert!(!second.is_idle().unwrap(), "it waits for the first");
    hold();
    context.synchronize().unwrap();
    assert!(second.is_idle().unwrap());
}

fn policies_change_from_one_request_to_the_next(bench: &dyn Bench) {
    let (_context, pool, first, second) = two_streams(bench, ReusePolicies::NONE);
    let hold = bench.hold(first.handle());
    let freed = freed_block(&pool, &first);
    second.wait_for(&first).unwrap();
    let other = next(&pool, &second);
    assert_ne!(other.ptr(), freed);
    pool.set_reuse(only_follow());
    assert_eq!(pool.reuse(), only_follow());
    let followed = next(&pool, &second);
    assert_eq!(followed.ptr(), freed);
    drop(followed);
    first.wait_for(&second).unwrap();
    pool.set_reuse(ReusePolicies::NONE);
    let other = next(&pool, &first);
    assert_ne!(other.ptr(), freed);
    hold();
}

fn a_recorded_use_holds_the_block_back(bench: &dyn Bench) {
    let (_context, pool, first, second) = two_streams(bench, ReusePolicies::NONE);
    let hold = bench.hold(second.handle());
    let block = pool.alloc(BLOCK, &first).unwrap();
    pool.record_use(block, &second).unwrap();
    pool.free_block(block, &first).unwrap();
    let other = next(&pool, &first);
    assert_ne!(other.ptr(), block, "the other stream may still use it");
    hold();
    bench.device().synchronize().unwrap();
}

/// Rather than to cut the next one off what is free.
fn a_small_block_is_taken_again_once_a_recorded_use_is_complete(bench: &dyn Bench) {
    let (context, pool, first, second) = two_streams(bench, ReusePolicies::ALL);
    let hold = bench.hold(second.handle());
    let block = pool.alloc(512, &first).unwrap();
    pool.record_use(block, &second).unwrap();
    pool.free_block(block, &first).unwrap();
    let other = pool.alloc(512, &first).unwrap();
    assert_ne!(other, block, "the other stream may still use it");
    hold();
    // Not through the context, so that the pool has to look for itself.
    context.device().synchronize().unwrap();
    let again = pool.alloc(512, &first).unwrap();
    assert_eq!(again, block);
    assert_eq!(pool.stats().stream_waits, 0);
    for block in [other, again] {
        pool.free_block(block, &first).unwrap();
    }
    pool.check().unwrap();
}

/// Work that reads a block comes before the work of whoever gets its memory next.
fn bytes_are_read_before_the_next_owner_writes_them(bench: &dyn Bench) {
    let (context, pool, first, second) = two_streams(bench, only_internal());
    let kept = pool.alloc(BLOCK, &first).unwrap();
    let hold = bench.hold(first.handle());
    let block = pool.alloc(BLOCK, &first).unwrap();
    fill(&context, block, 1, BLOCK, &first);
    copy(&context, kept, block, BLOCK, &first);
    pool.free_block(block, &first).unwrap();
    let next = pool.alloc(BLOCK, &second).unwrap();
    assert_eq!(next, block);
    fill(&context, next, 2, BLOCK, &second);
    hold();
    expect(bench, &context, kept, 1, BLOCK, &first);
    expect(bench, &context, next, 2, BLOCK, &second);
    pool.free_block(kept, &first).unwrap();
    pool.free_block(next, &second).unwrap();
}

/// The same where the memory goes to the next owner by remapping: no address is shared, but pages are.
fn bytes_are_read_before_their_page_is_written_elsewhere(bench: &dyn Bench) {
    if !bench.memory().properties().virtual_memory {
        return;
    }
    let context = Context::new(bench.device());
    let limit = 6 * PAGE;
    let pool = bench.builder(&context).reuse(only_internal()).hard_limit(limit).build().unwrap();
    let (first, second) = (context.create_stream().unwrap(), context.create_stream().unwrap());
    let kept = pool.alloc(PAGE, &first).unwrap();
    let hold = bench.hold(first.handle());
    // Two pages, with a live one between them: only remapping both gives room for two together.
    let blocks: Vec<_> = (0..3).map(|_| pool.alloc(PAGE, &first).unwrap()).collect();
    let filler = pool.alloc(2 * PAGE, &first).unwrap();
    fill(&context, blocks[0], 1, PAGE, &first);
    fill(&context, blocks[2], 1, PAGE, &first);
    copy(&context, kept, blocks[0], PAGE / 2, &first);
    copy(&context, kept.offset(PAGE / 2), blocks[2], PAGE / 2, &first);
    pool.free_block(blocks[0], &first).unwrap();
    pool.free_block(blocks[2], &first).unwrap();
    let next = pool.alloc(2 * PAGE, &second).unwrap();
    pool.check().unwrap();
    assert!(pool.stats().pages_remapped >= 1, "{:?}", pool.stats());
    fill(&context, next, 2, 2 * PAGE, &second);
    hold();
    expect(bench, &context, kept, 1, PAGE, &first);
    expect(bench, &context, next, 2, 2 * PAGE, &second);
    for (block, stream) in [(kept, &first), (blocks[1], &first), (filler, &first), (next, &second)] {
        pool.free_block(block, stream).unwrap();
    }
    context.synchronize().unwrap();
    pool.trim_to(0).unwrap();
    assert_eq!(pool.reserved().current, 0);
}

/// Segments are as long as what is asked for, and nothing is kept for an alignment that the device gives anyway.
fn a_limit_of_whole_pages_is_given_out_whole(bench: &dyn Bench) {
    let context = Context::new(bench.device());
    let stream = bench.stream(&context);
    for pages in [1, 4, 10, 16, 32] {
        let pool = bench.builder(&context).hard_limit(32 * PAGE).build().unwrap();
        for _ in 0..2 {
            let blocks: Vec<_> =
                (0..32 / pages).map(|_| pool.alloc(pages * PAGE, &stream).unwrap()).collect();
            assert_eq!(pool.reserved().current, blocks.len() as u64 * pages * PAGE, "{pages} pages");
            if 32 % pages == 0 {
                assert!(pool.alloc(1, &stream).is_err(), "one byte more than the limit was given");
            }
            blocks.into_iter().for_each(|block| pool.free_block(block, &stream).unwrap());
        }
        stream.synchronize().unwrap();
        pool.check().unwrap();
    }
}

fn aligned_blocks_fit_into_what_they_fill(bench: &dyn Bench) {
    let context = Context::new(bench.device());
    let stream = bench.stream(&context);
    let pool = bench.builder(&context).min_alignment(PAGE).hard_limit(6 * PAGE).build().unwrap();
    // Where the device gives segments of another alignment, each is a page longer.
    for bytes in [PAGE, PAGE + 1, 3 * PAGE] {
        let block = pool.alloc(bytes, &stream).unwrap();
        assert_eq!(block.raw() % PAGE, 0);
        pool.free_block(block, &stream).unwrap();
        stream.synchronize().unwrap();
        pool.check().unwrap();
    }
    pool.trim_to(0).unwrap();
    assert_eq!(pool.reserved().current, 0);
}

// ---- bytes -------------------------------------------------------------------------------------------

fn fill(context: &Context, at: DevicePtr, value: u8, bytes: u64, stream: &Stream) {
    // SAFETY: the tests fill live blocks on streams ordered after their allocation.
    unsafe { context.device().memset(at, value, bytes, stream.handle()) }.unwrap();
}

fn copy(context: &Context, to: DevicePtr, from: DevicePtr, bytes: u64, stream: &Stream) {
    // SAFETY: as for `fill`; the blocks are different ones.
    unsafe { context.device().copy(to, from, bytes, stream.handle()) }.unwrap();
}

/// Waits for the stream; then all bytes have this value, where the device has bytes.
fn expect(bench: &dyn Bench, context: &Context, at: DevicePtr, value: u8, bytes: u64, stream: &Stream) {
    let mut found = vec![0; bytes as usize];
    // SAFETY: the vector lives until the stream is synchronised, and the block is live.
    unsafe { context.device().copy_to_host(found.as_mut_ptr(), at, bytes, stream.handle()) }.unwrap();
    stream.synchronize().unwrap();
    assert!(!bench.keeps_bytes() || found.iter().all(|byte| *byte == value), "some byte is not {value}");
}

// ---- the devices -------------------------------------------------------------------------------------

macro_rules! on_each_device {
    ($($test:ident)*) => {
        on_each_device!(@device sim Sim::new(true), [] $($test)*);
        on_each_device!(@device sim_without_virtual_memory Sim::new(false), [] $($test)*);
        on_each_device!(@device host Host::new(true), [] $($test)*);
        on_each_device!(@device host_without_virtual_memory Host::new(false), [] $($test)*);
        on_each_device!(@device sim_pinned Other(Sim::new(true), MemoryKind::Pinned), [] $($test)*);
        on_each_device!(@device sim_pinned_without_virtual_memory Other(Sim::new(false), MemoryKind::Pinned), [] $($test)*);
        on_each_device!(@device host_pinned Other(Host::new(true), MemoryKind::Pinned), [] $($test)*);
        on_each_device!(@device host_pinned_without_virtual_memory Other(Host::new(false), MemoryKind::Pinned), [] $($test)*);
        on_each_device!(@device sim_managed Other(Sim::new(true), MemoryKind::Managed), [] $($test)*);
        on_each_device!(@device host_managed Other(Host::new(true), MemoryKind::Managed), [] $($test)*);
        on_each_device!(@device sim_registered Registered::new(Sim::new(true)), [] $($test)*);
        on_each_device!(@device host_registered Registered::new(Host::new(true)), [] $($test)*);
        #[cfg(feature = "cuda")]
        on_each_device!(
            @device cuda_registered Registered::new(gpu::Cuda::new(true)),
            [#[ignore = "needs a CUDA GPU"]] $($test)*
        );
        #[cfg(feature = "cuda")]
        on_each_device!(
            @device cuda_managed Other(gpu::Cuda::new(true), MemoryKind::Managed),
            [#[ignore = "needs a CUDA GPU"]] $($test)*
        );
        #[cfg(feature = "cuda")]
        on_each_device!(@device cuda gpu::Cuda::new(true), [#[ignore = "needs a CUDA GPU"]] $($test)*);
        #[cfg(feature = "cuda")]
        on_each_device!(
            @device cuda_without_virtual_memory gpu::Cuda::new(false), [#[ignore = "needs a CUDA GPU"]] $($test)*
        );
        #[cfg(feature = "cuda")]
        on_each_device!(
            @device cuda_pinned Other(gpu::Cuda::new(true), MemoryKind::Pinned), [#[ignore = "needs a CUDA GPU"]] $($test)*
        );
        #[cfg(feature = "cuda")]
        on_each_device!(
            @device cuda_pinned_without_virtual_memory Other(gpu::Cuda::new(false), MemoryKind::Pinned),
            [#[ignore = "needs a CUDA GPU"]] $($test)*
        );
    };
    (@device $name:ident $bench:expr, $attributes:tt $($test:ident)*) => {
        mod $name {
            use super::*;
            $(on_each_device!(@test $bench, $attributes $test);)*
        }
    };
    (@test $bench:expr, [$($attribute:tt)*] $test:ident) => {
        #[test]
        $($attribute)*
        fn $test() {
            super::$test(&$bench);
        }
    };
}

on_each_device! {
    small_blocks_of_two_streams_share_a_page
    a_stream_gets_what_it_freed_while_that_is_pending
    without_policies_pending_memory_is_not_given_to_another_stream
    event_dependencies_are_followed
    policies_change_from_one_request_to_the_next
    an_event_recorded_before_the_free_is_no_dependency
    complete_memory_is_seen_to_be_complete
    another_streams_better_fit_is_taken_once_complete
    complete_neighbours_of_two_streams_join_before_growth
    the_pool_makes_the_other_stream_wait
    a_recorded_use_holds_the_block_back
    a_small_block_is_taken_again_once_a_recorded_use_is_complete
    bytes_are_read_before_the_next_owner_writes_them
    bytes_are_read_before_their_page_is_written_elsewhere
    a_limit_of_whole_pages_is_given_out_whole
    aligned_blocks_fit_into_what_they_fill
}
