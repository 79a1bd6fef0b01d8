//! The fast path: a pool and a registered stream, or the default one, both the same as in the thread's last slow call.
//!
//! It differs from the general path in what it does not do. It neither catches panics nor makes a
//! [`Failure`](crate::failure::Failure), since what it calls can neither panic nor fail: it looks into the thread's
//! magazines only. Whatever is not as it expects it leaves to the general path, which says what is wrong. It finds the
//! slots of both handles where the general path left them, in the thread's `Place`; slots are never freed, and each
//! says whether the handle is still the one that it is valid for.
//!
//! **How an object stays** while it is used here: not by a note of its handle (`in_use`), but by one flag for the thread,
//! that it is inside. Who releases a handle makes it invalid first, then waits until every thread was seen outside
//! once. That is soon, for nothing here waits. Who comes in later sees the handle invalid. As for notes, the full fence
//! that this needs on both sides is paid by the releasing side (`membarrier`); where the system has none, no thread has
//! a way in.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, compiler_fence};

use millpond::bindings::{MOST_THREADS, thread_index};
use millpond::{Pool, Stream};

use crate::handle::{Kind, Slot};
use crate::in_use;
use crate::pool::{POOLS, PoolHandle, PoolObject};
use crate::stream::{AnyStream, STREAMS, StreamObject};

/// What the fast path knows of one thread, on a cache line of its own.
#[repr(align(64))]
struct Place {
    /// Whether the thread is inside, and so uses one object of each kind.
    inside: AtomicBool,
    /// Of the pool and the stream that the thread last used. Only the thread itself writes and reads them.
    pool: AtomicPtr<Slot<PoolObject>>,
    stream: AtomicPtr<Slot<StreamObject>>,
}

/// For those who have used none yet.
static NO_POOL: Slot<PoolObject> = Slot::vacant();
static NO_STREAM: Slot<StreamObject> = Slot::vacant();

/// By the thread's index. That of threads without one knows no slots, and never will.
static PLACES: [Place; MOST_THREADS + 1] = [const {
    Place {
        inside: AtomicBool::new(false),
        pool: AtomicPtr::new((&raw const NO_POOL).cast_mut()),
        stream: AtomicPtr::new((&raw const NO_STREAM).cast_mut()),
    }
}; MOST_THREADS + 1];

/// Places that may be in use: all below it.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The thread is inside as long as this lives.
struct Inside(&'static Place);

impl Inside {
    #[inline]
    fn new() -> Self {
        // SAFETY: an index is at most `MOST_THREADS`.
        let place = unsafe { PLACES.get_unchecked(thread_index()) };
        // Relaxed: ordered before the looks at the slots by the fence.
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

/// Calls with the pool and the stream. `None` where the general path must be taken; nothing was done then.
///
/// `call` must not wait, call back or panic, and gives `None` where it did nothing.
#[inline(always)]
pub(crate) fn call<R>(
    pool: *mut PoolHandle,
    stream: AnyStream,
    call: impl FnOnce(&Pool, &Stream) -> Option<R>,
) -> Option<R> {
    let Inside(place) = &Inside::new();
    // Relaxed: the thread's own.
    let (pools, streams) = (place.pool.load(Ordering::Relaxed), place.stream.load(Ordering::Relaxed));
    // SAFETY: a slot is static, or in a table that frees none; and this thread is inside until the call returns.
    let object = unsafe { (*pools).look(pool.addr() as u64) }?;
    let stream = if stream.is_null() {
        object.context.known_default_stream()?
    } else {
        // SAFETY: as above.
        &unsafe { (*streams).look(stream.addr() as u64) }?.stream
    };
    call(&object.pool, stream)
}

/// Lets the calling thread's next calls with this pool and stream take the fast path, if both are valid then.
#[cold]
pub(crate) fn remember(pool: *mut PoolHandle, stream: AnyStream) {
    let index = thread_index();
    if index == 0 || !in_use::has_membarrier() {
        return;
    }
    // SeqCst: before this thread's first look at a slot, in the one order that `wait_for_calls` fences in, too: who
    // does not see the place in use made his handle invalid before that look.
    if USED.load(Ordering::Relaxed) <= index {
        USED.fetch_max(index + 1, Ordering::SeqCst);
    }
    let place = &PLACES[index];
    if let Some(slot) = POOLS.slot(pool.addr() as u64) {
        place.pool.store(ptr::from_ref(slot).cast_mut(), Ordering::Relaxed);
    }
    let is_registered = Kind::of(stream.addr() as u64).is_some();
    if let Some(slot) = STREAMS.slot(stream.addr() as u64).filter(|_| is_registered) {
        place.stream.store(ptr::from_ref(slot).cast_mut(), Ordering::Relaxed);
    }
}

/// Waits until every thread that may still use a handle on the fast path, which was made invalid before, has left it.
pub(crate) fn wait_for_calls() {
    in_use::heavy_fence();
    for place in &PLACES[..USED.load(Ordering::SeqCst)] {
        // Acquire: what the thread did with the object happened before its end, which follows.
        while place.inside.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}
