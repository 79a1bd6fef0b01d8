//! Page-locked memory as cudarc's host memory, with a wait.

use cudarc::driver::{CudaStream, HostSlice, SyncOnDrop};

/// Elements of pinned or managed memory, for cudarc's own copies: each returns once the device is done with the elements.
///
/// cudarc's copies take a plain slice for memory that can be swapped, which the driver has read or written when the call returns.
/// With page-locked memory, the device goes on after the call. Safe code may then write what is still read. So give cudarc's
/// copies this, never the slice itself. [`Buffer::copy_to_cudarc`](crate::Buffer::copy_to_cudarc) and
/// [`copy_from_cudarc`](crate::Buffer::copy_from_cudarc) copy without a wait.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use millpond::cudarc::Pinned;
/// use millpond::{Buffer, Context};
///
/// let cuda = CudaContext::new(0)?;
/// let stream = cuda.new_stream()?;
/// let device = Context::from_cudarc(&cuda)?;
/// let pinned = device.pinned()?.build()?;
/// let mut staging = Buffer::<f32>::zeroed(&pinned, 1024, &device.create_stream()?)?;
/// let mut slice = stream.alloc_zeros::<f32>(1024)?;
///
/// stream.memcpy_htod(&Pinned(staging.as_mut_slice()?), &mut slice)?; // waits for the copy
/// staging.as_mut_slice()?.fill(1.0);
/// stream.memcpy_dtoh(&slice, &mut Pinned(staging.as_mut_slice()?))?;
/// assert_eq!(staging.as_slice()?[0], 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pinned<'a, T>(pub &'a mut [T]);

// The guard waits, and does not record an event as that of cudarc's own pinned memory: such an event is not recorded while the
// context has made no stream, and that of one thread's copy replaces that of another's.
impl<T> HostSlice<T> for Pinned<'_, T> {
    fn len(&self) -> usize {
        self.0.len()
    }

    unsafe fn stream_synced_slice<'a>(&'a self, stream: &'a CudaStream) -> (&'a [T], SyncOnDrop<'a>) {
        (self.0, SyncOnDrop::sync_stream(stream))
    }

    unsafe fn stream_synced_mut_slice<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (&'a mut [T], SyncOnDrop<'a>) {
        (self.0, SyncOnDrop::sync_stream(stream))
    }
}
