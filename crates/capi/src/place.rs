//! Places: what the fast path (`fast`) knows of each thread, found by the *thread pointer*. A thread-local of a shared
//! library is reached by a call of the loader, which takes 17 instructions and has all registers saved around it. This
//! takes nine.
//!
//! The thread pointer is where the system keeps what belongs to a thread. No two living threads have the same one, and
//! reading it is one instruction. A thread takes the place that its pointer leads to when it first has something to
//! remember there, and gives it back when it ends. Where the pointers of two threads lead to one place, who came first has
//! it, and the other one has none.

use std::cell::UnsafeCell;
use std::hint::cold_path;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64, Ordering, fence};

use millpond::bindings::{Shortcut, on_fork, on_thread_end};

use crate::holds::Holds;
use crate::kind::{AnyStream, PoolHandle};

const PLACES: usize = 1 << 12;

/// Pairs that a thread remembers; of those that fall on the same one, the one used last on the general path. So many that a
/// thread may go round a pool of 16 streams, as RMM's has, and mostly find them.
const PAIRS: usize = 32;

/// One thread's, on cache lines of its own. As long as a power of two, so that an address is soon computed.
#[repr(align(4096))]
pub(crate) struct Place {
    /// The thread pointer of the thread that has the place; 0 while none has. With [`CLOSED`] the thread passes it by.
    owner: AtomicU64,
    /// Whether the owner is inside, and so uses a pool and a stream.
    pub(crate) inside: AtomicBool,
    /// Held for a moment by whoever takes over what the owner counted, or lets it count for another pair.
    counting: AtomicBool,
    pub(crate) pairs: [Pair; PAIRS],
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
#[repr(align(64))]
pub(crate) struct Pair {
    /// Null where there is none.
    pool: AtomicPtr<PoolHandle>,
    /// Null, or what else stands for it, for the default stream.
    stream: AtomicU64,
    /// The owner's alone.
    shortcut: UnsafeCell<MaybeUninit<Shortcut>>,
}

// SAFETY: everything else is made of atomics, and `shortcut` is reached by the owner alone.
unsafe impl Sync for Pair {}

/// A bit that no thread pointer has: each is aligned.
const CLOSED: u64 = 1;

static ALL: [Place; PLACES] = [const { Place::vacant() }; PLACES];

/// By place, whether it ever had an owner.
static USED: [AtomicU64; PLACES / 64] = [const { AtomicU64::new(0) }; PLACES / 64];

/// A number that no other living thread has, and not 0.
#[inline(always)]
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: the ABI has the thread pointer there, on x86-64 as the first word of what it points at (ELF
    // Handling for Thread-Local Storage, its part on x86-64). Reading it changes nothing.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags));
    }
    pointer
}

/// Likewise, where nobody says where the thread pointer is: the address of something that each thread has.
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
fn thread_pointer() -> u64 {
    use std::cell::Cell;
    thread_local! {
        static HERE: Cell<u8> = const { Cell::new(0) };
    }
    HERE.with(|here| here.as_ptr().addr() as u64)
}

/// Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4) of the lower half: pointers differ by multiples
/// of the threads' stacks.
#[inline(always)]
fn index_of(pointer: u64) -> usize {
    let hash = (pointer as u32).wrapping_mul(0x9e37_79b9);
    (hash >> (u32::BITS - PLACES.trailing_zeros())) as usize
}

impl Place {
    const fn vacant() -> Self {
        Self {
            owner: AtomicU64::new(0),
            inside: AtomicBool::new(false),
            counting: AtomicBool::new(false),
            pairs: [const { Pair::none() }; PAIRS],
            counts: [const { Count::none() }; PAIRS],
        }
    }

