//! Typed buffers: a block of a pool that frees itself in stream order.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::Pod;

use crate::core::{Core, freeing};
use crate::device::{Advice, DeviceError, DevicePtr, MemoryKind, Place, Residency, StreamHandle};
use crate::error::{Error, Result};
use crate::log::log;
use crate::managed;
use crate::order::Stream;
use crate::peers;
use crate::pool::Pool;

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
pub struct Buffer<T: Pod> {
    pool: Arc<Core>,
    ptr: DevicePtr,
    len: usize,
    stream: Stream,
    /// Whether copies on other streams read it, that its own may not have waited for.
    read_elsewhere: AtomicBool,
    /// Whether there may be advice on its memory, which is taken back with it.
    advised: AtomicBool,
    element: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// A buffer of `len` elements with no defined content.
    ///
    /// # Errors
    /// [`Error::SizeOverflow`], and those of [`Pool::alloc`].
    pub fn new(pool: &Pool, len: usize, stream: &Stream) -> Result<Self> {
        let ptr = pool.alloc_aligned(byte_len::<T>(len)?, align_of::<T>() as u64, stream)?;
        Ok(Self::over_block(pool.inner(), ptr, len, stream))
    }

    /// Over a block of the pool, which nobody else has.
    pub(crate) fn over_block(pool: &Arc<Core>, ptr: DevicePtr, len: usize, stream: &Stream) -> Self {
        let (pool, stream) = (pool.clone(), stream.clone());
        let (read_elsewhere, advised) = Default::default();
        Self { pool, ptr, len, stream, read_elsewhere, advised, element: PhantomData }
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
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements; its pointer is null then.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length in bytes.
    pub fn byte_len(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// The address, for kernels and driver calls.
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// The pool that the memory is of.
    pub(crate) fn pool(&self) -> &Arc<Core> {
        &self.pool
    }

    /// Where the address lies, for the builder of a launch, which reads it when it launches.
    #[cfg(feature = "cudarc")]
    pub(crate) fn ptr_ref(&self) -> &DevicePtr {
        &self.ptr
    }

    /// The stream that the buffer belongs to: work on it needs no further order.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Sets all bytes to zero, in stream order.
    ///
    /// # Errors
    /// The device's own.
    pub fn set_zero(&mut self) -> Result<()> {
        if self.byte_len() > 0 {
            let (handle, _awake) = self.begin_write()?;
            // SAFETY: the buffer owns the block, which is valid on its stream until it is freed there.
            unsafe { self.stream.device().memset(self.ptr, 0, self.byte_len(), handle) }?;
        }
        Ok(())
    }

    /// Copies from a slice of the same length, in stream order. The slice has been read on return.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], or the device's own. A GPU's is [`DeviceError::Invalid`] for a stream that is being captured,
    /// which goes on: a graph would read the slice again at each replay.
    pub fn copy_from_slice(&mut self, from: &[T]) -> Result<()> {
        self.check_len("Buffer::copy_from_slice", from.len())?;
        if self.byte_len() > 0 {
            let (handle, _awake) = self.begin_write()?;
            // SAFETY: the slice is readable for its length, which is the buffer's, and has been read when
            // the call returns; the block as in `set_zero`.
            unsafe {
                let device = self.stream.device();
                device.copy_from_host(self.ptr, from.as_ptr().cast(), self.byte_len(), handle)
            }?;
        }
        Ok(())
    }

    /// Copies to a slice of the same length, after the work given to the stream so far, and waits for it.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], or the device's own.
    pub fn copy_to_slice(&self, to: &mut [T]) -> Result<()> {
        self.check_len("Buffer::copy_to_slice", to.len())?;
        if self.byte_len() > 0 {
            self.pool.check_process()?;
            let (stream, handle) = (&self.stream, self.stream.handle_here()?);
            let awake = self.pool.stay_awake()?;
            // SAFETY: the slice is writable for its length, and borrowed until the stream is synchronised
            // below; any bytes are a valid `T`. The block as in `set_zero`.
            let copied = unsafe {
                stream.device().copy_to_host(to.as_mut_ptr().cast(), self.ptr, self.byte_len(), handle)
            };
            // A sleep waits for the copy.
            drop(awake);
            // Also after an error: part of the copy may be under way. After an error here it is not, as a device promises.
            stream.synchronize().and(copied)?;
        }
        Ok(())
    }

    /// The elements, after the work given to the stream so far. Waits.
    ///
    /// # Errors
    /// The device's own.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let Ok(mut elements) = bytemuck::try_zeroed_slice_box(self.len) else {
            return Err(self.pool.no_host_memory("the elements of a buffer", self.byte_len()));
        };
        self.copy_to_slice(&mut elements)?;
        Ok(elements.into_vec())
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
        if self.byte_len() == 0 {
            return Ok(());
        }
        from.pool.check_process()?;
        if from.pool.check_stream(&self.stream).is_err() {
            return self.copy_from_device(from);
        }
        let (handle, _awake) = self.begin_write()?;
        let _from_awake = from.pool.stay_awake()?;
        let elsewhere = from.stream.id() != self.stream.id();
        if elsewhere {
            self.stream.wait_for(&from.stream)?;
        }
        // SAFETY: two live blocks do not overlap. Both are valid on this stream, which waits for the other's writes.
        // Its use is recorded before a free, and before a later write of safe code.
        unsafe {
            self.stream.device().copy(self.ptr, from.ptr, self.byte_len(), handle)?;
        }
        if elsewhere { from.note_read_on(&self.stream) } else { Ok(()) }
    }

