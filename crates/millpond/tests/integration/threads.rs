//! What threads cache belongs to the pool: whoever needs it gets it back, no thread that ends or dies keeps any,
//! and misuse is seen also where the block lies in a magazine. On the simulated device, and where bytes or
//! timing matter on the host's.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread::{scope, spawn};

use millpond::device::DevicePtr;
use millpond::{Buffer, Context, Error, Pool, Stream};

use crate::shared::{Freeing, KIB, MIB, sim};

/// Fewer under Miri and ThreadSanitizer, which are slow.
const fn count(full: usize) -> usize {
    if cfg!(miri) { full.div_ceil(100) } else { full }
}

fn pool(context: &Context) -> Pool {
    Pool::builder(context).name("shared").build().unwrap()
}

/// Leaves `blocks` of `bytes` each in the calling thread's magazines.
fn cache(pool: &Pool, stream: &Stream, bytes: u64, blocks: usize) {
    let held: Vec<_> = (0..blocks).map(|_| pool.alloc(bytes, stream).unwrap()).collect();
    held.into_iter().for_each(|block| pool.free_block(block, stream).unwrap());
}

/// Runs `look` while `threads` threads are idle that did `fill` before.
fn while_idle(threads: usize, fill: impl Fn(usize) + Sync, look: impl FnOnce()) {
    let (filled, looked) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    scope(|scope| {
        for thread in 0..threads {
            let (fill, filled, looked) = (&fill, &filled, &looked);
            scope.spawn(move || {
                fill(thread);
                filled.wait();
                looked.wait();
            });
        }
        filled.wait();
        look();
        looked.wait();
    });
}

#[test]
fn a_trim_takes_back_all_that_idle_threads_cache() {
    let (_, device, _) = sim(8 << 30);
    let pool = pool(&device);
    let streams: Vec<_> = (0..3).map(|_| device.create_stream().unwrap()).collect();
    let fill = |thread: usize| {
        for (stream, bytes) in streams.iter().zip([512, 100 * KIB, 3 * MIB]) {
            cache(&pool, stream, bytes * (thread as u64 + 1), 4);
        }
    };
    while_idle(6, fill, || {
        let held = pool.reserved().current;
        assert!(held > 0 && pool.allocated().current == 0);
        assert_eq!(pool.trim_to(0).unwrap(), held);
        assert_eq!(pool.reserved().current, 0);
        pool.check().unwrap();
    });
    pool.check().unwrap();
}

#[test]
fn idle_threads_caches_serve_others_before_the_pool_grows() {
    let (_, device, stream) = sim(1 << 30);
    let pool = pool(&device);
    while_idle(
        1,
        |_| cache(&pool, &stream, 4 * MIB, 4),
        || {
            let held = pool.reserved().current;
            // Longer than any one block that the other thread caches.
            let block = pool.alloc(16 * MIB, &stream).unwrap();
            assert_eq!(pool.reserved().current, held, "grew, though all of it was cached");
            pool.free_block(block, &stream).unwrap();
        },
    );
    pool.check().unwrap();
}

#[test]
fn idle_threads_caches_serve_others_before_memory_is_out() {
    let (_, device, stream) = sim(64 * MIB);
    let (pool, other) = (pool(&device), pool(&device));
    while_idle(
        2,
        |_| cache(&pool, &stream, 5 * MIB, 5),
        || {
            let block = other.alloc(60 * MIB, &stream).expect("the other pool's caches give way");
            other.free_block(block, &stream).unwrap();
            let block = pool.alloc(60 * MIB, &stream).expect("this pool's caches give way");
            pool.free_block(block, &stream).unwrap();
        },
    );
    pool.check().unwrap();
}

#[test]
fn the_release_threshold_applies_to_what_idle_threads_cache() {
    let (_, device, stream) = sim(1 << 30);
    let pool = Pool::builder(&device).release_threshold(4 * MIB).build().unwrap();
    while_idle(
        3,
        |_| cache(&pool, &stream, 8 * MIB, 3),
        || {
            assert!(pool.reserved().current >= 24 * MIB);
            stream.synchronize().unwrap();
            assert!(pool.reserved().current <= 4 * MIB, "{:?}", pool.reserved());
        },
    );
    pool.check().unwrap();
}

