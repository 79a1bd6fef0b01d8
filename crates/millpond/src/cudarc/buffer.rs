//! Memory of a pool with the traits of cudarc's slices.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::RangeBounds;
use std::ptr;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys::{
    CUdevice_attribute, CUdeviceptr, CUpointer_attribute, CUresult, cuPointerGetAttribute,
};
use cudarc::driver::{
    CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, HostSlice, LaunchArgs, PushKernelArg,
    SyncOnDrop, ValidAsZeroBits,
};

use super::kept_awake::KeptAwake;
use super::uses::{Access, Uses, UsingStream, recorded};
use super::view::{Part, View, ViewMut};
use super::{Stream, refused};
use crate::core::freeing;
use crate::device;
use crate::device::StreamHandle;
use crate::error::{Error, Result};
use crate::log::log;
use crate::peers;
use crate::pool::Pool;
use crate::typed::buffer::{byte_len, take_back_advice};
use crate::typed::range_in;

/// `len` elements of a pool's memory that cudarc takes where it asks for its traits, as for `impl DevicePtr<T>`: in launches,
/// copies, cuBLAS, NCCL. Dropped, it is freed to the pool in stream order; the host does not wait.
///
/// Its uses on other streams than its own are ordered where cudarc's context has made a stream and tracks events. Reads then wait
/// for writes on all streams; writes and the free wait for reads and writes on all streams. Each stream that uses it has an event
/// for that.
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
    /// Whether there may be advice on the memory, from when it was a plain buffer's. It is taken back with the memory.
    advised: bool,
    /// cudarc asks for the address, and cannot be refused it.
    pool: KeptAwake,
    stream: Stream,
    element: PhantomData<T>,
}

impl<T: DeviceRepr> Buffer<T> {
    /// A buffer of `len` elements with no defined content.
    ///
    /// # Errors
    /// [`Error::SizeOverflow`](crate::Error::SizeOverflow), and those of [`Pool::alloc`] (among them
    /// [`Error::Asleep`](crate::Error::Asleep) where the pool sleeps).
    ///
    /// # Panics
    /// Inside cudarc, where the driver refuses to create an event.
    ///
    /// # Safety
    /// The elements are written before they are read as `T`.
    pub unsafe fn uninit(pool: &Pool, len: usize, stream: &Stream) -> Result<Self> {
        let buffer = Self::unordered(pool, len, stream)?;
        buffer.uses.begin(stream.own());
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
        let bytes = byte_len::<T>(len)?;
        let awake = KeptAwake::new(pool.inner())?;
        // What comes next is given to cudarc's side, which does not know whose default stream it is.
        stream.millpond().handle_here()?;
        let ptr = pool.alloc_aligned(bytes, align_of::<T>() as u64, stream.millpond())?;
        // SAFETY: the block is the buffer's until its drop, which gives the uses up before the free.
        let uses = ManuallyDrop::new(unsafe { stream.uses().take(ptr, bytes as usize, stream.cuda()) });
        let stream = stream.clone();
        Ok(Self { uses, ptr, len, advised: false, pool: awake, stream, element: PhantomData })
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

    /// The pool that the memory is of.
    ///
    /// # Errors
    /// [`Error::PoolDestroyed`] once the pool's last handle is gone.
    pub fn pool(&self) -> Result<Pool> {
        Pool::of(self.pool.core())
    }

    /// The elements in a range. [`View`] has an example.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<View<'_, T>> {
        let range = range_in("Buffer::slice", range, self.len)?;
        // SAFETY: elements of the buffer, which is borrowed as long. That they are `T`s was promised where it was made.
        Ok(unsafe { View::new(self.part(), range) })
    }

    /// All of it, as a view.
    pub fn as_view(&self) -> View<'_, T> {
        // SAFETY: as above.
        unsafe { View::new(self.part(), 0..self.len) }
    }

    /// The elements in a range, to be written. [`ViewMut`] has an example.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<ViewMut<'_, T>> {
        let range = range_in("Buffer::slice_mut", range, self.len)?;
        // SAFETY: as above, and nobody else has them.
        Ok(unsafe { ViewMut::new(self.part(), range) })
    }

    /// The elements before `mid`, and those from there on, each to be written. [`ViewMut`] has an example.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn split_at_mut(&mut self, mid: usize) -> Result<(ViewMut<'_, T>, ViewMut<'_, T>)> {
        range_in("Buffer::split_at_mut", mid.., self.len)?;
        let len = self.len;
        // SAFETY: as above, and both have other elements.
        Ok(unsafe { (ViewMut::new(self.part(), 0..mid), ViewMut::new(self.part(), mid..len)) })
    }

    fn part(&self) -> Part<'_> {
        Part::new(&self.uses, self.stream.own())
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
        let used = self.uses.order(Access::Read, UsingStream::of(stream), self.stream.own());
        (self.ptr.raw(), recorded(used, stream))
    }
}

