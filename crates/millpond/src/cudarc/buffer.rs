//! Memory of a pool with the traits of cudarc's slices.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdevice_attribute, CUdeviceptr, CUpointer_attribute, CUresult, cuPointerGetAttribute,
};
use cudarc::driver::{
    CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, HostSlice,
    LaunchArgs, PushKernelArg, SyncOnDrop, ValidAsZeroBits,
};

use super::kept_awake::KeptAwake;
use super::uses::Uses;
use super::{Stream, refused};
use crate::core::freeing;
use crate::device;
use crate::device::StreamHandle;
use crate::error::Result;
use crate::log::log;
use crate::peers;
use crate::pool::Pool;

/// `len` elements of a pool's memory that cudarc takes where it asks for its traits, as for `impl DevicePtr<T>`: in launches,
/// copies, cuBLAS, NCCL. A function that asks for a `CudaSlice` itself takes [views](Self::as_view) only if it is changed. Dropped, it is freed to the pool in stream order; the host does not wait.
///
/// cudarc orders its use on other streams than its own, as it does for its slices. It does so where the context has
/// more than one stream and tracks events. Reads then wait for writes, writes for both, and the free for all of them.
///
/// cudarc's calls do not ask whether the pool [sleeps](Pool::sleep). So a pool is not put to sleep while such buffers of it
/// live. A [`millpond::Buffer`](crate::Buffer) can sleep, and goes into launches, too.
///
/// ```no_run
/// use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
/// use millpond::cudarc::{Buffer, Stream};
/// use millpond::{Context, Pool};
/// # fn example(double: cudarc::driver::CudaFunction) -> Result<(), Box<dyn std::error::Error>> {
/// let cuda = CudaContext::new(0)?;
/// let stream = cuda.new_stream()?;
/// let device = Context::from_cudarc(&cuda)?;
/// let pool = Pool::builder(&device).build()?;
/// let on = Stream::new(&device, &stream)?;
///
/// let x = Buffer::from_slice(&pool, &[1.0_f32; 1024], &on)?;
/// let mut y = Buffer::<f32>::zeroed(&pool, 1024, &on)?;
/// // SAFETY: the kernel `double` takes two pointers to 1,024 floats.
/// unsafe { stream.launch_builder(&double).arg(&x).arg(&mut y).launch(LaunchConfig::for_num_elems(1024)) }?;
/// assert_eq!(stream.clone_dtoh(&y)?, [2.0; 1024]);
/// # Ok(())
/// # }
/// ```
#[must_use = "the memory is freed when this is dropped"]
pub struct Buffer<T> {
    /// Given to the stream's kept ones when the buffer goes.
    uses: ManuallyDrop<Uses>,
    ptr: device::DevicePtr,
    len: usize,
    /// cudarc asks for the address, and cannot be refused it.
    pool: KeptAwake,
    stream: Stream,
    element: PhantomData<T>,
}

impl<T: DeviceRepr> Buffer<T> {
    /// A buffer of `len` elements with no defined content.
    ///
    /// # Errors
    /// [`Error::SizeOverflow`](crate::Error::SizeOverflow), those of [`Pool::alloc`] (among them
    /// [`Error::Asleep`](crate::Error::Asleep) where the pool sleeps), and those that cudarc noted earlier where there was nobody to tell.
    ///
    /// # Panics
    /// Inside cudarc, where the driver refuses to create an event.
    ///
    /// # Safety
    /// The elements are written before they are read as `T`.
    pub unsafe fn uninit(pool: &Pool, len: usize, stream: &Stream) -> Result<Self> {
        let mut buffer = Self::unordered(pool, len, stream)?;
        // Recorded as a write, so that other streams' uses wait for the allocation.
        drop(buffer.uses.device_ptr_mut(stream.cuda()));
        Ok(buffer)
    }

    /// A buffer of `len` elements, all bytes zero, set in stream order.
    ///
    /// # Errors
    /// Those of [`uninit`](Self::uninit).
    ///
    /// # Panics
    /// As for [`uninit`](Self::uninit).
    pub fn zeroed(pool: &Pool, len: usize, stream: &Stream) -> Result<Self>
    where
        T: ValidAsZeroBits,
    {
        let mut buffer = Self::unordered(pool, len, stream)?;
        if buffer.num_bytes() > 0 {
            stream.cuda().memset_zeros(&mut buffer).map_err(refused("cuMemsetD8Async"))?;
        }
        Ok(buffer)
    }

    /// A buffer with the elements of a slice, a `Vec`, an array or cudarc's pinned memory, copied in stream
    /// order. All but cudarc's pinned memory has been read on return: for a slice of pinned memory, the host waits for the stream.
    ///
    /// # Errors
    /// Those of [`uninit`](Self::uninit).
    ///
    /// # Panics
    /// As for [`uninit`](Self::uninit).
    pub fn from_slice<S: HostSlice<T> + ?Sized>(pool: &Pool, elements: &S, stream: &Stream) -> Result<Self> {
        let mut buffer = Self::unordered(pool, elements.len(), stream)?;
        if buffer.num_bytes() > 0 {
            stream.cuda().memcpy_htod(elements, &mut buffer).map_err(refused("cuMemcpyHtoDAsync"))?;
            if is_read_later(elements, stream.cuda()) {
                stream.cuda().synchronize().map_err(refused("cuStreamSynchronize"))?;
            }
        }
        Ok(buffer)
    }

