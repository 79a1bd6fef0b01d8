//! Typed buffers: a block of a pool that frees itself in stream order.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::RangeBounds;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::Pod;

use super::block_bytes::{BlockBytes, DeviceAccess};
use super::view::{BufferView, BufferViewMut, cast_len, check_len};
use crate::core::{Core, allocating, freeing};
#[cfg(doc)]
use crate::device::DeviceError;
#[cfg(feature = "cudarc")]
use crate::device::StreamHandle;
use crate::device::{Advice, DevicePtr, MemoryKind, Place, Residency};
use crate::error::{Error, Result};
use crate::log::log;
use crate::managed;
use crate::order::{Event, Stream};
use crate::peers;
use crate::pool::{Pool, PoolParts};

/// `len` elements of device memory on one stream.
///
/// When dropped, it is freed after the work that its stream was given by then. The host does not wait. It keeps its pool's
/// memory alive, even after the pool's last handle is gone.
///
/// ```
/// use millpond::{Buffer, Context, Pool};
///
/// let device = Context::host()?;
/// let pool = Pool::builder(&device).build()?;
/// let stream = device.create_stream()?;
/// let x = Buffer::from_slice(&pool, &[1.0_f32, 2.0], &stream)?;
/// let mut y = Buffer::<f32>::zeroed(&pool, 2, &stream)?;
/// y.copy_from(&x)?;
/// assert_eq!(y.to_vec()?, [1.0, 2.0]); // waits for the stream
/// # Ok::<(), millpond::Error>(())
/// ```
///
/// Elements are plain bytes ([`Pod`]), so that any bytes which a device writes are valid elements:
/// ```compile_fail,E0277
/// # let device = millpond::Context::host()?;
/// # let (pool, stream) = (millpond::Pool::builder(&device).build()?, device.create_stream()?);
/// let flags = millpond::Buffer::<bool>::new(&pool, 100, &stream)?; // error: `bool` is not `Pod`
/// # Ok::<(), millpond::Error>(())
/// ```
///
/// A block whose address is lost is never freed, which the compiler warns of:
/// ```compile_fail
/// # #![deny(unused_must_use)]
/// # let device = millpond::Context::host()?;
/// # let (pool, stream) = (millpond::Pool::builder(&device).build()?, device.create_stream()?);
/// let buffer = millpond::Buffer::<f32>::zeroed(&pool, 100, &stream)?;
/// buffer.into_raw(); // warning: a block whose address is lost is never freed
/// # Ok::<(), millpond::Error>(())
/// ```
/// ```
/// # #![deny(unused_must_use)]
/// # let device = millpond::Context::host()?;
/// # let (pool, stream) = (millpond::Pool::builder(&device).build()?, device.create_stream()?);
/// let buffer = millpond::Buffer::<f32>::zeroed(&pool, 100, &stream)?;
/// let block = buffer.into_raw();
/// # // SAFETY: nobody else has it.
/// # unsafe { pool.free(block, &stream) }?;
/// # Ok::<(), millpond::Error>(())
/// ```
#[must_use = "the memory is freed when this is dropped"]
pub struct Buffer<T: Pod> {
    pool: Arc<PoolParts>,
    ptr: DevicePtr,
    len: usize,
    stream: Stream,
    access: DeviceAccess,
    /// Whether there may be advice on its memory, which is taken back with it.
    advised: AtomicBool,
    element: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// As [`uninit`](Self::uninit).
    ///
    /// # Errors
    /// Those of [`uninit`](Self::uninit).
    #[inline(always)]
    pub fn new(pool: &Pool, len: usize, stream: &Stream) -> Result<Self> {
        Self::uninit(pool, len, stream)
    }

    /// A buffer of `len` elements with no defined content. It may be what another part of the program left there, unless the pool
    /// [zeroes](crate::PoolBuilder::zeroed) its blocks. Any bytes are elements, so that to read them is safe.
    ///
    /// # Errors
    /// [`Error::SizeOverflow`], and those of [`Pool::alloc`].
    #[inline(always)]
    pub fn uninit(pool: &Pool, len: usize, stream: &Stream) -> Result<Self> {
        Self::of_core(pool.inner(), len, stream)
    }

