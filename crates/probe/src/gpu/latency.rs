//! What one read takes a thread: chains of addresses through working sets, and through shared memory.

use std::sync::Arc;

use cudarc::driver::{LaunchConfig, PushKernelArg};
use millpond::device::Device;

use super::kernels::Gpu;
use crate::Result;
use crate::chain::{A, C};
use crate::facts::Facts;
use crate::owned::{OwnedStream, Segment};
use crate::run::{Run, Scale};

/// The smallest working set.
const LEAST: u64 = 4 << 10;
/// Bytes of a cache line, and of a node of the chain.
const LINE: u64 = 128;
const WORD: u64 = 8;
/// Steps of a sample, so many that a launch is small beside them.
const STEPS: u64 = 1 << 16;

pub(crate) fn measure(gpu: &Gpu, device: &Arc<dyn Device>, facts: &Facts, run: &mut Run<'_>) -> Result<()> {
    let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    let at = Segment::new(device, WORD)?;
    let (from, stream) = (at.at().raw(), OwnedStream::new(device)?);
    run.figure("shared memory", None, Scale::Each(STEPS), || {
        let block = LaunchConfig { block_dim: (256, 1, 1), ..one };
        // SAFETY: the kernel's arguments; the end goes to a word that nothing else uses.
        unsafe {
            gpu.timed(block, &gpu.kernels.chase_shared, |launch| {
                launch.arg(&from).arg(&STEPS).arg(&A).arg(&C);
            })
        }
    });
    let chain = Segment::new(device, run.effort.most_bytes)?;
    let (first, apart) = (chain.at().raw(), LINE / WORD);
    for bytes in run.sizes(LEAST) {
        let what = facts.cache_of(bytes);
        if !run.wants(&what) {
            break;
        }
        let nodes = bytes / LINE;
        // SAFETY: the kernel's arguments; the segment has at least `bytes` bytes, and nothing else uses it.
        unsafe {
            gpu.timed(gpu.whole(), &gpu.kernels.make_chain, |launch| {
                launch.arg(&first).arg(&nodes).arg(&apart).arg(&A).arg(&C);
            })
        }?;
        let word: *const u64 = &first;
        // SAFETY: both have eight bytes; the number lives until after the wait, and no kernel runs.
        unsafe { device.copy_from_host(at.at(), word.cast(), WORD, stream.handle()) }?;
        stream.wait()?;
        // Into the L2 cache, as far as it fits. A sample goes on where the one before ended, which brought its own part
        // into the L1 cache.
        // SAFETY: as above.
        unsafe { gpu.read(chain.at(), bytes) }?;
        run.figure(&what, Some(bytes), Scale::Each(STEPS), || {
            // SAFETY: the kernel's arguments; it starts at a node of the chain, and all nodes name nodes.
            unsafe {
                gpu.timed(one, &gpu.kernels.chase, |launch| {
                    launch.arg(&from).arg(&STEPS);
                })
            }
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millpond::device::DeviceName;

    use super::*;
    use crate::{Effort, Measured, Section};

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn every_working_set_has_a_latency_and_the_chain_is_whole() {
        let device = DeviceName::cuda(0).open().unwrap();
        let gpu = Gpu::open(0).unwrap();
        let mut go_on = |_: &str| true;
        let effort = Effort { time: Duration::from_millis(1), most_bytes: 16 << 20 };
        let mut run = Run::new(Section::Latency, effort, &mut go_on);
        measure(&gpu, &device, &Facts::default(), &mut run).unwrap();
        let Measured { rows, left_out } = run.end();
        assert_eq!(left_out, [""; 0]);
        assert_eq!(rows.len(), 1 + 7, "shared memory, and 4 KiB to 16 MiB");

        // As many steps as nodes come back to the first one.
        let (chain, at) =
            (Segment::new(&device, STEPS * LINE).unwrap(), Segment::new(&device, WORD).unwrap());
        let (first, from, apart) = (chain.at().raw(), at.at().raw(), LINE / WORD);
        // SAFETY: the kernel's arguments; the segment has so many nodes, and nothing else uses it.
        let made = unsafe {
            gpu.timed(gpu.whole(), &gpu.kernels.make_chain, |launch| {
                launch.arg(&first).arg(&STEPS).arg(&apart).arg(&A).arg(&C);
            })
        };
        made.unwrap();
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        let stream = OwnedStream::new(&device).unwrap();
        let mut ends = [first, 0];
        // SAFETY: both have eight bytes, and live until after the waits.
        unsafe { device.copy_from_host(at.at(), ends.as_ptr().cast(), WORD, stream.handle()) }.unwrap();
        stream.wait().unwrap();
        // SAFETY: the kernel's arguments; it starts at a node of the chain, and all nodes name nodes.
        let chased = unsafe {
            gpu.timed(one, &gpu.kernels.chase, |launch| {
                launch.arg(&from).arg(&STEPS);
            })
        };
        chased.unwrap();
        // SAFETY: as above; the second number is the one written to.
        unsafe { device.copy_to_host(ends.as_mut_ptr().add(1).cast(), at.at(), WORD, stream.handle()) }
            .unwrap();
        stream.wait().unwrap();
        assert_eq!(ends[1], first);
    }
}
