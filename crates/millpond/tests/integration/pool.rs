//! What a pool promises, on the simulated device: placement, remapping, limits, pressure, giving back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use millpond::device::Device;
use millpond::device::host::HostDevice;
use millpond::{Budget, Buffer, Context, Error, Limit, Pool, ReusePolicies};

use crate::shared::{Freeing, MIB, sim};

#[test]
fn a_block_freed_is_the_next_block_of_its_size() {
    let (_, device, stream) = sim(1 << 30);
    let pool = Pool::builder(&device).build().unwrap();
    let first = pool.alloc(3 * MIB, &stream).unwrap();
    pool.free_block(first, &stream).unwrap();
    let calls = pool.stats().calls;
    let second = pool.alloc(3 * MIB, &stream).unwrap();
    assert_eq!(first, second);
    assert_eq!(pool.stats().calls, calls);
    pool.free_block(second, &stream).unwrap();
    pool.check().unwrap();
}

#[test]
fn addresses_are_multiples_of_the_alignment_asked_for() {
    let (_, device, stream) = sim(1 << 30);
    let pool = Pool::builder(&device).min_alignment(256).build().unwrap();
    for align in [1, 256, 512, 4096, MIB, 2 * MIB] {
        let ptr = pool.alloc_aligned(1000, align, &stream).unwrap();
        assert_eq!(ptr.raw() % align.max(256), 0, "{align}");
        pool.check().unwrap();
    }
    let largest = 2 * MIB;
    for align in [0, 3, 4 * MIB] {
        assert_eq!(pool.alloc_aligned(8, align, &stream), Err(Error::BadAlignment { align, largest }));
    }
}

#[test]
fn a_page_that_two_streams_freed_goes_back_without_policies() {
    let (_, device, stream) = sim(1 << 30);
    let other = device.create_stream().unwrap();
    let pool = Pool::builder(&device).reuse(ReusePolicies::NONE).build().unwrap();
    let halves = [MIB, MIB].map(|bytes| pool.alloc(bytes, &stream).unwrap());
    assert_eq!(pool.reserved().current, 2 * MIB);
    pool.free_block(halves[0], &stream).unwrap();
    pool.free_block(halves[1], &other).unwrap();
    device.synchronize().unwrap();
    pool.trim_to(0).unwrap();
    assert_eq!(pool.reserved().current, 0);
}

