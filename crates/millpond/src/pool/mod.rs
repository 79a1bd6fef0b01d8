//! `pool/`: what programs hold: contexts, pools and their options. It wires the core and the features together.
//!
//! Uses `core/`, the features beside it, and what is below them.
//!
//! **How one request passes through.** [`Pool::alloc`] asks the thread's magazines. Where they have nothing that fits,
//! `core/allocating` checks the request and takes the pool's lock. It asks the depot, and the free blocks of the arena. Then it
//! empties every thread's magazines, and asks what the arena can map. Where memory is short, `core/making_room` makes room step
//! by step, without the lock, and the ladder is climbed again. [`Pool::free`] gives the block to the thread's magazines. Where
//! it cannot, it finds the block under the lock, or says what is wrong with the address. It makes room in the magazines,
//! or hands the block to the arena behind the stream's present tick. Synchronising a stream, an event or the device
//! through millpond calls back to `core/giving_back` to apply the release threshold.

mod builder;
mod context;
mod features;
mod parts;

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use builder::PoolBuilder;
pub use context::Context;
pub(crate) use parts::PoolParts;

use crate::budgets::Budget;
use crate::capture::CapturePool;
use crate::core::{ObserverId, ReclaimId, allocating, freeing, giving_back, recording};
use crate::device::{Device, DevicePtr, MemoryInfo};
use crate::error::{Error, Result};
use crate::figures::stats::{Level, Stats};
use crate::log::log;
use crate::order::{ReusePolicies, Stream, Timelines};
use crate::out_of_memory::OutOfMemory;
use crate::peers;
use crate::record;
use crate::system::lock::Mutex;
use crate::system::process::OfProcess;

/// A memory pool of one device. Clones are the same pool.
///
/// Allocation and free are ordered by streams, as kernels are. Memory is valid for work ordered after the allocation
/// and before the free. A free may name another stream than the allocation, if the program has ordered it after the
/// work on the memory.
///
/// ```
/// use millpond::{Context, Pool};
/// let device = Context::host()?;
/// let pool = Pool::builder(&device).name("example").build()?;
/// let stream = device.create_stream()?;
/// let block = pool.alloc(1 << 20, &stream)?;
/// // … give work that uses the block to the stream …
/// // SAFETY: nobody else has the block, and all work on it was given to this stream.
/// unsafe { pool.free(block, &stream) }?;
/// assert_eq!(pool.allocated().current, 0);
/// # Ok::<(), millpond::Error>(())
/// ```
///
/// When the last handle of a pool is dropped, the host waits for pending work on its memory and gives it back. If
/// blocks are still live, the pool stays until the last of them is freed, by [`Context::free`] or a
/// [`Buffer`](crate::Buffer)'s drop.
///
/// In a forked process, the parent's pools, streams, events and buffers answer each call at once with
/// [`Error::Forked`]. Calls without an error do nothing there, and so do drops. The child can make contexts of its own,
/// but not of a GPU: CUDA does not work after a fork.
///
/// **Signal handlers** must not call a pool, nor drop what frees to it: as with `malloc`, the thread that they interrupted may
/// be inside. The call could hang, or leave counts wrong. Set a flag in the handler, and allocate or free after it. A debug build
/// ends the process with a message where a handler meets its thread inside.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<PoolParts>,
    /// Counts the program's handles; buffers hold the inner pool only.
    handle: Arc<Handle>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name())
            .field("device", &self.device().properties().short())
            .field("reserved", &self.reserved().current)
            .field("allocated", &self.allocated().current)
            .finish_non_exhaustive()
    }
}

