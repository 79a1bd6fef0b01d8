//! Streams that their owners registered: whoever presents the handle is given the one timeline.

use std::ops::Deref;
use std::sync::Arc;

use super::timeline::Promise;
use super::{Stream, Timelines};
use crate::device::StreamHandle;
use crate::error::Result;

/// A stream of somebody else's that stays until this is dropped ([`Context::register_stream`](crate::Context::register_stream)).
///
/// As long as it lives, [`Context::foreign_stream`](crate::Context::foreign_stream) finds the stream by its handle. So all who are given the
/// handle share what is cached of it, and a free on it costs no event. A drop ends the registration. It records an event, so that
/// what was freed before is known to be complete in time, and the host does not wait. Then the stream may be destroyed.
///
/// Clones of the [`Stream`] that are left then are of a stream that is gone. Calls with them are errors, but frees: that memory
/// is used again once the device is synchronised.
///
/// ```
/// use millpond::{Context, Pool};
///
/// let device = Context::host()?;
/// let pool = Pool::builder(&device).build()?;
/// let raw = device.device().create_stream()?; // or a CUstream
/// // SAFETY: the stream is destroyed below, after the registration.
/// let registered = unsafe { device.register_stream(raw) }?;
/// // SAFETY: it is alive.
/// let found = unsafe { device.foreign_stream(raw) }?; // finds it
/// let block = pool.alloc(1 << 20, &found)?;
/// // SAFETY: nobody else has the block, and there is no work on it.
/// unsafe { pool.free(block, &registered) }?;
/// drop((found, registered));
/// // SAFETY: nobody uses it any more.
/// unsafe { device.device().destroy_stream(raw) }?;
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the registration ends when this is dropped"]
pub struct RegisteredStream {
    stream: Stream,
    /// Once it was withdrawn: whether the promise ends with it that the handle is valid. Else another registration goes
    /// on, or the stream needs none.
    ends: Option<bool>,
}

impl Deref for RegisteredStream {
    type Target = Stream;

    #[inline]
    fn deref(&self) -> &Stream {
        &self.stream
    }
}

impl RegisteredStream {
    /// Registers a stream that somebody else made. One that needs no such promise is found without it.
    ///
    /// # Safety
    /// The handle is valid until what is returned is gone.
    pub(crate) unsafe fn register(timelines: &Arc<Timelines>, handle: StreamHandle) -> Result<Self> {
        // SAFETY: the caller's promise.
        let held = unsafe { timelines.adopt(handle, Promise::WhileRegistered) }?;
        Ok(Self { stream: Stream::new(held.keep_context()), ends: None })
    }

    /// The first part of a drop: from now on, whoever presents the handle is not given this stream, unless it is
    /// registered a second time.
    pub(crate) fn withdraw(&mut self) {
        // A forked child's parent has it registered.
        if self.ends.is_none() && self.stream.timelines().is_here() {
            self.ends = Some(self.stream.timelines().unregister(&self.stream.inner));
        }
    }
}

impl Drop for RegisteredStream {
    fn drop(&mut self) {
        self.withdraw();
        // Nobody gets another clone. Without one, the end of the timeline is this.
        if self.ends == Some(true) && Arc::strong_count(&self.stream.inner) > 1 {
            self.stream.timelines().close_last(self.stream.timeline());
        }
    }
}
