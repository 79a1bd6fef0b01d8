//! What a pool does by what stands beside the core: sleep, sharing between processes, peers, kinds of memory, tags, and who
//! holds memory.

use super::{Context, Pool, PoolBuilder};
use crate::device::{Advice, DevicePtr, MemoryKind, PeerId, Place, Residency};
use crate::error::{Error, Result};
use crate::guard::Finding;
use crate::managed;
use crate::order::Stream;
use crate::peers;
use crate::record;
use crate::sharing;
use crate::sharing::Shared;
use crate::sleep::Keep;

impl Pool {
    // ---- who holds memory ---------------------------------------------------------------------------

    /// Tracks who holds memory from now on: the call stack, tag and time of blocks, sampled or all. What was tracked before is
    /// forgotten. [`record::Tracking`] has an example.
    ///
    /// # Errors
    /// In a forked child only.
    pub fn start_tracking(&self, tracking: record::Tracking) -> Result<()> {
        crate::core::recording::start_tracking(self.inner(), &tracking)
    }

    /// Ends tracking, and forgets what was tracked. It does nothing where nothing is.
    ///
    /// # Errors
    /// In a forked child only.
    pub fn stop_tracking(&self) -> Result<()> {
        crate::core::recording::stop(self.inner(), record::Recording::stop_tracking)
    }

    /// Every live block. Where the pool [tracks](record::Tracking) it, with who allocated it, and when. Calls that other
    /// threads make at the same time may be missing. [`record::holders`] sums the blocks up.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Pool, record};
    ///
    /// let device = Context::host()?;
    /// let pool = Pool::builder(&device).track(record::Tracking::all()).build()?;
    /// let stream = device.create_stream()?;
    /// let buffer = Buffer::<f32>::new(&pool, 1000, &stream)?;
    /// for block in pool.live_blocks()? {
    ///     assert_eq!((block.ptr, block.bytes), (buffer.ptr(), 4000));
    ///     let tracked = block.tracked.expect("every block is tracked");
    ///     println!("{:?} old, from {}", tracked.age, tracked.stack()[0]); // or tracked.tag()
    /// }
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// In a forked child only.
    pub fn live_blocks(&self) -> Result<Vec<record::LiveBlock>> {
        crate::core::recording::live_blocks(self.inner())
    }

    /// What the pool's [guard](crate::guard::Guard) found so far, if it only counts: the first thousand. Nothing without a
    /// guard. Freed blocks are looked at later: all of them once the pool is dropped or [destroyed](Self::destroy).
    #[must_use]
    pub fn guard_findings(&self) -> Vec<Finding> {
        self.inner().guarding.as_ref().map(|guarding| guarding.findings()).unwrap_or_default()
    }

    // ---- sleep -----------------------------------------------------------------------------------

    /// Gives all of the pool's memory back to the device. Addresses stay, and so do live blocks: [`wake`](Self::wake) brings
    /// them back to where they were, so that captured graphs can be replayed. Pools of [tags](Self::tagged) sleep with it.
    /// Returns the bytes given back.
    ///
    /// It waits for the device. Until the pool is awake, its memory must not be used. What safe code asks of the pool or its
    /// buffers is refused with [`Error::Asleep`]. Blocks may be freed. The page `docs/sleep.md` says more.
    ///
    /// Pinned memory for the bytes stays with the pool for the next sleep: to prepare it takes longer than to copy.
    /// [`trim_staging`](Self::trim_staging) gives it back.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Keep, Pool};
    ///
    /// let device = Context::host()?;
    /// let pool = Pool::builder(&device).build()?;
    /// let stream = device.create_stream()?;
    /// let weights = Buffer::from_slice(&pool, &[1.0_f32; 1000], &stream)?;
    /// let at = weights.ptr();
    /// pool.sleep(Keep::InPinnedMemory)?;
    /// assert_eq!(pool.reserved().current, 0);
    /// // … others use the memory …
    /// pool.wake()?;
    /// assert_eq!((weights.ptr(), weights.to_vec()?), (at, vec![1.0; 1000]));
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// If it fails, the pool is awake, or [sleeps](Self::is_asleep) and holds some of its memory still. Both can be tried
    /// again. To put a pool to sleep that sleeps gives that back, or does nothing.
    ///
    /// # Errors
    /// [`Error::CannotSleep`] for a pool of pinned or managed memory, on a device without virtual memory, while other
    /// processes may use [shared](crate::Buffer::share) blocks, while a buffer of the module `cudarc` lives, and while a graph is
    /// being captured. [`Error::PoolDestroyed`], or the device's own, such as [`DeviceError::OutOfMemory`] where the host has
    /// too little pinned memory.
    ///
    /// [`DeviceError::OutOfMemory`]: crate::device::DeviceError::OutOfMemory
    pub fn sleep(&self, keep: Keep) -> Result<u64> {
        let guarding = self.inner().guarding.as_ref();
        let was_awake = guarding.is_some() && !self.is_asleep();
        if let Some(guarding) = guarding.filter(|_| was_awake) {
            guarding.before_sleep(self.inner(), keep != Keep::Nothing);
        }
        let slept = self.inner().sleep.sleep(self.inner(), keep);
        if let Some(guarding) = guarding.filter(|_| was_awake && !self.is_asleep()) {
            guarding.did_not_sleep();
        }
        let own = slept?;
        self.tagged_pools().iter().try_fold(own, |sum, (_, of_tag)| Ok(sum + of_tag.sleep(keep)?))
    }

