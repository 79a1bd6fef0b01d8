//! Pools, as Python sees them. `python/millpond/_millpond.pyi` has the same texts, for editors: a test compares them.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use millpond::bindings::{Mutex, PerProcess};
use millpond::device::{DeviceName, DevicePtr, Kind, UnknownDevice};
use millpond::{Context, Keep, Received, record};
use millpond_offers as offers;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::block::Block;
use crate::callbacks::{self, Callback};
use crate::captures::CapturePool;
use crate::failure::{Failure, Result};
use crate::frames;
use crate::gil::Detached;
use crate::handle::{Given, Handle};
use crate::memory::{self, Memory};
use crate::options::Options;
use crate::recording::RecordingStatus;
use crate::sharing::{self, Shared};
use crate::sizes;
use crate::snapshot;
use crate::stats::Stats;
use crate::stream::Stream;

/// A memory pool of one device.
///
/// Memory is valid for work ordered after the allocation and before the free, as if both were kernels on their streams.
/// Sizes are numbers of bytes, or texts such as ``"8GiB"``.
///
/// Args:
///     device: a GPU's number, or a device's name as the command has it: ``"cuda:N"``, ``"host"`` (the CPU, with real
///         memory), ``"sim"`` (no memory at all).
///     memory: ``"device"``: the device's own, the default. ``"pinned"``: page-locked memory of the host, which the device
///         copies to and from without the host's waiting. ``"managed"``: memory that moves to where it is used. The CPU uses
///         the last two in place.
///     node: the NUMA node of pinned memory. By default one near the device.
///     capacity: how much memory a device that is no GPU has.
///     name: a name for errors and reports.
///     hard_limit: physical memory that the pool may hold. No limit by default.
///     release_threshold: physical memory kept when a stream or the device is synchronised through millpond. All of it
///         by default.
///     headroom: memory of the device that the pool always leaves free for others. 0 by default.
///     reuse: how memory may pass from stream to stream: ``True`` (all policies, the default), ``False``, or names.
///     page_sizes: the smallest and the largest physical page, powers of two. By default the device's granularity (2 MiB)
///         and 32 MiB.
///     min_alignment: what every address is a multiple of: a power of two from 256 bytes to 2 MiB. 512 by default.
///     growth_allowance: how much more than the most that was ever live the pool may hold to save time. It does so only while moving
///         memory would take a third of the program's time. 1/32 of the device's memory by default, and a quarter of what was
///         ever live at most; with 0 it never does.
///     budget: a ``Budget`` that the pool shares with others, also of other processes.
///     accessible_from: ``"all"``, or the numbers of the GPUs that may use all memory of the pool. None by default:
///         see ``allow_access``.
///     record: a file to record to, from the start.
///     guard: what of the program's mistakes with memory the pool finds: ``"all"``, or words of docs/guard.md. By default what
///         ``MILLPOND_GUARD`` says.
///
/// Raises:
///     TypeError: for a name that is no option, or a value of the wrong type.
///     ValueError: for a value that makes no sense.
///     DeviceError: where there is no such device.
#[pyclass(frozen, module = "millpond", weakref)]
#[derive(Debug)]
pub(crate) struct Pool {
    /// What its blocks keep, too.
    handle: Arc<Handle>,
}

/// Reads which device a pool is of: a GPU by its number, or any by its name.
fn read_device(argument: &Bound<'_, PyAny>) -> PyResult<DeviceName> {
    if let Ok(ordinal) = argument.extract::<i64>() {
        return Ok(DeviceName::cuda(usize::try_from(ordinal).map_err(|_| Failure::NoSuchDevice(ordinal))?));
    }
    let Ok(name) = argument.extract::<String>() else {
        let names = DeviceName::listed();
        return Err(PyTypeError::new_err(format!("a device is a GPU's number, or its name: {names}")));
    };
    name.parse().map_err(|unknown: UnknownDevice| PyValueError::new_err(unknown.to_string()))
}

