//! Events that the program records and waits for, and what they teach the pool about order.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use super::{Fence, OwnedEvent, Timelines};
use crate::device::EventHandle;
use crate::error::Result;

/// A point in a stream's work. Made by [`Stream::record`](super::Stream::record).
///
/// Streams that [wait](super::Stream::wait) for it are ordered after it. Pools know that, and let memory pass.
///
/// ```
/// use millpond::{Buffer, Context, Pool};
///
/// let device = Context::host()?;
/// let pool = Pool::builder(&device).build()?;
/// let (load, compute) = (device.create_stream()?, device.create_stream()?);
/// let inputs = Buffer::<f32>::from_slice(&pool, &[1.0; 256], &load)?;
/// let loaded = load.record()?;
/// compute.wait(&loaded)?; // later work on `compute` is ordered after the copy; the host does not wait
/// loaded.synchronize()?; // the host waits
/// assert!(loaded.query()?);
/// # drop(inputs);
/// # Ok::<(), millpond::Error>(())
/// ```
#[must_use = "an event orders what waits for it"]
pub struct Event {
    pub(super) timelines: Arc<Timelines>,
    pub(super) event: OwnedEvent,
    /// Everything that is complete once the event is.
    pub(super) clock: Fence,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.timelines.device().properties().short();
        f.debug_struct("Event")
            .field("handle", &self.event.handle.raw())
            .field("device", &device)
            .finish_non_exhaustive()
    }
}

// No invariant of an event is broken by a panic: it does not change.
impl UnwindSafe for Event {}
impl RefUnwindSafe for Event {}

impl Event {
    /// The driver's handle (`CUevent`), valid as long as this event lives. Pools do not see it if you record it again
    /// by other means.
    #[must_use]
    pub fn handle(&self) -> EventHandle {
        self.event.handle
    }

    /// Whether the work before the event is complete. Does not wait.
    ///
    /// # Errors
    /// The device's own.
    pub fn query(&self) -> Result<bool> {
        self.timelines.check_process()?;
        let complete = self.event.query()?;
        if complete {
            self.timelines.note_synchronized(&self.clock);
        }
        Ok(complete)
    }

    /// Waits until the work before the event is complete. Then the pools of the device give back what lies above their
    /// release thresholds.
    ///
    /// # Errors
    /// The device's own.
    pub fn synchronize(&self) -> Result<()> {
        self.timelines.check_process()?;
        self.event.synchronize()?;
        self.timelines.note_synchronized(&self.clock);
        self.timelines.after_sync();
        Ok(())
    }
}
