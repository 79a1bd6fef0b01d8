//! What bindings to other languages need, so that their own part of a call stays as short as the pool's.
//!
//! A binding finds the pool and the stream that a handle stands for, and must keep them while it uses them. A thread
//! that asks for the same two again and again may remember a [`Shortcut`] instead. Its calls take a few nanoseconds:
//! they never wait, call back or fail.

use crate::cache;
use crate::device::DevicePtr;
pub use crate::lock::{Condvar, Mutex, MutexGuard, RwLock};
use crate::order::Stream;
use crate::pool::Pool;
pub use crate::process::{Forked, PerProcess, Process, on_fork};

/// The way of one thread to the blocks that it has ready in a pool for work on a stream. It keeps neither alive.
#[derive(Debug, Clone, Copy)]
pub struct Shortcut(cache::Shortcut);

impl Shortcut {
    /// The calling thread's; `None` where it has none, as before it first had a block of the pool.
    pub fn new(pool: &Pool, stream: &Stream) -> Option<Self> {
        cache::Shortcut::new(&pool.inner().caches, stream).map(Self)
    }

    /// What [`Pool::alloc`] does first: a block that the thread's magazines have ready. `None`, and nothing done,
    /// where they have none, whatever the reason.
    ///
    /// # Safety
    /// A clone of the pool and one of the stream are alive. This is the thread that made the shortcut, and its
    /// [end](on_thread_end) was not told.
    #[inline(always)]
    pub unsafe fn alloc(&self, bytes: u64) -> Option<DevicePtr> {
        // SAFETY: the caller's promise. The caches lie in what all clones of the pool share.
        unsafe { self.0.alloc(bytes) }
    }

    /// What [`Pool::free`] does first: takes the block into the thread's magazines. `false`, and nothing done, where
    /// it is not as simple as that.
    ///
    /// # Safety
    /// As for [`alloc`](Self::alloc).
    #[inline(always)]
    #[must_use]
    pub unsafe fn free(&self, ptr: DevicePtr) -> bool {
        // SAFETY: as in `alloc`.
        unsafe { self.0.free(ptr) }
    }
}

/// Has `tell` called on each thread that ends after it could make a [`Shortcut`]; from then on it makes none. It is called
/// as often as it is named here. It must not lock: see `cache/thread_index.rs`.
pub fn on_thread_end(tell: fn()) {
    cache::on_thread_end(tell);
}