/// Whether both are handles of one pool.
impl PartialEq for Pool {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Pool {}

// No invariant of a pool is broken by a panic: none unwinds through a change of it.
impl UnwindSafe for Pool {}
impl RefUnwindSafe for Pool {}

/// What the program's handles of a pool share.
#[derive(Debug)]
struct Handle {
    inner: Arc<PoolParts>,
    /// What the pool was built with, and with that the list of the context's pools; `None` for one that is destroyed from the
    /// start.
    options: Option<PoolBuilder>,
    /// The parts of its memory that sleep on their own: a pool for each tag, under the same limits.
    tags: OfProcess<Mutex<Vec<(String, Pool)>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.inner.is_here() {
            // The pool is the parent's.
            return;
        }
        // Nobody can allocate any more, and what they hold may be memory of this pool, which would hold the pool.
        self.inner.reclaimers.clear();
        self.inner.observers.clear();
        if let Err(error) = giving_back::close(&self.inner) {
            log!(WARN, "a pool that ends keeps memory", error);
        }
        // One that holds blocks is still seen.
        if self.inner.holds_nothing() {
            self.inner.leave();
        }
    }
}

impl Pool {
    /// Starts building a pool of the device.
    pub fn builder(device: &Context) -> PoolBuilder {
        PoolBuilder::new(device, device.memory().clone())
    }

    /// `options` are those that it was built with; `None` for one that is destroyed, as that of other processes' memory is.
    pub(crate) fn new(inner: Arc<PoolParts>, options: Option<PoolBuilder>) -> Self {
        let handle = Arc::new(Handle { inner: inner.clone(), options, tags: OfProcess::default() });
        // The first stays: it is that of the program.
        _ = inner.first_handle.set(Arc::downgrade(&handle));
        Self { inner, handle }
    }

    /// The pool, as the program holds it; an error once its last handle is gone.
    pub(crate) fn of(inner: &Arc<PoolParts>) -> Result<Self> {
        let handle = inner.first_handle.get().and_then(Weak::upgrade);
        handle.map(Self::of_handle).ok_or_else(|| Error::PoolDestroyed { pool: inner.name_of() })
    }

    /// The pool that the program has this handle of.
    fn of_handle(handle: Arc<Handle>) -> Self {
        Self { inner: handle.inner.clone(), handle }
    }

    /// The context that the pool is of. It lives as long as the pool.
    ///
    /// ```
    /// use millpond::{Context, Pool};
    ///
    /// let pool = Pool::builder(&Context::host()?).build()?;
    /// let other = Pool::builder(&pool.context()).build()?; // of the same device, and for the same streams
    /// # Ok::<(), millpond::Error>(())
    /// ```
    #[must_use]
    pub fn context(&self) -> Context {
        Context::of(&self.inner.timelines)
    }

    /// Creates a stream of the pool's context, as [`Context::create_stream`] does.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Pool};
    ///
    /// let pool = Pool::builder(&Context::host()?).build()?;
    /// let stream = pool.create_stream()?;
    /// let buffer = Buffer::<f32>::zeroed(&pool, 1024, &stream)?;
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// The device's own.
    pub fn create_stream(&self) -> Result<Stream> {
        self.context().create_stream()
    }

    /// One of memory of other processes. Its only handle goes here, so that it is destroyed.
    fn of_others(context: &Context, memory: Arc<dyn Device>) -> Result<Arc<PoolParts>> {
        Ok(PoolBuilder::of_others(context, memory).build()?.inner.clone())
    }

    /// Allocates `bytes` for work on `stream`, aligned to the pool's minimum alignment. Zero bytes give the
    /// null pointer.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] after everything that could make room was tried; [`Error::WrongDevice`],
    /// [`Error::SizeOverflow`], [`Error::PoolDestroyed`], or the device's own.
    #[inline]
    pub fn alloc(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
        allocating::alloc(&self.inner, bytes, stream)
    }

    /// Allocates at an address that is a multiple of `align` bytes, a power of two up to the device's
    /// granularity (2 MiB). As fast as [`alloc`](Self::alloc) up to the pool's minimum alignment, which every block
    /// has.
    ///
    /// # Errors
    /// [`Error::BadAlignment`], and those of [`alloc`](Self::alloc).
    #[inline]
    pub fn alloc_aligned(&self, bytes: u64, align: u64, stream: &Stream) -> Result<DevicePtr> {
        allocating::alloc_aligned(&self.inner, bytes, align, stream)
    }

