//! Order between streams of different GPUs.

use std::ffi::c_int;

use millpond::Stream;
use millpond::device::DeviceResult;

use crate::devices::{Device, device};
use crate::failure::Result;

/// Makes later work on a stream wait for what a stream of another GPU was given so far.
pub(super) fn wait_for_another_gpu(here: &Device, stream: &Stream, gpu: c_int, user: u64) -> Result<()> {
    let other = device(gpu.into())?;
    // SAFETY: PyTorch's streams live as long as the process.
    let user = unsafe { other.streams.find(user) }?;
    let (here, there) = (here.context.device(), other.context.device());
    let event = there.create_event()?;
    let waits = || -> DeviceResult<()> {
        // SAFETY: the event is that GPU's, and so is the stream; the other stream is this GPU's. A stream may wait for
        // an event of another GPU.
        unsafe {
            there.record_event(event, user.handle_here()?)?;
            here.wait_event(stream.handle_here()?, event)
        }
    };
    let done = waits();
    // SAFETY: made above; the driver keeps it until nobody waits for it.
    unsafe { there.destroy_event(event) }?;
    Ok(done?)
}
