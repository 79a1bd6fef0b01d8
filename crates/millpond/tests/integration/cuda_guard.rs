//! The guard on a GPU. `guard.rs` has more of the same, without a GPU.
//!
//! `cargo test -p millpond --test integration cuda_guard:: -- --ignored --test-threads=1`, or `scripts/gpu-test guard`.

use millpond::device::cuda::CudaDevice;
use millpond::guard::{Guard, Mistake};
use millpond::{Context, Pool, Stream};

use crate::shared::{Freeing, MIB};

fn guarded(guard: Guard) -> (Context, Pool, Stream) {
    let device = CudaDevice::new(0).expect("a GPU");
    device.make_current().unwrap();
    let context = Context::new(device);
    let pool = Pool::builder(&context).guard(guard.only_count(true)).build().unwrap();
    let stream = context.create_stream().unwrap();
    (context, pool, stream)
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn planted_writes_are_found_on_a_gpu() {
    for bytes in [1000, 3 * MIB + 100] {
        for (at, mistake) in [(bytes as i64, Mistake::Behind), (-3, Mistake::Before)] {
            let (_context, pool, stream) = guarded(Guard::all());
            let block = pool.alloc(bytes, &stream).unwrap();
            let wrong = millpond::device::DevicePtr::new(block.raw().wrapping_add_signed(at));
            // SAFETY: the bytes are the pool's; that is the mistake.
            unsafe { pool.device().memset(wrong, 7, 3, stream.handle()) }.unwrap();
            pool.free_block(block, &stream).unwrap();
            pool.destroy().unwrap();
            let found = pool.guard_findings();
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!((found[0].mistake, found[0].offset, found[0].changed), (mistake, at, 3));
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_late_write_is_found_on_a_gpu() {
    let (_context, pool, stream) = guarded(Guard::all());
    let block = pool.alloc(40 * MIB, &stream).unwrap();
    pool.free_block(block, &stream).unwrap();
    // SAFETY: the block is quarantined, so the bytes are the pool's; that is the mistake.
    unsafe { pool.device().memset(block.offset(30 * MIB), 7, 10, stream.handle()) }.unwrap();
    stream.synchronize().unwrap();
    pool.destroy().unwrap();
    let found = pool.guard_findings();
    assert_eq!((found[0].mistake, found[0].offset, found[0].changed), (Mistake::AfterFree, 30 << 20, 10));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn right_programs_have_no_finding_on_a_gpu() {
    let (context, pool, stream) = guarded(Guard::all().pages(true));
    let other = context.create_stream().unwrap();
    for step in 0..200 {
        let bytes = [100, 5000, MIB, 7 * MIB + 100][step % 4];
        let block = pool.alloc(bytes, &stream).unwrap();
        // SAFETY: the block is ours, and both streams' work is ordered or recorded.
        unsafe { pool.device().memset(block, step as u8, bytes, stream.handle()) }.unwrap();
        other.wait(&stream.record().unwrap()).unwrap();
        pool.record_use(block, &other).unwrap();
        // SAFETY: as above.
        unsafe { pool.device().memset(block, 3, bytes, other.handle()) }.unwrap();
        pool.free_block(block, &stream).unwrap();
    }
    pool.check().unwrap();
    pool.destroy().unwrap();
    assert!(pool.guard_findings().is_empty(), "{:?}", pool.guard_findings());
    assert_eq!(pool.reserved().current, 0);
}