#[test]
fn pages_are_remapped_before_new_ones_are_created() {
    let (_, device, stream) = sim(1 << 30);
    let pool = Pool::builder(&device).build().unwrap();
    // Eight blocks with live ones between them, so that they cannot coalesce.
    let blocks: Vec<_> = (0..16).map(|_| pool.alloc(4 * MIB, &stream).unwrap()).collect();
    let reserved = pool.reserved().current;
    assert_eq!(reserved, 64 * MIB);
    for block in blocks.iter().step_by(2) {
        pool.free_block(*block, &stream).unwrap();
    }
    let large = pool.alloc(32 * MIB, &stream).unwrap();
    pool.check().unwrap();
    assert_eq!(pool.reserved().current, reserved, "nothing was created");
    assert!(pool.stats().pages_remapped >= 8);
    pool.free_block(large, &stream).unwrap();
    for block in blocks.iter().skip(1).step_by(2) {
        pool.free_block(*block, &stream).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(pool.trim_to(0).unwrap(), reserved);
    assert_eq!(pool.reserved().current, 0);
    pool.check().unwrap();
}

#[test]
fn an_old_mapping_stays_until_the_work_there_is_done() {
    let (sim, device, stream) = sim(1 << 30);
    let pool = Pool::builder(&device).build().unwrap();
    let blocks: Vec<_> = (0..4).map(|_| pool.alloc(4 * MIB, &stream).unwrap()).collect();
    let hold = sim.hold(stream.handle()).unwrap();
    pool.free_block(blocks[0], &stream).unwrap();
    pool.free_block(blocks[2], &stream).unwrap();
    let large = pool.alloc(8 * MIB, &stream).unwrap();
    assert!(pool.stats().pages_remapped > 0);
    assert_eq!(pool.stats().calls.unmap, 0);
    pool.check().unwrap();
    sim.release(hold);
    stream.synchronize().unwrap();
    pool.trim_to(0).unwrap();
    assert!(pool.stats().calls.unmap > 0);
    pool.check().unwrap();
    for block in [blocks[1], blocks[3], large] {
        pool.free_block(block, &stream).unwrap();
    }
}

#[test]
fn small_blocks_do_not_hold_the_pages_of_large_ones() {
    let (_, device, stream) = sim(1 << 30);
    let pool = Pool::builder(&device).build().unwrap();
    let large = pool.alloc(16 * MIB, &stream).unwrap();
    pool.free_block(large, &stream).unwrap();
    let small = pool.alloc(512, &stream).unwrap();
    stream.synchronize().unwrap();
    pool.trim_to(0).unwrap();
    assert_eq!(pool.reserved().current, 2 * MIB, "one small page is all that one small block holds");
    pool.free_block(small, &stream).unwrap();
}

#[test]
fn a_pool_below_its_hard_limit_says_what_would_help() {
    let (_, device, stream) = sim(1 << 30);
    let pool = Pool::builder(&device).name("bounded").hard_limit(64 * MIB).build().unwrap();
    let kept = pool.alloc(40 * MIB, &stream).unwrap();
    let Err(Error::OutOfMemory(report)) = pool.alloc(40 * MIB, &stream) else { panic!("no error") };
    assert_eq!(report.requested, 40 * MIB);
    assert_eq!(report.live, 40 * MIB);
    assert_eq!(report.limit, Limit::HardLimit(64 * MIB));
    assert!(report.to_string().contains("40.00 MiB requested, but hard_limit is 64.00 MiB"), "{report}");
    assert_eq!(pool.stats().out_of_memory, 1);
    pool.check().unwrap();
    pool.free_block(kept, &stream).unwrap();
    let fits = pool.alloc(60 * MIB, &stream).unwrap();
    assert!(pool.reserved().high <= 64 * MIB);
    pool.free_block(fits, &stream).unwrap();
}

#[test]
fn other_page_sizes_and_other_pools_relieve_a_shortage() {
    let (_, device, stream) = sim(64 * MIB);
    let other = Pool::builder(&device).name("other").build().unwrap();
    let theirs = other.alloc(30 * MIB, &stream).unwrap();
    other.free_block(theirs, &stream).unwrap();
    assert_eq!(other.reserved().current, 30 * MIB);
    let pool = Pool::builder(&device).build().unwrap();
    let small: Vec<_> = (0..8).map(|_| pool.alloc(4 * MIB, &stream).unwrap()).collect();
    for block in small {
        pool.free_block(block, &stream).unwrap();
    }
    let large = pool.alloc(60 * MIB, &stream).unwrap();
    assert_eq!(other.reserved().current, 0);
    assert!(pool.stats().retries > 0);
    pool.check().unwrap();
    pool.free_block(large, &stream).unwrap();
}

#[test]
fn reclaim_callbacks_are_asked_last_and_may_free() {
    let (_, device, stream) = sim(64 * MIB);
    let pool = Pool::builder(&device).build().unwrap();
    let kept = pool.alloc(40 * MIB, &stream).unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    let (theirs, on, seen) = (pool.clone(), stream.clone(), asked.clone());
    let id = pool.on_reclaim(move |bytes| {
        seen.store(bytes, Ordering::Relaxed);
        theirs.free_block(kept, &on).is_ok()
    });
    let block = pool.alloc(50 * MIB, &stream).unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 50 * MIB);
    assert!(pool.remove_reclaim(id));
    assert!(!pool.remove_reclaim(id));
    pool.free_block(block, &stream).unwrap();
}

