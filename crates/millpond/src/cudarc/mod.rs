//! Memory of a pool in [cudarc]'s launches, copies, cuBLAS and NCCL.
//!
//! [`Stream`] is a stream of cudarc's that a pool knows too. [`Buffer`] is memory of a pool that goes where cudarc
//! asks for `impl DevicePtr`. Its use between streams is ordered. Copies of pinned memory go through
//! [`Pinned`], or [`copy_to_cudarc`](crate::Buffer::copy_to_cudarc) and [`copy_from_cudarc`](crate::Buffer::copy_from_cudarc).
//!
//! ```no_run
//! use cudarc::driver::CudaContext;
//! use millpond::cudarc::{Buffer, Stream};
//! use millpond::{Context, Pool};
//!
//! let cuda = CudaContext::new(0)?;
//! let stream = cuda.new_stream()?;
//! let device = Context::from_cudarc(&cuda)?;
//! let pool = Pool::builder(&device).build()?;
//! let on = Stream::new(&device, &stream)?; // make it once, and clone it
//! let y = Buffer::<f32>::zeroed(&pool, 1024, &on)?;
//! assert_eq!(stream.clone_dtoh(&y)?, [0.0; 1024]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [cudarc]: https://docs.rs/cudarc

// Stands beside `Buffer` on the uppermost floor and uses the pool's public interface; of cudarc, its safe
// driver interface. `docs/rust.md` is the page for its users.
//
// | file | concern |
// | --- | --- |
// | `stream` | `Stream`: a stream of cudarc's that a pool knows too |
// | `buffer` | `Buffer`: memory of a pool with the traits of cudarc's `CudaSlice` |
// | `view` | `View`, `ViewMut`: a part of such a buffer, to be read, or written |
// | `copies` | copies between a plain buffer, of pinned memory, and cudarc's device memory |
// | `pinned` | `Pinned`: page-locked elements for cudarc's own copies, which it makes wait |
// | `kept_awake` | a pool that is not put to sleep, since cudarc does not ask it |
// | `uses` | which streams read and wrote a block, and keeping that for the block's next owner |
// | `builder` | the stream that a builder launches on |
// | `chain` | a list that grows while its items are borrowed |
//
// **How one request passes through.** `Buffer::zeroed` allocates from the pool on the stream's millpond side. It takes
// the `Uses` that were kept for this address, or makes new ones. It sets the bytes on cudarc's side.
// `launch_builder(…).arg(&buffer)` has the builder's stream wait for the writes of other streams, and pushes the address with an
// event that cudarc records after the launch. A drop makes the buffer's stream wait for all other streams that used it. It leaves
// the `Uses` for the next owner of the address, and frees the block in stream order.
//
// **Why an event for each stream.** A `CudaSlice` has one event for all its reads, and one for its writes. Of two streams, or two
// threads, that read at once, or write to two parts, the later record replaces the earlier one. Then nothing waits for the first.
// An event that is recorded on one stream only always covers all of that stream's uses.
//
// **Why the events lie in slices.** Of what can be pushed onto a builder, only cudarc's slices and views come with an event. So each
// `StreamUse` is a `CudaSlice` that owns no memory. A builder shows its stream in its `Debug` only.

mod buffer;
mod builder;
mod chain;
mod copies;
mod kept_awake;
mod pinned;
mod stream;
mod uses;
mod view;

use std::ffi::CStr;

use ::cudarc::driver::{CudaContext, DeviceRepr, DriverError, LaunchArgs, PushKernelArg};
use bytemuck::Pod;

pub use buffer::Buffer;
pub use pinned::Pinned;
pub use stream::Stream;
pub use view::{View, ViewMut};

use crate::device::{DeviceError, DevicePtr};
use crate::error::{Error, Result};
use crate::pool::Context;
use crate::{BufferView, BufferViewMut, WorkspaceSlice};

impl Context {
    /// The context of the GPU that cudarc's context is of: that of [`Context::cuda`] with its ordinal.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for a context of cudarc's that is not its GPU's primary one, and those of
    /// [`Context::cuda`].
    pub fn from_cudarc(context: &CudaContext) -> Result<Self> {
        if !context.is_primary() {
            return Err(DeviceError::Invalid {
                call: "Context::from_cudarc",
                what:
                    "this is not the GPU's primary context, which pools need: make it with CudaContext::new"
                        .to_owned(),
            }
            .into());
        }
        Self::cuda(context.ordinal())
    }
}

// SAFETY: a transparent `u64`, which is what a kernel's pointer parameter is.
unsafe impl DeviceRepr for DevicePtr {}

/// The address alone: work on another stream than the buffer's is ordered by the caller, with
/// [`Stream::wait_for`](crate::Stream::wait_for) and [`record_use`](crate::Buffer::record_use). A [`Buffer`] of
/// this module is ordered by cudarc.
// SAFETY: pushes one pointer to the address, which lies in the buffer and is borrowed as long as the builder.
unsafe impl<'a, 'b: 'a, T: Pod> PushKernelArg<&'b crate::Buffer<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, buffer: &'b crate::Buffer<T>) -> &mut Self {
        self.arg(buffer.ptr_ref())
    }
}

/// As for a shared buffer.
// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T: Pod> PushKernelArg<&'b mut crate::Buffer<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, buffer: &'b mut crate::Buffer<T>) -> &mut Self {
        self.arg(buffer.ptr_ref())
    }
}

/// The address of the part alone, as for a buffer.
// SAFETY: as above, of the view.
unsafe impl<'a, 'b: 'a, T: Pod> PushKernelArg<&'b BufferView<'_, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, view: &'b BufferView<'_, T>) -> &mut Self {
        self.arg(view.ptr_ref())
    }
}

/// As for a shared view.
// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T: Pod> PushKernelArg<&'b mut BufferViewMut<'_, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, view: &'b mut BufferViewMut<'_, T>) -> &mut Self {
        self.arg(view.ptr_ref())
    }
}

/// The address alone, for work on the workspace's stream.
// SAFETY: as above, of the slice.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b WorkspaceSlice<'_, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, slice: &'b WorkspaceSlice<'_, T>) -> &mut Self {
        self.arg(slice.ptr_ref())
    }
}

/// So that `?` takes what cudarc's calls answer where a function returns [`millpond::Result`](crate::Result).
///
/// ```no_run
/// fn upload(stream: &std::sync::Arc<cudarc::driver::CudaStream>) -> millpond::Result<f32> {
///     let slice = stream.clone_htod(&[1.0_f32; 4])?; // cudarc's error, as millpond's
///     Ok(stream.clone_dtoh(&slice)?[0])
/// }
/// ```
impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        refused("a call of cudarc")(error).into()
    }
}

/// The error for a call of cudarc's that the driver refused.
fn refused(call: &'static str) -> impl Fn(DriverError) -> DeviceError {
    let said = |text: std::result::Result<&CStr, DriverError>| {
        text.map_or_else(|_| String::from("unknown"), |text| text.to_string_lossy().into_owned())
    };
    move |error| DeviceError::Driver {
        call,
        code: error.0 as i32,
        name: said(error.error_name()),
        text: said(error.error_string()),
    }
}
