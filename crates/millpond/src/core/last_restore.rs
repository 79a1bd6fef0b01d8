//! The copies of a tag's last restore: work that is given on its memory later comes behind them.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::{DeviceError, DeviceResult};
use crate::order::{Fence, Stream, Timelines};
use crate::system::lock::Mutex;

/// See the [module](self). Each stream waits for them before the first work that it is given here. So a restore has no stream wait
/// that uses nothing of the tag.
#[derive(Debug, Default)]
pub(crate) struct LastRestore {
    /// Whether the copies may be under way.
    is_under_way: AtomicBool,
    copies: Mutex<Fence>,
}

impl LastRestore {
    /// The gate is closed.
    pub(crate) fn begin(&self, copies: Fence) {
        *self.copies.lock() = copies;
        // Relaxed: who enters the gate, once that is opened, comes after this.
        self.is_under_way.store(true, Ordering::Relaxed);
    }

    /// Orders what `stream` is given next behind the copies.
    #[inline]
    pub(crate) fn order(&self, timelines: &Timelines, stream: &Stream) -> DeviceResult<()> {
        // Acquire: pairs with the Release in `order_slow`, so that what the copies wrote is there.
        if self.is_under_way.load(Ordering::Acquire) { self.order_slow(timelines, stream) } else { Ok(()) }
    }

    #[cold]
    fn order_slow(&self, timelines: &Timelines, stream: &Stream) -> DeviceResult<()> {
        // Held, so that no other thread passes before this stream waits.
        let copies = self.copies.lock();
        let is_complete = || timelines.is_complete(&copies);
        if !is_complete() && timelines.make_wait(&copies, stream.timeline())? {
            return Ok(());
        }
        if !is_complete() {
            timelines.poll(&copies)?;
        }
        if !is_complete() {
            let what = "the stream is being captured, and its pool's last restore is under way: have the stream wait for the one that was \
                        given to restore, before the capture";
            return Err(DeviceError::Invalid { call: "Pool::restore", what: what.to_owned() });
        }
        // Under the lock: no restore has begun since. Release: as in `order`.
        self.is_under_way.store(false, Ordering::Release);
        Ok(())
    }
}