impl<T> DevicePtrMut<T> for Buffer<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let used = self.uses.order(Access::Write, UsingStream::of(stream), self.stream.own());
        (self.ptr.raw(), recorded(used, stream))
    }
}

// SAFETY: pushes one pointer to the address, which is borrowed as long as the builder.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b Buffer<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, buffer: &'b Buffer<T>) -> &mut Self {
        match buffer.uses.order_launch(Access::Read, self, buffer.stream.own()) {
            Some(used) => self.arg(used.slice()),
            None => self.arg(&buffer.ptr),
        }
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut Buffer<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, buffer: &'b mut Buffer<T>) -> &mut Self {
        match buffer.uses.order_launch(Access::Write, self, buffer.stream.own()) {
            Some(used) => self.arg(used.slice()),
            None => self.arg(&buffer.ptr),
        }
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: the uses are not used after this.
        let ended = unsafe { self.end_uses() };
        if ended == Err(Error::Forked) {
            return;
        }
        if self.advised {
            take_back_advice(&self.pool, self.ptr);
        }
        // SAFETY: the block is the buffer's alone, and its stream waits for all uses.
        let freed =
            ended.and_then(|()| unsafe { freeing::free(&self.pool, self.ptr, self.stream.millpond()) });
        if let Err(error) = freed {
            log!(ERROR, "a buffer could not be freed", error);
        }
    }
}

/// From and to the buffers that know nothing of cudarc.
impl<T: DeviceRepr + Pod> Buffer<T> {
    /// The memory of a plain buffer, on a stream that both sides know. Nothing is copied. The stream waits for all work on the buffer.
    /// [Advice](crate::Buffer::advise) goes with it.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use millpond::cudarc::{Buffer, Stream};
    /// # let cuda = cudarc::driver::CudaContext::new(0)?;
    /// # let device = millpond::Context::from_cudarc(&cuda)?;
    /// # let pool = millpond::Pool::builder(&device).build()?;
    /// # let on = Stream::new(&device, &cuda.new_stream()?)?;
    /// let plain = millpond::Buffer::from_slice(&pool, &[1.0_f32; 4], on.millpond())?;
    /// let buffer = Buffer::from_plain(plain, &on)?; // for `&impl DevicePtr<f32>`
    /// let plain = buffer.into_plain()?; // for slices, copies and launches without cudarc's events
    /// # drop(plain);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for a stream of another context, [`Error::Asleep`], or the device's own. The buffer is freed then.
    ///
    /// # Panics
    /// As for [`uninit`](Self::uninit).
    pub fn from_plain(buffer: crate::Buffer<T>, on: &Stream) -> Result<Self> {
        let buffer = buffer.on_stream(on.millpond())?;
        let pool = KeptAwake::new(buffer.core())?;
        // Copies on other streams that read it come before what cudarc lets write to it.
        drop(buffer.begin_write()?);
        let (len, bytes) = (buffer.len(), buffer.byte_len() as usize);
        // SAFETY: the block is live as long as the buffer, and then this one's until its drop, which gives the uses up before.
        let uses = unsafe { on.uses().take(buffer.ptr(), bytes, on.cuda()) };
        let (ptr, advised) = buffer.into_block();
        uses.begin(on.own());
        let (uses, stream) = (ManuallyDrop::new(uses), on.clone());
        Ok(Self { uses, ptr, len, advised, pool, stream, element: PhantomData })
    }

    /// The memory as a plain buffer, on the same stream. That waits for all uses. Nothing is copied.
    ///
    /// # Errors
    /// [`Error::Forked`], or the device's own. The memory is lost then.
    pub fn into_plain(self) -> Result<crate::Buffer<T>> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the uses are not used after this.
        let ended = unsafe { this.end_uses() };
        // SAFETY: neither is used, or dropped, after this.
        let (pool, stream) = unsafe { (ptr::read(&this.pool), ptr::read(&this.stream)) };
        ended?;
        let block = (this.ptr, this.advised);
        Ok(crate::Buffer::over_used_block(pool.core(), block, this.len, stream.millpond()))
    }
}

impl<T> Buffer<T> {
    /// Has the stream wait for every read and write, and keeps the uses for another buffer.
    ///
    /// # Safety
    /// The uses are not used, or dropped, after this.
    unsafe fn end_uses(&mut self) -> Result<()> {
        // SAFETY: the caller's promise.
        let mut uses = unsafe { ManuallyDrop::take(&mut self.uses) };
        if !self.pool.is_here() {
            // The block and the events are the parent's.
            std::mem::forget(uses);
            return Err(Error::Forked);
        }
        uses.end(self.stream.own());
        self.stream.uses().keep(uses);
        self.note_who_waited()
    }

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