    /// Allocates, and sets all bytes to zero in stream order.
    ///
    /// # Errors
    /// Those of [`alloc`](Self::alloc).
    pub fn alloc_zeroed(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
        // Before anything is allocated for it.
        stream.handle_here()?;
        let ptr = self.alloc(bytes, stream)?;
        if ptr.is_null() {
            return Ok(ptr);
        }
        if !self.inner.zeroes
            && let Err(error) = allocating::zero(&self.inner, ptr, bytes, stream)
        {
            // SAFETY: nobody else knows the block.
            unsafe { self.free(ptr, stream) }?;
            return Err(error);
        }
        Ok(ptr)
    }

    /// Frees a block after the work given to `stream` so far, and to the streams of [recorded uses](Self::record_use).
    /// A free of null does nothing. If `stream` is not the allocation's, it must be ordered after the allocation and
    /// after all work on the block.
    ///
    /// To free a block twice is an error, even if the first free was another thread's. Two frees of one block within
    /// the same nanoseconds may both succeed: the fast path takes no lock. `Stats::double_frees` counts them.
    ///
    /// # Errors
    /// [`Error::DoubleFree`], [`Error::InteriorPointer`], [`Error::WrongPool`], [`Error::ForeignPointer`] or
    /// [`Error::WrongDevice`]; nothing changed then.
    ///
    /// # Safety
    /// A live block that starts at `ptr` is the caller's. No [`Buffer`](crate::Buffer), [`Workspace`](crate::Workspace)
    /// or other owner of it is left. Nobody gives work that uses it later, and earlier work is ordered as above.
    ///
    /// ```compile_fail,E0133
    /// # let device = millpond::Context::host()?;
    /// # let pool = millpond::Pool::builder(&device).build()?;
    /// # let stream = device.create_stream()?;
    /// let buffer = millpond::Buffer::<u8>::zeroed(&pool, 100, &stream)?;
    /// pool.free(buffer.ptr(), &stream)?; // error: call to unsafe method
    /// # Ok::<(), millpond::Error>(())
    /// ```
    /// ```
    /// # let device = millpond::Context::host()?;
    /// # let pool = millpond::Pool::builder(&device).build()?;
    /// # let stream = device.create_stream()?;
    /// let buffer = millpond::Buffer::<u8>::zeroed(&pool, 100, &stream)?;
    /// // SAFETY: the buffer gave the block up.
    /// unsafe { pool.free(buffer.into_raw(), &stream) }?;
    /// # Ok::<(), millpond::Error>(())
    /// ```
    #[inline]
    pub unsafe fn free(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { freeing::free(&self.inner, ptr, stream) }
    }

    /// Notes that work on `stream` uses the block. The free will wait for all work that `stream` was given by then, as
    /// with PyTorch's `record_stream`. The host never waits. On a [foreign stream](Context::foreign_stream), the free
    /// waits only for what the stream was given until this call. The same holds for a stream of another GPU. Null does nothing.
    ///
    /// # Errors
    /// As for [`free`](Self::free), and [`Error::WrongDevice`] for a stream of a device that cannot work together with the pool's.
    pub fn record_use(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        peers::record_use(&self.inner, ptr, stream)
    }

    /// Bytes asked for in the live block that starts at `ptr`; 0 for null, which stands for no bytes.
    ///
    /// # Errors
    /// As for [`free`](Self::free).
    pub fn size_of(&self, ptr: DevicePtr) -> Result<u64> {
        if ptr.is_null() {
            return Ok(0);
        }
        freeing::requested_at(&self.inner, ptr)
    }

    /// Takes memory from the device in advance, so that blocks of `bytes` in all can be allocated on `stream` without a
    /// device call. A free range that is long enough already is one. Other threads wait meanwhile where they need more than
    /// their caches have. Where memory is short, the pool does what it does for an allocation.
    ///
    /// [Pinned memory](Context::pinned) comes in one segment then, which several threads touch: it is ready several times as
    /// fast as pages. A segment goes back to the system when all of it is free.
    ///
    /// ```
    /// # let device = millpond::Context::host()?;
    /// # let stream = device.create_stream()?;
    /// let staging = device.pinned()?.build()?;
    /// staging.reserve(64 << 20, &stream)?;
    /// assert!(staging.reserved().current >= 64 << 20);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`alloc`](Self::alloc).
    pub fn reserve(&self, bytes: u64, stream: &Stream) -> Result<()> {
        allocating::reserve(&self.inner, bytes, stream)
    }

