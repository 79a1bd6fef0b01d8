//! A block of a pool that is freed with the last Python reference to it.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use millpond::bindings::{KeptInPlace, Mutex, Process, keep_in_place, wait_for_uses, with_buffer};
use millpond::device::{DeviceName, DevicePtr, Kind, MemoryKind, StreamHandle};
use millpond_offers::{self as offers, Offered};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMemoryView};

use crate::dlpack;
use crate::failure::{Failure, Result};
use crate::frames;
use crate::gil::detached;
use crate::handle::{Given, Handle};
use crate::memory::{self, Residency};
use crate::sharing::Shared;

/// A block of a pool's memory. It is freed in stream order when it is dropped, or at the end of a ``with``.
///
/// In pinned and managed memory, and on the CPU as a device, ``memoryview(block)``, ``numpy.asarray(block)`` and
/// ``numpy.from_dlpack(block)`` are its bytes. They wait for the work given so far to its stream and for recorded uses, as
/// ``synchronize`` does. While one of these is alive, the block cannot be freed, and its pool neither sleeps nor is evicted.
///
/// Libraries of a GPU take a block in place: ``cupy.asarray(block)``, ``numba.cuda.as_cuda_array(block)`` and
/// ``torch.from_dlpack(block)``. Their work comes after the work given so far to the block's stream.
#[pyclass(frozen, module = "millpond", weakref)]
pub(crate) struct Block {
    pub(crate) ptr: DevicePtr,
    bytes: u64,
    pool: Arc<Handle>,
    process: Process,
    /// The stream that it is freed on by default; `None` once it is freed.
    stream: Mutex<Option<millpond::Stream>>,
    /// See [`Given::is_kept`].
    stream_is_kept: bool,
    /// How many buffers and tensors show the block's bytes to others. Counted up under the lock of `stream`, and changed under that of
    /// `in_place`.
    views: AtomicUsize,
    /// While the CPU may look at the bytes, which it does without asking the pool. Nobody waits under this lock.
    in_place: Mutex<Option<KeptInPlace>>,
    /// Whether there may be advice on its memory, which is taken back before the block is freed.
    advised: AtomicBool,
    /// Another library's stream object, so that the stream lives until the block is freed on it.
    keeps: Option<Py<PyAny>>,
}

impl Block {
    /// A block that this thread has ready, else what the pool finds without the GIL.
    pub(crate) fn allocate(
        py: Python<'_>,
        pool: &Arc<Handle>,
        (bytes, align): (u64, Option<u64>),
        Given { stream, is_kept }: Given,
        keeps: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let is_plain = is_kept && align.is_none();
        let ready = is_plain.then(|| pool.alloc_ready(bytes, &stream)).flatten();
        let (ptr, stream) = match ready {
            Some(ready) => (ready, stream),
            None => {
                let _called = frames::of_call(py);
                py.detach(move || -> Result<_> {
                    let ptr = match align {
                        None => pool.pool.alloc(bytes, &stream)?,
                        Some(align) => pool.pool.alloc_aligned(bytes, align, &stream)?,
                    };
                    Ok((ptr, stream))
                })?
            }
        };
        // SAFETY: it was allocated above.
        Ok(unsafe { Self::over(pool.clone(), (ptr, bytes), Given { stream, is_kept }, keeps) })
    }

    /// Over a live block of the pool, which it frees.
    ///
    /// # Safety
    /// Nobody else frees the block.
    pub(crate) unsafe fn over(
        pool: Arc<Handle>,
        (ptr, bytes): (DevicePtr, u64),
        Given { stream, is_kept: stream_is_kept }: Given,
        keeps: Option<Py<PyAny>>,
    ) -> Self {
        let (process, stream) = (Process::here(), Mutex::new(Some(stream)));
        let (views, in_place, advised) = Default::default();
        Self { ptr, bytes, pool, process, stream, stream_is_kept, views, in_place, advised, keeps }
    }

    fn pool(&self) -> &millpond::Pool {
        &self.pool.pool
    }

