//! A pool for each GPU whose primary context the program uses. That is the context of every CUDA runtime.

use std::ffi::c_int;
use std::iter;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use millpond::bindings::{KeptInPlace, Mutex, PerProcess, RwLock, keep_in_place};
use millpond::device::cuda::CudaDevice;
use millpond::device::{DevicePtr, PeerId};
use millpond::{Context, Error, Pool, Stats, Stream};
use rustc_hash::FxHashMap;

use crate::driver::{self, Handle};
use crate::linker::OwnLookups;
use crate::settings::{Mode, settings};
use crate::{driver_memory, known_blocks, messages, retained, tags};

/// A GPU with its pool.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) ordinal: usize,
    /// The primary context.
    primary: u64,
    pub(crate) context: Context,
    device: Arc<CudaDevice>,
    pub(crate) pool: Pool,
    /// A stream without work. Who frees on it has waited for all work on the block, or promises that there is none.
    pub(crate) waited: Stream,
    /// How long the pool keeps what nobody uses, unless the program has the driver's keep it.
    decay: Option<Duration>,
    /// What `cuMemFree` frees, and could not wait for yet.
    late: Mutex<Vec<DevicePtr>>,
    /// The other GPUs that may use the pool's memory.
    peers: Mutex<Vec<PeerId>>,
    /// By name, what keeps the pools in place: safe code of the program uses their memory, and asks no pool. `None` once the program
    /// vouches for that.
    kept: Mutex<Option<FxHashMap<String, KeptInPlace>>>,
}

/// A block of a pool.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) gpu: Arc<Gpu>,
    /// The GPU's, or that of a tag.
    pub(crate) pool: Pool,
    pub(crate) start: DevicePtr,
    /// As it was asked for.
    pub(crate) bytes: u64,
}

/// What lies at an address.
#[derive(Debug)]
pub(crate) enum Place {
    Block(Block),
    /// Memory of a pool that is in no block: to the program there is nothing.
    Free,
    /// No memory of a pool.
    Elsewhere,
}

#[derive(Debug, Default)]
struct Gpus {
    known: RwLock<Vec<Arc<Gpu>>>,
    /// Held while a pool is built. The GPUs for which that failed.
    building: Mutex<Vec<c_int>>,
    /// What the pools did that are gone, by GPU.
    gone: Mutex<Vec<(usize, Stats)>>,
    /// Of GPUs, by their numbers, what the program said before they had pools.
    thresholds: Mutex<FxHashMap<usize, u64>>,
    /// Which GPU's memory, by its number, which other GPU may use.
    peers: Mutex<Vec<(usize, PeerId)>>,
}

static GPUS: PerProcess<Gpus> = PerProcess::new(Default::default);

/// Counts the ends of streams and of pools: what a thread remembers of them is of one count.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Whether several GPUs had pools at once.
static ARE_SEVERAL: AtomicBool = AtomicBool::new(false);

/// Whether `cuMemAlloc` is the driver's.
static SYNC_IS_DRIVERS: AtomicBool = AtomicBool::new(false);

/// The present generation.
#[inline]
pub(crate) fn generation() -> u64 {
    // Acquire: pairs with the Release of `begin_generation`.
    GENERATION.load(Ordering::Acquire)
}

/// What threads remember of streams and pools is looked up again.
pub(crate) fn begin_generation() {
    // Release: who sees the count sees what was taken out of the tables before.
    GENERATION.fetch_add(1, Ordering::Release);
}

/// Leaves `cuMemAlloc` to the driver from here on: the program gives such memory to other processes.
pub(crate) fn leave_sync_to_the_driver() {
    // Relaxed: a setting; an allocation at this moment may be of either.
    SYNC_IS_DRIVERS.store(true, Ordering::Relaxed);
}

/// Whether it is.
pub(crate) fn is_sync_the_drivers() -> bool {
    // Relaxed: as above.
    settings().ipc || SYNC_IS_DRIVERS.load(Ordering::Relaxed)
}

/// The GPUs that have pools.
pub(crate) fn known() -> Vec<Arc<Gpu>> {
    GPUS.get().known.read().clone()
}

/// Whether several GPUs have had pools at once.
#[inline]
pub(crate) fn are_several() -> bool {
    // Relaxed: memory of both reaches a thread by what the program does after the second pool was built.
    ARE_SEVERAL.load(Ordering::Relaxed)
}

/// The GPU of the calling thread's context. `None` where its memory is not a pool's.
#[inline]
pub(crate) fn current() -> Option<Arc<Gpu>> {
    of_context(driver::current_context()?)
}

