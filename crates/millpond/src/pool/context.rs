//! A device as programs hold it: its streams and its pools.

use std::any::Any;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};

use super::{Handle, Pool, PoolParts};
use crate::core::{HasCore, Registry, freeing};
use crate::device;
use crate::device::{
    Advice, Device, DeviceError, DeviceResult, HasDevice, MemoryInfo, MemoryKind, Place, StreamHandle,
};
use crate::error::{Error, Result};
use crate::managed;
use crate::order::{RegisteredStream, Stream, Timelines};
use crate::sharing::{ImportedMemory, OfOthers};
use crate::system::lock::Mutex;
use crate::system::process::{OfProcess, WhileHeld};

/// A device with its streams and its pools. Clones are the same context.
///
/// Pools and streams of one context know of each other. What belongs to another context is refused, also where that is of the
/// same device. A context lives as long as its streams, pools and buffers. [`Pool::context`] and [`Stream::context`] find it.
///
/// ```
/// use millpond::{Context, Pool};
///
/// let device = Context::host()?; // or Context::cuda(0)?
/// let stream = device.create_stream()?;
/// let weights = Pool::builder(&device).name("weights").build()?;
/// let scratch = device.default_pool()?.alloc(4096, &stream)?;
/// // SAFETY: nobody else has the block, and there is no work on it.
/// unsafe { device.free(scratch, &stream) }?; // finds the pool by the address
/// device.synchronize()?;
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Clone)]
pub struct Context {
    inner: Arc<ContextInner>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(self.device()).finish()
    }
}

/// Memory that pools of a context take: the device's own, or another that its streams work on.
#[derive(Debug, Clone)]
pub(super) struct PoolMemory {
    pub(super) device: Arc<dyn Device>,
    /// Bytes that all pools of the context hold of it.
    pub(super) together: Arc<AtomicU64>,
}

/// Which memory of the context's streams it is, that is not the device's own: of this NUMA node, if it is pinned.
pub(super) type OtherMemory = (MemoryKind, Option<u32>);

/// What programs hold of a context: each handle of it, and each of its streams.
#[derive(Debug)]
struct ContextInner {
    timelines: Arc<Timelines>,
    state: Arc<ContextState>,
    /// What other processes shared, once there is any.
    of_others: OfProcess<OnceLock<OfOthers<PoolParts>>>,
    default: OfProcess<OnceLock<Pool>>,
    current: OfProcess<Mutex<Option<Pool>>>,
    /// Last: pools that outlive their handles go with it.
    registry: Arc<Registry<dyn HasCore>>,
}

/// What lives as long as anything of the context: its timelines have it, and so pools, blocks and events. It holds no pool,
/// which would hold the timelines.
#[derive(Debug)]
struct ContextState {
    memory: PoolMemory,
    /// What was asked for.
    other_memory: OfProcess<Mutex<Vec<(OtherMemory, PoolMemory)>>>,
    /// Held by what programs hold, since it keeps pools: [`ContextInner`], and the handles of pools with their options.
    registry: OfProcess<Mutex<Weak<Registry<dyn HasCore>>>>,
    default: OfProcess<Mutex<Weak<Handle>>>,
    current: OfProcess<Mutex<Weak<Handle>>>,
}

impl ContextState {
    fn new(device: &Arc<dyn Device>) -> Self {
        Self {
            memory: PoolMemory { device: device.clone(), together: Arc::default() },
            other_memory: OfProcess::default(),
            registry: OfProcess::default(),
            default: OfProcess::default(),
            current: OfProcess::default(),
        }
    }

    /// What somebody still has of the context; `None` in a forked child, where a thread that is gone may have the lock.
    fn held<T>(weak: &OfProcess<Mutex<Weak<T>>>) -> Option<Arc<T>> {
        OfProcess::here(weak)?.lock().upgrade()
    }

    fn registry(&self) -> Arc<Registry<dyn HasCore>> {
        Self::held(&self.registry).unwrap_or_else(|| {
            let new = Arc::default();
            if let Some(registry) = OfProcess::here(&self.registry) {
                *registry.lock() = Arc::downgrade(&new);
            }
            new
        })
    }
}

impl ContextInner {
    /// Of a context that nobody held. Its default and its current pool are those that somebody still has.
    fn new(timelines: &Arc<Timelines>) -> Self {
        let make = || Arc::new(ContextState::new(timelines.device())) as Arc<dyn Any + Send + Sync>;
        let state = timelines.context_state(make).clone();
        let state = state.downcast::<ContextState>().expect("only this puts it there");
        let held = |pool| ContextState::held(pool).map(Pool::of_handle);
        let default = held(&state.default).map_or_else(OnceLock::new, OnceLock::from);
        Self {
            default: OfProcess::new(default),
            current: OfProcess::new(Mutex::new(held(&state.current))),
            of_others: OfProcess::default(),
            timelines: timelines.clone(),
            registry: state.registry(),
            state,
        }
    }
}