#[test]
fn a_thread_that_ends_gives_its_magazines_back() {
    let (_, device, stream) = sim(1 << 30);
    let pool = pool(&device);
    let mut held = 0;
    for _ in 0..count(200) {
        scope(|scope| {
            scope.spawn(|| cache(&pool, &stream, 2 * MIB, 3)).join().unwrap();
        });
        // What the thread before had is ready for the next one, and for another stream's.
        assert!(held == 0 || pool.reserved().current == held);
        held = pool.reserved().current;
    }
    pool.check().unwrap();
    let stats = pool.stats();
    assert_eq!(stats.allocations, stats.frees);
}

#[test]
fn marks_of_ended_threads_are_not_added_to_later_ones() {
    let (_, device, stream) = sim(1 << 30);
    let pool = pool(&device);
    cache(&pool, &stream, 32 * MIB, 1);
    for _ in 0..3 {
        // Another index than the main thread's, the same for all three or not.
        scope(|scope| scope.spawn(|| cache(&pool, &stream, 64 * MIB, 1)).join().unwrap());
    }
    let block = pool.alloc(64 * MIB, &stream).unwrap();
    // The main thread's own mark of 32 MiB may lie on top of what was live beside it, which was nothing by the
    // end of each thread.
    assert!(pool.allocated().high <= 96 * MIB, "{:?}", pool.allocated());
    pool.free_block(block, &stream).unwrap();
}

#[test]
fn ten_thousand_short_lived_threads_leave_nothing() {
    let (_, device, stream) = sim(8 << 30);
    let pool = pool(&device);
    let mut most = 0;
    for round in 0..count(2_500) {
        scope(|scope| {
            for thread in 0..4 {
                let (pool, stream) = (&pool, &stream);
                scope.spawn(move || cache(pool, stream, 512 * (1 + (round as u64 + thread) % 64), 3));
            }
        });
        most = most.max(pool.reserved().current);
    }
    // Sixty-four sizes, of which threads that run at once hold a few.
    assert!(most <= 16 * MIB, "{most} bytes were held");
    pool.check().unwrap();
    let stats = pool.stats();
    assert_eq!((stats.allocations, stats.frees), (4 * 3 * count(2_500) as u64, stats.allocations));
    pool.trim_to(0).unwrap();
    assert_eq!(pool.reserved().current, 0);
}

#[test]
fn a_pool_is_destroyed_while_threads_hold_magazines() {
    let (_, device, stream) = sim(1 << 30);
    let pool = pool(&device);
    while_idle(
        4,
        |_| cache(&pool, &stream, MIB, 4),
        || {
            pool.destroy().unwrap();
            assert_eq!(pool.reserved().current, 0);
        },
    );
    assert!(matches!(pool.alloc(MIB, &stream), Err(Error::PoolDestroyed { .. })));
    drop(pool);
}

#[test]
fn destroying_a_pool_under_allocating_threads_loses_nothing() {
    for _ in 0..count(300) {
        let (_, device, stream) = sim(1 << 30);
        let pool = pool(&device);
        let start = Barrier::new(4);
        scope(|scope| {
            for thread in 0..3 {
                let (pool, stream, start) = (&pool, &stream, &start);
                scope.spawn(move || {
                    start.wait();
                    let error = loop {
                        match pool.alloc(512 * (1 + thread), stream) {
                            // Also of a pool that was destroyed in between.
                            Ok(block) => pool.free_block(block, stream).unwrap(),
                            Err(error) => break error,
                        }
                    };
                    assert!(matches!(error, Error::PoolDestroyed { .. }), "{error}");
                });
            }
            start.wait();
            match pool.destroy() {
                Ok(()) | Err(Error::LiveBlocks { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        });
        pool.check().unwrap();
        assert_eq!((pool.reserved().current, pool.allocated().current), (0, 0));
    }
}

#[test]
fn pools_come_and_go_under_threads_that_stay() {
    let (_, device, stream) = sim(4 << 30);
    scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // A pool takes Miri seconds to build.
                for _ in 0..if cfg!(miri) { 1 } else { 500 } {
                    let pools: Vec<_> = (0..3).map(|_| pool(&device)).collect();
                    pools.iter().for_each(|pool| cache(pool, &stream, 64 * KIB, 3));
                }
            });
        }
    });
    assert_eq!(device.memory_info().unwrap().free, device.memory_info().unwrap().total);
}