    /// Ends a [sleep](Self::sleep): takes memory again, and maps it where it was. Returns once all bytes are in place. A pool
    /// that is awake stays as it is.
    ///
    /// If it fails, the pool sleeps as before, and loses nothing. Make room, and try again.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where memory is lacking, also after the context's other pools gave back what they cache. Else
    /// the device's own.
    pub fn wake(&self) -> Result<()> {
        self.inner().sleep.wake(self.inner())?;
        if let Some(guarding) = &self.inner().guarding {
            guarding.after_wake(self.inner())?;
        }
        self.tagged_pools().iter().try_for_each(|(_, of_tag)| of_tag.wake())
    }

    /// Whether the pool [sleeps](Self::sleep). Its [tags](Self::tagged) may do otherwise.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        self.inner().lock_here().is_some_and(|state| state.is_asleep) && !self.is_evicted()
    }

    /// Gives the pinned memory back that a [sleep](Self::sleep) or an [eviction](Self::evict) left, unless it is needed: the
    /// pool's own, and that of its [tags](Self::tagged). Returns the bytes given back.
    ///
    /// # Errors
    /// The device's own; what could not be given back stays.
    pub fn trim_staging(&self) -> Result<u64> {
        self.inner().check_process()?;
        let own = self.inner().sleep.trim_staging()? + self.inner().evict.trim_staging(self.inner())?;
        self.tagged_pools().iter().try_fold(own, |sum, (_, of_tag)| Ok(sum + of_tag.trim_staging()?))
    }

    // ---- evict -----------------------------------------------------------------------------------

    /// Has the memory of a [tag](Self::tagged) serve its pool for a while. Behind all work that streams were given so far, the
    /// bytes of live blocks are copied to pinned memory of the host. From the end of the copies on, the pages serve other
    /// addresses of the pool. The host does not wait. Returns the bytes that the pool got.
    ///
    /// Until the tag is [restored](Self::restore), its memory must not be used: the addresses lead nowhere once the pool has seen
    /// that the copies are complete. What safe code asks of the tag or its buffers is refused with [`Error::Evicted`]. Blocks may
    /// be freed. The page `docs/beyond.md` says more.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Error, Pool};
    ///
    /// let device = Context::host()?;
    /// let (pool, stream) = (Pool::builder(&device).build()?, device.create_stream()?);
    /// let tag = pool.tagged("optimizer")?;
    /// let moments = Buffer::from_slice(&tag, &[1.0_f32; 1000], &stream)?;
    /// let at = moments.ptr();
    /// tag.evict(&stream)?; // behind the step
    /// assert!(matches!(moments.to_vec(), Err(Error::Evicted { .. })));
    /// // … forward and backward use the memory …
    /// tag.restore(&stream)?; // before the next step
    /// assert_eq!((moments.ptr(), moments.to_vec()?), (at, vec![1.0; 1000]));
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// Where a [guard](crate::PoolBuilder::guard) watches the tag, the host waits for the work on freed blocks, which are looked at.
    ///
    /// Work on streams that no pool has met has to be ordered before `stream`. So has what a
    /// [foreign stream](crate::Context::foreign_stream) without a registration was given since a call last presented it. Where another
    /// thread has used its own default stream, the host waits for the device once. To evict a tag that is evicted does nothing, or ends
    /// what [`restore_ahead`](Self::restore_ahead) began. If it fails, all is as before.
    ///
    /// # Errors
    /// [`Error::CannotEvict`] for a pool that is no tag's, and where [`sleep`](Self::sleep) is refused. [`Error::Asleep`] for one that
    /// sleeps. [`Error::PoolDestroyed`], or the device's own, such as
    /// [`DeviceError::OutOfMemory`](crate::device::DeviceError::OutOfMemory) where the host has too little pinned memory.
    pub fn evict(&self, stream: &Stream) -> Result<u64> {
        self.inner().evict.evict(self.inner(), &self.inner().sleep, stream)
    }

    /// Ends an [eviction](Self::evict): takes memory again, maps it where it was, and copies the bytes back. Later work on
    /// `stream` comes behind the copies. So does what a [`Buffer`](crate::Buffer) of the tag has other streams do. Kernels that are
    /// given addresses on other streams have to [wait for it](Stream::wait_for) first. A tag that is not evicted stays as it is.
    ///
    /// The host waits only where the eviction's copies are under way, and the pool uses the pages already. Pages that nobody used
    /// meanwhile need no copy.
    ///
    /// If it fails, the tag is evicted as before, and loses nothing. Make room, and try again.
    ///
    /// # Errors
    /// As for [`wake`](Self::wake).
    pub fn restore(&self, stream: &Stream) -> Result<()> {
        self.inner().evict.restore(self.inner(), stream)
    }

    /// Begins a [restore](Self::restore), which then only has `stream` wait: the copies run beside other work until then.
    ///
    /// # Errors
    /// As for [`restore`](Self::restore).
    pub fn restore_ahead(&self) -> Result<()> {
        self.inner().evict.restore_ahead(self.inner())
    }

    /// As [`restore_ahead`](Self::restore_ahead), for as much of the tag as the pool has free memory. No memory is taken for it, and
    /// the host never waits. It can be called again as more becomes free, such as in a backward pass. The rest comes with
    /// [`restore`](Self::restore). Returns the bytes that are still away.
    ///
    /// # Errors
    /// As for [`restore`](Self::restore), but for memory that is lacking.
    pub fn restore_free(&self) -> Result<u64> {
        self.inner().evict.restore_free(self.inner())
    }

    /// Whether the pool is [evicted](Self::evict).
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.inner().is_here() && self.inner().gate.is_evicted()
    }

    // ---- other devices ---------------------------------------------------------------------------

    /// Lets the GPU of another context use all memory of the pool at its addresses: what there is, and what comes.
    ///
    /// It costs about 40 µs for each page, and 1 ms for the first one (H100), while other threads wait where they need more
    /// than their caches have. New pages cost as much more. Where few blocks are for the other GPU,
    /// [`allow_access_to`](Self::allow_access_to) is cheaper. Order between the GPUs is the program's:
    /// [`Stream::wait_for`](crate::Stream::wait_for), [`record_use`](Self::record_use).
    ///
    /// ```
    /// use millpond::device::sim::{SimDevice, SimOptions};
    /// use millpond::{Context, Pool};
    ///
    /// let gpus = SimDevice::group(2, SimOptions::default())?; // or Context::cuda(0)?, Context::cuda(1)?
    /// let [first, second] = [0, 1].map(|number| Context::new(gpus[number].clone()));
    /// let pool = Pool::builder(&first).build()?;
    /// let stream = first.create_stream()?;
    /// let block = pool.alloc(1 << 20, &stream)?;
    /// assert!(!pool.is_accessible_from(block, &second)?);
    /// pool.allow_access(&second)?;
    /// assert!(pool.is_accessible_from(block, &second)?);
    /// pool.take_back_access(&second)?;
    /// # unsafe { pool.free(block, &stream) }?;
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for a device that cannot work together with the pool's, and for a GPU that does not reach
    /// this one's memory. Else the device's own: then some pages have access, and the call may be tried again.
    ///
    /// [`DeviceError::Unsupported`]: crate::device::DeviceError::Unsupported
    pub fn allow_access(&self, peer: &Context) -> Result<()> {
        peers::allow_access(self.inner(), peer.device().peer_id())
    }

    /// As [`allow_access`](Self::allow_access), for a device that is named. It needs no context for that.
    ///
    /// ```no_run
    /// use millpond::device::PeerId;
    /// use millpond::{Context, Pool};
    ///
    /// let pool = Pool::builder(&Context::cuda(0)?).build()?;
    /// let second = PeerId::gpu(1).expect("a process has at most 64 GPUs");
    /// pool.allow_access_from(second)?;
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`allow_access`](Self::allow_access).
    pub fn allow_access_from(&self, peer: PeerId) -> Result<()> {
        peers::allow_access(self.inner(), Some(peer))
    }

    /// Takes the access of another context's GPU back, from all memory of the pool: also where it was given to one block,
    /// or for a copy. It waits for all work of that GPU. Mapping and unmapping pages then costs what it costs for one GPU.
    ///
    /// Memory in segments (a pool without pages) stays within reach of a GPU that had it once.
    ///
    /// # Errors
    /// As for [`allow_access`](Self::allow_access). [`Error::BadOption`] for a pool that is
    /// [for all peers](crate::PoolBuilder::accessible_from_all). [`DeviceError::Invalid`] while a stream of that GPU is being
    /// captured: then nothing changed.
    ///
    /// [`DeviceError::Invalid`]: crate::device::DeviceError::Invalid
    pub fn take_back_access(&self, peer: &Context) -> Result<()> {
        self.inner().peer_copies.take_back_access(self.inner(), peer.timelines())
    }

    /// Lets the GPU of another context use one live block. Its pages get access, as far as they have none: about 40 µs for
    /// each, and 1 ms for the first of all (H100). They keep it until they are remapped or given back, so that later blocks on
    /// them cost nothing. Null does nothing.
    ///
    /// # Errors
    /// As for [`allow_access`](Self::allow_access), and for [`size_of`](Self::size_of).
    pub fn allow_access_to(&self, ptr: DevicePtr, peer: &Context) -> Result<()> {
        peers::allow_access_to(self.inner(), ptr, peer.timelines())
    }

    /// Whether the GPU of another context may use a live block.
    ///
    /// # Errors
    /// As for [`allow_access_to`](Self::allow_access_to).
    pub fn is_accessible_from(&self, ptr: DevicePtr, peer: &Context) -> Result<bool> {
        peers::is_accessible_from(self.inner(), ptr, peer.timelines())
    }

    // ---- managed memory --------------------------------------------------------------------------

    /// Moves a live block of a pool of [managed memory](Context::managed) in stream order, as [`Buffer::prefetch`] does. Null
    /// does nothing.
    ///
    /// ```
    /// use millpond::{Advice, Context, Place};
    ///
    /// let device = Context::host()?;
    /// let (pool, stream) = (device.managed()?.build()?, device.create_stream()?);
    /// let block = pool.alloc(1 << 20, &stream)?;
    /// pool.prefetch(block, Place::Device, &stream)?;
    /// pool.advise(block, Advice::ReadMostly(true))?;
    /// stream.synchronize()?;
    /// assert_eq!(pool.residency(block)?.last_prefetch, Some(Place::Device));
    /// pool.take_back_advice(block)?; // so that the next owner of the memory does not have it
    /// # unsafe { pool.free(block, &stream) }?;
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Buffer::prefetch`], and for [`size_of`](Self::size_of).
    ///
    /// [`Buffer::prefetch`]: crate::Buffer::prefetch
    pub fn prefetch(&self, ptr: DevicePtr, to: Place, stream: &Stream) -> Result<()> {
        managed::prefetch(self.inner(), "Pool::prefetch", ptr, to, (stream, false))
    }

    /// Says how a live block will be used, as [`Buffer::advise`](crate::Buffer::advise) does. The advice stays with the memory:
    /// before the block is freed, [take it back](Self::take_back_advice).
    ///
    /// # Errors
    /// As for [`prefetch`](Self::prefetch).
    pub fn advise(&self, ptr: DevicePtr, advice: Advice) -> Result<()> {
        managed::advise(self.inner(), "Pool::advise", ptr, &[advice])
    }

    /// Takes back all advice on a live block.
    ///
    /// # Errors
    /// As for [`prefetch`](Self::prefetch).
    pub fn take_back_advice(&self, ptr: DevicePtr) -> Result<()> {
        managed::advise(self.inner(), "Pool::take_back_advice", ptr, &Advice::TAKEN_BACK)
    }

    /// What was said of a live block, as [`Buffer::residency`](crate::Buffer::residency).
    ///
    /// # Errors
    /// As for [`prefetch`](Self::prefetch).
    pub fn residency(&self, ptr: DevicePtr) -> Result<Residency> {
        managed::residency(self.inner(), "Pool::residency", ptr)
    }

    // ---- other processes -------------------------------------------------------------------------

    /// Lets other processes open a live block, as [`Buffer::share`](crate::Buffer::share) does, after the work that `stream`
    /// was given so far. Its elements are bytes.
    ///
    /// # Errors
    /// As for [`Buffer::share`](crate::Buffer::share), and for [`size_of`](Self::size_of).
    pub fn share(&self, ptr: DevicePtr, stream: &Stream) -> Result<Shared> {
        sharing::share(self.inner().clone(), ptr, None, stream)
    }

    /// Whether another process may use a live block, or a [`Shared`] of it lives.
    ///
    /// # Errors
    /// As for [`size_of`](Self::size_of).
    pub fn is_shared(&self, ptr: DevicePtr) -> Result<bool> {
        self.size_of(ptr)?;
        Ok(self.inner().is_here() && self.inner().holds.has(ptr))
    }

    // ---- tags ------------------------------------------------------------------------------------

    /// The part of the pool for a tag, to be put to [sleep](Self::sleep) on its own. It is a pool with the same options, made
    /// when the tag is first named. The hard limit holds for all of them together. No page has memory of two tags.
    ///
    /// It lives as long as this pool. Its name has the tag behind a slash. Its statistics and callbacks are its own.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Keep, Pool};
    ///
    /// let device = Context::host()?;
    /// let pool = Pool::builder(&device).name("engine").hard_limit(64 << 20).build()?;
    /// let stream = device.create_stream()?;
    /// let weights = Buffer::from_slice(&pool.tagged("weights")?, &[1.0_f32; 1000], &stream)?;
    /// let cache = Buffer::<f32>::new(&pool.tagged("cache")?, 1000, &stream)?;
    /// pool.tagged("weights")?.sleep(Keep::InPinnedMemory)?;
    /// pool.tagged("cache")?.sleep(Keep::Nothing)?;
    /// // … others use the memory. What is in `pool` itself stays …
    /// pool.wake()?; // with all its tags
    /// assert_eq!(weights.to_vec()?, [1.0; 1000]);
    /// # drop(cache);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`PoolBuilder::build`], and [`Error::PoolDestroyed`](crate::Error::PoolDestroyed).
    pub fn tagged(&self, tag: &str) -> Result<Self> {
        self.inner().check_process()?;
        let mut pools = self.handle.tags.lock();
        let known = pools.iter().position(|(name, _)| name == tag);
        if let Some(known) = known.map(|known| &pools[known].1).filter(|known| !known.inner().is_destroyed())
        {
            return Ok(known.clone());
        }
        self.inner().check_not_destroyed()?;
        let Some(options) = self.handle.options.clone() else {
            return Err(Error::PoolDestroyed { pool: self.name().to_owned() });
        };
        let name = format!("{}/{tag}", self.name());
        let new = options.name(name).build_in(Some(self))?;
        match known {
            Some(known) => {
                let destroyed = std::mem::replace(&mut pools[known].1, new.clone());
                drop(pools);
                // It may end here, which is not done under a lock.
                drop(destroyed);
            }
            None => pools.push((tag.to_owned(), new.clone())),
        }
        Ok(new)
    }

    /// The tags that were named so far, in that order.
    #[must_use]
    pub fn tags(&self) -> Vec<String> {
        self.tagged_pools().into_iter().map(|(tag, _)| tag).collect()
    }

    /// All tags, and their pools.
    pub(super) fn tagged_pools(&self) -> Vec<(String, Self)> {
        if self.inner().is_here() { self.handle.tags.lock().clone() } else { Vec::new() }
    }
}

impl Context {
    /// Starts building a pool of pinned host memory: page-locked memory of the host, near the device. The device copies to
    /// and from it without the host's waiting, and the CPU reads and writes it in place ([`Buffer::as_slice`]).
    ///
    /// The pool is ordered by the same streams as the context's other pools. Its options are the same, too. The page
    /// `docs/memory-kinds.md` says which memory is for what.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Pool};
    ///
    /// let device = Context::host()?; // or Context::cuda(0)?
    /// let (pool, pinned) = (Pool::builder(&device).build()?, device.pinned()?.build()?);
    /// let stream = device.create_stream()?;
    /// let mut staging = Buffer::<f32>::zeroed(&pinned, 1024, &stream)?;
    /// staging.as_mut_slice()?.fill(1.0); // the CPU writes, once the stream is done with the buffer
    /// let mut inputs = Buffer::<f32>::new(&pool, 1024, &stream)?;
    /// inputs.copy_from_pinned(&staging)?; // in stream order: the host does not wait
    /// # assert_eq!(inputs.to_vec()?, [1.0; 1024]);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// [`Buffer::as_slice`]: crate::Buffer::as_slice
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`](crate::device::DeviceError::Unsupported) where the device has no such memory, or the
    /// device's own.
    pub fn pinned(&self) -> Result<PoolBuilder> {
        Ok(PoolBuilder::new(self, self.other_memory((MemoryKind::Pinned, None))?).name("pinned"))
    }

    /// As [`pinned`](Self::pinned), of the NUMA node with this number.
    ///
    /// # Errors
    /// As for [`pinned`](Self::pinned), and where the device cannot choose a node, or has none with this number.
    ///
    /// ```no_run
    /// let device = millpond::Context::cuda(0)?;
    /// let far = device.pinned_on_node(1)?.name("far").build()?;
    /// # Ok::<(), millpond::Error>(())
    /// ```
    pub fn pinned_on_node(&self, node: u32) -> Result<PoolBuilder> {
        Ok(PoolBuilder::new(self, self.other_memory((MemoryKind::Pinned, Some(node)))?).name("pinned"))
    }

    /// Starts building a pool of managed memory: it moves to where it is used, a page at a time, and the CPU reads and writes
    /// it in place ([`Buffer::as_slice`]). [`Buffer::prefetch`] moves it in advance.
    ///
    /// The pool is ordered by the same streams as the context's other pools. Its options are the same, too. The page
    /// `docs/memory-kinds.md` says which memory is for what.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Place};
    ///
    /// let device = Context::host()?; // or Context::cuda(0)?
    /// let (pool, stream) = (device.managed()?.build()?, device.create_stream()?);
    /// let mut data = Buffer::<f32>::zeroed(&pool, 1024, &stream)?;
    /// data.as_mut_slice()?.fill(1.0); // the CPU writes, once the stream is done with the buffer
    /// data.prefetch(Place::Device, &stream)?; // before the kernels on `stream` that use it
    /// # assert_eq!(data.to_vec()?, [1.0; 1024]);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// [`Buffer::as_slice`]: crate::Buffer::as_slice
    /// [`Buffer::prefetch`]: crate::Buffer::prefetch
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`](crate::device::DeviceError::Unsupported) where the device has no such memory, or none
    /// that the CPU may use at the same time; else the device's own.
    pub fn managed(&self) -> Result<PoolBuilder> {
        Ok(PoolBuilder::new(self, self.other_memory((MemoryKind::Managed, None))?).name("managed"))
    }
}

#[cfg(test)]
mod tests {
    use crate::error::Error;
    use crate::fixtures::{Bench, Freeing};

    #[test]
    fn a_tag_that_was_destroyed_is_made_anew() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let [gone, _] = ["weights", "cache"].map(|tag| pool.tagged(tag).unwrap());
        let block = gone.alloc(4096, &stream).unwrap();
        assert!(matches!(gone.destroy(), Err(Error::LiveBlocks { .. })));
        let fresh = pool.tagged("weights").unwrap();
        assert!(matches!(gone.alloc(4096, &stream), Err(Error::PoolDestroyed { .. })));
        let other = fresh.alloc(4096, &stream).unwrap();
        assert_eq!(pool.tags(), ["weights", "cache"]);
        fresh.free_block(other, &stream).unwrap();
        gone.free_block(block, &stream).unwrap();
        assert_eq!(gone.reserved().current, 0);
        pool.destroy().unwrap();
        assert!(matches!(pool.tagged("weights"), Err(Error::PoolDestroyed { .. })));
    }

    #[test]
    fn tags_are_told_in_the_order_of_their_naming() {
        let Bench { pool, .. } = Bench::new(|pool| pool);
        assert!(pool.tags().is_empty());
        for tag in ["weights", "cache", "weights"] {
            pool.tagged(tag).unwrap();
        }
        assert_eq!(pool.tags(), ["weights", "cache"]);
    }
}