    pub(crate) fn check_len(&self, what: &'static str, found: usize) -> Result<()> {
        if found == self.len {
            Ok(())
        } else {
            Err(Error::LengthMismatch { what, found, expected: self.len })
        }
    }

    /// Notes that a copy on another stream reads the buffer.
    pub(crate) fn note_read_on(&self, stream: &Stream) -> Result<()> {
        // After the copy: of a thread's default stream, a recorded use covers only what was given before.
        if let Err(error) = self.record_use(stream) {
            // Nobody knows of the copy, so that nothing could wait for it.
            stream.synchronize()?;
            return Err(error);
        }
        // Relaxed: who writes to the buffer has it alone, and so comes after this.
        self.read_elsewhere.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// As [`copy_from`](Self::copy_from), from a buffer of another device.
    fn copy_from_device(&mut self, from: &Self) -> Result<()> {
        peers::check_beside(&from.pool, &self.stream)?;
        let Some((source, own)) = from.pool.device.peer_id().zip(self.pool.device.peer_id()) else {
            return Err(Error::WrongDevice { what: "buffer", pool: from.pool.name_of() });
        };
        for stream in [&self.stream, &from.stream] {
            stream.check_not_captured("Buffer::copy_from", "copy between GPUs")?;
        }
        let (handle, _awake) = self.begin_write()?;
        let _from_awake = from.pool.stay_awake()?;
        self.stream.wait_for(&from.stream)?;
        let (copying, has_access) = peers::begin_copy_to(&from.pool, from.ptr, own)?;
        let is_on_host = |pool: &Core| pool.device.properties().memory != MemoryKind::Device;
        if !has_access && (is_on_host(&from.pool) || is_on_host(&self.pool)) {
            let device = self.pool.device.properties().name.clone();
            let what =
                "a copy between another GPU's memory and the host: use pinned memory of that GPU's context";
            return Err(DeviceError::Unsupported { device, what }.into());
        }
        // SAFETY: both blocks are live, on devices that do not overlap. The stream waits for the source's writes. Its use is
        // recorded before a free, and before a later write of safe code. Access is not taken back while `copying` lives,
        // and later not before the device has done this.
        unsafe { self.stream.device().copy_from_peer(self.ptr, from.ptr, self.byte_len(), source, handle) }?;
        drop(copying);
        from.note_read_on(&self.stream)
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
        self.wait_for_host_access()?;
        // Nobody writes to the block while the slice lives:
        // - The buffer is borrowed. Safe code has the device write to it through `&mut self` only, on the buffer's stream or on one
        //   that the buffer's then waits for. All that the buffer's stream was given is complete.
        // - Who is given the slice uses it no longer than it is borrowed, as safe functions of Rust do. cudarc's `memcpy_htod` and
        //   `memcpy_dtoh` break that for all page-locked memory, its own `PinnedHostSlice::as_slice` and that of
        //   `cuMemHostRegister` included. No type keeps a slice from them. The documentation warns, and has the ordered calls.
        // - Earlier blocks of the same memory are ordered before work on this stream, and so are complete as well.
        // - The block is not freed, and a live block is not remapped.
        // - A copy in a graph runs when somebody launches the graph. That is no safe call of this crate: who makes it vouches
        //   for the graph's memory, as for kernels, and as who forks vouches for what both processes do with it.
        // SAFETY: the range is as long, and aligned, and of the buffer's live block, which the CPU can read. Any bytes are a valid
        // `T`, and nobody writes to them, as said above.
        Ok(unsafe { std::slice::from_raw_parts(self.host_ptr(), self.len) })
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
        self.wait_for_host_access()?;
        if !self.ptr.is_null() {
            freeing::order_after_uses(&self.pool, self.ptr, None)?;
            *self.read_elsewhere.get_mut() = false;
        }
        // SAFETY: as in `as_slice`. Nobody reads it either: other streams read it by copies of safe code, whose use is
        // recorded, and all recorded uses are complete. The buffer is borrowed for writing, so that no copy can follow.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.host_ptr(), self.len) })
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

    /// Waits for the stream, where the CPU can use the memory.
    fn wait_for_host_access(&self) -> Result<()> {
        self.pool.check_process()?;
        let properties = self.pool.device.properties();
        if !properties.host_access {
            return Err(Error::NoHostAccess { pool: self.pool.name_of() });
        }
        let align = align_of::<T>() as u64;
        if !self.ptr.raw().is_multiple_of(align) {
            return Err(Error::BadAlignment { align, largest: self.pool.caches.sizes().bytes(1) });
        }
        if self.byte_len() == 0 {
            return Ok(());
        }
        // To wait would end a capture.
        self.stream.check_not_captured("Buffer::as_slice", "wait for the host")?;
        Ok(self.stream.synchronize()?)
    }

    /// Where the CPU finds the elements.
    fn host_ptr(&self) -> *mut T {
        if self.ptr.is_null() {
            return std::ptr::dangling_mut();
        }
        // The addresses of memory that the CPU can use are the process's own.
        std::ptr::with_exposed_provenance_mut(self.ptr.raw() as usize)
    }

    fn needs_pinned(&self, what: &'static str) -> Result<()> {
        if self.pool.device.properties().memory == MemoryKind::Pinned {
            return Ok(());
        }
        Err(Error::NotPinned { what, pool: self.pool.name_of() })
    }

    /// Before a write is given to the stream: orders it after the copies that read the buffer on other streams. Returns the
    /// stream's handle, and what keeps the pool awake meanwhile.
    pub(crate) fn begin_write(&self) -> Result<(StreamHandle, impl Sized + use<'_, T>)> {
        self.pool.check_process()?;
        let handle = self.stream.handle_here()?;
        // Relaxed, both: who writes to the buffer has it alone.
        if self.read_elsewhere.load(Ordering::Relaxed) && !self.ptr.is_null() {
            freeing::order_after_uses(&self.pool, self.ptr, Some(&self.stream))?;
            self.read_elsewhere.store(false, Ordering::Relaxed);
        }
        Ok((handle, self.pool.stay_awake()?))
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
        let mut kept = ManuallyDrop::new(self);
        let ptr = kept.ptr;
        // What remains is a buffer of nothing: dropping it frees nothing but lets go of pool and stream.
        kept.ptr = DevicePtr::NULL;
        kept.len = 0;
        *kept.advised.get_mut() = false;
        drop(ManuallyDrop::into_inner(kept));
        ptr
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
        let mut buffer = Self::over_block(pool.inner(), ptr, len, stream);
        // Nobody knows whether copies on other streams read it.
        *buffer.read_elsewhere.get_mut() = true;
        Ok(buffer)
    }
}

pub(crate) fn byte_len<T>(len: usize) -> Result<u64> {
    let overflow = Error::SizeOverflow { bytes: u64::MAX, count: len as u64 };
    len.checked_mul(size_of::<T>()).map(|bytes| bytes as u64).ok_or(overflow)
}

impl<T: Pod> Drop for Buffer<T> {
    fn drop(&mut self) {
        if *self.advised.get_mut()
            && let Err(error) = managed::advise(&self.pool, "Buffer", self.ptr, &Advice::TAKEN_BACK)
            && error != Error::Forked
        {
            log!(ERROR, "advice could not be taken back: the next owner of the memory has it", error);
        }
        // SAFETY: the block is the buffer's alone, and work that others gave is ordered by who gave it.
        let freed = unsafe { freeing::free(&self.pool, self.ptr, &self.stream) };
        // In a forked child the block is the parent's.
        if let Err(error) = freed
            && error != Error::Forked
        {
            log!(ERROR, "a buffer could not be freed", error);
        }
    }
}

impl<T: Pod> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("ptr", &self.ptr)
            .field("len", &self.len)
            .field("element", &std::any::type_name::<T>())
            .finish_non_exhaustive()
    }
}
