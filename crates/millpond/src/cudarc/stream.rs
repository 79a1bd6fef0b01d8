//! A stream of cudarc's that a pool knows too.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use super::uses::{KeptUses, Own, UsingStream};
use crate::device::{Device, DeviceError, DeviceResult, Kind, StreamHandle};
use crate::error::Result;
use crate::pool::Context;

/// One stream, as cudarc and as millpond know it. Clones are the same stream.
///
/// Launches, copies and libraries use cudarc's side ([`cuda`](Self::cuda)). Allocations use millpond's
/// ([`millpond`](Self::millpond)).
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use millpond::{Context, Pool, Workspace};
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let cuda = CudaContext::new(0)?;
/// let device = Context::from_cudarc(&cuda)?;
/// let pool = Pool::builder(&device).build()?;
/// let on = millpond::cudarc::Stream::new(&device, &cuda.new_stream()?)?;
/// let workspace = Workspace::new(&pool, 1 << 20, on.millpond())?;
/// on.synchronize()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Stream {
    sides: Arc<Sides>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(self.millpond()).finish()
    }
}

#[derive(Debug)]
struct Sides {
    // First: the events are destroyed while the stream is there.
    uses: KeptUses,
    millpond: crate::Stream,
    cuda: Arc<CudaStream>,
    used_as: UsingStream,
}

impl Stream {
    /// A stream of cudarc's, for allocations from pools of `context`. It is kept as long as this, or any clone
    /// of its millpond side, is there.
    ///
    /// Make it once and clone it: each call looks the stream up.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for a stream of another GPU or of a context that is not its primary one, or
    /// the device's own.
    pub fn new(context: &Context, cuda: &Arc<CudaStream>) -> Result<Self> {
        let millpond = context.stream_from_cudarc(cuda)?;
        Ok(Self::of(millpond, cuda.clone()))
    }

    /// A stream of millpond's, wrapped for cudarc.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for a stream of another GPU than cudarc's context, or another thread's default stream.
    ///
    /// # Safety
    /// No clone of [`cuda`](Self::cuda)'s `Arc`, and nothing that holds one (a `CudaBlas`, say), is used once
    /// this and all buffers on it are gone. As long as cudarc's context has made no stream of its own, cudarc
    /// orders nothing between streams: the caller does.
    pub unsafe fn wrap(context: &Arc<CudaContext>, stream: &crate::Stream) -> Result<Self> {
        check(stream.device().as_ref(), context, "Stream::wrap")?;
        // SAFETY: the handle is of the primary context's GPU, and alive as long as `stream`'s clone beside it;
        // what is beyond that the caller promises.
        let cuda = unsafe { context.wrap_borrowed_stream(stream.handle_here()?.raw() as _) };
        Ok(Self::of(stream.clone(), cuda))
    }

    fn of(millpond: crate::Stream, cuda: Arc<CudaStream>) -> Self {
        let used_as = UsingStream::of(&cuda);
        Self { sides: Arc::new(Sides { uses: KeptUses::default(), millpond, cuda, used_as }) }
    }

    /// The stream as cudarc knows it, for launches, copies and libraries.
    #[must_use]
    pub fn cuda(&self) -> &Arc<CudaStream> {
        &self.sides.cuda
    }

    /// The stream as pools know it, for [`Pool::alloc`](crate::Pool::alloc), events and workspaces.
    #[must_use]
    pub fn millpond(&self) -> &crate::Stream {
        &self.sides.millpond
    }

    /// Waits until all work given to the stream so far is complete, and tells the pools. They can then reuse free
    /// memory for other streams without a device call, and give back what lies above their release thresholds. cudarc's
    /// own `synchronize` does not tell them.
    ///
    /// # Errors
    /// The device's own.
    pub fn synchronize(&self) -> Result<()> {
        self.sides.millpond.synchronize()
    }

    pub(super) fn uses(&self) -> &KeptUses {
        &self.sides.uses
    }

    /// It, for what notes the uses of its buffers.
    pub(super) fn own(&self) -> Own<'_> {
        Own { cuda: &self.sides.cuda, used_as: self.sides.used_as }
    }
}

impl Context {
    /// A stream of cudarc's, kept as long as a clone of the stream returned here is there. For the buffers of
    /// [`cudarc`](crate::cudarc), make a [`cudarc::Stream`](Stream) instead.
    ///
    /// # Errors
    /// As for [`cudarc::Stream::new`](Stream::new).
    pub fn stream_from_cudarc(&self, cuda: &Arc<CudaStream>) -> Result<crate::Stream> {
        check(self.device().as_ref(), cuda.context(), "Context::stream_from_cudarc")?;
        let raw = cuda.cu_stream() as u64;
        let stream = match raw {
            0 => self.default_stream()?,
            _ if raw == StreamHandle::PER_THREAD.raw() => self.per_thread_stream()?,
            // SAFETY: the handle is of this device's primary context, as checked above. cudarc destroys it with the
            // last owner of the `Arc`. The next statement makes the last clone of `stream` one.
            _ => unsafe { self.stream_from_raw(StreamHandle::from_raw(raw)) }?,
        };
        stream.keep_owner(cuda.clone());
        Ok(stream)
    }
}

/// Refuses a context of cudarc's that is not the one which the device works in.
fn check(device: &dyn Device, context: &CudaContext, call: &'static str) -> DeviceResult<()> {
    let of = device.properties();
    if of.kind == Kind::Cuda && of.ordinal == context.ordinal() && context.is_primary() {
        return Ok(());
    }
    let primary = if context.is_primary() { "the primary" } else { "a non-primary" };
    Err(DeviceError::Invalid {
        call,
        what: format!(
            "cudarc uses {primary} context of GPU {}, but the pool is of {} device {} ({}). Make cudarc's with \
             CudaContext::new, and the pool's with Context::from_cudarc",
            context.ordinal(),
            of.kind,
            of.ordinal,
            of.name
        ),
    })
}
