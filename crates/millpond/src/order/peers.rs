//! Streams of several devices: which may wait for each other, and who stands for a stream on another device.
//!
//! Each device has timelines of its own, and its fences name no others. So for a stream that uses memory of another device,
//! a *stand-in* is made there: a stream without work, which waits for that one's events. Who waits for the stand-in waits for
//! the stream.

use std::sync::Arc;

use super::{Marking, Stream, Timelines};
use crate::device::DeviceResult;

impl Timelines {
    /// Whether streams of both may wait for each other's events.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        let ids = self.device().peer_id().zip(other.device().peer_id());
        ids.is_some_and(|(one, other)| one.is_beside(other))
    }
}

impl Stream {
    /// A stream of `timelines`, which is ordered after all work that this one was given so far.
    pub(crate) fn stand_in(&self, timelines: &Arc<Timelines>) -> DeviceResult<Stream> {
        // It would become a part of the capture.
        self.check_not_captured("record_use", "order work of another device")?;
        let event = self.record()?;
        let known = {
            let stand_ins = self.inner.stand_ins.lock();
            stand_ins.iter().find(|known| Arc::ptr_eq(&known.timelines, timelines)).cloned()
        };
        let held = match known {
            Some(held) => held,
            None => {
                // Each tick is closed by an event. Whether a stream that only waits is idle, a driver need not know.
                let made = timelines.create(Marking::AtOnce)?;
                // Of two threads that come here at once, each adds one, and both are right.
                self.inner.stand_ins.lock().push(made.clone());
                made
            }
        };
        let stand_in = Stream::new(held);
        stand_in.wait(&event)?;
        Ok(stand_in)
    }
}
