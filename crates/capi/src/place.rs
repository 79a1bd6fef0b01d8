//! Places: what the fast path (`fast`) knows of each thread, and how another thread takes that away.
//!
//! A thread takes the place that its number leads to (`places`) when it first has something to remember there, and gives it
//! back when it ends. Where the numbers of two threads lead to one place, who came first has it, and the other one has none.
//!
//! **How an object stays** while it is used here: not by a note of its handle (`in_use`), but by one flag for the thread,
//! that it is inside. Who releases a handle makes it invalid first. Then it takes every pair of it away, and waits until every
//! thread was seen outside once ([`Places::retire`]). That is soon, for nothing here waits, and a thread that is waited for
//! takes the general path when it comes in next. Who comes in later finds no pair. As for notes, the full fence that this needs
//! on both sides is paid by the releasing side (`membarrier`); where the system has none, no thread has a way in.

use std::cell::UnsafeCell;
use std::hint::cold_path;
use std::mem::MaybeUninit;
use std::ptr;

use super::holds::Holds;
use super::kind::{AnyStream, PoolHandle};
use super::sync::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU64, Ordering, PAIRS, PLACES, Shortcut, fence, heavy_fence,
    light_fence, yield_now,
};

/// The places of all threads.
pub(crate) struct Places {
    all: [Place; PLACES],
    /// By place, whether it ever had an owner.
    used: [AtomicU64; PLACES.div_ceil(64)],
}

/// One thread's, on cache lines of its own. As long as a power of two, so that an address is soon computed.
#[cfg_attr(not(loom), repr(align(4096)))]
pub(crate) struct Place {
    /// The number of the thread that has the place; 0 while none has. With [`CLOSED`] the thread passes it by.
    owner: AtomicU64,
    /// Whether the owner is inside, and so uses a pool and a stream.
    inside: AtomicBool,
    /// Held for a moment by whoever takes over what the owner counted, or lets it count for another pair.
    counting: AtomicBool,
    pairs: [Pair; PAIRS],
    counts: [Count; PAIRS],
}

/// By how much more blocks the owner allocated than freed that hold a pool and a stream: those of the pair with the same
/// number, as long as that is there.
struct Count {
    /// The owner adds to it, while it is inside. Whoever else takes it away does so while `counting`, and not before the owner
    /// is outside for good: with this pool or stream.
    blocks: AtomicI64,
    pool: AtomicU64,
    stream: AtomicU64,
    /// What the count is taken over by. Valid while it is not 0: an object ends after what holds it was collected.
    of_pool: AtomicPtr<Holds>,
    /// Null for a stream that nobody holds.
    of_stream: AtomicPtr<Holds>,
}

/// A pool and a stream by their handles, and the owner's way to its magazines for both. The owner writes it, while it is
/// outside; another thread only ever takes the pair away. So while there is a pool, the rest belongs to it.
#[cfg_attr(not(loom), repr(align(64)))]
struct Pair {
    /// Null where there is none.
    pool: AtomicPtr<PoolHandle>,
    /// Null, or what else stands for it, for the default stream.
    stream: AtomicU64,
    /// The owner's alone.
    shortcut: UnsafeCell<MaybeUninit<Shortcut>>,
}

// SAFETY: everything else is made of atomics, and `shortcut` is reached by the owner alone.
unsafe impl Sync for Pair {}

/// A bit that no thread's number has.
const CLOSED: u64 = 1;

/// Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4) of the lower half: numbers are pointers that differ by
/// multiples of the threads' stacks.
#[inline(always)]
fn index_of(thread: u64) -> usize {
    let hash = (thread as u32).wrapping_mul(0x9e37_79b9);
    (hash >> (u32::BITS - PLACES.trailing_zeros())) as usize
}

/// Where a pool and a stream are remembered. Our handles end in small numbers. The driver's are addresses, which
/// differ further up: so a hash, as in `index_of`.
#[inline(always)]
fn number_of(pool: *mut PoolHandle, stream: AnyStream) -> usize {
    let hash = (pool.addr() as u64 ^ stream.addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> (u64::BITS - PAIRS.trailing_zeros())) as usize
}