    /// The stream that an argument means, if there is one.
    fn other_stream(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<millpond::Stream>> {
        let given = stream.filter(|stream| !stream.is_none());
        given.map(|stream| Ok(self.pool.stream(py, Some(stream))?.stream)).transpose()
    }

    /// Frees the block on its stream if that takes no wait at all, not even for a lock.
    fn free_at_once(&self) -> bool {
        // Relaxed: who frees the block comes after who used it.
        if !self.stream_is_kept || self.advised.load(Ordering::Relaxed) || !self.process.is_here() {
            return false;
        }
        let Some(mut stream) = self.stream.try_lock() else { return false };
        // Acquire: pairs with `conceal`. Counted up under this lock.
        let Some(own) = stream.as_ref().filter(|_| self.views.load(Ordering::Acquire) == 0) else {
            return false;
        };
        // SAFETY: as in `free_on`.
        let is_freed = unsafe { self.pool.free_ready(self.ptr, own) };
        if is_freed {
            *stream = None;
        }
        is_freed
    }

    fn free_on(&self, other: Option<millpond::Stream>) -> Result<()> {
        // Before the lock, which a thread of the parent may have had.
        self.process.check()?;
        let own = {
            let mut stream = self.stream.lock();
            // Acquire: pairs with `conceal`. Counted up under this lock.
            match self.views.load(Ordering::Acquire) {
                0 => stream.take().ok_or(Failure::FreedBlock)?,
                views => return Err(Failure::ShownBlock(views)),
            }
        };
        // Relaxed: who frees the block comes after who used it.
        let taken_back = match self.advised.load(Ordering::Relaxed) {
            true => self.pool().take_back_advice(self.ptr),
            false => Ok(()),
        };
        // SAFETY: the block is this object's, which gave its stream up above; the order of its work is Python's promise.
        let freed =
            taken_back.and_then(|()| unsafe { self.pool().free(self.ptr, other.as_ref().unwrap_or(&own)) });
        if let Err(error) = freed {
            *self.stream.lock() = Some(own);
            return Err(error.into());
        }
        Ok(())
    }

    /// Where the bytes are for the CPU, after the work given so far to the block's stream. [`conceal`](Self::conceal) is
    /// due once they are not looked at any more.
    fn show(&self, py: Python<'_>) -> PyResult<*mut c_void> {
        if !self.is_for_the_cpu() {
            let device = self.device_name();
            return Err(PyBufferError::new_err(match device.kind() {
                Kind::Sim => "a simulated device keeps no bytes: use Pool('host')".to_owned(),
                _ => format!(
                    "the block is memory of {device}, which the CPU cannot read: copy it to a block of \
                     Pool('{device}', memory='pinned')"
                ),
            }));
        }
        py.detach(|| -> Result<()> {
            self.process.check()?;
            let stream = self.stream.lock();
            let kept = keep_in_place(self.pool())?;
            self.wait(stream.as_ref().ok_or(Failure::FreedBlock)?)?;
            self.count_view(Some(kept));
            Ok(())
        })?;
        Ok(std::ptr::with_exposed_provenance_mut(self.ptr.raw() as usize))
    }

    /// Shows the bytes to work that comes later on a stream of the consumer's, in the words of the array interface standard:
    /// `None` is the legacy default stream, and -1 is nobody's. [`conceal`](Self::conceal) is due at the end.
    fn show_on(&self, py: Python<'_>, consumer: Option<&Bound<'_, PyAny>>) -> PyResult<*mut c_void> {
        const STREAMS: &str =
            "1 (the legacy default stream), 2 (the thread's), a CUstream, -1 (no wait), or None (as 1)";
        let number = consumer.map(|consumer| consumer.extract::<i64>()).transpose();
        let number = number.map_err(|_| PyValueError::new_err(format!("stream: expected {STREAMS}")))?;
        let consumer = match number {
            Some(-1) => None,
            Some(number) if number <= 0 => {
                return Err(PyValueError::new_err(format!(
                    "stream: {number} names no stream: expected {STREAMS}"
                )));
            }
            _ => Some(self.pool.stream(py, consumer)?.stream),
        };
        py.detach(move || -> Result<()> {
            self.process.check()?;
            let stream = self.stream.lock();
            self.check_awake()?;
            let own = stream.as_ref().ok_or(Failure::FreedBlock)?;
            if let Some(consumer) = consumer {
                wait_for_uses(self.pool(), self.ptr, own)?;
                // In a capture, a stream that is first seen there has another identity.
                let is_same = consumer.handle() == own.handle() && own.handle() != StreamHandle::PER_THREAD;
                if !is_same && consumer.id() != own.id() {
                    consumer.wait_for(own)?;
                    self.pool().record_use(self.ptr, &consumer)?;
                }
            }
            self.count_view(None);
            Ok(())
        })?;
        Ok(std::ptr::with_exposed_provenance_mut(self.ptr.raw() as usize))
    }

    /// Counts one view more, under the lock of `stream`.
    fn count_view(&self, kept: Option<KeptInPlace>) {
        let mut in_place = self.in_place.lock();
        // Relaxed: under the locks.
        self.views.fetch_add(1, Ordering::Relaxed);
        *in_place = in_place.take().or(kept);
    }

    fn check_awake(&self) -> Result<()> {
        let pool = || self.pool().name().to_owned();
        if self.pool().is_evicted() {
            return Err(millpond::Error::Evicted { pool: pool() }.into());
        }
        if self.pool().is_asleep() { Err(millpond::Error::Asleep { pool: pool() }.into()) } else { Ok(()) }
    }

    fn device_name(&self) -> DeviceName {
        DeviceName::of(self.pool.context.device().properties())
    }

    /// The devices that reach the bytes where they are, in DLPack's numbers. The first one is what the block says it is of.
    fn dlpack_devices(&self) -> Vec<(i32, i32)> {
        let properties = self.pool().device().properties();
        let on_gpu = (dlpack::CUDA, properties.ordinal as i32);
        match (properties.kind, properties.memory) {
            // Of the host for those who read it there: not all of them know a number of its own.
            (Kind::Cuda, MemoryKind::Pinned) => vec![(dlpack::CPU, 0), on_gpu, (dlpack::PINNED, 0)],
            (Kind::Cuda, MemoryKind::Managed) => vec![(dlpack::CPU, 0), on_gpu, (dlpack::MANAGED, 0)],
            (Kind::Cuda, _) => vec![on_gpu],
            _ => vec![(dlpack::CPU, 0)],
        }
    }

    /// Another block with the same bytes, of the same pool and stream.
    fn copied<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let (py, block) = (this.py(), this.get());
        let stream = py.detach(|| block.while_live(|own| Ok(own.clone())))?;
        let keeps = block.keeps.as_ref().map(|keeps| keeps.clone_ref(py));
        let given = Given { stream, is_kept: block.stream_is_kept };
        let copy = Self::allocate(py, &block.pool, (block.bytes, None), given, keeps)?;
        if block.bytes > 0 {
            py.detach(|| copy.copy_all_from(block))?;
        }
        Bound::new(py, copy)
    }

