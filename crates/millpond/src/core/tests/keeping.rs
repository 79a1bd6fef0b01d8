//! The one large block that a thread keeps outside of throughput mode.

use std::sync::mpsc;
use std::time::Duration;

use crate::cache::Caches;
use crate::device::DevicePtr;
use crate::fixtures::{Bench, Freeing, MIB};
use crate::order::Stream;
use crate::pool::Pool;

fn caches(pool: &Pool) -> &Caches {
    &pool.inner().caches
}

/// A pair, until the thread keeps its block. Where a thread has no cache yet, it takes one more.
fn freed(pool: &Pool, bytes: u64, stream: &Stream) -> DevicePtr {
    let pair = || {
        let block = pool.alloc(bytes, stream).unwrap();
        pool.free_block(block, stream).unwrap();
        block
    };
    let blocks = [(); 3].map(|()| pair());
    assert!(blocks.iter().all(|block| *block == blocks[0]));
    blocks[0]
}

#[test]
fn a_thread_keeps_the_large_block_that_it_freed_last() {
    let Bench { pool, stream, .. } = Bench::new(|pool| pool);
    for bytes in [MIB, 20 * MIB, 64 * MIB] {
        let block = freed(&pool, bytes, &stream);
        for _ in 0..3 {
            assert_eq!(caches(&pool).alloc(bytes, &stream), Some(block));
            assert!(caches(&pool).free(block, &stream));
        }
    }
    let longest = freed(&pool, 64 * MIB + 1, &stream);
    assert_eq!(caches(&pool).alloc(64 * MIB + 1, &stream), None, "that is no longer worth it");
    assert_eq!(pool.alloc(64 * MIB, &stream).unwrap(), longest, "it was given up for a long one");
    pool.check().unwrap();
}

#[test]
fn a_length_is_kept_once_it_was_asked_for_again() {
    let Bench { pool, stream, .. } = Bench::new(|pool| pool);
    let pair = |size: u64| {
        let block = pool.alloc(size * MIB, &stream).unwrap();
        pool.free_block(block, &stream).unwrap();
    };
    let is_kept = |size: u64| {
        let block = caches(&pool).alloc(size * MIB, &stream);
        block.is_some_and(|block| pool.free_block(block, &stream).is_ok())
    };
    pair(1);
    pair(1);
    for _ in 0..3 {
        [20, 30].into_iter().for_each(pair);
        assert!(!is_kept(20) && !is_kept(30), "they alternate");
    }
    pair(30);
    assert!(is_kept(30));
    pool.check().unwrap();
}

#[test]
fn what_is_kept_serves_requests_of_its_length_only() {
    let Bench { pool, stream, .. } = Bench::new(|pool| pool);
    let block = freed(&pool, 20 * MIB, &stream);
    // Of the same class.
    for other in [20 * MIB - 512, 20 * MIB + 1, 19 * MIB, 21 * MIB] {
        assert_eq!(caches(&pool).alloc(other, &stream), None, "{other}");
    }
    assert_eq!(caches(&pool).alloc(20 * MIB - 511, &stream), Some(block));
    pool.free_block(block, &stream).unwrap();
    // What is left of it is free again.
    assert_eq!(pool.alloc(19 * MIB, &stream).unwrap(), block);
    assert_eq!(pool.stats().allocated.current, 19 * MIB);
    pool.check().unwrap();
}

/// Blocks of so many MiB, with others between that stay.
fn apart<const N: usize>(pool: &Pool, stream: &Stream, sizes: [u64; N]) -> [DevicePtr; N] {
    sizes.map(|size| {
        let block = pool.alloc(size * MIB, stream).unwrap();
        _ = pool.alloc(MIB, stream).unwrap();
        block
    })
}

/// Frees a block, and again once it was allocated anew.
fn free_again(pool: &Pool, stream: &Stream, (block, size): (DevicePtr, u64)) {
    pool.free_block(block, stream).unwrap();
    let again = pool.alloc(size * MIB, stream).unwrap();
    pool.free_block(again, stream).unwrap();
}

