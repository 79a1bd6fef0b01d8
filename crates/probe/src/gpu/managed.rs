//! Managed memory: what a kernel gets of it that the host has, and what prefetches do.

use std::sync::Arc;

use millpond::device::{Device, Place};

use super::kernels::Gpu;
use crate::Result;
use crate::owned::{OwnedStream, Segment};
use crate::run::{Run, Scale, timed};

/// Bytes at most: faults take long.
const MOST: u64 = 256 << 20;

pub(crate) fn measure(gpu: &Gpu, device: &Arc<dyn Device>, run: &mut Run<'_>) -> Result<()> {
    let bytes = run.effort.most_bytes.min(MOST);
    let managed = device.managed()?;
    let (memory, stream) = (Segment::new(&managed, bytes)?, OwnedStream::new(device)?);
    let move_to = |place: Place| {
        timed(|| {
            // SAFETY: the stream is valid, and the segment lives until after the wait.
            unsafe { managed.prefetch(memory.at(), bytes, place, stream.handle()) }?;
            stream.wait()
        })
    };
    // SAFETY: the segment has so many bytes, and nothing else uses it.
    let read = || unsafe { gpu.read(memory.at(), bytes) };
    // SAFETY: the segment has so many bytes, lives until after the wait, and nothing else uses it.
    unsafe { device.memset(memory.at(), 0, bytes, stream.handle()) }?;
    stream.wait()?;
    run.figure("read while the host has it", None, Scale::Bytes(bytes), || {
        move_to(Place::Host)?;
        read()
    });
    let names = ["prefetch to the GPU", "read after a prefetch", "prefetch to the host"];
    run.figures(names.map(|name| (name, Scale::Bytes(bytes))), None, || {
        move_to(Place::Host)?;
        let to_gpu = move_to(Place::Device)?;
        Ok([to_gpu, read()?, move_to(Place::Host)?])
    });
    Ok(())
}