#[test]
fn a_callbacks_own_request_asks_no_callbacks() {
    let (_, device, stream) = sim(64 * MIB);
    let pool = Pool::builder(&device).build().unwrap();
    // Not the pool alone: it would hold itself.
    let held = Arc::new(Mutex::new(Some(pool.clone())));
    let ask = {
        let (held, stream) = (held.clone(), stream.clone());
        Arc::new(move || {
            let pool = held.lock().clone().unwrap();
            assert!(matches!(pool.alloc(48 * MIB, &stream), Err(Error::OutOfMemory(_))));
        })
    };
    let (asked, told) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    pool.on_reclaim({
        let (asked, ask) = (asked.clone(), ask.clone());
        move |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            ask();
            true
        }
    });
    pool.on_out_of_memory({
        let (told, ask) = (told.clone(), ask.clone());
        move |_| {
            told.fetch_add(1, Ordering::Relaxed);
            ask();
        }
    });
    let block = pool.alloc(48 * MIB, &stream).unwrap();
    assert!(matches!(pool.alloc(48 * MIB, &stream), Err(Error::OutOfMemory(_))));
    // Asked for this request, and for the one of the observer; told of this request, and of the one of the reclaimer.
    assert_eq!((asked.load(Ordering::Relaxed), told.load(Ordering::Relaxed)), (2, 2));
    pool.free_block(block, &stream).unwrap();
    *held.lock() = None;
}

/// Calls a function when it goes.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// What `work` returns, on a thread of its own; fails where it hangs.
fn in_time<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    is_done.recv_timeout(Duration::from_secs(30)).expect("it hangs")
}

#[test]
fn dropping_a_removed_callback_may_remove_others() {
    let (_, device, _) = sim(64 * MIB);
    let pool = Pool::builder(&device).build().unwrap();
    let other = pool.on_reclaim(|_| false);
    let told = pool.on_out_of_memory(|_| ());
    let theirs = pool.clone();
    let held = OnDrop(move || {
        assert!(theirs.remove_reclaim(other));
        assert!(theirs.remove_out_of_memory(told));
    });
    let first = pool.on_reclaim(move |_| size_of_val(&held) == 0);
    assert!(in_time(move || pool.remove_reclaim(first)));
}

#[test]
fn nesting_of_callbacks_that_wait_for_threads_is_bounded() {
    let (_, device, stream) = sim(64 * MIB);
    let pool = Pool::builder(&device).build().unwrap();
    // Not the pool alone: it would hold itself.
    let held = Arc::new(Mutex::new(Some(pool.clone())));
    let (asked, nested) = (Arc::new(AtomicU64::new(0)), held.clone());
    let (counted, on) = (asked.clone(), stream.clone());
    pool.on_reclaim(move |_| {
        let theirs = nested.lock().clone().unwrap();
        if counted.fetch_add(1, Ordering::Relaxed) < 100 {
            let on = on.clone();
            let looked = std::thread::spawn(move || theirs.alloc(60 * MIB, &on));
            assert!(matches!(looked.join().unwrap(), Err(Error::OutOfMemory(_))));
        }
        true
    });
    let kept = pool.alloc(40 * MIB, &stream).unwrap();
    let refused = pool.alloc(60 * MIB, &stream);
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    // `MOST_NESTED` of `policy/waiting.rs`: the request in the last callback asks none.
    assert_eq!(asked.load(Ordering::Relaxed), 32);
    pool.free_block(kept, &stream).unwrap();
    // One after the other they are asked as before.
    let kept = pool.alloc(40 * MIB, &stream).unwrap();
    assert!(pool.alloc(60 * MIB, &stream).is_err());
    // As many more.
    assert_eq!(asked.load(Ordering::Relaxed), 64);
    pool.free_block(kept, &stream).unwrap();
    *held.lock() = None;
}