/// Reads which device is to use a pool's memory: that of another pool, or a GPU by its number.
fn read_peer(argument: &Bound<'_, PyAny>) -> PyResult<Detached<Context>> {
    if let Ok(pool) = argument.cast::<Pool>() {
        return Ok(Context::clone(&pool.get().context).into());
    }
    let Ok(ordinal) = argument.extract::<i64>() else {
        return Err(PyTypeError::new_err(
            "peer: expected a millpond.Pool of the other device, or a GPU's number",
        ));
    };
    let ordinal = usize::try_from(ordinal).map_err(|_| Failure::NoSuchDevice(ordinal))?;
    Ok(argument.py().detach(|| open(DeviceName::cuda(ordinal), None))?.into())
}

/// Opens a device; one without a capacity of its own is shared with the rest of the process.
fn open(name: DeviceName, capacity: Option<u64>) -> Result<Context> {
    Ok(match (name.kind(), capacity) {
        (Kind::Cuda, None) => Context::cuda(name.ordinal())?,
        (Kind::Host, None) => Context::host()?,
        _ => Context::new(name.open_with_capacity(capacity)?),
    })
}

/// The number of the GPU that a text names; `None` where it names none.
#[pyfunction]
fn gpu_ordinal(name: &str) -> Option<usize> {
    name.parse().ok().filter(|name: &DeviceName| name.is_gpu()).map(DeviceName::ordinal)
}

/// The pools that this process made, as long as anything holds them.
static LIVE: PerProcess<Mutex<Vec<Weak<Handle>>>> = PerProcess::new(Default::default);

/// The pools that live in this process, in the order in which they were made.
#[pyfunction]
fn live_pools() -> Vec<Pool> {
    let live = LIVE.get().lock();
    live.iter().filter_map(Weak::upgrade).map(|handle| Pool { handle }).collect()
}

impl Pool {
    pub(crate) fn over(pool: millpond::Pool, context: Context) -> Self {
        let handle = Arc::new(Handle::new(pool, context));
        let mut live = LIVE.get().lock();
        live.retain(|known| known.strong_count() > 0);
        live.push(Arc::downgrade(&handle));
        Self { handle }
    }
}