    /// Gives free memory back to the device until at most `bytes_to_keep` are reserved, as far as no pending work uses
    /// it. It returns the bytes given back. It does not wait, but for memory in segments (pinned and managed memory, and devices without
    /// virtual memory): to free a segment waits for the device. Other threads use the pool meanwhile.
    ///
    /// # Errors
    /// The device's own; what was given back until then stays given back.
    pub fn trim_to(&self, bytes_to_keep: u64) -> Result<u64> {
        giving_back::trim(&self.inner, bytes_to_keep).map_err(|error| self.inner.error_of(error))
    }

    /// Changes the [reuse policies](PoolBuilder::reuse), for requests from now on; captures that have begun keep theirs.
    pub fn set_reuse(&self, policies: ReusePolicies) {
        let Some(mut state) = self.inner.lock_here() else { return };
        state.arenas.own.set_policies(policies);
        self.inner.reuse.set(policies);
    }

    /// The present [reuse policies](PoolBuilder::reuse).
    #[must_use]
    pub fn reuse(&self) -> ReusePolicies {
        self.inner.reuse.get()
    }

    /// Changes the [release threshold](PoolBuilder::release_threshold), from the next synchronise on.
    pub fn set_release_threshold(&self, bytes: u64) {
        // Relaxed: a setting; nothing is concluded from when it is seen.
        self.inner.release_threshold.store(bytes, Ordering::Relaxed);
    }

    /// The present [release threshold](PoolBuilder::release_threshold) in bytes.
    #[must_use]
    pub fn release_threshold(&self) -> u64 {
        self.inner.release_threshold.load(Ordering::Relaxed)
    }

    /// Changes the [hard limit](PoolBuilder::hard_limit) for what is taken from now on; `None` for none. What the pool holds beyond
    /// it stays until it is given back. The pools of its [tags](Self::tagged) have the same limit.
    ///
    /// ```
    /// use millpond::{Context, Pool};
    ///
    /// let pool = Pool::builder(&Context::host()?).hard_limit(1 << 30).build()?;
    /// assert_eq!(pool.hard_limit(), Some(1 << 30));
    /// pool.set_hard_limit(Some(2 << 30));
    /// # assert_eq!(pool.hard_limit(), Some(2 << 30));
    /// # Ok::<(), millpond::Error>(())
    /// ```
    pub fn set_hard_limit(&self, bytes: Option<u64>) {
        self.inner.limits.hard_limit.set_limit(bytes.unwrap_or(u64::MAX));
    }

    /// The present [hard limit](PoolBuilder::hard_limit) in bytes; `None` where there is none.
    #[must_use]
    pub fn hard_limit(&self) -> Option<u64> {
        Some(self.inner.limits.hard_limit.limit()).filter(|limit| *limit < u64::MAX)
    }

    /// Changes the [headroom](PoolBuilder::headroom), for what is taken from now on.
    pub fn set_headroom(&self, bytes: u64) {
        self.inner.limits.set_headroom(bytes);
    }

    /// The present [headroom](PoolBuilder::headroom) in bytes.
    #[must_use]
    pub fn headroom(&self) -> u64 {
        self.inner.limits.headroom()
    }

    /// The [budget](PoolBuilder::budget) that the pool shares, if it has one. [`Budget::set_limit`] changes that for all.
    #[must_use]
    pub fn budget(&self) -> Option<&Budget> {
        self.inner.limits.budget.as_ref()
    }

    /// Changes the [decay](PoolBuilder::decay): how long free memory stays that nobody uses; `None` for always.
    pub fn set_decay(&self, delay: Option<Duration>) {
        self.inner.decay.set(&self.inner, delay);
    }