    /// Whether the CPU can use the bytes: the host device's own, too, which stand for a GPU's elsewhere.
    fn is_for_the_cpu(&self) -> bool {
        let properties = self.pool().device().properties();
        properties.host_access || properties.kind == Kind::Host
    }

    /// Waits for the stream, which is the block's, and for recorded uses.
    fn wait(&self, stream: &millpond::Stream) -> Result<()> {
        if self.pool().device().properties().host_access {
            // SAFETY: the block is not freed while its stream is locked; the order of its work is Python's promise.
            unsafe { with_buffer("Block", self.whole(), stream, |bytes| bytes.as_mut_slice().map(|_| ())) }?;
        } else {
            wait_for_uses(self.pool(), self.ptr, stream)?;
            stream.synchronize()?;
        }
        Ok(())
    }

    /// Where the block lies.
    pub(crate) fn address(&self) -> DevicePtr {
        self.ptr
    }

    fn whole(&self) -> (&millpond::Pool, DevicePtr, u64) {
        (self.pool(), self.ptr, self.bytes)
    }

    /// Calls while the block is live, with its stream.
    pub(crate) fn while_live<R>(
        &self,
        call: impl FnOnce(&millpond::Stream) -> millpond::Result<R>,
    ) -> Result<R> {
        self.process.check()?;
        let stream = self.stream.lock();
        Ok(call(stream.as_ref().ok_or(Failure::FreedBlock)?)?)
    }