#[test]
fn a_thread_keeps_one_large_block_at_a_time() {
    let Bench { context, pool, stream, .. } = Bench::new(|pool| pool);
    let other = context.create_stream().unwrap();
    _ = freed(&pool, MIB, &stream);
    let blocks = apart(&pool, &stream, [20, 30, 40]);
    blocks.into_iter().zip([20, 30, 40]).for_each(|block| free_again(&pool, &stream, block));
    assert_eq!([20, 30].map(|size| caches(&pool).alloc(size * MIB, &stream)), [None, None]);
    assert_eq!(caches(&pool).alloc(40 * MIB, &stream), Some(blocks[2]));
    pool.free_block(blocks[2], &stream).unwrap();
    // Nor one for each stream.
    let of_other = freed(&pool, 20 * MIB, &other);
    assert_eq!(caches(&pool).alloc(40 * MIB, &stream), None);
    assert_eq!(caches(&pool).alloc(20 * MIB, &other), Some(of_other));
    pool.check().unwrap();
}

#[test]
fn none_is_kept_where_the_next_would_go_elsewhere() {
    let Bench { pool, stream, .. } = Bench::new(|pool| pool);
    _ = freed(&pool, MIB, &stream);
    let [low, long, high] = apart(&pool, &stream, [20, 30, 20]);
    // The lowest of the shortest holes is best.
    pool.free_block(low, &stream).unwrap();
    assert_eq!(pool.alloc(20 * MIB, &stream).unwrap(), low);
    pool.free_block(high, &stream).unwrap();
    assert_eq!(caches(&pool).alloc(20 * MIB, &stream), Some(high), "it is the only one");
    for block in [low, long] {
        pool.free_block(block, &stream).unwrap();
    }
    assert_eq!(pool.alloc(20 * MIB, &stream).unwrap(), low);
    pool.free_block(high, &stream).unwrap();
    pool.free_block(low, &stream).unwrap();
    assert_eq!(pool.alloc(20 * MIB, &stream).unwrap(), low);
    pool.free_block(low, &stream).unwrap();
    assert_eq!(caches(&pool).alloc(20 * MIB, &stream), Some(low));
    assert_eq!(pool.alloc(20 * MIB, &stream).unwrap(), high);
    pool.free_block(low, &stream).unwrap();
    pool.free_block(high, &stream).unwrap();
    assert_eq!(pool.alloc(20 * MIB, &stream).unwrap(), low);
    pool.check().unwrap();
}

#[test]
fn none_is_kept_behind_what_is_free() {
    let Bench { pool, stream, .. } = Bench::new(|pool| pool);
    _ = freed(&pool, MIB, &stream);
    let [whole] = apart(&pool, &stream, [20]);
    pool.free_block(whole, &stream).unwrap();
    let [left, right] = [12, 8].map(|size| pool.alloc(size * MIB, &stream).unwrap());
    pool.free_block(right, &stream).unwrap();
    assert_eq!(pool.alloc(8 * MIB, &stream).unwrap(), right);
    std::thread::scope(|scope| {
        scope.spawn(|| pool.free_block(left, &stream).unwrap());
    });
    pool.free_block(right, &stream).unwrap();
    assert_eq!(caches(&pool).alloc(8 * MIB, &stream), None);
    assert_eq!(pool.alloc(8 * MIB, &stream).unwrap(), left);
    pool.check().unwrap();
}

