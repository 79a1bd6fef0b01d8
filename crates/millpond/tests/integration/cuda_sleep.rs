//! Pools that sleep and wake on a GPU. `sleep.rs` has more of the same, without a GPU.
//!
//! `cargo test -p millpond --test integration cuda_sleep:: -- --ignored --test-threads=1`, or `scripts/gpu-test sleep`.

use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult, CUstream, CUstreamCaptureMode};
use millpond::device::DevicePtr;
use millpond::device::cuda::CudaDevice;
use millpond::{Buffer, Context, Error, Keep, Pool, Stream};

use crate::shared::{Freeing, MIB, Random};

pub(crate) struct Rig {
    pub(crate) context: Context,
    pub(crate) pool: Pool,
    pub(crate) stream: Stream,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let device = CudaDevice::new(0).expect("a GPU");
        device.make_current().unwrap();
        let context = Context::new(device);
        let pool = Pool::builder(&context).build().unwrap();
        let stream = context.create_stream().unwrap();
        Self { context, pool, stream }
    }
}

#[track_caller]
fn ok(result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS);
}

fn raw(stream: &Stream) -> CUstream {
    stream.handle().raw() as CUstream
}

fn pattern(seed: u64, bytes: u64) -> Vec<u64> {
    (0..bytes / 8).map(|at| seed.wrapping_mul(0x9e37_79b9).wrapping_add(at).rotate_left(23)).collect()
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_hundred_cycles_keep_every_byte_at_its_address() {
    let Rig { context, pool, stream } = Rig::new();
    let other = pool.tagged("other").unwrap();
    let mut random = Random(1);
    let mut live: Vec<(Vec<u64>, Buffer<u64>)> = Vec::new();
    for round in 0..100_u64 {
        for _ in 0..if round == 0 { 40 } else { 2 } {
            let contents =
                pattern(random.below(1 << 30), [512, 40_000, 3 * MIB, 11 * MIB][random.below(4) as usize]);
            let buffer = Buffer::from_slice(&pool, &contents, &stream).unwrap();
            live.push((contents, buffer));
        }
        let addresses: Vec<DevicePtr> = live.iter().map(|(_, buffer)| buffer.ptr()).collect();
        let free = context.memory_info().unwrap().free;
        let given_back = pool.sleep(Keep::InPinnedMemory).unwrap();
        assert_eq!(pool.reserved().current, 0);
        // The driver takes a little for itself, for pinned memory too.
        let gained = context.memory_info().unwrap().free.saturating_sub(free);
        assert!(gained + 64 * MIB >= given_back, "of {given_back} bytes, the driver has {gained} again");
        let elsewhere = Buffer::from_slice(&other, &[round; 100_000], &stream);
        assert!(matches!(elsewhere, Err(Error::Asleep { .. })), "tags sleep with their pool");
        pool.wake().unwrap();
        for ((contents, buffer), at) in live.iter().zip(&addresses) {
            assert_eq!(buffer.ptr(), *at);
            assert!(buffer.to_vec().unwrap() == *contents, "round {round}, {at}");
        }
        for _ in 0..2 {
            _ = live.swap_remove(random.below(live.len() as u64) as usize);
        }
    }
    pool.check().unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_graph_replays_after_each_wake() {
    let Rig { context, pool, stream } = Rig::new();
    const LEN: usize = 5 << 20;
    let mut input = Buffer::<u8>::zeroed(&pool, LEN, &stream).unwrap();
    let output = Buffer::<u8>::zeroed(&pool, LEN, &stream).unwrap();
    let memory = pool.capture_pool();
    let capturing = memory.begin(&stream).unwrap();
    // SAFETY: the stream is alive.
    ok(unsafe {
        sys::cuStreamBeginCapture_v2(raw(&stream), CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)
    });
    let device = context.device();
    let scratch = pool.alloc(LEN as u64, &stream).unwrap();
    // SAFETY: all three are live, and the stream orders the work.
    unsafe {
        device.copy(scratch, input.ptr(), LEN as u64, stream.handle()).unwrap();
        device.memset(scratch.offset(LEN as u64 / 2), 0xAA, LEN as u64 / 2, stream.handle()).unwrap();
        device.copy(output.ptr(), scratch, LEN as u64, stream.handle()).unwrap();
    }
    pool.free_block(scratch, &stream).unwrap();
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: both are writable, and the capture began on this stream. The graph is not used again.
    unsafe {
        ok(sys::cuStreamEndCapture(raw(&stream), &mut graph));
        ok(sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        ok(sys::cuGraphDestroy(graph));
    }
    drop(capturing);
    for round in 1..=10 {
        pool.sleep(if round % 2 == 0 { Keep::Nothing } else { Keep::InPinnedMemory }).unwrap();
        pool.wake().unwrap();
        input.copy_from_slice(&vec![round; LEN]).unwrap();
        // SAFETY: the graph lives, and its memory is where it was.
        ok(unsafe { sys::cuGraphLaunch(exec, raw(&stream)) });
        let found = output.to_vec().unwrap();
        assert!(
            found[..LEN / 2].iter().all(|byte| *byte == round)
                && found[LEN / 2..].iter().all(|byte| *byte == 0xAA)
        );
    }
    // SAFETY: the graph is not used again.
    ok(unsafe { sys::cuGraphExecDestroy(exec) });
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_wake_without_memory_can_be_tried_again() {
    let Rig { context, pool, stream } = Rig::new();
    let contents = pattern(7, 512 * MIB);
    let buffer = Buffer::from_slice(&pool, &contents, &stream).unwrap();
    pool.sleep(Keep::InPinnedMemory).unwrap();
    let (mut at, free) = (0, context.memory_info().unwrap().free);
    // SAFETY: `at` is writable, and the context is current.
    ok(unsafe { sys::cuMemAlloc_v2(&mut at, (free - 300 * MIB) as usize) });
    for _ in 0..2 {
        let Err(Error::OutOfMemory(report)) = pool.wake() else { panic!("there is no room") };
        println!("{report}");
        assert!(pool.is_asleep() && pool.reserved().current == 0);
    }
    // SAFETY: nobody uses it.
    ok(unsafe { sys::cuMemFree_v2(at) });
    pool.wake().unwrap();
    assert!(buffer.to_vec().unwrap() == contents);
}

fn gigabytes_per_second(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / took.as_secs_f64() / 1e9
}

/// The best of three.
fn fastest(mut call: impl FnMut() -> Duration) -> Duration {
    (0..3).map(|_| call()).min().unwrap_or_default()
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn sleeps_and_wakes_are_timed_against_plain_copies() {
    let Rig { context, pool, stream } = Rig::new();
    const BYTES: u64 = 4 << 30;
    let staging = context.pinned().unwrap().build().unwrap();
    staging.reserve(BYTES, &stream).unwrap();
    let mut copy = Buffer::<u8>::new(&staging, BYTES as usize, &stream).unwrap();
    let plain = {
        let mut on_gpu = Buffer::<u8>::zeroed(&pool, BYTES as usize, &stream).unwrap();
        let timed = |call: &mut dyn FnMut()| {
            stream.synchronize().unwrap();
            let start = Instant::now();
            call();
            stream.synchronize().unwrap();
            start.elapsed()
        };
        let out = fastest(|| timed(&mut || on_gpu.copy_to_pinned(&mut copy).unwrap()));
        [out, fastest(|| timed(&mut || on_gpu.copy_from_pinned(&copy).unwrap()))]
    };
    drop(copy);
    drop(staging);
    pool.trim_to(0).unwrap();
    println!(
        "plain copies of {} MiB: to the host {:.1} GB/s, from it {:.1} GB/s",
        BYTES / MIB,
        gigabytes_per_second(BYTES, plain[0]),
        gigabytes_per_second(BYTES, plain[1])
    );
    let mut least = f64::INFINITY;
    for each in [512 * MIB, 64 * MIB, 9 * MIB, 2 * MIB, 200_000] {
        let blocks: Vec<_> = (0..BYTES / each).map(|_| pool.alloc(each, &stream).unwrap()).collect();
        let pages = |pool: &Pool| pool.stats().calls.create - pool.stats().calls.release;
        let pages_before = pages(&pool);
        let start = Instant::now();
        pool.sleep(Keep::InPinnedMemory).unwrap();
        let first = start.elapsed();
        pool.wake().unwrap();
        let pages_after = pages(&pool);
        let (mut slept, mut woken) = (Duration::MAX, Duration::MAX);
        for _ in 0..3 {
            let start = Instant::now();
            pool.sleep(Keep::InPinnedMemory).unwrap();
            slept = slept.min(start.elapsed());
            let start = Instant::now();
            pool.wake().unwrap();
            woken = woken.min(start.elapsed());
        }
        let shares = [slept, woken].map(|took| took.as_secs_f64()).into_iter().zip(&plain);
        let shares: Vec<f64> = shares.map(|(took, plain)| plain.as_secs_f64() / took).collect();
        println!(
            "{} blocks of {each} bytes in {pages_before} pages, then {pages_after}: first sleep {:.2} s, later {:.1} GB/s \
             ({:.0} % of a plain copy), wake {:.1} GB/s ({:.0} %)",
            blocks.len(),
            first.as_secs_f64(),
            gigabytes_per_second(BYTES, slept),
            100.0 * shares[0],
            gigabytes_per_second(BYTES, woken),
            100.0 * shares[1]
        );
        // Small blocks lie on the smallest pages, each of which has to be mapped.
        if each >= 2 * MIB {
            least = shares.into_iter().fold(least, f64::min);
        }
        let start = Instant::now();
        pool.sleep(Keep::Nothing).unwrap();
        let dropped = start.elapsed();
        let start = Instant::now();
        pool.wake().unwrap();
        println!("    without bytes to keep: sleep {dropped:.1?}, wake {:.1?}", start.elapsed());
        blocks.into_iter().for_each(|block| pool.free_block(block, &stream).unwrap());
        pool.trim_to(0).unwrap();
    }
    assert!(least >= 0.9, "{least}");
}