#[test]
fn a_host_function_may_use_the_pool_that_is_ending() {
    let host = HostDevice::new().unwrap();
    let context = Context::new(host.clone());
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).build().unwrap();
    let block = pool.alloc(4 * MIB, &stream).unwrap();
    let (theirs, on) = (pool.clone(), stream.clone());
    let (began, has_begun) = std::sync::mpsc::channel();
    host.launch(stream.handle(), move || {
        began.send(()).unwrap();
        // Once it is destroyed, the other thread is about to wait for this function.
        while !matches!(theirs.alloc(1 << 50, &on), Err(Error::PoolDestroyed { .. })) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(theirs.free_block(block, &on).is_err());
    })
    .unwrap();
    has_begun.recv().unwrap();
    pool.free_block(block, &stream).unwrap();
    assert_eq!(in_time(move || pool.destroy()), Ok(()));
    drop(context);
    drop(stream);
}

#[test]
fn a_failed_request_gives_back_the_pages_it_created() {
    let (sim, device, stream) = sim(1 << 30);
    let other = device.create_stream().unwrap();
    // Another allocator's.
    let foreign = sim.create_page(300 * MIB).unwrap();
    let pool = Pool::builder(&device).build().unwrap();
    let block = pool.alloc(200 * MIB, &stream).unwrap();
    let hold = sim.hold(stream.handle()).unwrap();
    pool.free_block(block, &stream).unwrap();
    // It takes those pages, and creates more until there is no more memory. Nothing can be waited for.
    assert!(pool.alloc(900 * MIB, &other).is_err());
    pool.check().unwrap();
    assert_eq!(pool.reserved().current, 200 * MIB);
    sim.release(hold);
    // SAFETY: mapped nowhere, and not used again.
    unsafe { sim.release_page(foreign) }.unwrap();
    let all = pool.alloc(1 << 30, &other).unwrap();
    pool.free_block(all, &other).unwrap();
}

#[test]
fn a_pool_goes_although_its_callback_holds_its_memory() {
    let (_, device, stream) = sim(64 * MIB);
    let pool = Pool::builder(&device).build().unwrap();
    let cache = Buffer::<u8>::new(&pool, 8 << 20, &stream).unwrap();
    pool.on_reclaim(move |_| cache.is_empty());
    let told = Buffer::<u8>::new(&pool, 8 << 20, &stream).unwrap();
    pool.on_out_of_memory(move |_| assert!(!told.is_empty()));
    let other = pool.clone();
    drop(pool);
    assert_eq!(other.stats().blocks.current, 2, "the pool is still there");
    drop(other);
    device.synchronize().unwrap();
    assert_eq!(device.memory_info().unwrap().free, 64 * MIB);
}

#[test]
fn observers_are_told_of_each_request_that_found_no_memory() {
    let (_, device, stream) = sim(64 * MIB);
    let pool = Pool::builder(&device).build().unwrap();
    let told = Arc::new(AtomicU64::new(0));
    let seen = told.clone();
    let id = pool.on_out_of_memory(move |report| {
        seen.fetch_add(report.requested, Ordering::Relaxed);
    });
    assert!(pool.alloc(100 * MIB, &stream).is_err());
    assert!(pool.alloc(200 * MIB, &stream).is_err());
    assert_eq!(told.load(Ordering::Relaxed), 300 * MIB);
    assert!(pool.remove_out_of_memory(id));
    assert!(!pool.remove_out_of_memory(id));
    assert!(pool.alloc(100 * MIB, &stream).is_err());
    assert_eq!(told.load(Ordering::Relaxed), 300 * MIB);
}

#[test]
fn pools_of_one_budget_stay_below_it_together() {
    let (_, device, stream) = sim(1 << 30);
    let budget = Budget::bytes(64 * MIB);
    let a = Pool::builder(&device).budget(&budget).build().unwrap();
    let b = Pool::builder(&device).budget(&budget).build().unwrap();
    let kept = a.alloc(40 * MIB, &stream).unwrap();
    assert!(matches!(b.alloc(40 * MIB, &stream), Err(Error::OutOfMemory(_))));
    assert_eq!(budget.held(), 40 * MIB);
    a.free_block(kept, &stream).unwrap();
    // What `a` caches is given back for `b`.
    let theirs = b.alloc(40 * MIB, &stream).unwrap();
    assert!(budget.held() <= budget.limit());
    b.free_block(theirs, &stream).unwrap();
    drop((a, b));
    assert_eq!(budget.held(), 0);
}

