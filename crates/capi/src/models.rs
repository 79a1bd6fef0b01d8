//! Models of how an object stays while threads use it, and of the count of blocks that hold it. loom tries every order in which
//! threads may run, and every value that they may see. `scripts/check-concurrency loom` runs them.
//!
//! **What is real** are `place.rs`, `holds.rs` and `in_use.rs`, which are compiled here once more, with loom's atomics. **What is
//! modelled**: the kernel's barrier in all threads is a `SeqCst` fence on either side; a table of handles (`handle.rs`) has one slot
//! for each object; what a call does with an object is a look at a cell, which notices when the object ends meanwhile.
//! **Not modelled**: the list of records, forks, and calls that callbacks make.

use std::ptr;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use self::holds::{Holds, ToTell};
use self::in_use::Record;
use self::kind::{AnyStream, PoolHandle};
use self::place::Places;
use self::sync::{AtomicU64, Ordering, Shortcut, yield_now};

mod kind {
    pub(super) use crate::kind::{AnyStream, PoolHandle};
}

mod sync {
    pub(super) use loom::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU64, Ordering, fence,
    };
    pub(super) use loom::thread::yield_now;

    pub(super) const PLACES: usize = 2;
    pub(super) const PAIRS: usize = 2;
    pub(super) const DEPTH: usize = 2;

    pub(super) fn has_membarrier() -> bool {
        true
    }

    pub(super) fn light_fence() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn heavy_fence() {
        fence(Ordering::SeqCst);
    }

    /// As the library's, which no panic poisons.
    #[derive(Debug, Default)]
    pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    /// Leads to the pool.
    #[derive(Debug, Clone, Copy)]
    pub(super) struct Shortcut(pub(super) *const super::Object);

    impl Shortcut {
        /// A call of the library.
        pub(super) fn call(&self) {
            // SAFETY: objects of a model stay until its end.
            unsafe { &*self.0 }.touch();
        }
    }
}

#[path = "holds.rs"]
mod holds;
#[path = "in_use.rs"]
#[expect(dead_code, reason = "models use a part of it")]
mod in_use;
#[path = "place.rs"]
#[expect(dead_code, reason = "models use a part of it")]
mod place;

const NO_HANDLE: u64 = 0;
const NOBODY: ToTell = ToTell { ended: None, data: ptr::null_mut() };

/// A pool or a stream, with the slot of its handle.
#[derive(Debug)]
struct Object {
    handle: AtomicU64,
    bits: u64,
    holds: Holds,
    /// Whether it has not ended.
    is_there: UnsafeCell<bool>,
}

impl Object {
    fn new(bits: u64) -> Self {
        Self { handle: AtomicU64::new(bits), bits, holds: Holds::default(), is_there: UnsafeCell::new(true) }
    }

    /// Uses it; loom sees whether it ends at the same time.
    fn touch(&self) {
        // SAFETY: what the models are there to prove: it does not end meanwhile.
        assert!(self.is_there.with(|is_there| unsafe { *is_there }), "an object is used that has ended");
    }

    /// `Table::is_valid`.
    fn is_valid(&self) -> bool {
        self.handle.load(Ordering::Acquire) == self.bits
    }

    fn has_ended(&self) -> bool {
        // SAFETY: by whoever knows that nobody else has it.
        !self.is_there.with(|is_there| unsafe { *is_there })
    }
}

/// Threads by number: `number` is the place, as a thread pointer is, and `record` the note.
const THREADS: usize = 4;

/// Two pools, which fall on the same pair with the stream; the threads' places and records.
struct World {
    places: Places,
    records: [Record; THREADS],
    pools: [Object; 2],
    /// `None`: the default stream, which lasts.
    stream: Option<Object>,
}

const POOL: usize = 0;
const OTHER: usize = 1;

/// A live block.
#[must_use]
struct Block {
    pool: usize,
}

impl World {
    fn new() -> Arc<Self> {
        Self::with_stream(None)
    }

    fn with_stream(stream: Option<Object>) -> Arc<Self> {
        Arc::new(Self {
            places: Places::modelled(),
            records: std::array::from_fn(|_| Record::taken()),
            pools: [Object::new(0x100), Object::new(0x500)],
            stream,
        })
    }

    fn pool_handle(&self, pool: usize) -> *mut PoolHandle {
        ptr::without_provenance_mut(self.pools[pool].bits as usize)
    }

    fn stream_handle(&self) -> AnyStream {
        ptr::without_provenance_mut(self.stream.as_ref().map_or(0, |stream| stream.bits as usize))
    }

    /// The pool, and the stream if it is an object.
    fn objects(&self, pool: usize) -> impl DoubleEndedIterator<Item = &Object> {
        [&self.pools[pool]].into_iter().chain(&self.stream)
    }

    /// `Table::get`, for the time of a call.
    fn get<R>(&self, thread: usize, object: &Object, call: impl FnOnce(&Object) -> R) -> Option<R> {
        // SAFETY: records of a model stay until its end.
        let record: &'static Record = unsafe { &*ptr::from_ref(&self.records[thread]) };
        let _note = record.note(object.bits).unwrap();
        object.is_valid().then(|| call(object))
    }