impl Deref for Pool {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Pool {
    /// Opens what another process sent.
    fn open_received(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        receive: impl FnOnce() -> Result<Received> + Send,
    ) -> PyResult<(Block, Shared)> {
        let given = self.stream(py, stream)?;
        let (pool, block, shared) = py.detach(|| sharing::open(&self.context, receive()?, &given.stream))?;
        let pool = Arc::new(Handle::new(pool, Context::clone(&self.context)));
        let keeps = stream.map(|stream| stream.clone().unbind());
        // SAFETY: nobody else has the block.
        let block = unsafe { Block::over(pool, block, given, keeps) };
        Ok((block, shared))
    }
}

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(signature = (device, *, memory=None, node=None, capacity=None, **options))]
    fn new(
        py: Python<'_>,
        device: &Bound<'_, PyAny>,
        memory: Option<&Bound<'_, PyAny>>,
        node: Option<&Bound<'_, PyAny>>,
        capacity: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let (device, options) = (read_device(device)?, Options::from_keywords(options)?);
        let memory = Memory::read(memory, node)?;
        let capacity = sizes::read_if_given("capacity", capacity)?;
        if capacity.is_some() && device.is_gpu() {
            return Err(PyValueError::new_err(
                "capacity: it is for 'host' and 'sim'; the memory of a GPU is fixed",
            ));
        }
        let built = py.detach(move || -> Result<Self> {
            let context = open(device, capacity)?;
            let pool = options.set_all(memory.builder(&context)?).build()?;
            Ok(Self::over(pool, context))
        });
        Ok(built?)
    }

    /// The pool's name.
    #[getter]
    fn name(&self) -> &str {
        self.pool.name()
    }

    /// The device, as the constructor takes it.
    #[getter]
    fn device(&self) -> String {
        DeviceName::of(self.pool.device().properties()).to_string()
    }

    /// What memory the pool is of, as the constructor takes it.
    #[getter]
    fn memory(&self) -> &'static str {
        memory::word(self.pool.device().properties().memory)
    }

    /// Takes memory in advance, so that blocks of ``size`` bytes in all can be allocated on ``stream`` without a device call.
    ///
    /// What is free in the pool counts. Several threads prepare pinned memory.
    ///
    /// Raises:
    ///     OutOfMemoryError: after everything that could make room was tried.
    #[pyo3(signature = (size, stream=None))]
    fn reserve(
        &self,
        py: Python<'_>,
        size: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let size = sizes::read("size", size)?;
        let Given { stream, .. } = self.stream(py, stream)?;
        Ok(py.detach(move || self.pool.reserve(size, &stream)).map_err(Failure::from)?)
    }

    /// Allocates ``size`` bytes for work on ``stream``. The address is a multiple of ``align``.
    ///
    /// Raises:
    ///     OutOfMemoryError: after everything that could make room was tried.
    #[pyo3(signature = (size, stream=None, *, align=None))]
    fn allocate(
        &self,
        py: Python<'_>,
        size: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        align: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Block> {
        let (size, align) = (sizes::read("size", size)?, sizes::read_if_given("align", align)?);
        let given = self.stream(py, stream)?;
        let keeps = stream.map(|stream| stream.clone().unbind());
        Block::allocate(py, &self.handle, (size, align), given, keeps)
    }

    /// Allocates for a caller that keeps the address itself, and gives it to ``free_address``.
    #[pyo3(signature = (size, stream=None))]
    fn allocate_address(
        &self,
        py: Python<'_>,
        size: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let size = sizes::read("size", size)?;
        let Given { stream, is_kept } = self.stream(py, stream)?;
        if is_kept && let Some(ready) = self.alloc_ready(size, &stream) {
            return Ok(ready.raw());
        }
        let _called = frames::of_call(py);
        Ok(py.detach(move || self.pool.alloc(size, &stream)).map_err(Failure::from)?.raw())
    }

    /// Frees what ``allocate_address`` gave, after the work given so far to ``stream``.
    ///
    /// Raises:
    ///     MisuseError: for an address that was freed already or that this pool did not give; nothing changed then.
    #[pyo3(signature = (address, stream=None))]
    fn free_address(
        &self,
        py: Python<'_>,
        address: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let address = address.extract().map_err(|_| {
            PyValueError::new_err(format!(
                "address: {address} is no address: pass what allocate_address gave"
            ))
        })?;
        let (address, Given { stream, is_kept }) = (DevicePtr::new(address), self.stream(py, stream)?);
        let _called = frames::of_free();
        // SAFETY: whoever frees an address got it from the pool and owns the block: Python cannot promise more.
        if is_kept && unsafe { self.free_ready(address, &stream) } {
            return Ok(());
        }
        // SAFETY: likewise; nothing was done.
        Ok(py.detach(move || unsafe { self.pool.free(address, &stream) }).map_err(Failure::from)?)
    }

    /// Waits for a block that another process sends (``Shared.send``), and opens it for work on ``stream``.
    ///
    /// That work comes after what the other process gave its stream before it shared the block. The block is freed as others
    /// are. It takes no memory of the pool. The other process may use the memory for something else once both are gone.
    ///
    /// Args:
    ///     socket: the other end of the socket that the block is sent over.
    ///
    /// Raises:
    ///     Error: for what is no block that this device reaches, or where the other process is gone.
    #[pyo3(signature = (socket, stream=None))]
    fn open_shared(
        &self,
        py: Python<'_>,
        socket: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Block, Shared)> {
        let socket = sharing::read_socket(socket)?;
        sharing::await_sent(py, &socket)?;
        self.open_received(py, stream, move || Ok(Received::receive(&socket)?))
    }

    /// Makes a stream of the pool's device.
    fn create_stream(&self, py: Python<'_>) -> PyResult<Stream> {
        let inner = py.detach(|| self.context.create_stream()).map_err(Failure::from)?;
        Ok(Stream::ours(inner, Context::clone(&self.context)))
    }

    /// Registers another library's stream of the pool's device, for the fast path: frees on it then record no event.
    ///
    /// Calls that are given the stream itself are fast, too. It stays registered until ``Stream.unregister`` is called, or what is
    /// returned and all blocks made with that are gone. The other library's object is kept so long. A stream that is
    /// passed as a number must not be destroyed before: memory that was used on it could be given to others too early.
    ///
    /// Raises:
    ///     DeviceError: while the stream is being captured.
    fn register_stream(&self, stream: &Bound<'_, PyAny>) -> PyResult<Stream> {
        Stream::register(stream, &self.context)
    }

    /// Waits for all work on the device, then applies the release thresholds.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.context.synchronize()).map_err(Failure::from)?)
    }

    /// Lets the device of another pool, or a GPU by its number, use all memory of this pool at its addresses.
    ///
    /// That is what there is, and what comes. It costs about 40 µs for each page, and 1 ms for the first one (H100).
    ///
    /// Raises:
    ///     DeviceError: for a device that cannot work together with the pool's, or does not reach its memory.
    fn allow_access(&self, py: Python<'_>, peer: &Bound<'_, PyAny>) -> PyResult<()> {
        let peer = read_peer(peer)?;
        Ok(py.detach(|| self.pool.allow_access(&peer)).map_err(Failure::from)?)
    }

    /// Takes the access of another device back, from all memory of this pool. Waits for all work of that device.
    ///
    /// Memory in segments stays within its reach.
    ///
    /// Raises:
    ///     ValueError: for a pool that was made with ``accessible_from="all"``.
    fn take_back_access(&self, py: Python<'_>, peer: &Bound<'_, PyAny>) -> PyResult<()> {
        let peer = read_peer(peer)?;
        Ok(py.detach(|| self.pool.take_back_access(&peer)).map_err(Failure::from)?)
    }

    /// Lets another device use one block of this pool. Its pages keep the access for later blocks.
    ///
    /// Raises:
    ///     DeviceError: as ``allow_access``.
    ///     MisuseError: for a block of another pool, or one that was freed.
    fn allow_access_to(
        &self,
        py: Python<'_>,
        block: &Bound<'_, Block>,
        peer: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (peer, block) = (read_peer(peer)?, block.get());
        Ok(py.detach(|| block.while_live(|_| self.pool.allow_access_to(block.address(), &peer)))?)
    }

    /// Whether another device may use a block of this pool.
    ///
    /// Raises:
    ///     MisuseError: for a block of another pool, or one that was freed.
    fn is_accessible_from(
        &self,
        py: Python<'_>,
        block: &Bound<'_, Block>,
        peer: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let (peer, block) = (read_peer(peer)?, block.get());
        Ok(py.detach(|| block.while_live(|_| self.pool.is_accessible_from(block.address(), &peer)))?)
    }

    /// What the pool did and holds. Takes no lock.
    fn stats(&self) -> Stats {
        self.pool.stats().into()
    }

    /// Lets the high-water marks start again from where the figures are now.
    fn reset_peak(&self, py: Python<'_>) {
        py.detach(|| self.pool.reset_high_water());
    }

    /// Gives free memory back to the device until at most ``keep`` bytes are reserved. Returns the bytes given back.
    #[pyo3(signature = (keep=None), text_signature = "($self, keep=0)")]
    fn trim(&self, py: Python<'_>, keep: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        let keep = sizes::read_if_given("keep", keep)?.unwrap_or(0);
        Ok(py.detach(|| self.pool.trim_to(keep)).map_err(Failure::from)?)
    }

    /// Gives all of the pool's memory back to the device, with that of its tags. Returns the bytes given back.
    ///
    /// Blocks stay, and ``wake`` brings them back to where they were. With ``keep="pinned"`` their bytes are copied to pinned
    /// memory of the host, with ``keep="nothing"`` they are dropped. It waits for the device. The memory must not be used
    /// until the pool is awake; blocks may be freed. docs/sleep.md says more.
    ///
    /// Raises:
    ///     ValueError: for another ``keep``.
    ///     MisuseError: for a pool of pinned or managed memory, while the CPU looks at a block, and while a graph is captured.
    ///     DeviceError: where the host has too little pinned memory, among others.
    #[pyo3(signature = (keep="pinned"))]
    fn sleep(&self, py: Python<'_>, keep: &str) -> PyResult<u64> {
        let keep = match keep {
            "pinned" => Keep::InPinnedMemory,
            "nothing" => Keep::Nothing,
            _ => return Err(PyValueError::new_err(format!("keep: {keep:?}; pass 'pinned' or 'nothing'"))),
        };
        Ok(py.detach(|| self.pool.sleep(keep)).map_err(Failure::from)?)
    }

    /// Ends a sleep, with that of the pool's tags. Returns once all bytes are in place.
    ///
    /// Raises:
    ///     OutOfMemoryError: where memory is lacking. The pool sleeps as before: make room, and try again.
    fn wake(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.pool.wake()).map_err(Failure::from)?)
    }

    /// Whether the pool sleeps.
    #[getter]
    fn is_asleep(&self, py: Python<'_>) -> bool {
        py.detach(|| self.pool.is_asleep())
    }

    /// Has the memory of a tag serve its pool for a while. Returns the bytes that the pool got.
    ///
    /// Behind all work that streams were given so far, the bytes of blocks are copied to pinned memory of the host. From the end of
    /// the copies on, the pages serve other addresses of the pool. The host does not wait. The memory must not be used until
    /// ``restore``; blocks may be freed. docs/beyond.md says more.
    ///
    /// Raises:
    ///     MisuseError: for a pool that is no tag's, that sleeps or has a guard, and while the CPU looks at a block.
    ///     DeviceError: where the host has too little pinned memory, or ``stream`` is being captured, among others.
    #[pyo3(signature = (stream=None))]
    fn evict(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        let Given { stream, .. } = self.stream(py, stream)?;
        Ok(py.detach(move || self.pool.evict(&stream)).map_err(Failure::from)?)
    }

    /// Ends an eviction: blocks are where they were. Later work on ``stream`` comes behind the copies of their bytes.
    ///
    /// Other streams wait for the copies where a block shows or copies its bytes. Have them wait for ``stream`` before kernels use them.
    ///
    /// Raises:
    ///     OutOfMemoryError: where memory is lacking. The tag is evicted as before: make room, and try again.
    #[pyo3(signature = (stream=None))]
    fn restore(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Given { stream, .. } = self.stream(py, stream)?;
        Ok(py.detach(move || self.pool.restore(&stream)).map_err(Failure::from)?)
    }

    /// Begins a restore, which then only has its stream wait. The copies run beside other work until then.
    ///
    /// Raises:
    ///     OutOfMemoryError: as ``restore``.
    fn restore_ahead(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.pool.restore_ahead()).map_err(Failure::from)?)
    }

    /// As ``restore_ahead``, for as much of the tag as the pool has free memory. It can be called again as more becomes free.
    ///
    /// Returns:
    ///     Bytes that are still away: the rest comes with ``restore``.
    fn restore_free(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| self.pool.restore_free()).map_err(Failure::from)?)
    }

    /// Whether the pool is evicted.
    #[getter]
    fn is_evicted(&self, py: Python<'_>) -> bool {
        py.detach(|| self.pool.is_evicted())
    }

    /// The part of the pool for a tag, to be put to sleep or evicted on its own: a pool with the same options, under the same
    /// hard limit.
    fn tagged(&self, py: Python<'_>, tag: &str) -> PyResult<Self> {
        let pool = py.detach(|| self.pool.tagged(tag)).map_err(Failure::from)?;
        Ok(Self::over(pool, Context::clone(&self.context)))
    }

    /// The tags that were named so far.
    #[getter]
    fn tags(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.pool.tags())
    }

    /// Gives the pinned memory back that sleeps and evictions left for the next one. Returns the bytes given back.
    fn trim_staging(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| self.pool.trim_staging()).map_err(Failure::from)?)
    }

    /// Free and total bytes of the memory that the pool is of, as its driver counts.
    fn memory_info(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let info = py.detach(|| self.pool.memory_info()).map_err(Failure::from)?;
        Ok((info.free, info.total))
    }

    /// Registers a function that is asked when memory is short, after everything that the pool can do itself.
    ///
    /// It gets the bytes that are wanted. It may free, trim and allocate, and returns whether to try again. It is called on
    /// the thread that allocates. For what it allocates from this pool itself, no function is asked. An exception in it is
    /// printed (``sys.unraisablehook``), and counts as ``False``.
    ///
    /// The pool keeps the function until it is removed, and so what the function refers to. One that refers to the pool, or to
    /// blocks of it, keeps the pool: remove it, or let it refer to them by ``weakref``.
    fn on_reclaim(&self, py: Python<'_>, function: &Bound<'_, PyAny>) -> PyResult<Callback> {
        callbacks::on_reclaim(py, &self.pool, function)
    }

    /// Registers a function that is told of each request for which there was no memory, before its caller gets the error.
    ///
    /// It gets an ``OutOfMemory``. It is called on the thread that allocates. Use it to log, or to write a snapshot. An exception
    /// in it is printed (``sys.unraisablehook``). The pool keeps it as ``on_reclaim`` says.
    fn on_out_of_memory(&self, py: Python<'_>, function: &Bound<'_, PyAny>) -> PyResult<Callback> {
        callbacks::on_out_of_memory(py, &self.pool, function)
    }

    /// Memory for what is captured into CUDA graphs. It holds nothing yet.
    fn capture_pool(&self, py: Python<'_>) -> CapturePool {
        CapturePool::of(py, &self.handle)
    }

    /// Starts recording to a file, for ``millpond replay``. A recording that runs is stopped.
    ///
    /// With ``call_sites`` each allocation keeps the lines of Python that it comes from.
    #[pyo3(signature = (path, *, call_sites=false))]
    fn start_recording(&self, py: Python<'_>, path: PathBuf, call_sites: bool) -> PyResult<()> {
        let options = record::Options::new(path).call_sites(call_sites);
        Ok(py.detach(|| self.pool.start_recording(options)).map_err(Failure::from)?)
    }

    /// Stops recording, and returns what was recorded once it is written.
    fn stop_recording(&self, py: Python<'_>) -> PyResult<Option<RecordingStatus>> {
        let status = py.detach(|| self.pool.stop_recording()).map_err(Failure::from)?;
        Ok(status.map(Into::into))
    }

    /// The recording that runs.
    #[getter]
    fn recording(&self, py: Python<'_>) -> Option<RecordingStatus> {
        py.detach(|| self.pool.recording()).map(Into::into)
    }

    /// Writes a snapshot for memory_viz. Returns ``False``, and writes no file, where there is nothing to show.
    fn write_snapshot(&self, py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        Ok(py.detach(|| snapshot::write(&self.pool, &path))?)
    }

    /// Destroys the pool: it allocates no more. Waits for pending work on its memory.
    fn destroy(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.pool.destroy()).map_err(Failure::from)?)
    }

    /// What the guard found, as texts: see the option ``guard``.
    fn guard_findings(&self) -> Vec<String> {
        self.pool.guard_findings().iter().map(ToString::to_string).collect()
    }

    /// Recounts every invariant of the pool, for tests.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.pool.check()).map_err(Failure::from)?)
    }

    /// What it holds and did, as a table for Jupyter.
    fn _repr_html_<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        this.py().import("millpond._html")?.call_method1("of_pool", (this,))
    }

    fn __repr__(&self) -> String {
        let memory = match self.memory() {
            "device" => String::new(),
            memory => format!("{memory} memory for "),
        };
        format!("<millpond.Pool '{}' of {memory}{}>", self.pool.name(), self.device())
    }
}

/// Opens the block that another process offers (``offer``), for work on the default stream.
#[pyfunction]
fn open_offer(py: Python<'_>, pool: &Bound<'_, Pool>, handle: &str) -> PyResult<(Block, Shared)> {
    pool.get().open_received(py, None, || offers::open_text(handle).map_err(Failure::from))
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Pool>()?;
    module.add_function(wrap_pyfunction!(open_offer, module)?)?;
    module.add_function(wrap_pyfunction!(gpu_ordinal, module)?)?;
    module.add_function(wrap_pyfunction!(live_pools, module)?)
}
