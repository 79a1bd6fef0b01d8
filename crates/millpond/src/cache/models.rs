//! Models of the asymmetric lock and of what it guards. loom tries every order in which the threads of a model may run,
//! and every value that a load may see. `scripts/check-concurrency loom` runs them.
//!
//! **What is real** is the lock. **What is modelled**: the kernel's barrier in all threads is a `SeqCst` fence on
//! either side (`sync`). That has the same effect, by other means. Magazines are a stack of block numbers and its
//! stream's serial number. Their cells notice when two threads reach them at once. A block's entry in the arena's table
//! has its state and its tick, with the orderings of `extents/map/page_map.rs`. The pool's lock is loom's. **Not
//! modelled**: tallies (`totals_models` has them); grants; several streams, but in the models at the end.
//! An owner comes in by the stream's entry, of which there is only one, or, `WITHOUT_ENTRY`, without.

use std::mem::take;
use std::ptr::NonNull;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread::{self, yield_now};

use super::asymmetric_lock::{AsymmetricLock, Epoch, Guarded, Passage};
use super::sync::heavy_barrier;
use crate::order::StreamKey;

/// The stream that has a cache, and two others that share its entry. One has a cache only in some models. The other
/// comes once that is gone, with its slot.
const STREAM: StreamKey = StreamKey { serial: 1, slot: 0 };
const OTHER: StreamKey = StreamKey { serial: 2, slot: 1 };
const NEWCOMER: StreamKey = StreamKey { serial: 3, slot: 1 };

/// What is known of a block.
#[derive(Default)]
struct ModelEntry {
    is_live: AtomicBool,
    /// Made up by whoever frees the block, who tells nobody but by leaving the block in his magazine.
    tick: AtomicU64,
}

/// `Magazines`.
struct ModelMagazines {
    serial: UnsafeCell<u64>,
    blocks: UnsafeCell<Vec<usize>>,
}

static CLOSED: u64 = 0;

impl Guarded for ModelMagazines {
    unsafe fn serial(magazines: NonNull<Self>) -> u64 {
        if magazines == Self::closed() {
            return CLOSED;
        }
        // SAFETY: the caller's promise, which the cell checks.
        unsafe { magazines.as_ref().serial.with(|serial| *serial) }
    }

    fn closed() -> NonNull<Self> {
        NonNull::from(&CLOSED).cast()
    }
}

impl ModelMagazines {
    /// Of this stream, and empty.
    fn new(of: StreamKey) -> Box<Self> {
        Box::new(Self { serial: UnsafeCell::new(of.serial), blocks: UnsafeCell::default() })
    }

    /// Reaches the blocks; loom sees whether another thread does at the same time.
    fn blocks<R>(&self, reach: impl FnOnce(&mut Vec<usize>) -> R) -> R {
        // SAFETY: what the models are there to prove: one thread at a time.
        self.blocks.with_mut(|blocks| reach(unsafe { &mut *blocks }))
    }

    /// Gives the stream cache to another stream, or, as none is named, to none: it is freed.
    fn give_to(&self, stream: Option<StreamKey>) {
        // SAFETY: as in `blocks`.
        self.serial.with_mut(|serial| unsafe { *serial = stream.map_or(u64::MAX, |stream| stream.serial) });
    }
}

/// One thread's cache.
struct ModelCache {
    lock: AsymmetricLock<ModelMagazines>,
    /// `Tally::to_alloc` and `Tally::to_free`.
    to_alloc: Epoch,
    to_free: Epoch,
    /// The id of the thread that has the cache; 0 for none.
    owner: AtomicU64,
    /// `thread_index::IDS`: that of the thread that has the index.
    id: AtomicU64,
    /// In a box, as a stream cache is: it stays where it is.
    magazines: Box<ModelMagazines>,
}

impl ModelCache {
    fn new() -> Self {
        Self {
            lock: AsymmetricLock::new(),
            to_alloc: Epoch::default(),
            to_free: Epoch::default(),
            owner: AtomicU64::new(0),
            id: AtomicU64::new(1),
            magazines: ModelMagazines::new(STREAM),
        }
    }

    /// Lets the owner pass to its one stream cache.
    fn open(&self) {
        self.lock.open();
        self.lock.open_entry(STREAM, NonNull::from(&*self.magazines));
    }

    fn enter<'a, const WITHOUT_ENTRY: bool>(&self, epoch: &'a Epoch) -> Option<Passage<'a>> {
        if WITHOUT_ENTRY {
            self.lock.enter_without_entry(epoch)
        } else {
            self.lock.enter(epoch, STREAM).map(|(_, passage)| passage)
        }
    }

    /// Closes the lock to its owner, and waits until it is outside.
    fn keep_out(&self) {
        self.lock.close();
        heavy_barrier();
        self.wait_until_left();
    }

    fn wait_until_left(&self) {
        [&self.to_alloc, &self.to_free].into_iter().for_each(Epoch::wait_until_left);
    }

    /// Reaches the blocks of its one stream cache.
    fn blocks<R>(&self, reach: impl FnOnce(&mut Vec<usize>) -> R) -> R {
        self.magazines.blocks(reach)
    }
}

