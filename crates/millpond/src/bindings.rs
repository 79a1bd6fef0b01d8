//! What bindings to other languages need, so that their own part of a call stays as short as the pool's.
//!
//! A binding finds the pool and the stream that a handle stands for, and must keep them while it uses them. With these,
//! it does so for a few nanoseconds in the common case: the calls never wait, call back or fail.

use crate::cache;
use crate::device::DevicePtr;
use crate::order::Stream;
use crate::pool::Pool;

/// Threads that have an [index](thread_index) at the same time, at most.
pub const MOST_THREADS: usize = cache::MOST_THREADS;

/// A number of the calling thread that no other thread has, from 1 to [`MOST_THREADS`]; 0 while it has none. A thread
/// gets one when a pool first caches for it. When it ends another thread may get it. (Of some thousand threads, a few
/// are told 0 all the time.)
#[inline(always)]
pub fn thread_index() -> usize {
    cache::index_by_pointer()
}

/// What [`Pool::alloc`] does first: a block that the calling thread's magazines have ready. `None`, and nothing done,
/// where they have none, whatever the reason.
///
/// # Safety
/// `thread` is what [`thread_index`] just said.
#[inline]
pub unsafe fn alloc_cached(pool: &Pool, thread: usize, bytes: u64, stream: &Stream) -> Option<DevicePtr> {
    // SAFETY: the caller's promise.
    unsafe { pool.inner().alloc_cached(thread, bytes, stream) }
}

/// What [`Pool::free`] does first: takes the block into the calling thread's magazines. `false`, and nothing done, where
/// it is not as simple as that.
///
/// # Safety
/// As for [`alloc_cached`].
#[inline]
#[must_use]
pub unsafe fn free_cached(pool: &Pool, thread: usize, ptr: DevicePtr, stream: &Stream) -> bool {
    // SAFETY: the caller's promise.
    unsafe { pool.inner().free_cached(thread, ptr, stream) }
}