impl Places {
    /// Without owners.
    pub(crate) const fn vacant() -> Self {
        // SAFETY: it is made of the machine's atomics, of which zeros are values, and of a shortcut that need not be one.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    /// Without owners, of a model's atomics.
    #[cfg(loom)]
    pub(crate) fn modelled() -> Self {
        let used = std::array::from_fn(|_| AtomicU64::default());
        Self { all: std::array::from_fn(|_| Place::modelled()), used }
    }

    /// The place of the thread with this number, if it has one.
    #[inline(always)]
    pub(crate) fn of(&self, thread: u64) -> Option<&Place> {
        let place = &self.all[index_of(thread)];
        // Relaxed: the thread itself wrote its number, and nobody else's means it.
        if place.owner.load(Ordering::Relaxed) != thread {
            cold_path();
            return None;
        }
        Some(place)
    }

    /// The place of the calling thread, which takes it if it can. It must [leave](Self::leave) it at its end.
    pub(crate) fn take(&self, thread: u64) -> Option<&Place> {
        if let Some(place) = self.of(thread) {
            return Some(place);
        }
        let index = index_of(thread);
        let place = &self.all[index];
        // Acquire: pairs with the Release of who left it.
        place.owner.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // Relaxed: before any pair is written, and so before the fence of who writes it (`remember`).
        self.used[index / 64].fetch_or(1 << (index % 64), Ordering::Relaxed);
        Some(place)
    }

    /// In a forked child: the other threads are gone, and what this one remembers is its parent's.
    pub(crate) fn forget_all(&self) {
        for place in self.used() {
            place.pairs.iter().for_each(Pair::take_away);
            // Relaxed, all: there is one thread.
            place.counts.iter().for_each(Count::hand_over);
            place.counting.store(false, Ordering::Relaxed);
            place.inside.store(false, Ordering::Relaxed);
            place.owner.store(0, Ordering::Relaxed);
        }
    }

    /// The calling thread ends.
    pub(crate) fn leave(&self, thread: u64) {
        let place = &self.all[index_of(thread)];
        // Relaxed: as in `of`.
        if place.owner.load(Ordering::Relaxed) & !CLOSED == thread {
            place.pairs.iter().for_each(Pair::take_away);
            place.while_counting(|| place.counts.iter().for_each(Count::hand_over));
            // Release: see `take`. Who has closed the place does not open it then.
            place.owner.store(0, Ordering::Release);
        }
    }

    /// Every place that may have an owner.
    fn used(&self) -> impl Iterator<Item = &Place> {
        self.used.iter().zip(self.all.chunks(64)).flat_map(|(used, places)| {
            // Relaxed: a fence comes before (`retire`).
            let used = used.load(Ordering::Relaxed);
            places.iter().enumerate().filter(move |(at, _)| used >> at & 1 == 1).map(|(_, place)| place)
        })
    }

    /// Takes away every pair of a handle, which was made invalid before. Then it waits until every thread that may still use the
    /// handle has left the fast path.
    pub(crate) fn retire(&self, handle: u64) {
        // As in `Place::remember`.
        fence(Ordering::SeqCst);
        let pairs = self.used().flat_map(|place| &place.pairs);
        pairs.filter(|pair| pair.is_of(handle)).for_each(Pair::take_away);
        // Whoever does not see that its pair is gone is seen inside.
        heavy_fence();
        self.used().for_each(Place::wait_for_owner);
    }

    /// Takes over what threads counted for a [retired](Self::retire) handle.
    pub(crate) fn collect(&self, handle: u64) {
        for place in self.used() {
            let of_handle = || place.counts.iter().filter(|count| count.is_of(handle));
            place.while_counting(|| of_handle().for_each(Count::hand_over));
        }
    }
}

/// The thread is inside as long as this lives.
struct Inside<'a>(&'a Place);

impl<'a> Inside<'a> {
    #[inline(always)]
    fn new(place: &'a Place) -> Self {
        // Relaxed: ordered before the look for the pair by the fence.
        place.inside.store(true, Ordering::Relaxed);
        light_fence();
        Self(place)
    }
}

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: the use of the objects happens before whoever waits for this ends one.
        self.0.inside.store(false, Ordering::Release);
    }
}