#[test]
fn what_is_kept_is_given_up_for_any_large_request() {
    let Bench { context, pool, stream, .. } = Bench::new(|pool| pool);
    let other = context.create_stream().unwrap();
    let block = freed(&pool, 20 * MIB, &stream);
    let held = pool.reserved().current;
    // On another stream, at an alignment of its own, or in advance; and for another thread, which has it taken back.
    let mut parts = vec![pool.alloc(4 * MIB, &other).unwrap()];
    _ = freed(&pool, 16 * MIB, &stream);
    parts.push(pool.alloc_aligned(4 * MIB, 1 << 20, &stream).unwrap());
    _ = freed(&pool, 12 * MIB, &stream);
    pool.reserve(12 * MIB, &stream).unwrap();
    _ = freed(&pool, 12 * MIB, &stream);
    std::thread::scope(|scope| {
        let elsewhere = || pool.alloc(12 * MIB, &stream).unwrap();
        parts.push(scope.spawn(elsewhere).join().unwrap());
    });
    assert!(
        parts.iter().all(|part| (block.raw()..block.raw() + 20 * MIB).contains(&part.raw())),
        "{parts:?}"
    );
    assert_eq!(pool.reserved().current, held);
    pool.check().unwrap();
}

#[test]
fn what_is_kept_goes_back_to_the_device() {
    let Bench { pool, stream, .. } = Bench::new(|pool| pool);
    _ = freed(&pool, 20 * MIB, &stream);
    stream.synchronize().unwrap();
    pool.trim_to(0).unwrap();
    assert_eq!(pool.reserved().current, 0);
    _ = freed(&pool, 20 * MIB, &stream);
    pool.check().unwrap();
}

/// With two threads, a large block is often more than a thread may drift by.
#[test]
fn a_thread_beside_another_pairs_large_blocks_without_the_pools_lock() {
    let Bench { pool, stream, .. } = Bench::new(|pool| pool);
    _ = freed(&pool, 4096, &stream);
    let ((go, may_go), (done, is_done)) = (mpsc::channel(), mpsc::channel());
    std::thread::scope(|scope| {
        let (pool, stream) = (&pool, &stream);
        scope.spawn(move || {
            _ = freed(pool, 20 * MIB, stream);
            done.send(()).unwrap();
            may_go.recv().unwrap();
            (0..100).for_each(|_| _ = freed(pool, 20 * MIB, stream));
            done.send(()).unwrap();
        });
        is_done.recv().unwrap();
        let held = pool.inner().state.lock();
        go.send(()).unwrap();
        let paired = is_done.recv_timeout(Duration::from_secs(60));
        drop(held);
        paired.expect("the pairs did not wait for the lock");
    });
    pool.check().unwrap();
}

#[test]
fn throughput_mode_has_more_room_than_for_what_was_kept() {
    let Bench { pool, stream, .. } = Bench::new(|pool| pool);
    let blocks = [(); 3].map(|()| pool.alloc(20 * MIB, &stream).unwrap());
    free_again(&pool, &stream, (blocks[0], 20));
    caches(&pool).set_throughput_mode(true);
    blocks[1..].iter().for_each(|block| pool.free_block(*block, &stream).unwrap());
    assert_eq!(caches(&pool).alloc(20 * MIB - 4096, &stream), Some(blocks[2]), "of a class, any will do");
    assert_eq!(caches(&pool).alloc(20 * MIB, &stream), Some(blocks[1]));
    pool.check().unwrap();
}

#[test]
fn what_was_kept_for_a_stream_that_ended_is_free_again() {
    let Bench { context, pool, stream, .. } = Bench::new(|pool| pool);
    let gone = context.create_stream().unwrap();
    _ = freed(&pool, 20 * MIB, &gone);
    let held = pool.reserved().current;
    gone.synchronize().unwrap();
    let slot = gone.key().slot;
    drop(gone);
    let newcomer = context.create_stream().unwrap();
    assert_eq!(newcomer.key().slot, slot, "its magazines were the other's");
    // The magazine is gone with its block, before another is kept.
    let small = pool.alloc(4096, &newcomer).unwrap();
    pool.free_block(small, &newcomer).unwrap();
    assert!(caches(&pool).alloc(20 * MIB, &newcomer).is_none());
    let part = pool.alloc(8 * MIB, &stream).unwrap();
    _ = freed(&pool, 12 * MIB, &newcomer);
    assert_eq!(pool.reserved().current, held);
    pool.free_block(part, &stream).unwrap();
    pool.check().unwrap();
}