impl Context {
    /// A context over any device. Two contexts of one device object do not know of each other, so make one and clone
    /// it.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self::of(&Timelines::new(device))
    }

    /// The context that these timelines are of.
    pub(super) fn of(timelines: &Arc<Timelines>) -> Self {
        let inner = timelines.context(|| Arc::new(ContextInner::new(timelines)));
        Self { inner: inner.downcast().expect("only this puts it there") }
    }

    /// The NVIDIA GPU with this ordinal. The same context for every caller, as long as one of them has it, or a stream, pool
    /// or buffer of it.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Pool};
    ///
    /// let pool = Pool::builder(&Context::host()?).build()?; // or Context::cuda(0)?
    /// let stream = Context::host()?.create_stream()?; // of the same context, which the pool kept
    /// let buffer = Buffer::<f32>::zeroed(&pool, 1024, &stream)?;
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`](crate::device::DeviceError::Unavailable) without a driver or such a GPU.
    #[cfg(feature = "cuda")]
    pub fn cuda(ordinal: usize) -> Result<Self> {
        Self::shared(Some(ordinal), || Ok(device::cuda::CudaDevice::new(ordinal)?))
    }

    /// The CPU as a device. The same context for every caller, as long as one of them has it, or a stream, pool or buffer of it.
    ///
    /// # Errors
    /// The operating system's, where it refuses memory or threads.
    pub fn host() -> Result<Self> {
        Self::shared(None, || Ok(device::host::HostDevice::new()?))
    }

    /// The context of the GPU with this ordinal, or of the CPU, as long as somebody holds it.
    fn shared(of: Option<usize>, make: impl FnOnce() -> Result<Arc<dyn Device>>) -> Result<Self> {
        static CONTEXTS: WhileHeld<Option<usize>, Timelines> = WhileHeld::new();
        Ok(Self::of(&CONTEXTS.get(of, || Ok::<_, Error>(Timelines::new(make()?)))?))
    }

    /// The device itself.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        self.inner.timelines.device()
    }

    /// Free and total memory of the device, as its driver counts.
    ///
    /// # Errors
    /// The device's own.
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        self.inner.timelines.check_process()?;
        Ok(self.device().memory_info()?)
    }

    // ---- streams ---------------------------------------------------------------------------------

    /// Creates a stream.
    ///
    /// # Errors
    /// The device's own.
    pub fn create_stream(&self) -> Result<Stream> {
        Stream::create(&self.inner.timelines)
    }

    /// The legacy default stream.
    ///
    /// # Errors
    /// The device's own.
    pub fn default_stream(&self) -> Result<Stream> {
        // SAFETY: every device has it, for ever.
        unsafe { Stream::adopt(&self.inner.timelines, StreamHandle::LEGACY) }
    }

    /// The calling thread's default stream, for use on this thread, with which it ends. On another thread it frees safely but late: once
    /// this thread gives the pool something next, or the device is synchronised. Other calls there are errors, since the handle would
    /// mean that thread's own stream.
    ///
    /// # Errors
    /// The device's own.
    pub fn per_thread_stream(&self) -> Result<Stream> {
        // SAFETY: every thread has it, for ever.
        unsafe { Stream::present(&self.inner.timelines, StreamHandle::PER_THREAD) }
    }

    /// A stream that somebody else made and keeps. It costs no more than one of millpond's own.
    ///
    /// # Errors
    /// The device's own.
    ///
    /// # Safety
    /// `handle` is a stream of this device, and is destroyed only after the last clone of the stream
    /// returned here is gone.
    pub unsafe fn stream_from_raw(&self, handle: StreamHandle) -> Result<Stream> {
        // SAFETY: the caller's promise.
        unsafe { Stream::adopt(&self.inner.timelines, handle) }
    }

    /// Registers a stream that somebody else made and keeps, so that [`foreign_stream`](Self::foreign_stream) finds it by
    /// its handle. It costs no more than one of millpond's own. Several registrations of a stream end with the last.
    ///
    /// The legacy default stream and millpond's own need no registration.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`](device::DeviceError::Invalid) while the stream is being captured; or the device's own.
    ///
    /// # Safety
    /// `handle` is a stream of this device, and is destroyed only after what is returned here is dropped. If it is destroyed
    /// before, memory that was used on it may be given to others too early. Where a new stream got the same handle, it is
    /// recognised by its id, except by a [`Shortcut`](crate::bindings::Shortcut).
    pub unsafe fn register_stream(&self, handle: StreamHandle) -> Result<RegisteredStream> {
        // SAFETY: the caller's promise.
        unsafe { RegisteredStream::register(&self.inner.timelines, handle) }
    }

    /// A stream that somebody else made and may destroy at any time. If it is [registered](Self::register_stream), it is that
    /// stream. Else each free on it records an event at once (0.16 µs on an H200), since the stream may be gone later. Call
    /// this again whenever the handle is presented. A recycled handle is recognised by the stream's id.
    ///
    /// # Errors
    /// The device's own.
    ///
    /// # Safety
    /// `handle` is a live stream of this device now, and in each later call that is given the stream returned here. It
    /// lives until each [capture](crate::Capturing) that it began or allocated for has ended. Without a registration, its work on memory
    /// that another stream's call [evicts](crate::Pool::evict) is ordered before that call.
    pub unsafe fn foreign_stream(&self, handle: StreamHandle) -> Result<Stream> {
        // SAFETY: the caller's promise.
        unsafe { Stream::present(&self.inner.timelines, handle) }
    }

    /// Waits for all work on the device. Then the pools give back what lies above their release thresholds.
    ///
    /// # Errors
    /// The device's own.
    pub fn synchronize(&self) -> Result<()> {
        self.inner.timelines.synchronize_device()?;
        self.inner.timelines.after_sync();
        Ok(())
    }

    // ---- pools -----------------------------------------------------------------------------------

    /// The device's default pool, built with the default options when it is first asked for.
    ///
    /// # Errors
    /// Those of building a pool.
    pub fn default_pool(&self) -> Result<Pool> {
        self.inner.timelines.check_process()?;
        if let Some(pool) = self.inner.default.get() {
            return Ok(pool.clone());
        }
        // Of two that race, the first stays.
        let built = Pool::builder(self).name("default").build()?;
        let pool = self.inner.default.get_or_init(|| built).clone();
        *self.inner.state.default.lock() = Arc::downgrade(&pool.handle);
        Ok(pool)
    }

    pub(super) fn other_memory(&self, which: OtherMemory) -> Result<PoolMemory> {
        self.inner.timelines.check_process()?;
        let mut known = self.inner.state.other_memory.lock();
        if let Some((_, memory)) = known.iter().find(|(of, _)| *of == which) {
            return Ok(memory.clone());
        }
        let other = match which {
            (MemoryKind::Pinned, node) => self.device().pinned(node),
            _ => self.device().managed(),
        };
        let memory = PoolMemory { device: other?, together: Arc::default() };
        known.push((which, memory.clone()));
        Ok(memory)
    }

    /// What other processes shared with this one.
    pub(crate) fn of_others(&self) -> Result<&OfOthers<PoolParts>> {
        self.inner.timelines.check_process()?;
        if let Some(known) = self.inner.of_others.get() {
            return Ok(known);
        }
        let memory = Arc::new(ImportedMemory::new(self.device().clone()));
        let pool = Pool::of_others(self, memory.clone())?;
        // Of two that race, the first stays.
        Ok(self.inner.of_others.get_or_init(|| OfOthers { memory, pool }))
    }

    /// The pool that code without a preference should use: the one last [set](Self::set_current_pool), else
    /// the [default](Self::default_pool).
    ///
    /// # Errors
    /// Those of building a pool.
    pub fn current_pool(&self) -> Result<Pool> {
        self.inner.timelines.check_process()?;
        let current = self.inner.current.lock().clone();
        match current {
            Some(pool) => Ok(pool),
            None => self.default_pool(),
        }
    }

    /// Makes `pool` the current one, and returns the one before, if one was set. `None` goes back to the default pool.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for a pool of another context.
    pub fn set_current_pool(&self, pool: Option<&Pool>) -> Result<Option<Pool>> {
        if let Some(pool) = pool
            && !Arc::ptr_eq(pool.timelines(), &self.inner.timelines)
        {
            return Err(Error::WrongDevice { what: "context", pool: pool.name().to_owned() });
        }
        self.inner.timelines.check_process()?;
        let mut current = self.inner.current.lock();
        *self.inner.state.current.lock() = pool.map(|pool| Arc::downgrade(&pool.handle)).unwrap_or_default();
        Ok(std::mem::replace(&mut *current, pool.cloned()))
    }

    /// Frees a block of any pool of this device, even of one that was destroyed or whose last handle is gone.
    ///
    /// # Errors
    /// [`Error::ForeignPointer`] where no pool knows the pointer, else as for [`Pool::free`].
    ///
    /// # Safety
    /// As for [`Pool::free`].
    ///
    /// ```compile_fail,E0133
    /// # let device = millpond::Context::host()?;
    /// # let stream = device.create_stream()?;
    /// let block = device.default_pool()?.alloc(100, &stream)?;
    /// device.free(block, &stream)?; // error: call to unsafe method
    /// # Ok::<(), millpond::Error>(())
    /// ```
    /// ```
    /// # let device = millpond::Context::host()?;
    /// # let stream = device.create_stream()?;
    /// let block = device.default_pool()?.alloc(100, &stream)?;
    /// // SAFETY: nobody else has the block, and there is no work on it.
    /// unsafe { device.free(block, &stream) }?;
    /// # Ok::<(), millpond::Error>(())
    /// ```
    pub unsafe fn free(&self, ptr: device::DevicePtr, stream: &Stream) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        self.inner.timelines.check_process()?;
        match self.inner.registry.owner_of(ptr) {
            // SAFETY: the caller's promise.
            Some(owner) => unsafe { freeing::free(&owner, ptr, stream) },
            None => Err(Error::ForeignPointer { ptr, pool: String::new() }),
        }
    }

    // ---- plain memory of the host ----------------------------------------------------------------

    /// Moves plain memory of the host in stream order, where the device reaches it by the system's page tables
    /// ([`Properties::pageable_access`](crate::device::Properties::pageable_access)).
    ///
    /// ```no_run
    /// use millpond::{Context, Place};
    ///
    /// let device = Context::cuda(0)?;
    /// let stream = device.create_stream()?;
    /// let table = vec![1.0_f32; 1 << 20];
    /// if device.device().properties().pageable_access {
    ///     // SAFETY: the table lives until the stream is synchronised.
    ///     unsafe { device.prefetch_slice(&table, Place::Device, &stream) }?;
    ///     stream.synchronize()?;
    /// }
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device does not reach it. [`DeviceError::Invalid`] for a stream of another
    /// context, or one that is being captured. Else the device's own.
    ///
    /// # Safety
    /// The memory stays allocated until the stream has done this.
    pub unsafe fn prefetch_slice<T>(&self, memory: &[T], to: Place, stream: &Stream) -> Result<()> {
        const CALL: &str = "Context::prefetch_slice";
        self.timelines().check_process()?;
        self.needs_pageable_access()?;
        if !Arc::ptr_eq(stream.timelines(), self.timelines()) {
            let what = "the stream is of another context: use one of this context's".to_owned();
            return Err(DeviceError::Invalid { call: CALL, what }.into());
        }
        stream.check_not_captured(CALL, "prefetch")?;
        let handle = stream.handle_here()?;
        let (at, bytes) = managed::range_of(memory);
        // SAFETY: the stream is valid, and in no capture. The rest is the caller's promise.
        Ok(unsafe { self.device().prefetch(at, bytes, to, handle) }?)
    }

    /// Says how plain memory of the host will be used, where the device reaches it. The advice stays with the whole pages of
    /// the system in the memory, also when it is freed: take it back before.
    ///
    /// # Errors
    /// As for [`prefetch_slice`](Self::prefetch_slice).
    pub fn advise_slice<T>(&self, memory: &[T], advice: Advice) -> Result<()> {
        self.timelines().check_process()?;
        self.needs_pageable_access()?;
        let (at, bytes) = managed::range_of(memory);
        let (at, bytes) = managed::whole_pages(at, bytes);
        Ok(self.device().advise(at, bytes, advice)?)
    }

    fn needs_pageable_access(&self) -> DeviceResult<()> {
        let properties = self.device().properties();
        if properties.pageable_access {
            return Ok(());
        }
        let what = "plain host memory in kernels (pageableMemoryAccess): use a pool of Context::managed";
        Err(DeviceError::Unsupported { device: properties.name.clone(), what })
    }

    pub(super) fn memory(&self) -> &PoolMemory {
        &self.inner.state.memory
    }

    pub(crate) fn timelines(&self) -> &Arc<Timelines> {
        &self.inner.timelines
    }

    pub(crate) fn registry(&self) -> &Arc<Registry<dyn HasCore>> {
        &self.inner.registry
    }
}

impl HasDevice for Context {
    fn as_device(&self) -> &dyn Device {
        &**self.device()
    }
}

/// Whether both are the same context, not whether they are of the same device.
impl PartialEq for Context {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.timelines(), other.timelines())
    }
}

impl Eq for Context {}

// No invariant of these types is broken by a panic: none unwinds through a change of them.
impl UnwindSafe for Context {}
impl RefUnwindSafe for Context {}

impl Stream {
    /// The context that the stream is of.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Stream};
    ///
    /// fn ones(stream: &Stream) -> millpond::Result<Buffer<f32>> {
    ///     Buffer::from_slice(&stream.context().default_pool()?, &[1.0; 256], stream)
    /// }
    /// assert_eq!(ones(&Context::host()?.create_stream()?)?.len(), 256);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    #[must_use]
    pub fn context(&self) -> Context {
        Context::of(self.timelines())
    }
}