impl Place {
    #[cfg(loom)]
    fn modelled() -> Self {
        let [inside, counting] = Default::default();
        let pair = |_| Pair {
            pool: AtomicPtr::new(ptr::null_mut()),
            stream: AtomicU64::new(0),
            shortcut: UnsafeCell::new(MaybeUninit::uninit()),
        };
        let count = |_| Count {
            blocks: AtomicI64::new(0),
            pool: AtomicU64::new(0),
            stream: AtomicU64::new(0),
            of_pool: AtomicPtr::new(ptr::null_mut()),
            of_stream: AtomicPtr::new(ptr::null_mut()),
        };
        let (pairs, counts) = (std::array::from_fn(pair), std::array::from_fn(count));
        Self { owner: AtomicU64::new(0), inside, counting, pairs, counts }
    }

    /// Calls with the owner's shortcut for the pool and the stream, and counts `by` blocks more that hold them, where `call` did
    /// something. `None` where nothing was done.
    ///
    /// `call` must not wait, call back or panic, and gives `None` where it did nothing. It may use the shortcut: the owner is the
    /// thread that made it, and both objects stay.
    ///
    /// # Safety
    /// The calling thread has the place.
    #[inline(always)]
    pub(crate) unsafe fn call<R>(
        &self,
        (pool, stream): (*mut PoolHandle, AnyStream),
        by: Option<i64>,
        call: impl FnOnce(&Shortcut) -> Option<R>,
    ) -> Option<R> {
        let Inside(place) = &Inside::new(self);
        let number = number_of(pool, stream);
        // SAFETY: the place is this thread's, and it is inside. If the pair is there, its handles were valid after it was
        // written (`remember`). Who releases one of them takes the pair away, then waits until this thread is outside,
        // before the object goes.
        let shortcut = unsafe { place.pairs[number].find(pool, stream) }?;
        let result = call(shortcut)?;
        if let Some(by) = by {
            place.count(number, by);
        }
        Some(result)
    }

    /// Remembers a shortcut for the owner's next calls, and lets it count for its pool and stream; nothing where one of the handles does
    /// not last.
    ///
    /// # Safety
    /// The calling thread has the place, and is outside. Both objects are in use.
    pub(crate) unsafe fn remember(
        &self,
        pool: (*mut PoolHandle, &Holds),
        stream: (AnyStream, Option<&Holds>),
        shortcut: Shortcut,
        lasts: impl Fn() -> bool,
    ) {
        // SAFETY: as promised to this function.
        unsafe { self.set(pool, stream, shortcut) };
        // Whoever releases a handle makes it invalid, gives it up, or its stream unregistered. Then it looks for pairs (`retire`),
        // with such a fence between: either it finds this one, or this thread finds that the handle does not last.
        fence(Ordering::SeqCst);
        if !lasts() {
            self.pairs[number_of(pool.0, stream.0)].take_away();
        }
    }