    fn copy_all_from(&self, other: &Self) -> Result<()> {
        const WHAT: &str = "Block.copy_from";
        self.process.check()?;
        if self.bytes != other.bytes {
            let (found, expected) = (other.bytes as usize, self.bytes as usize);
            return Err(millpond::Error::LengthMismatch { what: WHAT, found, expected }.into());
        }
        // Both stay meanwhile. In one order, whoever copies the other way at the same time.
        let (first, second) = if std::ptr::from_ref(self) < other { (self, other) } else { (other, self) };
        let (first, second) = (first.stream.lock(), second.stream.lock());
        let (own, others) = if std::ptr::from_ref(self) < other { (first, second) } else { (second, first) };
        let own = own.as_ref().ok_or(Failure::FreedBlock)?;
        let others = others.as_ref().ok_or(Failure::FreedBlock)?;
        // SAFETY: both are live, not the same, and not freed meanwhile; the order of their work is Python's promise.
        unsafe {
            with_buffer(WHAT, self.whole(), own, |to| {
                with_buffer(WHAT, other.whole(), others, |from| to.copy_from(from))
            })
        }?;
        Ok(())
    }

    /// Ends one [`show`](Self::show).
    fn conceal(&self) {
        if !self.process.is_here() {
            // The block is the parent's, and so is the lock.
            return;
        }
        let mut in_place = self.in_place.lock();
        // Release: whoever frees the block comes after what was read and written through the view.
        if self.views.fetch_sub(1, Ordering::Release) == 1 {
            *in_place = None;
        }
    }
}

/// A block that is looked at; [concealed](Block::conceal) at its end, on any thread.
struct Shown(Option<Py<Block>>);

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(block) = &self.0 {
            block.get().conceal();
        }
        // Consumers may end it on a thread without Python, or after its end: then the block stays.
        if Python::try_attach(|_| drop(self.0.take())).is_none() {
            std::mem::forget(self.0.take());
        }
    }
}

#[pymethods]
impl Block {
    /// The address; 0 for a block of no bytes.
    #[getter]
    fn ptr(&self) -> u64 {
        self.ptr.raw()
    }

    /// Bytes asked for.
    #[getter]
    fn size(&self) -> u64 {
        self.bytes
    }

    /// Whether the block was freed.
    #[getter]
    fn freed(&self, py: Python<'_>) -> bool {
        // In a forked child the block is its parent's.
        self.process.is_here() && py.detach(|| self.stream.lock().is_none())
    }

    /// Frees the block after the work given so far to ``stream``, by default the stream of the allocation.
    ///
    /// Another stream must be ordered after that one and after all work on the block.
    #[pyo3(signature = (stream=None))]
    fn free(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let other = self.other_stream(py, stream)?;
        let _called = frames::of_free();
        if other.is_none() && self.free_at_once() {
            return Ok(());
        }
        Ok(py.detach(move || self.free_on(other))?)
    }

    /// Notes that work given so far to ``stream`` uses the block: the free will wait for it.
    ///
    /// On a ``millpond.Stream``: also what is given to it until the block is freed. A stream of another GPU has to be one, and
    /// counts as far as it came.
    fn record_use(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let Given { stream, .. } = self.pool.stream(py, Some(stream))?;
        Ok(py.detach(move || {
            self.process.check()?;
            // Held meanwhile: once the block is freed, another may lie at its address.
            let own = self.stream.lock();
            if own.is_none() {
                return Err(Failure::FreedBlock);
            }
            Ok(self.pool().record_use(self.ptr, &stream)?)
        })?)
    }