#[test]
fn a_budgets_limit_can_change_and_takes_nothing_back() {
    let (_, device, stream) = sim(1 << 30);
    let budget = Budget::bytes(64 * MIB);
    let pool = Pool::builder(&device).budget(&budget).build().unwrap();
    let kept = pool.alloc(40 * MIB, &stream).unwrap();
    budget.set_limit(32 * MIB);
    assert_eq!((budget.limit(), budget.held()), (32 * MIB, 40 * MIB));
    assert!(matches!(pool.alloc(2 * MIB, &stream), Err(Error::OutOfMemory(_))));
    budget.set_limit(128 * MIB);
    let more = pool.alloc(80 * MIB, &stream).unwrap();
    pool.free_block(kept, &stream).unwrap();
    pool.free_block(more, &stream).unwrap();
}

#[test]
fn headroom_stays_free_on_the_device() {
    let (_, device, stream) = sim(100 * MIB);
    let pool = Pool::builder(&device).headroom(50 * MIB).build().unwrap();
    let block = pool.alloc(40 * MIB, &stream).unwrap();
    let Err(Error::OutOfMemory(report)) = pool.alloc(20 * MIB, &stream) else { panic!("no error") };
    assert_eq!(report.limit, Limit::Headroom(50 * MIB));
    assert!(device.memory_info().unwrap().free >= 50 * MIB);
    pool.free_block(block, &stream).unwrap();
}

#[test]
fn synchronising_through_us_applies_the_release_threshold() {
    let (_, device, stream) = sim(1 << 30);
    let pool = Pool::builder(&device).release_threshold(16 * MIB).build().unwrap();
    let blocks: Vec<_> = (0..10).map(|_| pool.alloc(8 * MIB, &stream).unwrap()).collect();
    for block in blocks {
        pool.free_block(block, &stream).unwrap();
    }
    assert_eq!(pool.reserved().current, 80 * MIB);
    stream.synchronize().unwrap();
    assert_eq!(pool.reserved().current, 16 * MIB);
    pool.set_release_threshold(0);
    stream.record().unwrap().synchronize().unwrap();
    assert_eq!(pool.reserved().current, 0);
    pool.check().unwrap();
}

#[test]
fn a_destroyed_pools_memory_goes_with_its_last_live_block() {
    let (_, device, stream) = sim(1 << 30);
    let pool = Pool::builder(&device).name("gone").build().unwrap();
    let block = pool.alloc(8 * MIB, &stream).unwrap();
    let expected = Error::LiveBlocks { pool: "gone".into(), blocks: 1, bytes: 8 * MIB };
    assert_eq!(pool.destroy(), Err(expected));
    assert_eq!(pool.alloc(1, &stream), Err(Error::PoolDestroyed { pool: "gone".into() }));
    drop(pool);
    assert_eq!(device.memory_info().unwrap().free, (1 << 30) - 8 * MIB);
    device.free_block(block, &stream).unwrap();
    device.synchronize().unwrap();
    assert_eq!(device.memory_info().unwrap().free, 1 << 30);
    assert!(matches!(device.free_block(block, &stream), Err(Error::ForeignPointer { .. })));
}

#[test]
fn ten_thousand_short_lived_streams_leave_nothing_behind() {
    let (_, device, stream) = sim(1 << 30);
    let pool = Pool::builder(&device).build().unwrap();
    for _ in 0..10_000 {
        let short = device.create_stream().unwrap();
        let block = pool.alloc(4 * MIB, &short).unwrap();
        pool.free_block(block, &short).unwrap();
    }
    let block = pool.alloc(4 * MIB, &stream).unwrap();
    pool.free_block(block, &stream).unwrap();
    assert!(pool.reserved().high <= 4 * MIB, "{:?}", pool.stats());
    pool.check().unwrap();
}

