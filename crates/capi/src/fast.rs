//! The fast path: a pool and a registered stream, or the default one, that the thread used before. A registered stream
//! has it by the driver's handle, too.
//!
//! It differs from the general path in what it does not do. It neither catches panics nor makes a
//! [`Failure`](crate::failure::Failure), since what it calls can neither panic nor fail: it looks into the thread's
//! magazines only. Whatever is not as it expects it leaves to the general path, which says what is wrong. Where that
//! found pool and stream, it leaves a [`Shortcut`] in the thread's `place`, under the two handles.
//!
//! **How an object stays** while it is used here: not by a note of its handle (`in_use`), but by one flag for the thread,
//! that it is inside. Who releases a handle makes it invalid first and takes every pair of it away (`place::forget`), then
//! waits until every thread was seen outside once (`place::wait_for_calls`). That is soon, for nothing here waits, and a
//! thread that is waited for takes the general path when it comes in next. Who comes in later finds no pair. As for notes, the full fence that this needs on both sides is paid by the releasing
//! side (`membarrier`); where the system has none, no thread has a way in.

use std::sync::atomic::{Ordering, compiler_fence, fence};

use millpond::bindings::Shortcut;

use crate::in_use;
use crate::kind::{AnyStream, PoolHandle};
use crate::place::Place;
use crate::pool::{POOLS, PoolObject};
use crate::stream::FoundStream;

/// The thread is inside as long as this lives.
struct Inside(&'static Place);

impl Inside {
    #[inline(always)]
    fn new(place: &'static Place) -> Self {
        // Relaxed: ordered before the look for the pair by the fence.
        place.inside.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Self(place)
    }
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: the use of the objects happens before whoever waits for this ends one.
        self.0.inside.store(false, Ordering::Release);
    }
}

/// Calls with the thread's shortcut for the pool and the stream. `None` where the general path must be taken; nothing
/// was done then.
///
/// `call` must not wait, call back or panic, and gives `None` where it did nothing. It may use the shortcut: the thread
/// is the one that made it, and both objects stay.
#[inline(always)]
pub(crate) fn call<R>(
    pool: *mut PoolHandle,
    stream: AnyStream,
    call: impl FnOnce(&Shortcut) -> Option<R>,
) -> Option<R> {
    let Inside(place) = &Inside::new(Place::mine()?);
    // SAFETY: the place is this thread's, and it is inside. If the pair is there, its handles were valid after it was
    // written (`remember`). Who releases one of them takes the pair away, then waits until this thread is outside,
    // before the object goes.
    let shortcut = unsafe { place.pair(pool, stream).find(pool, stream) }?;
    call(shortcut)
}

/// As [`call`], of a call that begins (1) or ends (-1) the life of a block that holds the pool and the stream.
#[inline(always)]
pub(crate) fn call_counting<R>(
    pool: *mut PoolHandle,
    stream: AnyStream,
    by: i64,
    call: impl FnOnce(&Shortcut) -> Option<R>,
) -> Option<R> {
    let Inside(place) = &Inside::new(Place::mine()?);
    let number = Place::number_of(pool, stream);
    // SAFETY: as in `call`.
    let shortcut = unsafe { place.pairs[number].find(pool, stream) }?;
    let result = call(shortcut)?;
    place.count(number, by);
    Some(result)
}

/// Lets the calling thread's next calls with this pool and stream take the fast path, if the stream is one that stays.
/// Both are in use. The pool stays where it is until its handle is released, and keeps the default stream until then.
#[cold]
pub(crate) fn remember(
    pool: *mut PoolHandle,
    stream: AnyStream,
    object: &PoolObject,
    found: &FoundStream<'_>,
) {
    let lasts = || found.lasts(stream) && object.holds.is_in_use() && POOLS.is_valid(pool);
    if !in_use::has_membarrier() || !lasts() {
        return;
    }
    let Some(shortcut) = Shortcut::new(&object.pool, found) else { return };
    let Some(place) = Place::take() else { return };
    // SAFETY: the place is this thread's, which is on the general path, where it has both in use.
    unsafe { place.set((pool, &object.holds), (stream, found.holds()), shortcut) };
    // Whoever releases a handle makes it invalid, gives it up, or its stream unregistered. Then it looks for pairs (`forget`), with
    // such a fence between: either it finds this one, or this thread finds that the handle does not last.
    fence(Ordering::SeqCst);
    if !lasts() {
        place.pair(pool, stream).take_away();
    }
}