#[test]
fn one_thread_frees_what_another_allocates() {
    let (_, device, stream) = sim(1 << 30);
    let pool = pool(&device);
    let blocks = count(20_000);
    // What is on its way at once.
    let (give, take) = mpsc::sync_channel::<(DevicePtr, u64)>(64);
    scope(|scope| {
        let (pool, stream) = (&pool, &stream);
        scope.spawn(move || {
            for block in 0..blocks as u64 {
                let bytes = 512 * (1 + block % 40);
                give.send((pool.alloc(bytes, stream).unwrap(), bytes)).unwrap();
            }
        });
        scope.spawn(move || {
            for (block, bytes) in take {
                assert_eq!(pool.size_of(block).unwrap(), bytes);
                pool.free_block(block, stream).unwrap();
            }
        });
    });
    let stats = pool.stats();
    assert_eq!((stats.allocations, stats.frees), (blocks as u64, blocks as u64));
    assert!(stats.reserved.high <= 32 * MIB, "{:?}", stats.reserved);
    pool.check().unwrap();
    pool.trim_to(0).unwrap();
    assert_eq!(pool.reserved().current, 0);
}

/// Threads allocate, mark and free blocks of several streams while `disturb` runs again and again. No two hold
/// the same byte: each block is entered in a map of who has it.
fn churn(device: &Context, pool: &Pool, disturb: impl Fn() + Sync) {
    let streams: Vec<_> = (0..2).map(|_| device.create_stream().unwrap()).collect();
    let taken = parking_lot::Mutex::new(std::collections::BTreeMap::new());
    let done = AtomicBool::new(false);
    scope(|scope| {
        let workers: Vec<_> = (0..3u64)
            .map(|thread| {
                let (streams, taken) = (&streams, &taken);
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for step in 0..count(10_000) as u64 {
                        let stream = &streams[(step % 2) as usize];
                        let bytes =
                            512 * (1 + (step * 7 + thread) % 50) * if step % 97 == 0 { 100 } else { 1 };
                        let block = pool.alloc(bytes, stream).unwrap();
                        enter(&mut taken.lock(), block, bytes);
                        held.push((block, stream));
                        if held.len() > 20 {
                            let (block, stream) = held.swap_remove((step % 20) as usize);
                            taken.lock().remove(&block.raw());
                            pool.free_block(block, stream).unwrap();
                        }
                    }
                    for (block, stream) in held {
                        taken.lock().remove(&block.raw());
                        pool.free_block(block, stream).unwrap();
                    }
                })
            })
            .collect();
        let disturber = scope.spawn(|| {
            // Relaxed: only ends the loop.
            while !done.load(Ordering::Relaxed) {
                disturb();
                // Under Miri, which runs the threads by turns, the others would hardly get on.
                (0..if cfg!(miri) { 200 } else { 1 }).for_each(|_| std::thread::yield_now());
            }
        });
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        // Relaxed: see above.
        done.store(true, Ordering::Relaxed);
        disturber.join().unwrap();
        results.into_iter().for_each(|result| result.unwrap());
    });
    pool.check().unwrap();
    let stats = pool.stats();
    assert_eq!((stats.blocks.current, stats.requested.current), (0, 0));
    assert_eq!(stats.allocations, stats.frees);
    device.synchronize().unwrap();
    pool.trim_to(0).unwrap();
    assert_eq!(pool.reserved().current, 0);
}

/// Notes that a block is somebody's; it overlaps nobody else's.
fn enter(taken: &mut std::collections::BTreeMap<u64, u64>, block: DevicePtr, bytes: u64) {
    let (start, end) = (block.raw(), block.raw() + bytes);
    let before = taken.range(..end).next_back();
    assert!(before.is_none_or(|(_, other)| *other <= start), "{block} is somebody's already");
    taken.insert(start, end);
}

#[test]
fn threads_that_churn_keep_their_blocks_while_another_trims() {
    let (_, device, _) = sim(8 << 30);
    let pool = pool(&device);
    churn(&device, &pool, || {
        pool.trim_to(0).unwrap();
    });
}

