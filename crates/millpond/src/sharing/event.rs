//! The event that orders the work of several processes on shared memory.

use std::fmt;
use std::sync::Arc;

use super::lease::Borrowed;
use crate::device::{DeviceError, StreamHandle};
use crate::error::{Error, Result};
use crate::order::{OwnedEvent, Stream, Timelines};

/// An event that several processes have: the order of their work on shared memory.
///
/// Each of them may record it and wait for it. It stands for the record that was made last, by anybody. So tell the other
/// process, over a socket for example, once it is recorded.
///
/// As long as a process has it, the memory that came with it counts as in use.
///
/// ```
/// # use millpond::{Buffer, Context, Pool, Received};
/// # let device = Context::host()?;
/// # let (pool, stream) = (Pool::builder(&device).build()?, device.create_stream()?);
/// # let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
/// let mut buffer = Buffer::from_slice(&pool, &[1_u32; 100], &stream)?;
/// let shared = buffer.share()?;
/// # shared.send(&here)?;
/// # let its_stream = device.create_stream()?;
/// # let opened = device.open_shared::<u32>(Received::receive(&there)?, &its_stream)?;
/// buffer.copy_from_slice(&[2; 100])?;
/// shared.event().record(&stream)?; // then say so to the other process
/// // … in the other process:
/// opened.event.wait(&its_stream)?; // the host does not wait
/// assert_eq!(opened.buffer.to_vec()?, [2; 100]);
/// # Ok::<(), millpond::Error>(())
/// ```
pub struct SharedEvent {
    // Before the lease: fields are dropped in order.
    pub(super) event: Arc<OwnedEvent>,
    pub(super) timelines: Arc<Timelines>,
    /// `None` in the process that made it.
    pub(super) lease: Option<Arc<Borrowed>>,
}

impl SharedEvent {
    /// Lets the event stand for all work given to `stream` so far.
    ///
    /// # Errors
    /// [`Error::OwnerGone`] where the process that made it is gone. [`DeviceError::Invalid`] for a stream of another context
    /// or one that is being captured. Else the device's own.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        let handle = self.usable("SharedEvent::record", stream)?;
        // SAFETY: the event lives as long as this, and the stream is valid.
        Ok(unsafe { self.timelines.device().record_event(self.event.handle, handle) }?)
    }

    /// Makes later work on `stream` wait for what the event stands for now. The host does not wait.
    ///
    /// # Errors
    /// As for [`record`](Self::record).
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        let handle = self.usable("SharedEvent::wait", stream)?;
        // SAFETY: as in `record`.
        Ok(unsafe { self.timelines.device().wait_event(handle, self.event.handle) }?)
    }

    /// Whether the work that the event stands for is complete. Does not wait.
    ///
    /// # Errors
    /// [`Error::OwnerGone`], or the device's own.
    pub fn query(&self) -> Result<bool> {
        self.check_owner()?;
        Ok(self.event.query()?)
    }

    fn usable(&self, call: &'static str, stream: &Stream) -> Result<StreamHandle> {
        self.check_owner()?;
        if !Arc::ptr_eq(stream.timelines(), &self.timelines) {
            let what = "the stream belongs to another device: use one of the event's own context".to_owned();
            return Err(DeviceError::Invalid { call, what }.into());
        }
        stream.check_not_captured(call, "have events of other processes")?;
        stream.handle_here()
    }

    /// Once its maker has destroyed an event, to use it is undefined (`cuIpcGetEventHandle`).
    fn check_owner(&self) -> Result<()> {
        self.timelines.check_process()?;
        match &self.lease {
            Some(lease) if lease.owner_is_gone() => Err(Error::OwnerGone),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for SharedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedEvent").field("is_own", &self.lease.is_none()).finish_non_exhaustive()
    }
}