/// The GPU whose primary context this is.
pub(crate) fn of_context(context: Handle) -> Option<Arc<Gpu>> {
    if settings().mode != Mode::Pool {
        return None;
    }
    let gpus = GPUS.get();
    let find = || gpus.known.read().iter().find(|gpu| gpu.is_of(context)).cloned();
    find().or_else(|| meet(gpus, context, find))
}

#[cold]
fn meet(gpus: &Gpus, context: Handle, find: impl Fn() -> Option<Arc<Gpu>>) -> Option<Arc<Gpu>> {
    let device = device_of(context)?;
    if !is_primary(context, device) {
        return None;
    }
    let mut failed = gpus.building.lock();
    // Another thread may have been first.
    if let Some(gpu) = find() {
        return Some(gpu);
    }
    if failed.contains(&device) {
        return None;
    }
    match Gpu::new(device as usize) {
        Ok(gpu) => {
            retained::is_used(device);
            let gpu = Arc::new(gpu);
            if let Some(bytes) = gpus.thresholds.lock().get(&gpu.ordinal) {
                gpu.keep(*bytes);
            }
            let mut known = gpus.known.write();
            known.push(gpu.clone());
            // Relaxed: see `are_several`.
            ARE_SEVERAL.store(known.len() > 1, Ordering::Relaxed);
            drop((known, failed));
            share_known(gpus);
            Some(gpu)
        }
        Err(error) => {
            failed.push(device);
            if settings().budget.is_some() {
                // What the driver gave would be under no limit.
                driver_memory::close();
                messages::say(&format!(
                    "GPU {device} has no pool: {error}. Without it, the budget cannot be kept: no memory is given"
                ));
            } else {
                messages::say(&format!("GPU {device} has no pool: {error}. Its memory is the driver's"));
            }
            None
        }
    }
}

/// The GPU of a context, which need not be current.
pub(crate) fn device_of(context: Handle) -> Option<c_int> {
    if driver::current_context() == Some(context) {
        return driver::current_device();
    }
    // SAFETY: a stream or the thread has the context, so that it is alive.
    if !unsafe { driver::cuCtxPushCurrent_v2(context) }.is_success() {
        return None;
    }
    let device = driver::current_device();
    let mut popped = ptr::null_mut();
    // SAFETY: `popped` is writable, and the top of this thread's stack is what was pushed above.
    unsafe { driver::cuCtxPopCurrent_v2(&mut popped) };
    device
}

/// Whether a context is the primary one of its GPU.
fn is_primary(context: Handle, device: c_int) -> bool {
    primary_of(device) == Some(context)
}

/// A GPU's primary context. It is not made for this.
pub(crate) fn primary_of(device: c_int) -> Option<Handle> {
    if !driver::has_primary(device) {
        return None;
    }
    let mut primary = ptr::null_mut();
    // SAFETY: `primary` is writable.
    if !unsafe { driver::cuDevicePrimaryCtxRetain(&mut primary, device) }.is_success() {
        return None;
    }
    // SAFETY: one release for the one retain.
    unsafe { driver::cuDevicePrimaryCtxRelease_v2(device) };
    Some(primary)
}

impl Gpu {
    fn new(ordinal: usize) -> millpond::Result<Self> {
        let _own = OwnLookups::begin();
        let device = CudaDevice::new(ordinal)?;
        let primary = device.raw_context() as u64;
        // Not `Context::cuda`: a context is for as long as the program does not reset the GPU.
        let context = Context::new(device.clone());
        let mut builder = Pool::builder(&context).name("run");
        driver_memory::recount(true);
        if let Some(budget) = driver_memory::budget() {
            builder = builder.budget(&budget?);
        }
        if let Some(decay) = settings().decay {
            builder = builder.decay(decay);
        }
        if let Some(tracking) = &settings().track {
            builder = builder.track(tracking.clone());
        }
        let pool = builder.build()?;
        if let Some(Err(error)) = settings().record.clone().map(|record| pool.start_recording(record)) {
            messages::say(&format!("GPU {ordinal} is not recorded: {error}"));
        }
        let (waited, decay) = (context.create_stream()?, pool.decay());
        let (late, peers) = Default::default();
        let kept = Mutex::new(Some(FxHashMap::default()));
        let new = Self { ordinal, primary, context, device, pool, waited, decay, late, peers, kept };
        new.keep_in_place(&new.pool)?;
        Ok(new)
    }

    /// Has no sleep and no eviction move a pool's memory.
    fn keep_in_place(&self, pool: &Pool) -> millpond::Result<()> {
        let mut kept = self.kept.lock();
        if let Some(kept) = &mut *kept
            && !kept.contains_key(pool.name())
        {
            kept.insert(pool.name().to_owned(), keep_in_place(pool)?);
        }
        Ok(())
    }

