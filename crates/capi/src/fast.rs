//! The fast path: a pool and a registered stream, or the default one, that the thread used before.
//!
//! It differs from the general path in what it does not do. It neither catches panics nor makes a
//! [`Failure`](crate::failure::Failure), since what it calls can neither panic nor fail: it looks into the thread's
//! magazines only. Whatever is not as it expects it leaves to the general path, which says what is wrong. Where that
//! found pool and stream, it leaves the way to both in the thread's `Place`, as a `Pair` under the two handles.
//!
//! **How an object stays** while it is used here: not by a note of its handle (`in_use`), but by one flag for the thread,
//! that it is inside. Who releases a handle makes it invalid first and takes every pair of it away (`forget`), then
//! waits until every thread was seen outside once (`wait_for_calls`). That is soon, for nothing here waits. Who comes in
//! later finds no pair. As for notes, the full fence that this needs on both sides is paid by the releasing side
//! (`membarrier`); where the system has none, no thread has a way in.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};

use millpond::bindings::{MOST_THREADS, thread_index};
use millpond::{Pool, Stream};

use crate::in_use;
use crate::pool::{POOLS, PoolHandle};
use crate::stream::{AnyStream, FoundStream, STREAMS};

/// Places for pairs that a thread remembers; of those that fall on the same place, the one used last on the general path.
const PAIRS: usize = 4;

/// What the fast path knows of one thread, on cache lines of its own.
#[repr(align(256))]
struct Place {
    /// Whether the thread is inside, and so uses a pool and a stream.
    inside: AtomicBool,
    pairs: [Pair; PAIRS],
}

/// A pool and a stream, and under which handles the program knows them. The owning thread writes it, while it is
/// outside; another one only ever sets `pool` to null, which takes the pair away. So while `pool` is not null, the
/// rest belongs to it.
struct Pair {
    pool: AtomicPtr<PoolHandle>,
    /// Null, or what else stands for it, for the default stream.
    stream: AtomicU64,
    pool_itself: AtomicPtr<Pool>,
    stream_itself: AtomicPtr<Stream>,
}

impl Pair {
    const fn none() -> Self {
        Self {
            pool: AtomicPtr::new(ptr::null_mut()),
            stream: AtomicU64::new(0),
            pool_itself: AtomicPtr::new(ptr::null_mut()),
            stream_itself: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

impl Place {
    /// Handles end in small numbers, those of pools and those of streams.
    #[inline(always)]
    fn pair(&self, pool: *mut PoolHandle, stream: AnyStream) -> &Pair {
        &self.pairs[(pool.addr() ^ stream.addr()) % PAIRS]
    }
}

/// By the thread's index. That of threads without one has no pairs, and never will.
static PLACES: [Place; MOST_THREADS + 1] =
    [const { Place { inside: AtomicBool::new(false), pairs: [const { Pair::none() }; PAIRS] } };
        MOST_THREADS + 1];

/// Places that may be in use: all below it.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The thread is inside as long as this lives.
struct Inside(&'static Place);

impl Inside {
    #[inline]
    fn new(thread: usize) -> Self {
        // SAFETY: an index is at most `MOST_THREADS`.
        let place = unsafe { PLACES.get_unchecked(thread) };
        // Relaxed: ordered before the look for the pair by the fence.
        place.inside.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Self(place)
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        // Release: the use of the objects happens before whoever waits for this ends one.
        self.0.inside.store(false, Ordering::Release);
    }
}

/// Calls with the pool and the stream, and the thread's index. `None` where the general path must be taken; nothing was
/// done then.
///
/// `call` must not wait, call back or panic, and gives `None` where it did nothing.
#[inline(always)]
pub(crate) fn call<R>(
    pool: *mut PoolHandle,
    stream: AnyStream,
    call: impl FnOnce(usize, &Pool, &Stream) -> Option<R>,
) -> Option<R> {
    let thread = thread_index();
    let Inside(place) = &Inside::new(thread);
    let pair = place.pair(pool, stream);
    // Relaxed, all: the thread's own; and that the pair was taken away is seen in time by the fence of who did it.
    let is_known = pair.pool.load(Ordering::Relaxed) == pool
        && pair.stream.load(Ordering::Relaxed) == stream.addr() as u64
        && !pool.is_null();
    if !is_known {
        return None;
    }
    // SAFETY: the pair is there, and the handles were valid after it was written (`remember`). Who releases one of them
    // takes the pair away, then waits until this thread is outside, before the object goes.
    let (pool, stream) =
        unsafe { (&*pair.pool_itself.load(Ordering::Relaxed), &*pair.stream_itself.load(Ordering::Relaxed)) };
    call(thread, pool, stream)
}

/// Lets the calling thread's next calls with this pool and stream take the fast path, if the stream is one that stays.
/// Both are in use. The pool stays where it is until its handle is released, and keeps the default stream until then.
#[cold]
pub(crate) fn remember(
    pool: *mut PoolHandle,
    stream: AnyStream,
    pool_itself: &Pool,
    found: &FoundStream<'_>,
) {
    let index = thread_index();
    let Some(stream_itself) = found.lasting().filter(|_| index != 0 && in_use::has_membarrier()) else {
        return;
    };
    // SeqCst: before the pair is written, in the one order that `forget` looks in, too.
    if USED.load(Ordering::Relaxed) <= index {
        USED.fetch_max(index + 1, Ordering::SeqCst);
    }
    let pair = PLACES[index].pair(pool, stream);
    // Relaxed: see `Pair`; no other thread reads more than the handles.
    pair.pool.store(ptr::null_mut(), Ordering::Relaxed);
    pair.stream.store(stream.addr() as u64, Ordering::Relaxed);
    pair.pool_itself.store(ptr::from_ref(pool_itself).cast_mut(), Ordering::Relaxed);
    pair.stream_itself.store(ptr::from_ref(stream_itself).cast_mut(), Ordering::Relaxed);
    pair.pool.store(pool, Ordering::Relaxed);
    // Whoever releases a handle makes it invalid, then looks for pairs (`forget`), with such a fence between: either it
    // finds this one, or this thread finds the handle invalid.
    fence(Ordering::SeqCst);
    let is_default = matches!(found, FoundStream::Default(_));
    if !POOLS.is_valid(pool) || !(is_default || STREAMS.is_valid(stream)) {
        pair.pool.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

/// Takes away every pair of a handle, which was made invalid before. Whoever came in before may still use it.
pub(crate) fn forget(handle: u64) {
    fence(Ordering::SeqCst);
    for pair in PLACES[..USED.load(Ordering::SeqCst)].iter().flat_map(|place| &place.pairs) {
        // Relaxed, all: if the owner overwrites the pair meanwhile, nothing is lost but the new one.
        let pool = pair.pool.load(Ordering::Relaxed);
        if pool.addr() as u64 == handle || pair.stream.load(Ordering::Relaxed) == handle {
            pair.pool.store(ptr::null_mut(), Ordering::Relaxed);
        }
    }
}

/// Waits until every thread that may still use a forgotten handle has left the fast path. After a
/// [heavy fence](in_use::heavy_fence), which comes after [`forget`].
pub(crate) fn wait_for_calls() {
    for place in &PLACES[..USED.load(Ordering::SeqCst)] {
        // Acquire: what the thread did with the object happened before its end, which follows.
        while place.inside.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}