#[test]
fn any_number_of_streams_have_magazines() {
    let (_, device, _) = sim(1 << 30);
    let pool = Pool::builder(&device).build().unwrap();
    let streams: Vec<_> = (0..300).map(|_| device.create_stream().unwrap()).collect();
    let first: Vec<_> = streams
        .iter()
        .map(|stream| {
            let block = pool.alloc(512, stream).unwrap();
            pool.free_block(block, stream).unwrap();
            block
        })
        .collect();
    let before = pool.stats();
    for _ in 0..3 {
        for (stream, block) in streams.iter().zip(&first) {
            assert_eq!(
                pool.alloc(512, stream).unwrap(),
                *block,
                "another stream's block, or none of a magazine"
            );
            pool.free_block(*block, stream).unwrap();
        }
    }
    assert_eq!((pool.stats().calls, pool.stats().misses), (before.calls, before.misses));
    pool.check().unwrap();
}

#[test]
fn without_policies_only_own_and_synchronised_frees_are_reused() {
    let (sim, device, stream) = sim(1 << 30);
    let pool = Pool::builder(&device).reuse(ReusePolicies::NONE).build().unwrap();
    let other = device.create_stream().unwrap();
    let block = pool.alloc(4 * MIB, &stream).unwrap();
    let hold = sim.hold(stream.handle()).unwrap();
    pool.free_block(block, &stream).unwrap();
    let theirs = pool.alloc(4 * MIB, &other).unwrap();
    assert_ne!(block, theirs);
    sim.release(hold);
    stream.synchronize().unwrap();
    let again = pool.alloc(4 * MIB, &other).unwrap();
    assert_eq!(again, block);
    pool.check().unwrap();
}

#[test]
fn a_page_that_was_refused_leaves_no_mark() {
    let (_, device, stream) = sim(64 * MIB);
    let pool = Pool::builder(&device).build().unwrap();
    let block = pool.alloc(60 * MIB, &stream).unwrap();
    assert!(matches!(pool.alloc(20 * MIB, &stream), Err(Error::OutOfMemory(_))));
    assert!(pool.reserved().high <= 64 * MIB, "{:?}", pool.reserved());
    pool.free_block(block, &stream).unwrap();
}

#[test]
fn a_block_that_was_aligned_serves_no_longer_request_later() {
    let (_, device, stream) = sim(1 << 30);
    let pool = Pool::builder(&device).build().unwrap();
    for units in 1..100 {
        // Nine units aligned, for one, are of the class of ten.
        let aligned = pool.alloc_aligned(units * 512, 4096, &stream).unwrap();
        pool.free_block(aligned, &stream).unwrap();
        let blocks: Vec<_> = (1..100).map(|units| pool.alloc(units * 512, &stream).unwrap()).collect();
        let mut ends: Vec<_> = blocks.iter().zip(1..100).map(|(at, units)| (at.raw(), units * 512)).collect();
        ends.sort_unstable();
        assert!(ends.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "blocks overlap");
        pool.check().unwrap();
        blocks.into_iter().for_each(|block| pool.free_block(block, &stream).unwrap());
    }
}

#[test]
fn a_pool_destroyed_while_memory_is_short_allocates_no_more() {
    let (_, device, stream) = sim(64 * MIB);
    let pool = Pool::builder(&device).build().unwrap();
    let dying = pool.clone();
    let _callback = pool.on_reclaim(move |_| {
        dying.destroy().unwrap();
        true
    });
    let filler = Pool::builder(&device).build().unwrap();
    let filled = filler.alloc(60 * MIB, &stream).unwrap();
    let error = pool.alloc(20 * MIB, &stream).expect_err("the pool was destroyed");
    assert!(matches!(error, Error::PoolDestroyed { .. }), "{error}");
    assert_eq!(pool.reserved().current, 0);
    filler.free_block(filled, &stream).unwrap();
}