    /// The present [decay](PoolBuilder::decay); `None` where free memory stays.
    #[must_use]
    pub fn decay(&self) -> Option<Duration> {
        self.inner.decay.get()
    }

    /// What the pool did and holds. Waits for no lock.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Physical bytes held, now and at most.
    #[must_use]
    pub fn reserved(&self) -> Level {
        self.inner.counters.reserved.level()
    }

    /// Bytes in live blocks, now and at most, as [`Stats::allocated`].
    #[must_use]
    pub fn allocated(&self) -> Level {
        self.inner.counted().allocated
    }

    /// As [`allocated`](Self::allocated).
    #[deprecated(since = "0.1.0", note = "it is `allocated`, as in `Stats`")]
    #[must_use]
    pub fn used(&self) -> Level {
        self.allocated()
    }

    /// Resets the high-water marks to the present figures.
    pub fn reset_high_water(&self) {
        self.inner.reset_high_water();
    }

    /// Free and total memory of the [device](Self::device), as its driver counts. Of pinned memory: what the host has. Of
    /// managed memory: what may still be taken, of what the device has.
    ///
    /// # Errors
    /// The device's own.
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        self.timelines().check_process()?;
        Ok(self.device().memory_info()?)
    }

    /// Registers a callback that is asked when memory is short, after everything that the pool can do itself.
    ///
    /// It gets the bytes wanted, and may free, trim and allocate. It says whether trying again is worth it. It runs on the
    /// allocating thread, without locks held. For what it allocates from this pool itself, no callback is asked.
    ///
    /// The callback is dropped with the pool. One that holds a [`Pool`] would keep that pool: give it a [`Context`] or a
    /// [`Weak`](std::sync::Weak) instead.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// use millpond::{Buffer, Context, Pool};
    ///
    /// let device = Context::host()?;
    /// let pool = Pool::builder(&device).hard_limit(64 << 20).build()?;
    /// let stream = device.create_stream()?;
    /// let cache = Arc::new(Mutex::new(vec![Buffer::<u8>::new(&pool, 40 << 20, &stream)?]));
    /// let entries = cache.clone();
    /// let id = pool.on_reclaim(move |_bytes| entries.lock().unwrap().pop().is_some());
    /// let more = Buffer::<u8>::new(&pool, 40 << 20, &stream)?; // the cache gave way
    /// assert!(cache.lock().unwrap().is_empty());
    /// assert!(pool.remove_reclaim(id));
    /// # Ok::<(), millpond::Error>(())
    /// ```
    pub fn on_reclaim(&self, reclaim: impl Fn(u64) -> bool + Send + Sync + 'static) -> ReclaimId {
        ReclaimId(self.inner.reclaimers.add(Arc::new(reclaim), self.inner.is_here()))
    }

    /// Removes a callback; `false` if it was removed before.
    pub fn remove_reclaim(&self, id: ReclaimId) -> bool {
        self.inner.is_here() && self.inner.reclaimers.remove(id.0)
    }

    /// Registers a callback that is told of each request for which there was no memory, before its caller gets the
    /// error. Use it to log, or to take a snapshot. It runs on the allocating thread, without locks held.
    pub fn on_out_of_memory(&self, tell: impl Fn(&OutOfMemory) + Send + Sync + 'static) -> ObserverId {
        ObserverId(self.inner.observers.add(Arc::new(tell), self.inner.is_here()))
    }

    /// Removes a callback; `false` if it was removed before.
    pub fn remove_out_of_memory(&self, id: ObserverId) -> bool {
        self.inner.is_here() && self.inner.observers.remove(id.0)
    }

    /// Memory for captures into CUDA graphs, which stays at its addresses until the last clone of the handle is
    /// dropped. This call takes none yet. The page `docs/graphs.md` has the contract.
    ///
    /// ```
    /// # let device = millpond::Context::host()?;
    /// # let pool = millpond::Pool::builder(&device).build()?;
    /// # let stream = device.create_stream()?;
    /// let memory = pool.capture_pool();
    /// let capturing = memory.begin(&stream)?;
    /// // … begin capturing the stream …
    /// let scratch = pool.alloc(1 << 20, &stream)?; // comes from `memory`
    /// // … give the stream work that uses it …
    /// // SAFETY: nobody else has the block, and all work on it was given to this stream.
    /// unsafe { pool.free(scratch, &stream) }?; // for later work of the capture
    /// // … end the capture …
    /// drop(capturing);
    /// // … replay the graph, any number of times, destroy it …
    /// drop(memory); // waits for the device, and gives the memory back
    /// # Ok::<(), millpond::Error>(())
    /// ```
    #[must_use]
    pub fn capture_pool(&self) -> CapturePool {
        CapturePool::new(self.inner.clone())
    }

    /// Starts recording what the pool does to a file, for `millpond replay`. The file has every allocation and free
    /// with its time, stream, thread and [tag](record::tag). It also has recorded uses, trims, and requests without
    /// memory. Blocks that are live now are written first. An earlier recording of the pool is stopped.
    ///
    /// Pools of one process that name the same file share it. The page `docs/recording.md` has the format, and says
    /// what a crash loses and what happens to an existing file.
    ///
    /// # Errors
    /// [`Error::Recording`] if the file cannot be written; the pool records nothing then.
    pub fn start_recording(&self, to: impl Into<record::Options>) -> Result<()> {
        recording::start_recording(&self.inner, &to.into())?;
        if self.is_evicted() {
            self.inner.recording.evicted(self.stats().asleep, None);
        }
        Ok(())
    }

    /// Stops recording, and returns what was recorded once it is written; `None` where nothing was recorded.
    /// Events of other threads during this call may be in the file or not. The pool's end does the same.
    ///
    /// # Errors
    /// [`Error::Recording`] if the file's last part could not be written.
    pub fn stop_recording(&self) -> Result<Option<record::Status>> {
        recording::stop(&self.inner, record::Recording::stop)?
    }

    /// Writes what was recorded so far to the file, which can then be read while the recording goes on. Without a
    /// recording it does nothing. A write that fails is tried again, and [`Status::failure`] has the reason.
    ///
    /// [`Status::failure`]: record::Status::failure
    pub fn flush_recording(&self) {
        if self.inner.is_here() {
            self.inner.recording.flush();
        }
    }

    /// The recording that runs; `None` where none does.
    #[must_use]
    pub fn recording(&self) -> Option<record::Status> {
        if self.inner.is_here() { self.inner.recording.status() } else { None }
    }

    /// Destroys the pool for all its handles, with those of its [tags](Self::tagged): it allocates no more. Waits for pending
    /// work on its memory.
    ///
    /// # Errors
    /// [`Error::LiveBlocks`] where blocks are live. The pool is destroyed all the same, and their memory goes back when
    /// the last of them is freed. [`Error::MemoryInUse`] where a stream that is being captured uses memory of the pool.
    /// It goes back when the host synchronises after the capture. The device's own otherwise. What was not given back
    /// goes back when the host next synchronises.
    pub fn destroy(&self) -> Result<()> {
        let mut done = giving_back::close(&self.inner);
        for (_, of_tag) in self.tagged_pools() {
            done = done.and(of_tag.destroy());
        }
        done
    }

    /// The pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The device that the pool takes its memory from. For a pool of [pinned](Context::pinned) or
    /// [managed](Context::managed) memory, that memory as a device.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.inner.device
    }

    /// Checks every invariant of the pool by recounting blocks, pages, mappings and counters. For tests. It holds the
    /// lock for a time that grows with the number of blocks.
    ///
    /// # Errors
    /// [`Error::Broken`], with a sentence that says what is wrong.
    pub fn check(&self) -> Result<()> {
        self.inner.check_process()?;
        self.inner.check().map_err(|why| Error::Broken { pool: self.inner.name_of(), why })
    }

    pub(crate) fn timelines(&self) -> &Arc<Timelines> {
        &self.inner.timelines
    }

    pub(crate) fn inner(&self) -> &Arc<PoolParts> {
        &self.inner
    }
}