    /// The calling thread's place, if it has one.
    #[inline(always)]
    pub(crate) fn mine() -> Option<&'static Self> {
        let pointer = thread_pointer();
        let place = &ALL[index_of(pointer)];
        // Relaxed: the thread itself wrote its pointer, and nobody else's means it.
        if place.owner.load(Ordering::Relaxed) != pointer {
            cold_path();
            return None;
        }
        Some(place)
    }

    /// The calling thread's place, which it takes if it can. The thread must be one whose end is
    /// [told](on_thread_end).
    pub(crate) fn take() -> Option<&'static Self> {
        if let Some(place) = Self::mine() {
            return Some(place);
        }
        let pointer = thread_pointer();
        let index = index_of(pointer);
        let place = &ALL[index];
        // Acquire: pairs with the Release of who left it.
        place.owner.compare_exchange(0, pointer, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SeqCst: before any pair is written, in the one order that `all_used` looks in, too.
        USED[index / 64].fetch_or(1 << (index % 64), Ordering::SeqCst);
        on_thread_end(Self::leave);
        on_fork(Self::forget_all);
        Some(place)
    }

    /// In a forked child: the other threads are gone, and what this one remembers is its parent's.
    fn forget_all() {
        for place in Self::all_used() {
            place.pairs.iter().for_each(Pair::take_away);
            // Relaxed, all: there is one thread.
            place.counts.iter().for_each(Count::hand_over);
            place.counting.store(false, Ordering::Relaxed);
            place.inside.store(false, Ordering::Relaxed);
            place.owner.store(0, Ordering::Relaxed);
        }
    }

    /// The calling thread ends.
    fn leave() {
        let pointer = thread_pointer();
        let place = &ALL[index_of(pointer)];
        // Relaxed: as in `mine`.
        if place.owner.load(Ordering::Relaxed) & !CLOSED == pointer {
            place.pairs.iter().for_each(Pair::take_away);
            place.while_counting(|| place.counts.iter().for_each(Count::hand_over));
            // Release: see `take`. Who has closed the place does not open it then.
            place.owner.store(0, Ordering::Release);
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
            std::thread::yield_now();
        }
        if let Some(closed) = closed {
            // It fails where the owner has left, or it is open again.
            let _ =
                self.owner.compare_exchange(closed, closed & !CLOSED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Every place that may have an owner.
    pub(crate) fn all_used() -> impl Iterator<Item = &'static Self> {
        USED.iter().zip(ALL.as_chunks::<64>().0).flat_map(|(used, places)| {
            let used = used.load(Ordering::SeqCst);
            places.iter().enumerate().filter(move |(at, _)| used >> at & 1 == 1).map(|(_, place)| place)
        })
    }

    /// Where this pool and stream are remembered. Our handles end in small numbers. The driver's are addresses, which
    /// differ further up: so a hash, as in `index_of`.
    #[inline(always)]
    pub(crate) fn number_of(pool: *mut PoolHandle, stream: AnyStream) -> usize {
        let hash = (pool.addr() as u64 ^ stream.addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> (u64::BITS - PAIRS.trailing_zeros())) as usize
    }

    #[inline(always)]
    pub(crate) fn pair(&self, pool: *mut PoolHandle, stream: AnyStream) -> &Pair {
        &self.pairs[Self::number_of(pool, stream)]
    }

    /// Remembers a shortcut, and lets the owner count for its pool and stream.
    ///
    /// # Safety
    /// The calling thread has the place, and is outside. Both objects are in use.
    pub(crate) unsafe fn set(
        &self,
        (pool, of_pool): (*mut PoolHandle, &Holds),
        (stream, of_stream): (AnyStream, Option<&Holds>),
        shortcut: Shortcut,
    ) {
        let number = Self::number_of(pool, stream);
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
    pub(crate) fn count(&self, number: usize, by: i64) {
        let blocks = &self.counts[number].blocks;
        // Relaxed, and no read-modify-write: nobody else writes it now. The end of being inside publishes it.
        blocks.store(blocks.load(Ordering::Relaxed) + by, Ordering::Relaxed);
    }

    /// Does it while no other thread does likewise with this place.
    #[cold]
    fn while_counting(&self, run: impl FnOnce()) {
        // Acquire, and Release below: who comes next sees what was done.
        while self.counting.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        run();
        self.counting.store(false, Ordering::Release);
    }
}

impl Count {
    const fn none() -> Self {
        // All zero, so that places need no room in the file.
        Self {
            blocks: AtomicI64::new(0),
            pool: AtomicU64::new(0),
            stream: AtomicU64::new(0),
            of_pool: AtomicPtr::new(ptr::null_mut()),
            of_stream: AtomicPtr::new(ptr::null_mut()),
        }
    }

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
    const fn none() -> Self {
        // All zero, so that places need no room in the file.
        Self {
            pool: AtomicPtr::new(ptr::null_mut()),
            stream: AtomicU64::new(0),
            shortcut: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The shortcut for this pool and stream, if it is here.
    ///
    /// # Safety
    /// The calling thread has the place, and is inside as long as it uses what is returned.
    #[inline(always)]
    pub(crate) unsafe fn find(&self, pool: *mut PoolHandle, stream: AnyStream) -> Option<&Shortcut> {
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
    pub(crate) unsafe fn set(&self, pool: *mut PoolHandle, stream: AnyStream, shortcut: Shortcut) {
        // Relaxed, all: other threads read no more than the handles.
        self.take_away();
        self.stream.store(stream.addr() as u64, Ordering::Relaxed);
        // SAFETY: only the owner looks at it, and only while it is inside.
        unsafe { *self.shortcut.get() = MaybeUninit::new(shortcut) };
        self.pool.store(pool, Ordering::Relaxed);
    }

    /// Whether one of its handles is this one. From any thread.
    pub(crate) fn is_of(&self, handle: u64) -> bool {
        // Relaxed, both: if the owner overwrites the pair meanwhile, nothing is lost but the new one.
        self.pool.load(Ordering::Relaxed).addr() as u64 == handle
            || self.stream.load(Ordering::Relaxed) == handle
    }

    /// From now on nothing is found here. From any thread.
    pub(crate) fn take_away(&self) {
        self.pool.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

/// Takes away every pair of a handle, which was made invalid before. Whoever came in before may still use it.
pub(crate) fn forget(handle: u64) {
    fence(Ordering::SeqCst);
    let pairs = Place::all_used().flat_map(|place| &place.pairs);
    pairs.filter(|pair| pair.is_of(handle)).for_each(|pair| pair.take_away());
}

/// Waits until every thread that may still use a forgotten handle has left the fast path. After a
/// [heavy fence](crate::in_use::heavy_fence), which comes after [`forget`].
pub(crate) fn wait_for_calls() {
    Place::all_used().for_each(Place::wait_for_owner);
}

/// Takes over what threads counted for a forgotten handle that none of them [uses](wait_for_calls) any more.
pub(crate) fn collect(handle: u64) {
    for place in Place::all_used() {
        let of_handle = || place.counts.iter().filter(|count| count.is_of(handle));
        place.while_counting(|| of_handle().for_each(Count::hand_over));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use millpond::bindings::{Mutex, MutexGuard};
    use millpond::device::sim::{SimDevice, SimOptions};
    use millpond::{Context, Pool, Stream};

    use super::*;

    const POOL: *mut PoolHandle = ptr::without_provenance_mut(0x4400_0000_0000_0000);

    /// While a test holds it, no other test's thread takes a place or waits for the owner of one.
    pub(crate) fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock()
    }

    /// Runs it on a thread of its own, [alone].
    fn on_a_thread<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> R {
        let _alone = alone();
        std::thread::spawn(run).join().unwrap()
    }

    fn pool_and_stream() -> (Pool, Stream) {
        let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
        let (pool, stream) = (Pool::builder(&context).build().unwrap(), context.create_stream().unwrap());
        let block = pool.alloc(512, &stream).unwrap();
        // SAFETY: nobody else has the block, and there is no work on it.
        unsafe { pool.free(block, &stream) }.unwrap();
        (pool, stream)
    }

    /// What the calling thread finds in its place, which it takes.
    fn found_after_set() -> (u64, bool, bool) {
        let (pool, stream) = pool_and_stream();
        let shortcut = Shortcut::new(&pool, &stream).expect("the thread had a block");
        let place = Place::take().expect("no other thread is there");
        let pair = place.pair(POOL, ptr::null_mut());
        // SAFETY: the place is this thread's, which uses nothing that it finds.
        unsafe {
            let before = pair.find(POOL, ptr::null_mut()).is_some();
            pair.set(POOL, ptr::null_mut(), shortcut);
            (thread_pointer(), before, pair.find(POOL, ptr::null_mut()).is_some())
        }
    }

    #[test]
    fn a_thread_finds_what_it_remembered_until_it_ends() {
        let (pointer, before, after) = on_a_thread(found_after_set);
        assert!(!before && after);
        let place = &ALL[index_of(pointer)];
        let is_used = Place::all_used().any(|used| ptr::eq(used, place));
        assert!(is_used, "who releases a handle looks here");
        assert_eq!(place.owner.load(Ordering::Relaxed), 0);
        assert!(!place.pairs.iter().any(|pair| pair.is_of(POOL.addr() as u64)));
    }

    #[test]
    fn a_pair_taken_away_and_null_are_not_found() {
        on_a_thread(|| {
            found_after_set();
            let place = Place::mine().unwrap();
            let pair = place.pair(POOL, ptr::null_mut());
            pair.take_away();
            // SAFETY: as above.
            unsafe {
                assert!(pair.find(POOL, ptr::null_mut()).is_none());
                for no_pool in [0, 1, usize::MAX].map(ptr::without_provenance_mut) {
                    assert!(pair.find(no_pool, ptr::null_mut()).is_none(), "whatever a program asks for");
                }
            }
        });
    }

    #[test]
    fn a_thread_that_comes_in_again_at_once_is_waited_for_but_once() {
        on_a_thread(|| {
            static LEFT: AtomicBool = AtomicBool::new(false);
            let (tell, told) = std::sync::mpsc::channel();
            let comes_in = std::thread::spawn(move || {
                found_after_set();
                let place = Place::mine().unwrap();
                tell.send(place).unwrap();
                // Inside but for an instant of each turn.
                while !LEFT.load(Ordering::Relaxed) {
                    if let Some(place) = Place::mine() {
                        place.inside.store(true, Ordering::Relaxed);
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        place.inside.store(false, Ordering::Release);
                    }
                }
                Place::mine().is_some()
            });
            let place = told.recv().unwrap();
            let owner = place.owner.load(Ordering::Relaxed);
            for _ in 0..20 {
                place.wait_for_owner();
                assert_eq!(place.owner.load(Ordering::Relaxed), owner, "it is open again");
            }
            LEFT.store(true, Ordering::Relaxed);
            assert!(comes_in.join().unwrap());
            assert_eq!(place.owner.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn a_thread_that_ends_while_its_place_is_closed_leaves_it() {
        on_a_thread(|| {
            let place = std::thread::spawn(|| {
                found_after_set();
                let place = Place::mine().unwrap();
                place.owner.fetch_or(CLOSED, Ordering::Relaxed);
                assert!(Place::mine().is_none() && Place::take().is_none());
                place
            });
            assert_eq!(place.join().unwrap().owner.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn a_thread_whose_place_another_one_has_does_without() {
        on_a_thread(|| {
            let pointer = thread_pointer();
            let place = &ALL[index_of(pointer)];
            place.owner.compare_exchange(0, !pointer, Ordering::Acquire, Ordering::Relaxed).unwrap();
            assert!(Place::take().is_none() && Place::mine().is_none());
            place.owner.store(0, Ordering::Release);
            assert!(Place::take().is_some());
            Place::leave();
            assert!(Place::mine().is_none());
        });
    }
}
