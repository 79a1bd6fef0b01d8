//! Shortcuts: the look-ups before a request reaches its magazines, made once for all requests of a thread for one pool
//! and stream.

use std::ptr::NonNull;
use std::sync::Arc;

use super::caches::Caches;
use super::thread::ThreadCache;
use crate::device::DevicePtr;
use crate::order::{Stream, StreamKey, Timeline};

/// See [`crate::bindings::Shortcut`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shortcut {
    caches: NonNull<Caches>,
    mine: NonNull<ThreadCache>,
    stream: StreamKey,
    timeline: NonNull<Timeline>,
}

impl Shortcut {
    /// The calling thread's; `None` where it has no cache.
    pub(crate) fn new(caches: &Caches, stream: &Stream) -> Option<Self> {
        let mine = caches.threads.mine();
        mine.is_owned().then(|| Self {
            caches: NonNull::from(caches),
            mine: NonNull::from(mine),
            stream: stream.key(),
            timeline: NonNull::from(Arc::as_ref(stream.timeline())),
        })
    }

    /// As [`Caches::alloc`].
    ///
    /// # Safety
    /// The caches stay where they are, and the stream exists. The shortcut was made for the calling thread, which has
    /// kept its index since.
    #[inline(always)]
    pub(crate) unsafe fn alloc(&self, bytes: u64) -> Option<DevicePtr> {
        // SAFETY: the caller's promise: the caches are there. A thread's cache stays as long as they do, and is its own
        // as long as it has its index.
        unsafe { self.caches.as_ref().get(self.mine.as_ref(), bytes, self.stream) }
    }

    /// As [`Caches::free`].
    ///
    /// # Safety
    /// As for [`alloc`](Self::alloc).
    #[inline(always)]
    pub(crate) unsafe fn free(&self, ptr: DevicePtr) -> bool {
        // SAFETY: as in `alloc`; and a stream keeps its timeline.
        unsafe {
            let caches = self.caches.as_ref();
            caches.put::<false>(self.mine.as_ref(), ptr, self.stream, || self.timeline.as_ref()).is_some()
        }
    }
}