#[test]
#[cfg_attr(miri, ignore = "a recount takes seconds, which the threads wait for")]
fn the_recount_holds_while_threads_churn() {
    let (_, device, _) = sim(8 << 30);
    let pool = pool(&device);
    churn(&device, &pool, || pool.check().unwrap());
}

#[test]
fn threads_churn_on_the_host_device_beside_synchronising() {
    let device = Context::host().unwrap();
    let pool = Pool::builder(&device).release_threshold(MIB).build().unwrap();
    churn(&device, &pool, || device.synchronize().unwrap());
}

#[test]
fn marks_are_read_and_reset_while_threads_churn() {
    let (_, device, _) = sim(8 << 30);
    let pool = pool(&device);
    churn(&device, &pool, || {
        let stats = pool.stats();
        assert!(stats.allocated.current <= stats.allocated.high);
        pool.reset_high_water();
    });
}

#[test]
#[cfg_attr(miri, ignore = "too many threads")]
fn more_threads_at_once_than_have_caches_are_served() {
    let (_, device, stream) = sim(8 << 30);
    let pool = Arc::new(pool(&device));
    let start = Arc::new(Barrier::new(1_201));
    let threads: Vec<_> = (0..1_200)
        .map(|thread| {
            let (pool, stream, start) = (pool.clone(), stream.clone(), start.clone());
            let work = move || {
                cache(&pool, &stream, 512 * (1 + thread % 16), 2);
                start.wait();
                cache(&pool, &stream, 512 * (1 + thread % 16), 2);
            };
            std::thread::Builder::new().stack_size(64 << 10).spawn(work).unwrap()
        })
        .collect();
    start.wait();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    pool.check().unwrap();
    let stats = pool.stats();
    // 1,200 threads, twice two blocks each.
    assert_eq!((stats.allocations, stats.frees), (4_800, 4_800));
    pool.trim_to(0).unwrap();
    assert_eq!(pool.reserved().current, 0);
}

#[test]
fn a_buffer_dropped_after_its_threads_cache_is_freed() {
    thread_local! {
        static KEPT: RefCell<Option<Buffer<u8>>> = const { RefCell::new(None) };
    }
    let (_, device, stream) = sim(1 << 30);
    let pool = pool(&device);
    // Whichever of the two is torn down first.
    for first in [true, false] {
        let (pool, stream) = (pool.clone(), stream.clone());
        spawn(move || {
            if first {
                KEPT.with(|kept| kept.replace(None));
            }
            let buffer = Buffer::new(&pool, 1000, &stream).unwrap();
            KEPT.with(|kept| kept.replace(Some(buffer)));
        })
        .join()
        .unwrap();
    }
    let stats = pool.stats();
    assert_eq!((stats.blocks.current, stats.frees), (0, 2));
    pool.check().unwrap();
}

#[test]
fn no_thread_can_free_a_cached_block_again() {
    let (_, device, stream) = sim(1 << 30);
    let pool = pool(&device);
    cache(&pool, &stream, 5000, 2);
    let block = pool.alloc(5000, &stream).unwrap();
    pool.free_block(block, &stream).unwrap();
    let again = || pool.free_block(block, &stream).expect_err("it is free");
    let expected = Error::DoubleFree { ptr: block, pool: "shared".to_owned() };
    assert_eq!(again(), expected);
    assert_eq!(scope(|scope| scope.spawn(again).join().unwrap()), expected);
    assert_eq!(pool.size_of(block).unwrap_err(), expected);
    assert_eq!(pool.record_use(block, &stream).unwrap_err(), expected);
    // Inside of a block that is cached, nothing is live either.
    let inside = block.offset(512);
    let error = pool.free_block(inside, &stream).unwrap_err();
    assert_eq!(error, Error::DoubleFree { ptr: inside, pool: "shared".to_owned() });
    pool.check().unwrap();
    assert_eq!(pool.alloc(5000, &stream).unwrap(), block);
    let error = pool.free_block(inside, &stream).unwrap_err();
    assert!(matches!(error, Error::InteriorPointer { start, .. } if start == block), "{error}");
    pool.free_block(block, &stream).unwrap();
}

