//! Shortcuts: the look-ups before a request reaches its magazines, made once for all requests of a thread for one pool
//! and stream.

use std::ptr::NonNull;
use std::sync::Arc;

use super::caches::Caches;
use super::thread::ThreadCache;
use crate::device::DevicePtr;
use crate::order::{Stream, StreamKey, Timeline};

/// The way of one thread to the blocks that it has ready in a pool for work on a stream. It keeps neither alive.
///
/// ```
/// use millpond::bindings::Shortcut;
///
/// let device = millpond::Context::host()?;
/// let (pool, stream) = (millpond::Pool::builder(&device).build()?, device.create_stream()?);
/// let block = pool.alloc(1000, &stream)?;
/// // SAFETY: nobody else has the block.
/// unsafe { pool.free(block, &stream) }?; // the thread caches blocks of this size from now on
/// let block = pool.alloc(1000, &stream)?;
/// let shortcut = Shortcut::new(&pool, &stream).expect("the thread had a block");
/// // SAFETY: nobody else has the block. Pool and stream are alive, and this is the thread.
/// unsafe {
///     assert!(shortcut.free(block));
///     assert_eq!(shortcut.alloc(1000), Some(block));
///     pool.free(block, &stream)?;
/// }
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Shortcut {
    caches: NonNull<Caches>,
    mine: NonNull<ThreadCache>,
    stream: StreamKey,
    timeline: NonNull<Timeline>,
}

impl Shortcut {
    /// The calling thread's; `None` where it has no cache.
    pub(crate) fn of_thread(caches: &Caches, stream: &Stream) -> Option<Self> {
        let mine = caches.threads.mine();
        mine.is_owned().then(|| Self {
            caches: NonNull::from(caches),
            mine: NonNull::from(mine),
            stream: stream.key(),
            timeline: NonNull::from(Arc::as_ref(stream.timeline())),
        })
    }

    /// What [`Pool::alloc`](crate::Pool::alloc) does first: a block that the thread's magazines have ready. `None`, and nothing
    /// done, where they have none, whatever the reason.
    ///
    /// # Safety
    /// A clone of the pool and one of the stream are alive. This is the thread that made the shortcut, and its
    /// [end](crate::bindings::on_thread_end) was not told.
    #[inline(always)]
    #[must_use]
    pub unsafe fn alloc(&self, bytes: u64) -> Option<DevicePtr> {
        // SAFETY: the caller's promise: the caches are there, in what all clones of the pool share. A thread's cache stays as
        // long as they do, and is its own as long as it has its index.
        unsafe { self.caches.as_ref().get(self.mine.as_ref(), bytes, self.stream) }
    }

    /// What [`Pool::free`](crate::Pool::free) does first: takes the block into the thread's magazines. `false`, and nothing
    /// done, where it is not as simple as that.
    ///
    /// # Safety
    /// As for [`alloc`](Self::alloc).
    #[inline(always)]
    #[must_use]
    pub unsafe fn free(&self, ptr: DevicePtr) -> bool {
        // SAFETY: as in `alloc`; and a stream keeps its timeline.
        unsafe {
            let caches = self.caches.as_ref();
            caches.put::<false>(self.mine.as_ref(), ptr, self.stream, || self.timeline.as_ref()).is_some()
        }
    }
}