    /// Waits until the owner is outside. Meanwhile it takes the general path: a thread that comes in again and again would
    /// hardly ever be seen outside.
    fn wait_for_owner(&self) {
        let mut closed = None;
        // Acquire: what the thread did with the object happened before its end, which follows.
        while self.inside.load(Ordering::Acquire) {
            // Relaxed, here and below: only how long this takes depends on whether the owner sees it. Again in each turn, since
            // somebody else may have opened it.
            closed = Some(self.owner.fetch_or(CLOSED, Ordering::Relaxed) | CLOSED);
            yield_now();
        }
        if let Some(closed) = closed {
            // It fails where the owner has left, or it is open again.
            let _ =
                self.owner.compare_exchange(closed, closed & !CLOSED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Remembers a shortcut, and lets the owner count for its pool and stream.
    ///
    /// # Safety
    /// The calling thread has the place, and is outside. Both objects are in use.
    unsafe fn set(
        &self,
        (pool, of_pool): (*mut PoolHandle, &Holds),
        (stream, of_stream): (AnyStream, Option<&Holds>),
        shortcut: Shortcut,
    ) {
        let number = number_of(pool, stream);
        let count = &self.counts[number];
        self.pairs[number].take_away();
        if !count.is_for(pool.addr() as u64, stream.addr() as u64) {
            self.while_counting(|| {
                count.hand_over();
                // Relaxed, all: others read them while they count.
                count.pool.store(pool.addr() as u64, Ordering::Relaxed);
                count.stream.store(stream.addr() as u64, Ordering::Relaxed);
                count.of_pool.store(ptr::from_ref(of_pool).cast_mut(), Ordering::Relaxed);
                let of_stream = of_stream.map_or(ptr::null(), ptr::from_ref).cast_mut();
                count.of_stream.store(of_stream, Ordering::Relaxed);
            });
        }
        // SAFETY: as promised to this function.
        unsafe { self.pairs[number].set(pool, stream, shortcut) };
    }

    /// Counts blocks that hold the pool and the stream of the pair with this number. By the owner, while it is inside and has
    /// found the pair.
    #[inline(always)]
    fn count(&self, number: usize, by: i64) {
        let blocks = &self.counts[number].blocks;
        // Relaxed, and no read-modify-write: nobody else writes it now. The end of being inside publishes it.
        blocks.store(blocks.load(Ordering::Relaxed) + by, Ordering::Relaxed);
    }

    /// Does it while no other thread does likewise with this place.
    #[cold]
    fn while_counting(&self, run: impl FnOnce()) {
        // Acquire, and Release below: who comes next sees what was done.
        while self.counting.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            yield_now();
        }
        run();
        self.counting.store(false, Ordering::Release);
    }
}

impl Count {
    fn is_for(&self, pool: u64, stream: u64) -> bool {
        // Relaxed, both: the owner wrote them.
        self.pool.load(Ordering::Relaxed) == pool && self.stream.load(Ordering::Relaxed) == stream
    }

    fn is_of(&self, handle: u64) -> bool {
        // Relaxed, both: written while counting.
        self.pool.load(Ordering::Relaxed) == handle || self.stream.load(Ordering::Relaxed) == handle
    }

    /// Gives what was counted to those for whom it was.
    fn hand_over(&self) {
        // Relaxed, all: the owner is outside, or this is the owner.
        let blocks = self.blocks.swap(0, Ordering::Relaxed);
        if blocks != 0 {
            for of in [&self.of_pool, &self.of_stream] {
                // SAFETY: null, or an object's that is there: it ends after what holds it was collected, and this is some.
                if let Some(holds) = unsafe { of.load(Ordering::Relaxed).as_ref() } {
                    holds.add(blocks);
                }
            }
        }
    }
}

impl Pair {
    /// The shortcut for this pool and stream, if it is here.
    ///
    /// # Safety
    /// The calling thread has the place, and is inside as long as it uses what is returned.
    #[inline(always)]
    unsafe fn find(&self, pool: *mut PoolHandle, stream: AnyStream) -> Option<&Shortcut> {
        // Relaxed, both: the thread's own; and that the pair was taken away is seen in time by the fence of who did it.
        let is_here = !pool.is_null()
            && self.pool.load(Ordering::Relaxed) == pool
            && self.stream.load(Ordering::Relaxed) == stream.addr() as u64;
        // SAFETY: the owner reads what it wrote with the pool's handle.
        is_here.then(|| unsafe { (*self.shortcut.get()).assume_init_ref() })
    }

    /// Remembers a shortcut.
    ///
    /// # Safety
    /// The calling thread has the place, and is outside.
    unsafe fn set(&self, pool: *mut PoolHandle, stream: AnyStream, shortcut: Shortcut) {
        // Relaxed, all: other threads read no more than the handles.
        self.take_away();
        self.stream.store(stream.addr() as u64, Ordering::Relaxed);
        // SAFETY: only the owner looks at it, and only while it is inside.
        unsafe { *self.shortcut.get() = MaybeUninit::new(shortcut) };
        self.pool.store(pool, Ordering::Relaxed);
    }

    /// Whether one of its handles is this one. From any thread.
    fn is_of(&self, handle: u64) -> bool {
        // Relaxed, both: if the owner overwrites the pair meanwhile, nothing is lost but the new one.
        self.pool.load(Ordering::Relaxed).addr() as u64 == handle
            || self.stream.load(Ordering::Relaxed) == handle
    }

    /// From now on nothing is found here. From any thread.
    fn take_away(&self) {
        self.pool.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use millpond::device::sim::{SimDevice, SimOptions};
    use millpond::{Context, Pool};

    use super::*;

    pub(crate) const POOL: *mut PoolHandle = ptr::without_provenance_mut(0x4400_0000_0000_0000);

    /// Not those of this process: each test's threads have numbers of their own.
    static ALL: Places = Places::vacant();

    /// Has the calling thread, which takes a place, remember a shortcut that nobody uses.
    pub(crate) fn remember(take: impl FnOnce() -> Option<&'static Place>) -> &'static Place {
        let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
        let (pool, stream) = (Pool::builder(&context).build().unwrap(), context.create_stream().unwrap());
        let block = pool.alloc(512, &stream).unwrap();
        // SAFETY: nobody else has the block, and there is no work on it.
        unsafe { pool.free(block, &stream) }.unwrap();
        let shortcut = Shortcut::new(&pool, &stream).expect("the thread had a block");
        let place = take().expect("no other thread is there");
        // SAFETY: the place is this thread's.
        unsafe { place.remember((POOL, &Holds::default()), (ptr::null_mut(), None), shortcut, || true) };
        place
    }

    /// Whether the calling thread, which has the place, finds a shortcut for the pool.
    pub(crate) fn finds(place: &Place, pool: *mut PoolHandle) -> bool {
        // SAFETY: the place is this thread's, which uses nothing that it finds.
        unsafe { place.call((pool, ptr::null_mut()), None, |_| Some(())) }.is_some()
    }

    #[test]
    fn a_pair_taken_away_and_null_are_not_found() {
        let place = remember(|| ALL.take(8));
        assert!(finds(place, POOL) && ALL.used().any(|used| ptr::eq(used, place)));
        place.pairs.iter().for_each(Pair::take_away);
        assert!(!finds(place, POOL));
        for no_pool in [0, 1, usize::MAX].map(ptr::without_provenance_mut) {
            assert!(!finds(place, no_pool), "whatever a program asks for");
        }
    }

    #[test]
    fn a_shortcut_of_a_handle_that_does_not_last_is_not_kept() {
        let place = remember(|| ALL.take(16));
        // SAFETY: the place is this thread's, which uses nothing that it finds.
        unsafe {
            let shortcut = place.call((POOL, ptr::null_mut()), None, |shortcut| Some(*shortcut)).unwrap();
            place.remember((POOL, &Holds::default()), (ptr::null_mut(), None), shortcut, || false);
        }
        assert!(!finds(place, POOL));
    }

    #[test]
    fn a_thread_that_comes_in_again_at_once_is_waited_for_but_once() {
        const ME: u64 = 24;
        static LEFT: AtomicBool = AtomicBool::new(false);
        let (tell, told) = std::sync::mpsc::channel();
        let comes_in = std::thread::spawn(move || {
            tell.send(ALL.take(ME).unwrap()).unwrap();
            // Inside but for an instant of each turn.
            while !LEFT.load(Ordering::Relaxed) {
                if let Some(place) = ALL.of(ME) {
                    let _inside = Inside::new(place);
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            }
            ALL.leave(ME);
        });
        let place = told.recv().unwrap();
        for _ in 0..20 {
            place.wait_for_owner();
            assert_eq!(place.owner.load(Ordering::Relaxed), ME, "it is open again");
        }
        LEFT.store(true, Ordering::Relaxed);
        comes_in.join().unwrap();
        assert_eq!(place.owner.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_thread_that_ends_while_its_place_is_closed_leaves_it() {
        let place = remember(|| ALL.take(32));
        place.owner.fetch_or(CLOSED, Ordering::Relaxed);
        assert!(ALL.of(32).is_none() && ALL.take(32).is_none());
        ALL.leave(32);
        assert_eq!(place.owner.load(Ordering::Relaxed), 0);
        assert!(!place.pairs.iter().any(|pair| pair.is_of(POOL.addr() as u64)));
    }

    #[test]
    fn a_thread_whose_place_another_one_has_does_without() {
        let same = (6..).map(|number| number * 8).find(|number| index_of(*number) == index_of(40)).unwrap();
        let place = ALL.take(same).unwrap();
        assert!(ALL.take(40).is_none() && ALL.of(40).is_none());
        ALL.leave(40);
        assert!(ALL.of(same).is_some_and(|of_same| ptr::eq(of_same, place)));
        ALL.leave(same);
        assert!(ALL.take(40).is_some());
    }
}
