//! The fast path: a pool and a registered stream, or the default one, that the thread used before. A registered stream
//! has it by the driver's handle, too.
//!
//! It differs from the general path in what it does not do. It neither catches panics nor makes a
//! [`Failure`](crate::failure::Failure), since what it calls can neither panic nor fail: it looks into the thread's
//! magazines only. Whatever is not as it expects it leaves to the general path, which says what is wrong. Where that
//! found pool and stream, it leaves a [`Shortcut`] in the thread's `place`, under the two handles.
//!
//! How an object stays while it is used here, `place` says.

use millpond::bindings::Shortcut;

use crate::kind::{AnyStream, PoolHandle};
use crate::places;
use crate::pool::{POOLS, PoolObject};
use crate::stream::FoundStream;
use crate::sync::has_membarrier;

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
    // SAFETY: the place is this thread's.
    unsafe { places::mine()?.call((pool, stream), None, call) }
}

/// As [`call`], of a call that begins (1) or ends (-1) the life of a block that holds the pool and the stream.
#[inline(always)]
pub(crate) fn call_counting<R>(
    pool: *mut PoolHandle,
    stream: AnyStream,
    by: i64,
    call: impl FnOnce(&Shortcut) -> Option<R>,
) -> Option<R> {
    // SAFETY: the place is this thread's.
    unsafe { places::mine()?.call((pool, stream), Some(by), call) }
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
    if !has_membarrier() || !lasts() {
        return;
    }
    let Some(shortcut) = Shortcut::new(&object.pool, found) else { return };
    let Some(place) = places::take() else { return };
    // SAFETY: the place is this thread's, which is on the general path, where it has both in use.
    unsafe { place.remember((pool, &object.holds), (stream, found.holds()), shortcut, lasts) };
}
