//! Copies: between host and device, between devices, on the device.

use std::sync::Arc;

use millpond::device::cuda::CudaDevice;
use millpond::device::{Device, DeviceName, Kind};
use millpond::{Buffer, Context, Pool, Stream};

use crate::Result;
use crate::owned::{OwnedStream, Segment};
use crate::run::{Run, Scale, timed};

/// The smallest copy.
const LEAST: u64 = 4 << 10;
/// What a batch of copies on the device moves at least, so that its submission is small beside it.
const BATCH_BYTES: u64 = 1 << 30;
/// Copies of a batch at most: streams take so many without making the host wait.
const MOST_IN_A_BATCH: u64 = 64;

/// Copies from and to memory of the host, pageable and pinned.
pub(crate) fn with_host(device: &Arc<dyn Device>, run: &mut Run<'_>) -> Result<()> {
    let most = run.effort.most_bytes;
    let owned = OwnedStream::new(device)?;
    let there = Segment::new(device, most)?;
    // Not zeros, so that every page is there.
    let mut pageable = vec![1_u8; most as usize];
    let pinned = device.pinned(None).map_err(Into::into).and_then(|memory| Segment::new(&memory, most));
    let pinned = pinned.map_err(|why| run.leave_out("pinned", &why)).ok();
    for bytes in run.sizes(LEAST) {
        let (at, stream, size) = (there.at(), owned.handle(), Some(bytes));
        run.figure("pageable, to the GPU", size, Scale::Bytes(bytes), || {
            timed(|| {
                // SAFETY: both have `most` bytes, live until after the wait, and nothing else uses them.
                unsafe { device.copy_from_host(at, pageable.as_ptr(), bytes, stream) }?;
                owned.wait()
            })
        });
        run.figure("pageable, from the GPU", size, Scale::Bytes(bytes), || {
            timed(|| {
                // SAFETY: as above.
                unsafe { device.copy_to_host(pageable.as_mut_ptr(), at, bytes, stream) }?;
                owned.wait()
            })
        });
        let Some(pinned) = &pinned else { continue };
        for (what, to, from) in
            [("pinned, to the GPU", at, pinned.at()), ("pinned, from the GPU", pinned.at(), at)]
        {
            run.figure(what, size, Scale::Bytes(bytes), || {
                timed(|| {
                    // SAFETY: as above.
                    unsafe { device.copy(to, from, bytes, stream) }?;
                    owned.wait()
                })
            });
        }
    }
    Ok(())
}

/// Copies and fills within the device's memory.
pub(crate) fn within(device: &Arc<dyn Device>, run: &mut Run<'_>) -> Result<()> {
    let most = run.effort.most_bytes;
    let owned = OwnedStream::new(device)?;
    let (from, to) = (Segment::new(device, most)?, Segment::new(device, most)?);
    for bytes in run.sizes(LEAST) {
        let times = (BATCH_BYTES / bytes).clamp(1, MOST_IN_A_BATCH);
        let stream = owned.handle();
        run.figure("copy", Some(bytes), Scale::Bytes(2 * bytes * times), || {
            timed(|| {
                for _ in 0..times {
                    // SAFETY: both have `most` bytes, live until after the wait, and only this stream uses them.
                    unsafe { device.copy(to.at(), from.at(), bytes, stream) }?;
                }
                owned.wait()
            })
        });
        run.figure("fill", Some(bytes), Scale::Bytes(bytes * times), || {
            timed(|| {
                for _ in 0..times {
                    // SAFETY: as above.
                    unsafe { device.memset(to.at(), 0, bytes, stream) }?;
                }
                owned.wait()
            })
        });
    }
    Ok(())
}

/// Copies to and from each other GPU of the machine.
pub(crate) fn with_peers(device: &Arc<dyn Device>, run: &mut Run<'_>) -> Result<()> {
    let here = device.properties().ordinal;
    let gpus = DeviceName::present().filter(|name| name.kind() == Kind::Cuda && name.ordinal() != here);
    let gpus: Vec<_> = gpus.collect();
    if gpus.is_empty() {
        run.leave_out("peers", &"this process sees one GPU");
        return Ok(());
    }
    let reachable = CudaDevice::new(here)?.facts()?.peers;
    // Blocks of pools: their pages are within each other's reach, where `cudaMalloc`'s memory is not.
    let (ours, stream) = block(device, run.effort.most_bytes)?;
    for name in gpus {
        let (theirs, _their_stream) = block(&name.open()?, run.effort.most_bytes)?;
        let way = if reachable.contains(&name.ordinal()) { "" } else { ", by way of the host" };
        let [to, from] = [format!("to {name}{way}"), format!("from {name}{way}")];
        for bytes in run.sizes(LEAST) {
            for (what, to, from) in [(&to, theirs.ptr(), ours.ptr()), (&from, ours.ptr(), theirs.ptr())] {
                run.figure(what, Some(bytes), Scale::Bytes(bytes), || {
                    timed(|| {
                        // SAFETY: both have `most_bytes` bytes, live until after the wait, and only this stream uses them.
                        unsafe { device.copy(to, from, bytes, stream.handle()) }?;
                        Ok(stream.synchronize()?)
                    })
                });
            }
        }
    }
    Ok(())
}

/// Memory of a pool, ready to be used, and a stream of its device.
fn block(device: &Arc<dyn Device>, bytes: u64) -> Result<(Buffer<u8>, Stream)> {
    let context = Context::new(device.clone());
    let stream = context.create_stream()?;
    let pool = Pool::builder(&context).accessible_from_all().build()?;
    let buffer = Buffer::zeroed(&pool, bytes as usize, &stream)?;
    stream.synchronize()?;
    Ok((buffer, stream))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Effort, Section};

    #[test]
    fn copies_have_a_figure_for_each_size_kind_and_direction() {
        let device = DeviceName::HOST.open().unwrap();
        let effort = Effort { time: Duration::from_millis(1), most_bytes: 64 << 10 };
        let mut go_on = |_: &str| true;
        let mut run = Run::new(Section::Copies, effort, &mut go_on);
        with_host(&device, &mut run).unwrap();
        within(&device, &mut run).unwrap();
        let measured = run.end();
        assert_eq!(measured.left_out, [""; 0]);
        assert_eq!(measured.rows.len(), 3 * (4 + 2));
        assert!(measured.rows.iter().all(|row| row.median > 0.0), "{measured:#?}");
    }
}
