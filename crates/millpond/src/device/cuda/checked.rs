//! Segments that compute-sanitizer is told of, where it watches this process: it then reports what kernels do beside the blocks
//! in them.

use crate::device::DevicePtr;
use crate::nvtx;

/// Whether segments are checked. The driver has been started.
pub(super) fn is_on() -> bool {
    nvtx::blocks().is_some()
}

/// A segment was taken from the driver.
pub(super) fn begin(at: DevicePtr, bytes: u64) {
    if let Some(blocks) = nvtx::blocks() {
        blocks.begin_segment(at.raw(), bytes);
    }
}

/// A segment is about to go back.
pub(super) fn end(at: DevicePtr) {
    if let Some(blocks) = nvtx::blocks() {
        blocks.end_segment(at.raw());
    }
}