    /// The program has said how many bytes the driver's pool may keep. That is none by default, which the GPU's pool honours a while
    /// later.
    fn keep(&self, bytes: u64) {
        for pool in self.pools() {
            pool.set_release_threshold(if bytes == 0 { u64::MAX } else { bytes });
            pool.set_decay(self.decay.filter(|_| bytes < u64::MAX));
        }
    }

    /// The GPU's pool, and those of its tags.
    pub(crate) fn pools(&self) -> Vec<Pool> {
        let tags = if tags::are_used() { self.pool.tags() } else { Vec::new() };
        let of_tags = tags.iter().filter_map(|tag| self.pool.tagged(tag).ok());
        iter::once(self.pool.clone()).chain(of_tags).collect()
    }

    /// The pool that the calling thread's allocations come from: that of its tag, if it has one.
    pub(crate) fn pool_of_thread(&self) -> millpond::Result<Pool> {
        match tags::of_thread() {
            Some(tag) => self.tagged(&tag),
            None => Ok(self.pool.clone()),
        }
    }

    fn tagged(&self, tag: &str) -> millpond::Result<Pool> {
        let is_new = !self.pool.tags().iter().any(|known| known == tag);
        let pool = self.pool.tagged(tag)?;
        self.keep_in_place(&pool)?;
        if is_new {
            pool.set_release_threshold(self.pool.release_threshold());
            pool.set_decay(self.pool.decay());
            self.peers.lock().iter().try_for_each(|peer| pool.allow_access_from(*peer))?;
        }
        Ok(pool)
    }

    /// Frees a block of the GPU's pool, or of a tag.
    ///
    /// # Safety
    /// As for [`Pool::free`].
    pub(crate) unsafe fn free(&self, ptr: DevicePtr, stream: &Stream) -> millpond::Result<()> {
        // SAFETY: the caller's promise.
        let freed = unsafe { self.pool.free(ptr, stream) };
        let Err(Error::WrongPool { .. }) = freed else { return freed };
        let owner = self.pools().into_iter().find(|pool| pool.size_of(ptr).is_ok());
        // SAFETY: as above.
        owner.map_or(freed, |pool| unsafe { pool.free(ptr, stream) })
    }

    /// The primary context.
    pub(crate) fn primary(&self) -> u64 {
        self.primary
    }

    /// Whether the context is its primary one.
    #[inline]
    pub(crate) fn is_of(&self, context: Handle) -> bool {
        self.primary == context.addr() as u64
    }

    /// Waits for all work of the GPU, so that blocks can be freed on [`waited`](Self::waited).
    pub(crate) fn wait(&self) -> millpond::Result<()> {
        self.context.synchronize()?;
        let late = std::mem::take(&mut *self.late.lock());
        late.into_iter().for_each(|ptr| {
            // One that was freed twice is the only error, and its call has returned.
            // SAFETY: the program freed them, and all work on them is complete.
            unsafe { self.free(ptr, &self.waited) }.ok();
        });
        Ok(())
    }

    /// Frees a block when the GPU is next waited for, which is at the latest when the last capture ends.
    pub(crate) fn free_late(&self, ptr: DevicePtr) {
        self.late.lock().push(ptr);
    }

    /// What lies at an address, which is not null.
    fn find(self: &Arc<Self>, at: DevicePtr) -> Place {
        let (pool, found) = match self.pool.size_of(at) {
            Err(Error::WrongPool { .. }) => {
                let find = |pool: Pool| {
                    Some(pool.size_of(at)).filter(|found| !is_elsewhere(found)).map(|found| (pool, found))
                };
                let Some(of_tag) = self.pools().into_iter().find_map(find) else { return Place::Elsewhere };
                of_tag
            }
            found => (self.pool.clone(), found),
        };
        let (start, bytes) = match found {
            Ok(bytes) => (at, bytes),
            Err(Error::InteriorPointer { start, .. }) => (start, pool.size_of(start).unwrap_or(0)),
            Err(Error::DoubleFree { .. }) => return Place::Free,
            Err(_) => return Place::Elsewhere,
        };
        // What a block is rounded up to is nobody's.
        if at.raw() - start.raw() < bytes {
            Place::Block(Block { gpu: self.clone(), pool, start, bytes })
        } else {
            Place::Free
        }
    }
}

/// Whether a pool has not got the address that it was asked about.
fn is_elsewhere(found: &millpond::Result<u64>) -> bool {
    matches!(found, Err(Error::WrongPool { .. } | Error::ForeignPointer { .. }))
}

/// What lies at an address, which may be in any pool.
pub(crate) fn find(at: u64) -> Place {
    let at = DevicePtr::new(at);
    // A pool knows null as no block, and frees it.
    if at.is_null() {
        return Place::Elsewhere;
    }
    let gpus = GPUS.get().known.read();
    let mut places = gpus.iter().map(|gpu| gpu.find(at)).filter(|place| !matches!(place, Place::Elsewhere));
    places.next().unwrap_or(Place::Elsewhere)
}