#[test]
fn a_cached_block_waits_for_its_recorded_uses() {
    let (sim, device, stream) = sim(1 << 30);
    let pool = Pool::builder(&device).reuse(millpond::ReusePolicies::NONE).build().unwrap();
    let user = device.create_stream().unwrap();
    cache(&pool, &stream, 3 * MIB, 1);
    let block = pool.alloc(3 * MIB, &stream).unwrap();
    let hold = sim.hold(user.handle()).unwrap();
    pool.record_use(block, &user).unwrap();
    pool.free_block(block, &stream).unwrap();
    // Neither from a magazine nor from the arena.
    let other = pool.alloc(3 * MIB, &stream).unwrap();
    assert_ne!(other, block);
    sim.release(hold);
    user.synchronize().unwrap();
    assert_eq!(pool.alloc(3 * MIB, &stream).unwrap(), block);
    pool.free_block(block, &stream).unwrap();
    pool.free_block(other, &stream).unwrap();
    pool.check().unwrap();
}

#[test]
fn a_stream_in_anothers_place_gets_none_of_its_magazines() {
    let (_, device, _) = sim(1 << 30);
    let pool = Pool::builder(&device).reuse(millpond::ReusePolicies::NONE).build().unwrap();
    let mut before = Vec::new();
    for _ in 0..count(300) {
        let stream = device.create_stream().unwrap();
        let block = pool.alloc(3 * MIB, &stream).unwrap();
        pool.free_block(block, &stream).unwrap();
        before.push(stream.id());
    }
    // The places were used again, and what lay there went back to the arena.
    assert!(pool.reserved().high <= 8 * MIB, "{:?}", pool.reserved());
    pool.check().unwrap();
    before.dedup();
    assert_eq!(before.len(), count(300));
}

/// Two threads free the same blocks at the same time, in the same order. Whatever comes of each: one of the two got an
/// error, or its free was dropped and counted, and no block is handed out twice or lost.
#[test]
fn blocks_that_two_threads_free_at_once_stay_one_each() {
    let (_, context, stream) = sim(8 << 30);
    let pool = pool(&context);
    let (begin, freed, begun) = (Barrier::new(2), Barrier::new(2), AtomicUsize::new(0));
    let mut dropped = 0;
    for round in 0..count(40) {
        let bytes = [512, 4 * KIB, 100 * KIB, MIB][round % 4];
        let blocks: Vec<_> = (0..60).map(|_| pool.alloc(bytes, &stream).unwrap()).collect();
        begun.store(0, Ordering::Relaxed);
        let go = || {
            // Leaves room in the magazines, and a cache for the thread.
            cache(&pool, &stream, bytes, 8);
            begin.wait();
            let mut accepted = 0;
            for (at, block) in blocks.iter().enumerate() {
                // Both at once, block by block: who comes second by more than a few nanoseconds gets an error.
                begun.fetch_add(1, Ordering::AcqRel);
                for spins in 0.. {
                    if begun.load(Ordering::Acquire) >= 2 * (at + 1) {
                        break;
                    }
                    if spins % 1000 == 999 {
                        std::thread::yield_now();
                    }
                }
                match pool.free_block(*block, &stream) {
                    Ok(()) => accepted += 1,
                    Err(Error::DoubleFree { ptr, .. }) => assert_eq!(ptr, *block),
                    Err(error) => panic!("{error}"),
                }
            }
            freed.wait();
            let live: Vec<_> = (0..60).map(|_| pool.alloc(bytes, &stream).unwrap()).collect();
            (accepted, live)
        };
        let results = scope(|scope| {
            let both = [scope.spawn(go), scope.spawn(go)];
            both.map(|thread| thread.join().unwrap())
        });
        let mut live: Vec<_> = results.iter().flat_map(|(_, live)| live.iter().copied()).collect();
        live.sort_unstable();
        assert!(live.windows(2).all(|two| two[0].raw() + bytes <= two[1].raw()), "round {round}: {live:?}");
        live.into_iter().for_each(|block| pool.free_block(block, &stream).unwrap());
        let accepted: u64 = results.iter().map(|(accepted, _)| accepted).sum();
        pool.trim_to(0).unwrap();
        let stats = pool.stats();
        // One free of each of the 60 blocks counts.
        assert_eq!(stats.double_frees - dropped, accepted - 60, "round {round}");
        dropped = stats.double_frees;
        assert_eq!((stats.blocks.current, stats.reserved.current), (0, 0));
    }
    println!("{dropped} frees were dropped");
}