    /// `Table::release`: the object ends after the calls that use it.
    fn release(&self, object: &Object) -> bool {
        // Of two threads that release one handle, one comes first.
        let taken =
            object.handle.compare_exchange(object.bits, NO_HANDLE, Ordering::Relaxed, Ordering::Relaxed);
        if taken.is_err() {
            return false;
        }
        self.places.retire(object.bits);
        self.places.collect(object.bits);
        while self.records.iter().any(|record| record.names(object.bits)) {
            yield_now();
        }
        // SAFETY: what the models are there to prove: nobody uses it any more.
        object.is_there.with_mut(|is_there| unsafe { *is_there = false });
        true
    }

    /// The thread's number for its place: thread 1 and 2 have one each, and that of 3 is the same as that of 1.
    fn number(thread: usize) -> u64 {
        [0, 8, 72, 16][thread]
    }

    /// `millpond_alloc_held`, or, without `by`, `millpond_alloc`. `None` where a handle is invalid.
    fn call(&self, thread: usize, pool: usize, by: Option<i64>) -> Option<()> {
        let handles = (self.pool_handle(pool), self.stream_handle());
        let fast = self.places.of(Self::number(thread)).and_then(|place| {
            // SAFETY: the place is this thread's.
            unsafe {
                place.call(handles, by, |shortcut: &Shortcut| {
                    shortcut.call();
                    self.stream.iter().for_each(Object::touch);
                    Some(())
                })
            }
        });
        fast.or_else(|| {
            self.get(thread, &self.pools[pool], |pool| {
                let general = |stream: Option<&Object>| {
                    for object in [pool].into_iter().chain(stream) {
                        object.touch();
                        by.into_iter().for_each(|by| object.holds.add(by));
                    }
                    self.remember(thread, pool, stream);
                };
                match &self.stream {
                    Some(stream) => self.get(thread, stream, |stream| general(Some(stream))),
                    None => Some(general(None)),
                }
            })?
        })
    }

    /// `fast::remember`.
    fn remember(&self, thread: usize, pool: &Object, stream: Option<&Object>) {
        let lasts = || {
            let mut objects = [pool].into_iter().chain(stream);
            objects.all(|object| object.holds.is_in_use() && object.is_valid())
        };
        if thread == 0 || !lasts() {
            return;
        }
        let Some(place) = self.places.take(Self::number(thread)) else { return };
        let handle = ptr::without_provenance_mut(pool.bits as usize);
        // SAFETY: the place is this thread's, which has noted both.
        unsafe {
            let stream = (self.stream_handle(), stream.map(|stream| &stream.holds));
            place.remember((handle, &pool.holds), stream, Shortcut(pool), lasts);
        }
    }

    fn alloc(&self, thread: usize, pool: usize) -> Block {
        self.call(thread, pool, Some(1)).expect("a handle is valid for who holds it");
        Block { pool }
    }

    /// `millpond_free_held`.
    fn free(&self, thread: usize, Block { pool }: Block) {
        let handles = (self.pool_handle(pool), self.stream_handle());
        let fast = self.places.of(Self::number(thread)).and_then(|place| {
            // SAFETY: the place is this thread's.
            unsafe {
                place.call(handles, Some(-1), |shortcut: &Shortcut| {
                    shortcut.call();
                    self.stream.iter().for_each(Object::touch);
                    Some(())
                })
            }
        });
        if fast.is_none() {
            for object in self.objects(pool) {
                let counted = self.get(thread, object, |object| {
                    object.touch();
                    object.holds.add(-1);
                });
                assert!(counted.is_some(), "an object ended before its last block");
            }
            self.objects(pool).rev().for_each(|object| self.end_if_over(object));
        }
    }

    fn end_if_over(&self, object: &Object) {
        // Not noted: the owner's fence is a full one in a model only, and would hide that one is missing here.
        if object.holds.end().is_some() {
            assert!(self.release(object), "an object ends twice");
        }
    }

    /// `millpond_pool_give_up`, and that of a stream.
    fn give_up(&self, thread: usize, object: &Object) {
        self.get(thread, object, |object| {
            assert!(object.holds.give_up(NOBODY));
            self.places.retire(object.bits);
            self.places.collect(object.bits);
            object.holds.collected();
        });
        self.end_if_over(object);
    }
}

/// Tries all runs in which threads are interrupted at most `preemptions` times where they did not wait.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

#[test]
fn a_released_object_ends_after_the_calls_that_use_it() {
    model(3, || {
        let world = World::new();
        world.call(1, POOL, None).unwrap();
        let user = thread::spawn({
            let world = world.clone();
            move || {
                // By the fast path, or by none.
                while world.call(1, POOL, None).is_some() {
                    yield_now();
                }
            }
        });
        assert!(world.release(&world.pools[POOL]));
        user.join().unwrap();
        assert!(world.pools[POOL].has_ended());
    });
}

#[test]
fn a_shortcut_made_while_the_handle_is_released_is_not_used_later() {
    model(3, || {
        let world = World::new();
        let user = thread::spawn({
            let world = world.clone();
            move || (0..2).for_each(|_| _ = world.call(1, POOL, None))
        });
        assert!(world.release(&world.pools[POOL]));
        user.join().unwrap();
        assert!(world.pools[POOL].has_ended());
    });
}