    /// A buffer whose first write has yet to be recorded.
    fn unordered(pool: &Pool, len: usize, stream: &Stream) -> Result<Self> {
        let bytes = crate::typed::buffer::byte_len::<T>(len)?;
        let awake = KeptAwake::new(pool.inner())?;
        // What comes next is given to cudarc's side, which does not know whose default stream it is.
        stream.millpond().handle_here()?;
        let ptr = pool.alloc_aligned(bytes, align_of::<T>() as u64, stream.millpond())?;
        // SAFETY: the block is the buffer's until its drop, which gives the uses up before the free.
        let uses = match unsafe { stream.uses().take(ptr, bytes as usize, stream.cuda()) } {
            Ok(uses) => ManuallyDrop::new(uses),
            Err(error) => {
                // SAFETY: nobody else knows the block.
                unsafe { pool.free(ptr, stream.millpond()) }?;
                return Err(error.into());
            }
        };
        let stream = stream.clone();
        Ok(Self { uses, ptr, len, pool: awake, stream, element: PhantomData })
    }
}

/// Whether a copy of the elements to the device may read them after the call, and nothing but a wait tells when it has: cudarc takes
/// a slice for pageable memory, and safe code may write to it next.
fn is_read_later<T, S: HostSlice<T> + ?Sized>(elements: &S, stream: &CudaStream) -> bool {
    // SAFETY: only looked at.
    let (slice, uses) = unsafe { elements.stream_synced_slice(stream) };
    match uses {
        // cudarc's pinned memory: its events tell, where it records them.
        SyncOnDrop::Record(Some(_)) if stream.context().is_managing_stream_synchronization() => return false,
        // The copy has been waited for.
        SyncOnDrop::Sync(Some(_)) => return false,
        _ => {}
    }
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;
    let (mut kind, at) = (0_u32, slice.as_ptr().addr() as CUdeviceptr);
    // Where that cannot be known, one wait more.
    stream.context().attribute(attribute) != Ok(0)
        // SAFETY: this attribute is written as an unsigned int. The address is only looked up; one that the driver does not know is
        // an error.
        || unsafe {
            cuPointerGetAttribute(
                (&raw mut kind).cast(),
                CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                at,
            )
        } == CUresult::CUDA_SUCCESS
}

impl<T> Buffer<T> {
    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements; its address is null then.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address, for calls that are not cudarc's. Their order is the caller's.
    pub fn ptr(&self) -> device::DevicePtr {
        self.ptr
    }

    /// The stream that the buffer belongs to, and is freed on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// All of it as cudarc's view, which can be sliced.
    #[must_use]
    pub fn as_view(&self) -> CudaView<'_, T> {
        // SAFETY: the elements are `T`s: that was promised where the buffer was made.
        unsafe { self.uses.transmute(self.len) }.expect("the uses are of a block that holds the elements")
    }

    /// All of it as cudarc's mutable view, which can be sliced and split.
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        // SAFETY: as above.
        unsafe { self.uses.transmute_mut(self.len) }.expect("the uses are of a block that holds the elements")
    }
}

impl<T> DeviceSlice<T> for Buffer<T> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.stream.cuda()
    }
}

impl<T> DevicePtr<T> for Buffer<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.uses.device_ptr(stream)
    }
}

impl<T> DevicePtrMut<T> for Buffer<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.uses.device_ptr_mut(stream)
    }
}

// SAFETY: pushes what cudarc pushes for its own slice, which lies in the buffer.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b Buffer<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, buffer: &'b Buffer<T>) -> &mut Self {
        self.arg(&**buffer.uses)
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut Buffer<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, buffer: &'b mut Buffer<T>) -> &mut Self {
        self.arg(&mut **buffer.uses)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: the field is not used after this.
        let mut uses = unsafe { ManuallyDrop::take(&mut self.uses) };
        if !self.pool.is_here() {
            // The block and the events are the parent's.
            std::mem::forget(uses);
            return;
        }
        // The stream waits for every read and write, as in the drop of cudarc's own slices. The free comes after that.
        let (_, write) = uses.device_ptr_mut(self.stream.cuda());
        // Its drop would record a write. It owns nothing.
        std::mem::forget(write);
        self.stream.uses().keep(self.ptr, uses);
        let noted = self.note_who_waited();
        // SAFETY: the block is the buffer's alone, and the stream waits for all that cudarc knows of.
        let freed =
            noted.and_then(|()| unsafe { freeing::free(&self.pool, self.ptr, self.stream.millpond()) });
        if let Err(error) = freed {
            log!(ERROR, "a buffer could not be freed", error);
        }
    }
}

impl<T> Buffer<T> {
    /// On another thread than that whose default stream the buffer is of, cudarc made this thread's wait for the buffer's
    /// uses. So the free has to come after what this thread's was given, too.
    fn note_who_waited(&self) -> Result<()> {
        let stream = self.stream.millpond();
        if self.ptr.is_null() || stream.handle() != StreamHandle::PER_THREAD || stream.handle_here().is_ok() {
            return Ok(());
        }
        // SAFETY: every thread has a default stream as long as it runs.
        let here = unsafe { crate::Stream::present(stream.timelines(), StreamHandle::PER_THREAD) }?;
        peers::record_use(&self.pool, self.ptr, &here)
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("ptr", &self.ptr)
            .field("len", &self.len)
            .field("element", &std::any::type_name::<T>())
            .finish_non_exhaustive()
    }
}