    /// Waits until the CPU may use the bytes: for the work given so far to the block's stream, and for recorded uses.
    ///
    /// Call it before a view that was made earlier is used again.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| {
            self.process.check()?;
            self.wait(self.stream.lock().as_ref().ok_or(Failure::FreedBlock)?)
        })?)
    }

    /// Copies the bytes of a block of the same size, of any pool of the device or of another GPU, on this block's stream.
    ///
    /// The host does not wait where both are memory of the device or pinned. This stream first waits for the other block's.
    /// The free of the other block waits for the copy, and so do later copies to it.
    ///
    /// Raises:
    ///     ValueError: where the sizes differ.
    ///     MisuseError: for a block that was freed, or one of another device.
    fn copy_from(this: &Bound<'_, Self>, other: &Bound<'_, Self>) -> PyResult<()> {
        if this.is(other) {
            return Err(PyValueError::new_err("Block.copy_from: a block cannot be copied to itself"));
        }
        let (to, from) = (this.get(), other.get());
        Ok(this.py().detach(|| to.copy_all_from(from))?)
    }

    /// Moves managed memory ``to`` the ``"device"`` or the ``"host"``, in the order of ``stream``, by default the block's.
    ///
    /// On a GPU, the call takes most of the time of the move. No byte changes. Later work finds the memory in place, and has no page faults.
    ///
    /// Raises:
    ///     MisuseError: for other memory, which stays where it is.
    #[pyo3(signature = (to, stream=None))]
    fn prefetch(&self, py: Python<'_>, to: &str, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let to = memory::read_place("to", to)?;
        let other = self.other_stream(py, stream)?;
        Ok(py.detach(move || {
            self.while_live(|own| self.pool().prefetch(self.ptr, to, other.as_ref().unwrap_or(own)))
        })?)
    }

    /// Says how managed memory will be used, until the block is freed. No byte changes.
    ///
    /// Args:
    ///     read_mostly: the device and the host each have a copy, until one of them writes.
    ///     preferred_location: where it is to stay: ``"device"``, ``"host"`` or ``"anywhere"``.
    ///     accessed_by: ``"device"`` or ``"host"``: it stays mapped there, so that its first use is no page fault.
    ///     not_accessed_by: takes ``accessed_by`` back.
    ///
    /// Raises:
    ///     MisuseError: for other memory.
    #[pyo3(signature = (*, read_mostly=None, preferred_location=None, accessed_by=None, not_accessed_by=None))]
    fn advise(
        &self,
        py: Python<'_>,
        read_mostly: Option<bool>,
        preferred_location: Option<&str>,
        accessed_by: Option<&str>,
        not_accessed_by: Option<&str>,
    ) -> PyResult<()> {
        let all = memory::read_advice(read_mostly, preferred_location, accessed_by, not_accessed_by)?;
        Ok(py.detach(|| {
            self.while_live(|_| {
                all.into_iter().try_for_each(|advice| {
                    self.pool().advise(self.ptr, advice)?;
                    self.advised.store(true, Ordering::Relaxed);
                    Ok(())
                })
            })
        })?)
    }

    /// Where managed memory was last prefetched to, and the advice on it.
    ///
    /// Raises:
    ///     MisuseError: for other memory.
    fn residency(&self, py: Python<'_>) -> PyResult<Residency> {
        Ok(py.detach(|| self.while_live(|_| self.pool().residency(self.ptr)))?.into())
    }

    /// Lets other processes open the block's memory, after the work given so far to ``stream``, by default the block's.
    ///
    /// They reach the whole pages that the block lies on (``Shared.exposed``). In a pool with ``page_sizes=("2MiB", "2MiB")``
    /// and ``min_alignment="2MiB"``, each block has pages of its own.
    ///
    /// Raises:
    ///     MisuseError: for memory that cannot be shared: pinned, managed, of no bytes.
    ///     DeviceError: where the device cannot share memory.
    #[pyo3(signature = (stream=None))]
    fn share(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Shared> {
        let other = self.other_stream(py, stream)?;
        let shared = py.detach(move || {
            self.while_live(|own| self.pool().share(self.ptr, other.as_ref().unwrap_or(own)))
        })?;
        Ok(Shared::own(shared, &self.pool.context))
    }

    /// The bytes, for ``memoryview`` and NumPy.
    ///
    /// # Safety
    /// Python's promise: `view` is valid for writing.
    unsafe fn __getbuffer__(this: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let block = this.get();
        let at = block.show(this.py())?;
        // SAFETY: Python passes a view to fill; the view keeps the block, and `show` keeps its bytes.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, this.as_ptr(), at, block.bytes as ffi::Py_ssize_t, 0, flags)
        };
        if filled != 0 {
            block.conceal();
            return Err(PyErr::fetch(this.py()));
        }
        Ok(())
    }

    /// # Safety
    /// Python's promise: the view is one that was filled.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.conceal();
    }

    /// What NumPy asks where it finds no bytes: raises why.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        this: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = this.py();
        let bytes = PyMemoryView::from(this.as_any())?;
        let how = PyDict::new(py);
        how.set_item("dtype", dtype)?;
        if let Some(copy) = copy {
            how.set_item("copy", copy)?;
        }
        py.import("numpy")?.call_method("array", (bytes,), Some(&how))
    }

    /// The bytes for libraries of a GPU, by the CUDA array interface. Not on devices that are no GPU.
    ///
    /// What takes it keeps the block, but does not count as a view: free the block after it. While the block's stream is being
    /// captured, it names no stream, since nobody may wait for that one: use the block in the same capture.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.pool().device().properties().kind != Kind::Cuda {
            return Err(PyAttributeError::new_err("the block is not memory of a GPU: use memoryview(block)"));
        }
        let stream = py.detach(|| -> Result<Option<u64>> {
            self.process.check()?;
            let stream = self.stream.lock();
            self.check_awake()?;
            let own = stream.as_ref().ok_or(Failure::FreedBlock)?;
            // SAFETY: the block's stream is there as long as the block.
            if unsafe { own.device().capture_of(own.handle_here()?) }?.is_some() {
                return Ok(None);
            }
            wait_for_uses(self.pool(), self.ptr, own)?;
            // 0 is not allowed, since it could mean two streams.
            Ok(Some(own.handle().raw().max(1)))
        })?;
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", (self.bytes,))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (self.ptr.raw(), false))?;
        interface.set_item("stream", stream)?;
        Ok(interface)
    }

    /// Where the memory is, in DLPack's numbers. That of pinned and managed memory is the CPU's.
    fn __dlpack_device__(&self) -> (i32, i32) {
        self.dlpack_devices()[0]
    }

    /// The bytes as a DLPack tensor, for ``from_dlpack`` of NumPy, CuPy, PyTorch and others.
    ///
    /// Args:
    ///     stream: on a GPU, the consumer's: its later work comes after the work given so far to the block's stream, and the
    ///         free waits for it as ``record_use`` says. For the CPU, the work is complete when this returns.
    ///     max_version: the newest version of DLPack that the consumer takes.
    ///     dl_device: where the consumer uses the bytes. Pinned and managed memory is the GPU's as well as the CPU's.
    ///     copy: with ``True``, the tensor is a new block of the pool.
    ///
    /// Raises:
    ///     BufferError: where ``dl_device`` does not reach the memory.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        this: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, block) = (this.py(), this.get());
        let devices = block.dlpack_devices();
        let device = dl_device.unwrap_or(devices[0]);
        if !devices.contains(&device) {
            return Err(PyBufferError::new_err(format!(
                "the block is memory of {}, which DLPack's device {device:?} does not reach: copy what comes of it",
                block.device_name()
            )));
        }
        let is_copy = copy == Some(true);
        let shown = if is_copy { Self::copied(this)? } else { this.clone() };
        let at = match device {
            (dlpack::CPU, _) => shown.get().show(py),
            _ => shown.get().show_on(py, stream),
        }?;
        let bytes = (at, block.bytes);
        let owner = Box::new(Shown(Some(shown.unbind())));
        let is_versioned = max_version.is_some_and(|(major, _)| major >= 1);
        dlpack::capsule(py, owner, bytes, device, dlpack::Version { is_versioned, is_copy })
    }

    fn __int__(&self) -> u64 {
        self.ptr.raw()
    }

    fn __len__(&self) -> usize {
        self.bytes as usize
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.freed(py) || !self.process.is_here() { Ok(()) } else { self.free(py, None) }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let freed = if self.freed(py) { ", freed" } else { "" };
        format!("<millpond.Block of {} bytes at {}{freed}>", self.bytes, self.ptr)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let _called = frames::of_free();
        if !self.process.is_here() || self.stream.get_mut().is_none() || self.free_at_once() {
            return;
        }
        let this = &*self;
        if let Err(failure) = detached(move || this.free_on(None)) {
            // While Python ends, there is nobody to tell.
            Python::try_attach(|py| PyErr::from(failure).write_unraisable(py, None));
        }
    }
}

/// Offers a block to other processes of this user, which open it by the text that is returned (``open_offer``). Their work on it
/// comes after what ``stream`` is given until then. Whoever frees the block ends the offer before (``withdraw``).
#[pyfunction]
fn offer(py: Python<'_>, block: &Bound<'_, Block>, stream: &Bound<'_, PyAny>) -> PyResult<String> {
    let block = block.get();
    let stream = block.pool.stream(py, Some(stream))?.stream;
    Ok(py.detach(|| {
        block.while_live(|_| Ok(()))?;
        let name = offers::offer(Offered { pool: block.pool().clone(), ptr: block.ptr, stream })?;
        Result::Ok(name.text())
    })?)
}

/// Ends the offer of a block. Who opened it has it still.
#[pyfunction]
fn withdraw(py: Python<'_>, block: &Bound<'_, Block>) {
    let ptr = block.get().ptr.raw();
    py.detach(|| offers::withdraw(ptr));
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Block>()?;
    module.add_function(wrap_pyfunction!(offer, module)?)?;
    module.add_function(wrap_pyfunction!(withdraw, module)?)
}