    // Always inlined, as what calls it is. Else the buffer is returned through memory: written in single words and read in pairs,
    // which no processor forwards, so that it waits for the stores (docs/lab/speed.md).
    #[inline(always)]
    pub(super) fn of_core(pool: &Arc<PoolParts>, len: usize, stream: &Stream) -> Result<Self> {
        let ptr = allocating::alloc_aligned(pool, byte_len::<T>(len)?, align_of::<T>() as u64, stream)?;
        Ok(Self::over_block(pool, ptr, len, stream))
    }

    /// Over a block of the pool, which nobody else has.
    #[inline(always)]
    pub(crate) fn over_block(pool: &Arc<PoolParts>, ptr: DevicePtr, len: usize, stream: &Stream) -> Self {
        let access = DeviceAccess::none_yet(stream);
        let (pool, stream, advised) = (pool.clone(), stream.clone(), AtomicBool::default());
        Self { pool, ptr, len, stream, access, advised, element: PhantomData }
    }

    /// A buffer of `len` elements, all bytes zero, set in stream order.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn zeroed(pool: &Pool, len: usize, stream: &Stream) -> Result<Self> {
        let mut buffer = Self::new(pool, len, stream)?;
        buffer.set_zero()?;
        Ok(buffer)
    }

    /// A buffer with the elements of a slice, copied in stream order. The slice has been read on return.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn from_slice(pool: &Pool, elements: &[T], stream: &Stream) -> Result<Self> {
        let mut buffer = Self::new(pool, elements.len(), stream)?;
        buffer.copy_from_slice(elements)?;
        Ok(buffer)
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements; its pointer is null then.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length in bytes.
    #[must_use]
    pub fn byte_len(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// The address, for kernels and driver calls.
    pub fn ptr(&self) -> DevicePtr {
        self.access.give_out();
        self.ptr
    }

    /// The pool that the memory is of.
    pub(crate) fn core(&self) -> &Arc<PoolParts> {
        &self.pool
    }

    /// The pool that the memory is of.
    ///
    /// # Errors
    /// [`Error::PoolDestroyed`] once the pool's last handle is gone, and for memory of [another process](crate::Opened).
    pub fn pool(&self) -> Result<Pool> {
        Pool::of(&self.pool)
    }

    /// Where the address lies, for the builder of a launch, which reads it when it launches.
    #[cfg(feature = "cudarc")]
    pub(crate) fn ptr_ref(&self) -> &DevicePtr {
        self.access.give_out();
        &self.ptr
    }

    /// The stream that the buffer belongs to: work on it needs no further order.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Sets all bytes to zero, in stream order.
    ///
    /// # Errors
    /// The device's own.
    pub fn set_zero(&mut self) -> Result<()> {
        self.part().set_zero()
    }

    /// Copies from a slice of the same length, in stream order. The slice has been read on return.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], or the device's own. A GPU's is [`DeviceError::Invalid`] for a stream that is being captured,
    /// which goes on: a graph would read the slice again at each replay.
    pub fn copy_from_slice(&mut self, from: &[T]) -> Result<()> {
        self.check_len("Buffer::copy_from_slice", from.len())?;
        self.part().copy_from_host(from)
    }

    /// Copies to a slice of the same length, after the work given to the stream so far, and waits for it.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], or the device's own. [`DeviceError::Unsupported`] for a simulated device, which holds no bytes.
    pub fn copy_to_slice(&self, to: &mut [T]) -> Result<()> {
        self.check_len("Buffer::copy_to_slice", to.len())?;
        self.part().copy_to_host(to)
    }

    /// The elements, after the work given to the stream so far. Waits.
    ///
    /// # Errors
    /// Those of [`copy_to_slice`](Self::copy_to_slice).
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.as_view().to_vec()
    }

    /// Copies from another buffer of the same length. It may be of another stream: this stream then waits for that one,
    /// and the other's memory is kept until the copy is done. What is written to the other later comes after the copy.
    ///
    /// It may be of another GPU, too. This one reads it directly, where the GPUs reach each other: the source's pages get
    /// [access](Pool::allow_access_to) at the first copy. Else the driver brings the bytes by way of the host.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], [`Error::WrongDevice`], or the device's own. [`DeviceError::Invalid`] for a copy between GPUs on
    /// a stream that is being captured; the capture goes on.
    pub fn copy_from(&mut self, from: &Self) -> Result<()> {
        self.check_len("Buffer::copy_from", from.len)?;
        self.part().copy_from(from.part())
    }

    pub(crate) fn check_len(&self, what: &'static str, found: usize) -> Result<()> {
        check_len(what, found, self.len)
    }

    /// See [`BlockBytes::note_read_on`].
    #[cfg(feature = "cudarc")]
    pub(crate) fn note_read_on(&self, stream: &Stream) -> Result<()> {
        self.part().note_read_on(stream)
    }

    /// All of it, as bytes.
    pub(super) fn part(&self) -> BlockBytes<'_> {
        let Self { pool, ptr, stream, access, .. } = self;
        BlockBytes { pool, stream, access, block: *ptr, ptr: *ptr, bytes: self.byte_len(), is_shared: false }
    }

    // ---- parts -----------------------------------------------------------------------------------

    /// All of it as a view, which can be sliced.
    pub fn as_view(&self) -> BufferView<'_, T> {
        BufferView::new(self.part(), self.len)
    }

    /// All of it as a view to be written, which can be sliced and split.
    pub fn as_view_mut(&mut self) -> BufferViewMut<'_, T> {
        BufferViewMut::new(self.part(), self.len)
    }

    /// The elements in a range. [`BufferView`] has an example.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<BufferView<'_, T>> {
        self.as_view().slice(range)
    }

    /// The elements in a range, to be written.
    ///
    /// ```
    /// # let device = millpond::Context::host()?;
    /// # let (pool, stream) = (millpond::Pool::builder(&device).build()?, device.create_stream()?);
    /// let mut tokens = millpond::Buffer::<u32>::zeroed(&pool, 8, &stream)?;
    /// tokens.slice_mut(2..4)?.copy_from_slice(&[5, 6])?;
    /// tokens.copy_within(2..4, 6)?;
    /// assert_eq!(tokens.to_vec()?, [0, 0, 5, 6, 0, 0, 5, 6]);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<BufferViewMut<'_, T>> {
        let range = self.slice(range)?;
        Ok(BufferViewMut::of(range))
    }

    /// The elements before `mid`, and those from there on, each to be written. [`BufferViewMut`] has an example.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn split_at_mut(&mut self, mid: usize) -> Result<(BufferViewMut<'_, T>, BufferViewMut<'_, T>)> {
        let (one, other) = self.as_view().split_at(mid)?;
        Ok((BufferViewMut::of(one), BufferViewMut::of(other)))
    }

    /// As [`BufferViewMut::fill`].
    ///
    /// # Errors
    /// As for [`BufferViewMut::fill`].
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.part().fill(value)
    }

    /// As [`BufferViewMut::copy_within`].
    ///
    /// # Errors
    /// As for [`BufferViewMut::copy_within`].
    pub fn copy_within(&mut self, from: impl RangeBounds<usize>, to: usize) -> Result<()> {
        self.as_view_mut().copy_within(from, to)
    }

    /// A new buffer with the same elements, in the same pool and on the same stream. The host does not wait.
    ///
    /// # Errors
    /// Those of [`uninit`](Self::uninit), or the device's own.
    pub fn try_clone(&self) -> Result<Self> {
        self.as_view().try_clone()
    }

    /// Moves the elements to a new block, of so many. Those that are added are zeros; those that are too many are gone.
    /// [Advice](Self::advise) stays with the old block, which is freed in stream order. After an error, the buffer is as it was.
    ///
    /// ```
    /// # let device = millpond::Context::host()?;
    /// # let (pool, stream) = (millpond::Pool::builder(&device).build()?, device.create_stream()?);
    /// let mut cache = millpond::Buffer::from_slice(&pool, &[1_u32, 2], &stream)?;
    /// cache.resize(4)?;
    /// assert_eq!(cache.to_vec()?, [1, 2, 0, 0]);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`uninit`](Self::uninit), or the device's own.
    pub fn resize(&mut self, len: usize) -> Result<()> {
        let mut moved = Self::of_core(&self.pool, len, &self.stream)?;
        let kept = len.min(self.len);
        moved.slice_mut(..kept)?.copy_from(self.slice(..kept)?)?;
        moved.slice_mut(kept..)?.set_zero()?;
        *self = moved;
        Ok(())
    }

    /// The buffer on another stream of its context, which waits for all work that its own was given so far.
    ///
    /// ```
    /// # let device = millpond::Context::host()?;
    /// # let pool = millpond::Pool::builder(&device).build()?;
    /// let (load, compute) = (pool.create_stream()?, pool.create_stream()?);
    /// let inputs = millpond::Buffer::from_slice(&pool, &[1.0_f32; 4], &load)?;
    /// let inputs = inputs.on_stream(&compute)?; // further work on it, and its free, are of `compute`
    /// assert_eq!(inputs.stream(), &compute);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for a stream of another context. [`DeviceError::Invalid`] while its own stream is being captured: the
    /// other would wait in the graph only. Else the device's own. The buffer is freed then.
    pub fn on_stream(mut self, stream: &Stream) -> Result<Self> {
        self.pool.check_stream(stream)?;
        if self.stream != *stream {
            self.stream.check_not_captured("Buffer::on_stream", "order what comes after it")?;
            stream.wait_for(&self.stream)?;
            self.stream = stream.clone();
            self.access.move_to(stream);
        }
        Ok(self)
    }

    /// The buffer with its bytes as elements of another type.
    ///
    /// ```
    /// # let device = millpond::Context::host()?;
    /// # let (pool, stream) = (millpond::Pool::builder(&device).build()?, device.create_stream()?);
    /// let floats = millpond::Buffer::from_slice(&pool, &[1.0_f32, -0.0], &stream)?;
    /// assert_eq!(floats.cast::<u32>()?.to_vec()?, [0x3f80_0000, 0x8000_0000]);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`BufferView::cast`]. The buffer is freed then: [views](Self::as_view) can be cast without that.
    pub fn cast<U: Pod>(mut self) -> Result<Buffer<U>> {
        let len = cast_len::<U>("Buffer::cast", self.ptr, self.byte_len())?;
        let access = std::mem::replace(&mut self.access, DeviceAccess::unknown());
        let (pool, stream) = (self.pool.clone(), self.stream.clone());
        let (ptr, advised) = self.into_block();
        let mut cast = Buffer::over_block(&pool, ptr, len, &stream);
        (cast.access, cast.advised) = (access, AtomicBool::new(advised));
        Ok(cast)
    }

    /// Lets the GPU of another context use the buffer at its address, as [`Pool::allow_access_to`] does.
    ///
    /// ```
    /// use millpond::device::host::HostDevice;
    /// use millpond::{Buffer, Context, Pool};
    ///
    /// let (first, second) = (Context::host()?, Context::new(HostDevice::new()?)); // or Context::cuda(0)?, Context::cuda(1)?
    /// let (pool, own, other) = (Pool::builder(&first).build()?, first.create_stream()?, second.create_stream()?);
    /// let shared = Buffer::<f32>::zeroed(&pool, 1024, &own)?;
    /// shared.allow_access(&second)?;
    /// other.wait_for(&own)?; // later work on `other` comes after the zeros
    /// // … kernels of the second GPU on `other` that use the buffer …
    /// shared.record_use(&other)?; // the free waits for them
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Pool::allow_access_to`].
    pub fn allow_access(&self, peer: &crate::Context) -> Result<()> {
        peers::allow_access_to(&self.pool, self.ptr, peer.timelines())
    }

    /// As [`copy_from`](Self::copy_from), from a buffer of [pinned memory](crate::Context::pinned): the host does not wait,
    /// and the copy runs beside the work of other streams. The source may be written again by
    /// [`as_mut_slice`](Self::as_mut_slice), which waits for the copy.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Pool};
    ///
    /// let device = Context::host()?;
    /// let (pool, pinned) = (Pool::builder(&device).build()?, device.pinned()?.build()?);
    /// let stream = device.create_stream()?;
    /// let mut staging = Buffer::<u32>::new(&pinned, 4, &stream)?;
    /// staging.as_mut_slice()?.copy_from_slice(&[1, 2, 3, 4]);
    /// let mut inputs = Buffer::<u32>::new(&pool, 4, &stream)?;
    /// inputs.copy_from_pinned(&staging)?;
    /// assert_eq!(inputs.to_vec()?, [1, 2, 3, 4]);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotPinned`], and those of [`copy_from`](Self::copy_from).
    pub fn copy_from_pinned(&mut self, from: &Self) -> Result<()> {
        from.needs_pinned("Buffer::copy_from_pinned")?;
        self.copy_from(from)
    }

    /// Copies to a buffer of [pinned memory](crate::Context::pinned), on that buffer's stream, as its
    /// [`copy_from`](Self::copy_from): the host does not wait. [`as_slice`](Self::as_slice) of the other waits for the copy.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Pool};
    ///
    /// let device = Context::host()?;
    /// let (pool, pinned) = (Pool::builder(&device).build()?, device.pinned()?.build()?);
    /// let (compute, download) = (device.create_stream()?, device.create_stream()?);
    /// let outputs = Buffer::<u32>::zeroed(&pool, 4, &compute)?;
    /// let mut results = Buffer::<u32>::new(&pinned, 4, &download)?;
    /// outputs.copy_to_pinned(&mut results)?; // after the work on `compute` so far
    /// assert_eq!(results.as_slice()?, [0; 4]); // waits for `download`
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotPinned`], and those of [`copy_from`](Self::copy_from).
    pub fn copy_to_pinned(&self, to: &mut Self) -> Result<()> {
        to.needs_pinned("Buffer::copy_to_pinned")?;
        to.copy_from(self)
    }

    /// The elements, in place, for the CPU to read. Waits for the work that the stream was given so far.
    ///
    /// ```
    /// # use millpond::{Buffer, Context};
    /// # let device = Context::host()?;
    /// # let stream = device.create_stream()?;
    /// let pinned = device.pinned()?.build()?;
    /// let zeros = Buffer::<u8>::zeroed(&pinned, 100, &stream)?;
    /// assert_eq!(zeros.as_slice()?, [0; 100]);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// While the slice lives, nothing can be given to the device that writes to the buffer:
    /// ```compile_fail,E0502
    /// # use millpond::{Buffer, Context};
    /// # let device = Context::host()?;
    /// # let stream = device.create_stream()?;
    /// # let pinned = device.pinned()?.build()?;
    /// # let mut zeros = Buffer::<u8>::zeroed(&pinned, 100, &stream)?;
    /// let slice = zeros.as_slice()?;
    /// zeros.set_zero()?; // error: `slice` is used below
    /// println!("{}", slice[0]);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// A slice does not tell that its memory is page-locked. Keep it from functions of other crates that give a slice to the device
    /// and return before the device is done, such as cudarc's `memcpy_htod` and `memcpy_dtoh`. Page-locked memory is used after
    /// such a call, and then anybody may write to it. [`copy_to_pinned`](Self::copy_to_pinned) and
    /// [`copy_from_pinned`](Self::copy_from_pinned) are ordered; `docs/rust.md` has the calls for cudarc's memory.
    ///
    /// # Errors
    /// [`Error::NoHostAccess`] where the CPU cannot read the memory: that of a device. [`Error::BadAlignment`] for an element
    /// whose alignment the pool does not have. [`DeviceError::Invalid`] while the stream is being captured, which cannot be
    /// waited for; the capture goes on. Else the device's own.
    pub fn as_slice(&self) -> Result<&[T]> {
        // SAFETY: the buffer is borrowed as long as the slice.
        unsafe { self.part().as_slice(self.len) }
    }

    /// As [`as_slice`](Self::as_slice), after an event: what the stream was given later is not waited for. So a copy to pinned memory can
    /// be read while the stream goes on.
    ///
    /// Where the event does not come after all copies to the buffer, or the buffer's [address](Self::ptr) was given to kernels, the
    /// stream is waited for, as in `as_slice`.
    ///
    /// ```
    /// # use millpond::{Buffer, Context, Pool};
    /// # let device = Context::host()?;
    /// # let stream = device.create_stream()?;
    /// # let pool = Pool::builder(&device).build()?;
    /// # let loss = Buffer::from_slice(&pool, &[0.5_f32], &stream)?;
    /// let pinned = device.pinned()?.build()?;
    /// let mut seen = Buffer::<f32>::uninit(&pinned, 1, &stream)?;
    /// seen.copy_from(&loss)?;
    /// let copied = stream.record()?;
    /// // … the next step is given to the stream …
    /// assert_eq!(seen.as_slice_after(&copied)?, [0.5]);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`as_slice`](Self::as_slice).
    pub fn as_slice_after(&self, event: &Event) -> Result<&[T]> {
        // SAFETY: the buffer is borrowed as long as the slice.
        unsafe { self.part().as_slice_after(self.len, event) }
    }

    /// The elements, in place, for the CPU to write. Waits for the work that the stream was given so far, for copies of the
    /// buffer on other streams, and for uses that were [recorded](Self::record_use). Work that is given later sees what was
    /// written.
    ///
    /// ```
    /// # use millpond::{Buffer, Context};
    /// # let device = Context::host()?;
    /// # let stream = device.create_stream()?;
    /// let pinned = device.pinned()?.build()?;
    /// let mut staging = Buffer::<f32>::new(&pinned, 3, &stream)?;
    /// staging.as_mut_slice()?.copy_from_slice(&[1.0, 2.0, 3.0]);
    /// assert_eq!(staging.to_vec()?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// Functions that it must be kept from are said at [`as_slice`](Self::as_slice).
    ///
    /// # Errors
    /// As for [`as_slice`](Self::as_slice); also while a stream of those copies and uses is being captured.
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        // SAFETY: the buffer is borrowed for writing as long as the slice.
        unsafe { self.part().as_mut_slice(self.len) }
    }

    /// Moves the buffer's [managed memory](crate::Context::managed) to where it will be used, in the order of `stream`. On
    /// a GPU, the call takes most of the time of the move. Later work finds the memory in place, and has no page faults. No byte changes, so the stream may be any
    /// of the context.
    ///
    /// It moves whole pages of the system, of which the buffer may share the first and the last one with neighbours.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Place};
    ///
    /// let device = Context::host()?;
    /// let (pool, stream) = (device.managed()?.build()?, device.create_stream()?);
    /// let mut data = Buffer::<f32>::zeroed(&pool, 1 << 20, &stream)?;
    /// data.as_mut_slice()?.fill(1.0); // on the host
    /// data.prefetch(Place::Device, &stream)?;
    /// // … kernels on `stream` that use it …
    /// data.prefetch(Place::Host, &stream)?;
    /// assert_eq!(data.as_slice()?[0], 1.0); // waits for the stream
    /// assert_eq!(data.residency()?.last_prefetch, Some(Place::Host));
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotManaged`] for other memory. [`Error::WrongDevice`] for a stream of another device.
    /// [`DeviceError::Invalid`] for a stream that is being captured, which goes on. Else the device's own.
    pub fn prefetch(&self, to: Place, stream: &Stream) -> Result<()> {
        let is_own = self.stream.id() == stream.id();
        managed::prefetch(&self.pool, "Buffer::prefetch", self.ptr, to, (stream, is_own))
    }

    /// Says how the buffer's [managed memory](crate::Context::managed) will be used, from now on. No byte changes.
    ///
    /// It holds for the whole pages of the system in the buffer, not for those that it may share with neighbours. A pool whose
    /// [`min_alignment`](crate::PoolBuilder::min_alignment) is that of such a page (4096 on most) shares none. Dropping the
    /// buffer takes the advice back.
    ///
    /// ```
    /// use millpond::{Advice, Buffer, Context, Place};
    ///
    /// let device = Context::host()?;
    /// let (pool, stream) = (device.managed()?.build()?, device.create_stream()?);
    /// let table = Buffer::<f32>::zeroed(&pool, 1 << 20, &stream)?;
    /// table.advise(Advice::ReadMostly(true))?; // a copy for the device, and one for the host
    /// table.advise(Advice::PreferredLocation(Some(Place::Device)))?;
    /// assert!(table.residency()?.read_mostly);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotManaged`] for other memory, or the device's own.
    pub fn advise(&self, advice: Advice) -> Result<()> {
        let given = managed::advise(&self.pool, "Buffer::advise", self.ptr, &[advice]);
        // Also where it fails, when part of it may hold. Relaxed: who drops the buffer has it alone, and comes after this.
        if !matches!(given, Err(Error::NotManaged { .. })) {
            self.advised.store(true, Ordering::Relaxed);
        }
        given
    }

    /// Where the buffer's [managed memory](crate::Context::managed) was last prefetched to, maybe by an earlier owner of it, and
    /// the advice on it: what is the same of all whole pages of the system in it. Where it lies now may be another place.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Residency};
    ///
    /// let device = Context::host()?;
    /// let (pool, stream) = (device.managed()?.build()?, device.create_stream()?);
    /// let fresh = Buffer::<f32>::new(&pool, 1 << 20, &stream)?;
    /// assert_eq!(fresh.residency()?, Residency::default());
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`advise`](Self::advise).
    pub fn residency(&self) -> Result<Residency> {
        managed::residency(&self.pool, "Buffer::residency", self.ptr)
    }

    fn needs_pinned(&self, what: &'static str) -> Result<()> {
        if self.pool.device.properties().memory == MemoryKind::Pinned {
            return Ok(());
        }
        Err(Error::NotPinned { what, pool: self.pool.name_of() })
    }

    /// See [`BlockBytes::begin_write`].
    #[cfg(feature = "cudarc")]
    pub(crate) fn begin_write(&self) -> Result<(StreamHandle, impl Sized + use<'_, T>)> {
        self.part().begin_write()
    }

    /// Notes that work on `stream` uses the buffer; see [`Pool::record_use`].
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for a stream of a device that cannot work together with the buffer's.
    pub fn record_use(&self, stream: &Stream) -> Result<()> {
        peers::record_use(&self.pool, self.ptr, stream)
    }

    /// Gives up the block without freeing it. [Advice](Self::advise) stays with it. Free it with [`Pool::free`], or
    /// [`Context::free`](crate::Context::free), or make it a buffer again with [`from_raw`](Self::from_raw).
    pub fn into_raw(self) -> DevicePtr {
        self.into_block().0
    }

    /// Gives up the block without freeing it. Also says whether there may be advice on it, for its next owner to take back.
    pub(crate) fn into_block(self) -> (DevicePtr, bool) {
        let mut kept = ManuallyDrop::new(self);
        let given_up = (kept.ptr, *kept.advised.get_mut());
        // What remains is a buffer of nothing: dropping it frees nothing but lets go of pool and stream.
        kept.ptr = DevicePtr::NULL;
        kept.len = 0;
        *kept.advised.get_mut() = false;
        drop(ManuallyDrop::into_inner(kept));
        given_up
    }

    /// A buffer of `len` elements over a live block of the pool, which it frees on `stream`.
    ///
    /// # Errors
    /// Those of [`Pool::free`] for a pointer that is no live block of the pool, and
    /// [`Error::LengthMismatch`] for one that is too short. Null makes a buffer of no elements.
    ///
    /// Advice that the block has stays when the buffer is dropped: [`Pool::take_back_advice`] takes it back.
    ///
    /// # Safety
    /// Nobody else frees the block or makes it a buffer, and `stream` is ordered after all work on it. The pointer is aligned as
    /// `T` is.
    pub unsafe fn from_raw(pool: &Pool, ptr: DevicePtr, len: usize, stream: &Stream) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::of_block("Buffer::from_raw", (pool, ptr, len), stream) }
    }

    /// As [`from_raw`](Self::from_raw), for the call that is named. Recorded uses need not be ordered before `stream`.
    ///
    /// # Safety
    /// As for [`from_raw`](Self::from_raw), but for copies whose use was recorded.
    pub(crate) unsafe fn of_block(
        what: &'static str,
        (pool, ptr, len): (&Pool, DevicePtr, usize),
        stream: &Stream,
    ) -> Result<Self> {
        let (bytes, held) = (byte_len::<T>(len)?, pool.size_of(ptr)?);
        if bytes > held {
            let expected = held as usize / size_of::<T>().max(1);
            return Err(Error::LengthMismatch { what, found: len, expected });
        }
        pool.inner().check_stream(stream)?;
        Ok(Self::over_used_block(pool.inner(), (ptr, false), len, stream))
    }

    /// Over a block that others had. Nobody knows whether copies on other streams read it. With the block comes whether there may be
    /// advice on it, which this buffer takes back.
    pub(crate) fn over_used_block(
        pool: &Arc<PoolParts>,
        (ptr, advised): (DevicePtr, bool),
        len: usize,
        stream: &Stream,
    ) -> Self {
        let mut buffer = Self::over_block(pool, ptr, len, stream);
        (buffer.access, buffer.advised) = (DeviceAccess::unknown(), AtomicBool::new(advised));
        buffer
    }
}