#[test]
fn a_pool_given_up_ends_with_the_last_block() {
    model(3, || {
        let world = World::new();
        let blocks = [(); 2].map(|_| world.alloc(1, POOL));
        let owner = thread::spawn({
            let world = world.clone();
            move || {
                let [first, second] = blocks;
                world.free(1, first);
                world.free(1, second);
            }
        });
        world.give_up(0, &world.pools[POOL]);
        owner.join().unwrap();
        assert!(world.pools[POOL].has_ended(), "nothing holds it");
    });
}

#[test]
fn who_holds_a_pool_given_up_may_allocate_more() {
    model(2, || {
        let world = World::new();
        let first = world.alloc(1, POOL);
        let owner = thread::spawn({
            let world = world.clone();
            move || {
                let second = world.alloc(1, POOL);
                world.free(1, first);
                world.pools[POOL].touch();
                world.free(1, second);
            }
        });
        world.give_up(0, &world.pools[POOL]);
        owner.join().unwrap();
        assert!(world.pools[POOL].has_ended(), "nothing holds it");
    });
}

#[test]
fn what_one_thread_allocates_and_others_free_ends_the_pool() {
    model(1, || {
        let world = World::new();
        // The second is counted at the thread's place.
        let [first, second] = [(); 2].map(|_| world.alloc(1, POOL));
        let third = world.alloc(2, POOL);
        let other = thread::spawn({
            let world = world.clone();
            move || {
                world.free(2, first);
                world.free(2, second);
            }
        });
        let owner = thread::spawn({
            let world = world.clone();
            move || world.free(1, third)
        });
        world.give_up(0, &world.pools[POOL]);
        other.join().unwrap();
        owner.join().unwrap();
        assert!(world.pools[POOL].has_ended(), "nothing holds it");
    });
}

#[test]
fn a_pool_and_a_stream_are_given_up_at_once() {
    model(1, || {
        let world = World::with_stream(Some(Object::new(0x1000)));
        let [first, second] = [(); 2].map(|_| world.alloc(1, POOL));
        world.free(1, first);
        let other = thread::spawn({
            let world = world.clone();
            move || world.give_up(2, world.stream.as_ref().unwrap())
        });
        let owner = thread::spawn({
            let world = world.clone();
            move || world.free(1, second)
        });
        world.give_up(0, &world.pools[POOL]);
        other.join().unwrap();
        owner.join().unwrap();
        assert!(
            world.pools[POOL].has_ended() && world.stream.as_ref().unwrap().has_ended(),
            "nothing holds them"
        );
    });
}

#[test]
fn a_thread_counts_for_another_pool_while_the_first_is_given_up() {
    model(2, || {
        let world = World::new();
        let [first, second] = [(); 2].map(|_| world.alloc(1, POOL));
        let owner = thread::spawn({
            let world = world.clone();
            move || {
                // The second is counted where the other pool's was.
                let others = [(); 2].map(|_| world.alloc(1, OTHER));
                others.into_iter().for_each(|block| world.free(1, block));
            }
        });
        world.give_up(0, &world.pools[POOL]);
        owner.join().unwrap();
        world.free(0, first);
        world.free(0, second);
        assert!(world.pools[POOL].has_ended() && !world.pools[OTHER].has_ended());
        world.give_up(0, &world.pools[OTHER]);
        assert!(world.pools[OTHER].has_ended(), "nothing holds it");
    });
}

#[test]
fn a_thread_that_ends_leaves_what_it_counted() {
    model(2, || {
        let world = World::new();
        let blocks = [(); 3].map(|_| world.alloc(1, POOL));
        let owner = thread::spawn({
            let world = world.clone();
            move || {
                let [first, second, third] = blocks;
                world.free(1, first);
                world.places.leave(World::number(1));
                world.free(1, second);
                world.free(1, third);
            }
        });
        world.give_up(0, &world.pools[POOL]);
        owner.join().unwrap();
        assert!(world.pools[POOL].has_ended(), "nothing holds it");
    });
}

#[test]
fn a_place_changes_hands_while_a_pool_is_given_up() {
    model(1, || {
        let world = World::new();
        let [first, second] = [(); 2].map(|_| world.alloc(1, POOL));
        let ends = thread::spawn({
            let world = world.clone();
            move || {
                world.free(1, first);
                world.places.leave(World::number(1));
            }
        });
        let comes = thread::spawn({
            let world = world.clone();
            move || {
                let others = [(); 2].map(|_| world.alloc(3, OTHER));
                others.into_iter().for_each(|block| world.free(3, block));
            }
        });
        ends.join().unwrap();
        world.free(0, second);
        world.give_up(0, &world.pools[POOL]);
        comes.join().unwrap();
        assert!(world.pools[POOL].has_ended() && !world.pools[OTHER].has_ended());
        world.give_up(0, &world.pools[OTHER]);
        assert!(world.pools[OTHER].has_ended(), "nothing holds it");
    });
}