/// A pool of as many threads' caches as there are indices.
struct ModelPool<const THREADS: usize> {
    entries: [ModelEntry; 2],
    caches: [ModelCache; THREADS],
    /// What the pool's lock guards: the depot.
    state: Mutex<Vec<usize>>,
    /// Indices of threads that ended.
    indices: Mutex<Vec<usize>>,
}

impl<const THREADS: usize> ModelPool<THREADS> {
    /// With `blocks` blocks, all in the depot.
    fn new(blocks: usize) -> Arc<Self> {
        Arc::new(Self {
            entries: Default::default(),
            caches: std::array::from_fn(|_| ModelCache::new()),
            state: Mutex::new((0..blocks).collect()),
            indices: Mutex::new(Vec::new()),
        })
    }

    fn join(&self, index: usize) {
        let mut depot = self.state.lock().unwrap();
        self.collect_ended(&mut depot);
        self.join_locked(index);
    }

    /// `Caches::join_slow`. Under the lock.
    fn join_locked(&self, index: usize) {
        let cache = &self.caches[index];
        if cache.owner.load(Ordering::Relaxed) == 0 {
            cache.owner.store(cache.id.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        cache.open();
    }

    /// The caches that threads have. Under the lock.
    fn owned(&self) -> impl Iterator<Item = &ModelCache> {
        self.caches.iter().filter(|cache| cache.owner.load(Ordering::Relaxed) != 0)
    }

    /// `Caches::collect_ended`. Under the lock.
    fn collect_ended(&self, depot: &mut Vec<usize>) {
        let has_ended =
            |cache: &&ModelCache| cache.id.load(Ordering::Acquire) != cache.owner.load(Ordering::Relaxed);
        for cache in self.owned().filter(has_ended) {
            // Another thread may have the index by now, and be inside.
            cache.keep_out();
            cache.owner.store(0, Ordering::Relaxed);
            depot.extend(cache.blocks(take));
        }
    }

    /// `Caches::alloc`, else the same after `Caches::open`: a block is there.
    fn alloc<const WITHOUT_ENTRY: bool>(&self, index: usize) -> Option<usize> {
        let cache = &self.caches[index];
        let fast = cache.enter::<WITHOUT_ENTRY>(&cache.to_alloc).and_then(|passage| {
            let block = cache.blocks(Vec::pop)?;
            self.make_live(block);
            passage.complete();
            Some(block)
        });
        fast.or_else(|| {
            let mut depot = self.state.lock().unwrap();
            self.collect_ended(&mut depot);
            self.join_locked(index);
            let block = cache.blocks(Vec::pop).or_else(|| depot.pop())?;
            self.make_live(block);
            Some(block)
        })
    }

    fn make_live(&self, block: usize) {
        let entry = &self.entries[block];
        let was_live = entry.is_live.load(Ordering::Relaxed);
        assert!(!was_live, "a live block was handed out, or what became of it was not seen");
        entry.is_live.store(true, Ordering::Relaxed);
    }

    /// `Caches::free`, else the same after `Caches::open`.
    fn free<const WITHOUT_ENTRY: bool>(&self, index: usize, block: usize, tick: u64) {
        let cache = &self.caches[index];
        let put = || {
            let entry = &self.entries[block];
            assert!(entry.is_live.load(Ordering::Relaxed), "a live block looks free");
            entry.tick.store(tick, Ordering::Relaxed);
            entry.is_live.store(false, Ordering::Relaxed);
            cache.blocks(|blocks| blocks.push(block));
        };
        if let Some(passage) = cache.enter::<WITHOUT_ENTRY>(&cache.to_free) {
            put();
            passage.complete();
            return;
        }
        let mut depot = self.state.lock().unwrap();
        self.collect_ended(&mut depot);
        self.join_locked(index);
        put();
    }

    /// `Caches::revoke`, by somebody who has no cache: brings everything to the depot.
    fn revoke(&self) {
        let mut depot = self.state.lock().unwrap();
        self.collect_ended(&mut depot);
        self.caches.iter().for_each(|cache| _ = cache.lock.close());
        heavy_barrier();
        for cache in &self.caches {
            cache.wait_until_left();
            depot.extend(cache.blocks(take));
        }
        for cache in self.owned() {
            cache.open();
        }
        self.look_at(&depot);
    }

    /// The arena reads the entry of each block that it takes back.
    fn look_at(&self, blocks: &[usize]) {
        for block in blocks {
            let entry = &self.entries[*block];
            assert!(!entry.is_live.load(Ordering::Relaxed), "a block that was taken back looks live");
            // The models' frees name the block in the tick.
            let tick = entry.tick.load(Ordering::Relaxed);
            assert!(tick == 0 || tick % 10 == *block as u64, "another free's tick was seen");
        }
    }

    /// The end of a thread, which takes no lock of the pool's.
    fn end(&self, index: usize) {
        self.caches[index].id.store(0, Ordering::Release);
        self.indices.lock().unwrap().push(index);
    }

    /// Nothing was lost, and nothing is there twice.
    fn verify(&self, blocks: usize) {
        let mut all = self.state.lock().unwrap().clone();
        for cache in &self.caches {
            all.extend(cache.blocks(take));
        }
        self.look_at(&all);
        all.sort_unstable();
        assert_eq!(all, (0..blocks).collect::<Vec<_>>());
    }
}

/// Tries all runs in which threads are interrupted at most `preemptions` times where they did not wait.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

fn lock_keeps_apart<const WITHOUT_ENTRY: bool>() {
    loom::model(|| {
        let cache = Arc::new(ModelCache::new());
        cache.open();
        let owner = thread::spawn({
            let cache = cache.clone();
            move || {
                let pass = |epoch| {
                    let passage = cache.enter::<WITHOUT_ENTRY>(epoch)?;
                    cache.blocks(|all| all.push(7));
                    passage.complete();
                    Some(())
                };
                let passed =
                    [pass(&cache.to_alloc), pass(&cache.to_free)].map(|passed| u64::from(passed.is_some()));
                assert_eq!(passed, [cache.to_alloc.passages(), cache.to_free.passages()], "counted wrong");
                passed.iter().sum::<u64>() as usize
            }
        });
        cache.keep_out();
        let taken = cache.blocks(take).len();
        cache.open();
        let pushed = owner.join().unwrap();
        assert_eq!(taken + cache.blocks(take).len(), pushed, "something was lost");
    });
}

#[test]
fn an_owner_and_whoever_revokes_are_never_inside_together() {
    lock_keeps_apart::<false>();
}

#[test]
fn an_owner_without_entry_and_a_revoker_exclude_each_other() {
    lock_keeps_apart::<true>();
}

#[test]
fn a_lock_lets_nobody_enter_another_streams_cache() {
    loom::model(|| {
        let cache = Arc::new(ModelCache::new());
        let owner = thread::spawn({
            let cache = cache.clone();
            move || {
                assert!(
                    cache.lock.enter(&cache.to_alloc, OTHER).is_none(),
                    "entered by another stream's entry"
                );
            }
        });
        cache.open();
        owner.join().unwrap();
    });
}

/// Two threads that own a cache each, and work with it.
fn two_workers(pool: &Arc<ModelPool<2>>, work: fn(&ModelPool<2>, usize)) -> Vec<thread::JoinHandle<()>> {
    let worker = |index| {
        let pool = pool.clone();
        thread::spawn(move || {
            pool.join(index);
            work(&pool, index);
        })
    };
    (0..2).map(worker).collect()
}

#[test]
fn two_threads_allocate_and_free_while_a_third_revokes() {
    model(3, || {
        let pool = ModelPool::<2>::new(2);
        let workers = two_workers(&pool, |pool, index| {
            if let Some(block) = pool.alloc::<false>(index) {
                pool.free::<false>(index, block, 10 + block as u64);
            }
        });
        pool.revoke();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        pool.verify(2);
    });
}

#[test]
fn a_block_freed_for_another_thread_is_taken_back_whole() {
    model(3, || {
        let pool = ModelPool::<2>::new(1);
        // The program's own way of handing a pointer over synchronises, as a channel does.
        let handed = Arc::new(Mutex::new(None));
        let giver = thread::spawn({
            let (pool, handed) = (pool.clone(), handed.clone());
            move || {
                pool.join(0);
                *handed.lock().unwrap() = pool.alloc::<false>(0);
            }
        });
        let taker = thread::spawn({
            let pool = pool.clone();
            move || {
                pool.join(1);
                let block = loop {
                    if let Some(block) = handed.lock().unwrap().take() {
                        break block;
                    }
                    yield_now();
                };
                pool.free::<false>(1, block, 20 + block as u64);
            }
        });
        pool.revoke();
        giver.join().unwrap();
        taker.join().unwrap();
        pool.verify(1);
    });
}

#[test]
fn a_place_changes_hands_while_a_third_thread_revokes() {
    model(3, || {
        let pool = ModelPool::<1>::new(1);
        pool.join(0);
        let first = thread::spawn({
            let pool = pool.clone();
            move || {
                if let Some(block) = pool.alloc::<false>(0) {
                    pool.free::<false>(0, block, 10 + block as u64);
                }
                pool.end(0);
            }
        });
        let second = thread::spawn({
            let pool = pool.clone();
            move || {
                let Some(index) = pool.indices.lock().unwrap().pop() else { return };
                pool.caches[index].id.store(2, Ordering::Relaxed);
                // Until it is collected, what the first one left is this one's.
                if let Some(block) = pool.alloc::<false>(index) {
                    pool.free::<false>(index, block, 20 + block as u64);
                }
                pool.end(index);
            }
        });
        pool.revoke();
        first.join().unwrap();
        second.join().unwrap();
        pool.verify(1);
    });
}

/// A cache of two streams, which share one entry: one slot of the table each.
struct TwoStreams {
    cache: ModelCache,
    /// The pool's lock.
    lock: Mutex<()>,
    other: Box<ModelMagazines>,
}

impl TwoStreams {
    fn new() -> Arc<Self> {
        let two =
            Self { cache: ModelCache::new(), lock: Mutex::default(), other: ModelMagazines::new(OTHER) };
        two.open_all(OTHER);
        Arc::new(two)
    }

    /// `ThreadCache::open_all`, where the stream of the second stream cache is known.
    fn open_all(&self, other: StreamKey) {
        self.cache.open();
        self.cache.lock.open_entry(other, NonNull::from(&*self.other));
    }

    /// The owner frees a block for this stream, if it finds the stream's entry open: a block of that number.
    fn free(&self, stream: StreamKey) -> bool {
        let Some((magazines, passage)) = self.cache.lock.enter(&self.cache.to_free, stream) else {
            return false;
        };
        // SAFETY: entries lead to magazines that are there, as long as the owner is inside.
        unsafe { magazines.as_ref() }.blocks(|blocks| blocks.push(stream.serial as usize));
        passage.complete();
        true
    }

    /// Takes back what a stream cache has, all of it freed for these streams; returns how many blocks.
    fn take_from(magazines: &ModelMagazines, of: &[StreamKey]) -> usize {
        let blocks = magazines.blocks(take);
        let is_of = |block: &usize| of.iter().any(|stream| stream.serial as usize == *block);
        assert!(blocks.iter().all(is_of), "a stream got another one's blocks");
        blocks.len()
    }
}

#[test]
fn streams_with_one_entry_never_get_each_others_cache() {
    model(4, || {
        let two = TwoStreams::new();
        let owner = thread::spawn({
            let two = two.clone();
            move || [STREAM, OTHER, STREAM].into_iter().filter(|stream| two.free(*stream)).count()
        });
        // `Caches::revoke`.
        let taken = {
            let _lock = two.lock.lock().unwrap();
            two.cache.keep_out();
            let taken = TwoStreams::take_from(&two.cache.magazines, &[STREAM])
                + TwoStreams::take_from(&two.other, &[OTHER]);
            two.open_all(OTHER);
            taken
        };
        let freed = owner.join().unwrap();
        let left = TwoStreams::take_from(&two.cache.magazines, &[STREAM])
            + TwoStreams::take_from(&two.other, &[OTHER]);
        assert_eq!(taken + left, freed, "something was lost");
    });
}

#[test]
fn a_stream_cache_goes_only_while_no_owner_has_it() {
    model(4, || {
        let two = TwoStreams::new();
        let owner = thread::spawn({
            let two = two.clone();
            move || {
                two.free(STREAM);
                two.free(OTHER);
            }
        });
        {
            let _lock = two.lock.lock().unwrap();
            two.cache.keep_out();
            TwoStreams::take_from(&two.other, &[OTHER]);
            two.other.give_to(None);
            two.cache.open();
        }
        owner.join().unwrap();
    });
}

#[test]
fn a_new_stream_gets_no_block_of_its_slots_predecessor() {
    model(4, || {
        let two = TwoStreams::new();
        let owner = thread::spawn({
            let two = two.clone();
            move || {
                two.free(OTHER);
                // `StreamCaches::of_or_add`, by the owner under the lock, with all entries open: emptied, and reused.
                {
                    let _lock = two.lock.lock().unwrap();
                    TwoStreams::take_from(&two.other, &[OTHER]);
                    two.other.give_to(Some(NEWCOMER));
                    two.open_all(NEWCOMER);
                }
                assert!(!two.free(OTHER), "the stream is gone");
                two.free(NEWCOMER);
            }
        });
        {
            let _lock = two.lock.lock().unwrap();
            two.cache.keep_out();
            TwoStreams::take_from(&two.other, &[OTHER, NEWCOMER]);
            // SAFETY: the owner is kept out, and the lock is held.
            let serial = unsafe { Guarded::serial(NonNull::from(&*two.other)) };
            two.open_all(StreamKey { serial, ..OTHER });
        }
        owner.join().unwrap();
        TwoStreams::take_from(&two.other, &[NEWCOMER]);
    });
}