/// The block of any pool in which an address lies.
pub(crate) fn block_at(at: u64) -> Option<Block> {
    match find(at) {
        Place::Block(block) => Some(block),
        Place::Free | Place::Elsewhere => None,
    }
}

/// Lets sleep and evictions move the memory of a GPU's pools.
///
/// # Safety
/// Nobody uses memory that is away.
pub(crate) unsafe fn let_move(ordinal: usize) {
    known().iter().filter(|gpu| gpu.ordinal == ordinal).for_each(|gpu| *gpu.kept.lock() = None);
}

/// Gives back what the pools hold and nobody uses. Returns the bytes.
pub(crate) fn trim() -> u64 {
    known().iter().flat_map(|gpu| gpu.pools()).filter_map(|pool| pool.trim_to(0).ok()).sum()
}

/// Looks again at what CUDA itself takes, where the limit counts that. What the pools have ready beyond it goes back. Returns whether
/// it has changed.
pub(crate) fn recount(must: bool) -> bool {
    let has_changed = driver_memory::recount(must);
    if has_changed && driver_memory::is_beyond_limit() {
        trim();
    }
    has_changed
}

/// Frees what the program freed while a capture was under way, once the GPU has done its work.
pub(crate) fn free_late() {
    for gpu in known().iter().filter(|gpu| !gpu.late.lock().is_empty()) {
        if let Err(error) = gpu.wait() {
            messages::say(&format!("what was freed during a capture stays held: {error}"));
        }
    }
}

/// Sets how much the pool of a GPU may keep at a synchronization, also before it is there.
pub(crate) fn set_release_threshold(ordinal: usize, bytes: u64) {
    GPUS.get().thresholds.lock().insert(ordinal, bytes);
    known().iter().filter(|gpu| gpu.ordinal == ordinal).for_each(|gpu| gpu.keep(bytes));
}

/// Lets one GPU use the pool's memory of another, from when that has a pool. The one that uses it may never have one.
pub(crate) fn share(owner: usize, peer: usize) {
    // A group has no more GPUs than have names.
    let Some(peer) = PeerId::gpu(peer) else { return };
    let gpus = GPUS.get();
    gpus.peers.lock().push((owner, peer));
    share_known(gpus);
}

fn share_known(gpus: &Gpus) {
    let known = gpus.known.read().clone();
    let find = |ordinal| known.iter().find(|gpu| gpu.ordinal == ordinal);
    gpus.peers.lock().retain(|(owner, peer)| {
        let Some(owner) = find(*owner) else { return true };
        owner.peers.lock().push(*peer);
        let allow = |pool: &Pool| pool.allow_access_from(*peer);
        if let Err(error) = owner.pools().iter().try_for_each(allow) {
            let (peer, owner) = (peer.number(), owner.ordinal);
            messages::say(&format!("GPU {peer} cannot use the pool of GPU {owner}: {error}"));
        }
        false
    });
}

/// Takes a GPU out. Its blocks are freed, as the end of its primary context would do. Other threads may remember it yet: no stream or
/// event that they let go of later reaches the driver.
///
/// # Safety
/// The context ends next.
pub(crate) unsafe fn remove(ordinal: usize) {
    let gpus = GPUS.get();
    let removed = {
        let mut known = gpus.known.write();
        let at = known.iter().position(|gpu| gpu.ordinal == ordinal);
        at.map(|at| known.remove(at))
    };
    let Some(gpu) = removed else { return };
    begin_generation();
    known_blocks::forget_all_of(ordinal);
    gpus.gone.lock().extend(gpu.pools().iter().map(|pool| (ordinal, pool.stats())));
    let freed = gpu.wait().and_then(|()| {
        for pool in gpu.pools() {
            pool.live_blocks()?.iter().try_for_each(|block| {
                // SAFETY: the program gives all memory up by the reset, and all work on it is complete.
                unsafe { pool.free(block.ptr, &gpu.waited) }
            })?;
        }
        gpu.pool.destroy()
    });
    if let Err(error) = freed {
        messages::say(&format!("the pool of GPU {ordinal} did not end with its context: {error}"));
    }
    let device = gpu.device.clone();
    drop(gpu);
    // SAFETY: the caller's promise. The pool gives no memory any more.
    unsafe { device.end_context() };
}

/// What each pool did, with those that are gone.
pub(crate) fn stats() -> Vec<(usize, Stats)> {
    let mut all = GPUS.get().gone.lock().clone();
    for gpu in known() {
        all.extend(gpu.pools().iter().map(|pool| (gpu.ordinal, pool.stats())));
    }
    all
}
