//! Pinned memory of the host that a feature keeps for its copies, with a stream: to lock it takes longer than to copy to it.

use std::sync::Arc;

use crate::device::{Device, DeviceError, DevicePtr, DeviceResult, StreamHandle};
use crate::log::log;

/// See the [module](self). Dropped, it goes back to the host.
#[derive(Debug, Default)]
pub(crate) struct PinnedMemory {
    /// The pinned memory, as a device, once there was any.
    device: Option<Arc<dyn Device>>,
    /// First address and bytes of each.
    pub(crate) segments: Vec<(DevicePtr, u64)>,
    /// The stream of the copies, once there were any, and the device that has it.
    stream: Option<(Arc<dyn Device>, StreamHandle)>,
}

impl PinnedMemory {
    /// Takes a segment of at least so many bytes, for copies of this device. Returns where it begins, and its bytes.
    pub(crate) fn add(&mut self, of: &dyn Device, bytes: u64) -> DeviceResult<(DevicePtr, u64)> {
        if self.segments.try_reserve(1).is_err() {
            let bytes = size_of::<(DevicePtr, u64)>() as u64;
            return Err(DeviceError::HostMemory { what: "a list of segments", bytes });
        }
        let pinned = match &self.device {
            Some(pinned) => pinned,
            None => self.device.insert(of.pinned(None)?),
        };
        let bytes = bytes.next_multiple_of(pinned.properties().granularity);
        let at = pinned.alloc_segment(bytes)?;
        self.segments.push((at, bytes));
        Ok((at, bytes))
    }

    /// The stream of the copies. No pool is ordered by it.
    pub(crate) fn stream(&mut self, of: &Arc<dyn Device>) -> DeviceResult<StreamHandle> {
        let (_, stream) = match &self.stream {
            Some(known) => known,
            None => self.stream.insert((of.clone(), of.create_stream()?)),
        };
        Ok(*stream)
    }

    /// Waits for all copies on the stream.
    pub(crate) fn wait(&self) -> DeviceResult<()> {
        let Some((device, stream)) = &self.stream else { return Ok(()) };
        // SAFETY: the stream is ours.
        unsafe { device.synchronize_stream(*stream) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Gives all of it back to the host, which waits for copies to and from it. What cannot be given back stays. Returns the bytes
    /// given back.
    pub(crate) fn release(&mut self) -> DeviceResult<u64> {
        let (before, mut done) = (self.bytes(), Ok(()));
        if let Some(pinned) = &self.device {
            self.segments.retain(|(at, _)| {
                // SAFETY: the segment is ours, and nobody is told of it. The device waits for copies to and from it.
                let freed = unsafe { pinned.free_segment(*at) };
                freed.inspect_err(|error| done = Err(error.clone())).is_err()
            });
        }
        done.map(|()| before - self.bytes())
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let stream = self.stream.take().map_or(Ok(()), |(device, stream)| {
            // SAFETY: the stream is ours, and goes here.
            unsafe { device.destroy_stream(stream) }
        });
        if let Err(error) = self.release().and(stream) {
            log!(
                WARN,
                "pinned memory of a pool, or the stream of its copies, could not be given back",
                error
            );
        }
    }
}
