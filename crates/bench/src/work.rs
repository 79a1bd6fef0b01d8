//! Work that keeps a stream busy for some microseconds.

use std::sync::Arc;
use std::time::Duration;

use millpond::Stream;
use millpond::device::sim::SimDevice;
use millpond::device::{Device, DevicePtr, Kind};

use crate::Result;
use crate::target::Opened;

/// What a GPU sets in about 20 µs.
const GPU_BYTES: u64 = 64 << 20;
/// What a core sets in about 20 µs.
const HOST_BYTES: u64 = 256 << 10;
const SIMULATED: Duration = Duration::from_micros(20);

/// A kernel's stand-in for one stream: setting memory, or on the simulated device so much of its time.
#[derive(Debug)]
pub(crate) struct Work {
    device: Arc<dyn Device>,
    sim: Option<Arc<SimDevice>>,
    scratch: DevicePtr,
    bytes: u64,
}

impl Work {
    pub(crate) fn new(opened: &Opened) -> Result<Self> {
        let device = opened.context.device().clone();
        let bytes = if device.properties().kind == Kind::Cuda { GPU_BYTES } else { HOST_BYTES };
        let scratch = device.alloc_segment(bytes)?;
        Ok(Self { device, sim: opened.sim.clone(), scratch, bytes })
    }

    /// Gives the stream work. One stream only: work on two would write to the same memory at once.
    pub(crate) fn launch(&self, stream: &Stream) -> Result<()> {
        match &self.sim {
            Some(sim) => sim.launch(stream.handle(), SIMULATED)?,
            // SAFETY: the scratch memory is ours until the drop, which waits, and one stream writes to it in order.
            None => unsafe { self.device.memset(self.scratch, 0, self.bytes, stream.handle()) }?,
        }
        Ok(())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // SAFETY: it came from `alloc_segment`, nobody else knows it, and the call waits for work that uses it.
        // Refused, it stays the device's until that goes.
        unsafe { self.device.free_segment(self.scratch) }.ok();
    }
}