impl<T: Pod> BufferView<'_, T> {
    /// A new buffer with these elements, in the same pool and on the same stream. The host does not wait.
    ///
    /// # Errors
    /// Those of [`Buffer::uninit`], or the device's own.
    pub fn try_clone(&self) -> Result<Buffer<T>> {
        let clone = Buffer::of_core(self.part.pool, self.len(), self.part.stream)?;
        clone.part().copy_from(self.part)?;
        Ok(clone)
    }
}

impl<'a, T: Pod> From<&'a Buffer<T>> for BufferView<'a, T> {
    fn from(buffer: &'a Buffer<T>) -> Self {
        buffer.as_view()
    }
}

pub(crate) fn byte_len<T>(len: usize) -> Result<u64> {
    // Made only where it is needed: an error that is dropped costs more than the rest.
    let overflow = || Error::SizeOverflow { bytes: u64::MAX, count: len as u64 };
    len.checked_mul(size_of::<T>()).map(|bytes| bytes as u64).ok_or_else(overflow)
}

impl<T: Pod> Drop for Buffer<T> {
    #[inline]
    fn drop(&mut self) {
        if *self.advised.get_mut() {
            take_back_advice(&self.pool, self.ptr);
        }
        // SAFETY: the block is the buffer's alone, and work that others gave is ordered by who gave it.
        if let Err(error) = unsafe { freeing::free(&self.pool, self.ptr, &self.stream) } {
            note_not_freed(&error);
        }
    }
}

/// Before the block is freed.
#[cold]
pub(crate) fn take_back_advice(pool: &Core, ptr: DevicePtr) {
    if let Err(error) = managed::advise(pool, "Buffer", ptr, &Advice::TAKEN_BACK)
        && error != Error::Forked
    {
        log!(ERROR, "advice could not be taken back: the next owner of the memory has it", error);
    }
}

#[cold]
fn note_not_freed(error: &Error) {
    // In a forked child the block is the parent's.
    if *error != Error::Forked {
        log!(ERROR, "a buffer could not be freed", error);
    }
}

// No invariant of a buffer is broken by a panic: none unwinds through a change of it.
impl<T: Pod> UnwindSafe for Buffer<T> {}
impl<T: Pod> RefUnwindSafe for Buffer<T> {}

impl<T: Pod> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("ptr", &self.ptr)
            .field("len", &self.len)
            .field("element", &std::any::type_name::<T>())
            .finish_non_exhaustive()
    }
}
