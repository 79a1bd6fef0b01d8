//! Blocks that other processes use, and blocks of theirs.
//!
//! A context has one pool of what other processes shared with it. Each block of that pool is a segment
//! ([`ImportedMemory`]), and is unmapped once it was freed and the work on it is complete. The pool allocates nothing else:
//! it is destroyed from the start.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::fs::FileType;

use super::inner::{PoolInner, PoolState};
use super::of_others::OfOthers;
use super::shares::{Freed, Loan, OwnedEvent};
use super::{Context, Pool, PoolBuilder};
use crate::close_on_fork::CloseOnFork;
use crate::device::{DeviceError, DevicePtr, DeviceResult, EventExport, MemoryKind, PageExport};
use crate::extents::{ExtentId, MOST_UNITS, PagesUnder, Pointer};
use crate::open_file::OpenFile;
use crate::order::{Fence, Stream, Timelines};
use crate::sharing::{self, Borrowed, Import, ImportedMemory, Lent, Received, SharedToken};
use crate::{Error, Result};

/// A block that other processes may open: its token, and the descriptors that go with it.
///
/// The block stays allocated as long as this lives, or another process has it open, also when its owner frees it meanwhile.
/// The page `docs/sharing.md` says what other processes can reach, and what happens when one dies.
///
/// ```
/// use std::os::unix::net::UnixStream;
///
/// use millpond::{Buffer, Context, Pool, Received};
///
/// let device = Context::host()?;
/// let pool = Pool::builder(&device).build()?;
/// let stream = device.create_stream()?;
/// let (here, there) = UnixStream::pair().unwrap(); // one end is another process's
/// let buffer = Buffer::from_slice(&pool, &[1.0_f32, 2.0], &stream)?;
/// let shared = buffer.share()?;
/// shared.send(&here)?;
/// // … in the other process:
/// let opened = device.open_shared::<f32>(Received::receive(&there)?, &stream)?;
/// assert_eq!(opened.buffer.to_vec()?, [1.0, 2.0]); // after what `buffer` was given before it was shared
/// # Ok::<(), millpond::Error>(())
/// ```
pub struct Shared {
    token: SharedToken,
    /// In the order of [`descriptors`](Self::descriptors). `None` once this is being dropped.
    descriptors: Option<Vec<CloseOnFork>>,
    event: SharedEvent,
    pool: Arc<PoolInner>,
}

impl Shared {
    /// Sends the token and the descriptors to another process, which [receives](Received::receive) them. As often as there
    /// are processes to share with.
    ///
    /// # Errors
    /// [`Error::Socket`] where they cannot be sent.
    pub fn send(&self, socket: &UnixStream) -> Result<()> {
        self.pool.check_process()?;
        self.pool.collect_shares();
        sharing::send(socket, &self.token, &self.descriptors())
    }

    /// What the memory is, for a transport of your own.
    pub fn token(&self) -> &SharedToken {
        &self.token
    }

    /// The descriptors that another process needs, in this order: two for the lease, one for the event on some devices, one
    /// for each page, and one where the pool has a named budget. None in a forked child, which closes them: for a child, make
    /// copies before it is forked.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.descriptors.iter().flatten().filter_map(CloseOnFork::here).collect()
    }

    /// The event that orders the work of all processes on the memory. When this was made, it was recorded after what the
    /// stream had been given.
    pub fn event(&self) -> &SharedEvent {
        &self.event
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.descriptors = None;
        // Where nobody else has it, a block that was freed is the pool's again at once.
        if self.pool.is_here() {
            self.pool.collect_shares();
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("token", &self.token).finish_non_exhaustive()
    }
}

/// An event that several processes have: the order of their work on shared memory.
///
/// Each of them may record it and wait for it. It stands for the record that was made last, by anybody. So tell the other
/// process, over a socket for example, once it is recorded.
///
/// As long as a process has it, the memory that came with it counts as in use.
///
/// ```
/// # use millpond::{Buffer, Context, Pool, Received};
/// # let device = Context::host()?;
/// # let (pool, stream) = (Pool::builder(&device).build()?, device.create_stream()?);
/// # let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
/// let mut buffer = Buffer::from_slice(&pool, &[1_u32; 100], &stream)?;
/// let shared = buffer.share()?;
/// # shared.send(&here)?;
/// # let its_stream = device.create_stream()?;
/// # let opened = device.open_shared::<u32>(Received::receive(&there)?, &its_stream)?;
/// buffer.copy_from_slice(&[2; 100])?;
/// shared.event().record(&stream)?; // then say so to the other process
/// // … in the other process:
/// opened.event.wait(&its_stream)?; // the host does not wait
/// assert_eq!(opened.buffer.to_vec()?, [2; 100]);
/// # Ok::<(), millpond::Error>(())
/// ```
pub struct SharedEvent {
    // Before the lease: fields are dropped in order.
    event: Arc<OwnedEvent>,
    /// `None` in the process that made it.
    lease: Option<Arc<Borrowed>>,
}

impl SharedEvent {
    /// Lets the event stand for all work given to `stream` so far.
    ///
    /// # Errors
    /// [`Error::OwnerGone`] where the process that made it is gone. [`DeviceError::Invalid`] for a stream of another context
    /// or one that is being captured. Else the device's own.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        const CALL: &str = "SharedEvent::record";
        let timelines = &self.event.timelines;
        let handle = self.usable(CALL, stream)?;
        // SAFETY: the event lives as long as this, and the stream is valid.
        Ok(unsafe { timelines.device().record_event(self.event.handle, handle) }?)
    }

    /// Makes later work on `stream` wait for what the event stands for now. The host does not wait.
    ///
    /// # Errors
    /// As for [`record`](Self::record).
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        const CALL: &str = "SharedEvent::wait";
        let timelines = &self.event.timelines;
        let handle = self.usable(CALL, stream)?;
        // SAFETY: as in `record`.
        Ok(unsafe { timelines.device().wait_event(handle, self.event.handle) }?)
    }

    /// Whether the work that the event stands for is complete. Does not wait.
    ///
    /// # Errors
    /// [`Error::OwnerGone`], or the device's own.
    pub fn query(&self) -> Result<bool> {
        self.check_owner()?;
        // SAFETY: as in `record`.
        Ok(unsafe { self.event.timelines.device().query_event(self.event.handle) }?)
    }

    fn usable(&self, call: &'static str, stream: &Stream) -> Result<crate::device::StreamHandle> {
        let invalid = |what: &str| Err(DeviceError::Invalid { call, what: what.to_owned() }.into());
        self.check_owner()?;
        if !Arc::ptr_eq(stream.timelines(), &self.event.timelines) {
            return invalid("the stream belongs to another device: use one of the event's own context");
        }
        let handle = stream.handle_here()?;
        // SAFETY: the stream is valid, as `handle_here` says.
        if unsafe { stream.device().capture_of(handle) }?.is_some() {
            return invalid("the stream is being captured, and a graph has no events of other processes");
        }
        Ok(handle)
    }

    /// Once its maker has destroyed an event, to use it is undefined (`cuIpcGetEventHandle`).
    fn check_owner(&self) -> Result<()> {
        self.event.timelines.check_process()?;
        match &self.lease {
            Some(lease) if lease.owner_is_gone() => Err(Error::OwnerGone),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for SharedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedEvent").field("is_own", &self.lease.is_none()).finish_non_exhaustive()
    }
}

// ---- the owner --------------------------------------------------------------------------------------

impl Pool {
    /// Lets other processes open a live block, as [`Buffer::share`](crate::Buffer::share) does, after the work that `stream`
    /// was given so far. Its elements are bytes.
    ///
    /// # Errors
    /// As for [`Buffer::share`](crate::Buffer::share), and for [`size_of`](Self::size_of).
    pub fn share(&self, ptr: DevicePtr, stream: &Stream) -> Result<Shared> {
        self.inner().share(ptr, None, stream)
    }

    /// Whether another process may use a live block, or a [`Shared`] of it lives.
    ///
    /// # Errors
    /// As for [`size_of`](Self::size_of).
    pub fn is_shared(&self, ptr: DevicePtr) -> Result<bool> {
        self.size_of(ptr)?;
        Ok(self.inner().is_shared(ptr))
    }
}

impl PoolInner {
    /// Lets other processes open a block: so many bytes, and the bytes of an element. By default all, as bytes.
    pub(crate) fn share(
        self: &Arc<Self>,
        ptr: DevicePtr,
        elements: Option<(u64, usize)>,
        stream: &Stream,
    ) -> Result<Shared> {
        self.check_process()?;
        self.check_stream(stream)?;
        let not_shareable = |why| Error::NotShareable { pool: self.name_of(), why };
        if ptr.is_null() {
            return Err(not_shareable("a buffer of no bytes has no memory"));
        }
        if self.device.properties().memory != MemoryKind::Device || self.is_of_others {
            return Err(not_shareable("only a device's own memory can be: copy it to a pool of that"));
        }
        self.collect_shares();
        let identity = self.device.identity()?;
        let (handle, export) = self.device.create_shared_event()?;
        let event = Arc::new(OwnedEvent { timelines: self.timelines.clone(), handle });
        let event = SharedEvent { event, lease: None };
        event.record(stream)?;
        let (lent, lease) = Lent::new()?;
        let loan = Loan { lent, _event: event.event.clone() };
        let (bytes, PagesUnder { pages, offset }) = self.lend(ptr, elements.map(|(bytes, _)| bytes), loan)?;
        // From here on the block is kept. If an export fails, its only lease ends here.
        let mut descriptors = Vec::from(lease);
        let event_descriptor = export.descriptor.is_some();
        descriptors.extend(export.descriptor.map(CloseOnFork::new));
        let mut positions = Vec::with_capacity(pages.len());
        for (page, _) in &pages {
            let mut at = 0;
            let export = || {
                // SAFETY: the page backs a block that stays allocated.
                let PageExport { descriptor, position } = unsafe { self.device.export_page(*page) }?;
                at = position;
                DeviceResult::Ok([descriptor])
            };
            descriptors.extend(CloseOnFork::open(export)?);
            positions.push(at);
        }
        let budget = self.limits.budget.as_ref();
        let bytes_of_pages = pages.iter().map(|(_, bytes)| bytes).sum();
        let first_page = DevicePtr::new(ptr.raw() - offset);
        let counted = budget.map_or(Ok(None), |budget| budget.lend(first_page, bytes_of_pages))?;
        let budget_descriptor = counted.is_some();
        descriptors.extend(counted.map(CloseOnFork::new));
        let token = SharedToken {
            device: identity,
            event: export.data,
            event_descriptor,
            budget_descriptor,
            element: elements.map_or(1, |(_, element)| element as u32),
            offset,
            bytes,
            positions,
            pages: pages.into_iter().map(|(_, bytes)| bytes).collect(),
        };
        Ok(Shared { token, descriptors: Some(descriptors), event, pool: self.clone() })
    }

    /// Notes the loan of a live block. Returns its bytes, and what they lie on.
    fn lend(&self, ptr: DevicePtr, bytes: Option<u64>, loan: Loan) -> Result<(u64, PagesUnder)> {
        let state = self.state.lock();
        self.check_allocates(&state)?;
        let pointer = state.look_up(ptr);
        let Pointer::Live(id) = pointer else {
            drop(state);
            return Err(self.misuse(ptr, pointer));
        };
        let not_shareable = |why| Error::NotShareable { pool: self.name_of(), why };
        if state.captured_at(ptr).is_some() {
            return Err(not_shareable("it is memory of a capture: share a block that was allocated outside"));
        }
        let arena = &state.arena;
        let bytes = bytes.unwrap_or_else(|| arena.requested(id));
        let Some(under) = arena.pages_under(id, bytes) else {
            return Err(not_shareable("the device has no virtual memory, so its memory is no pages"));
        };
        // A free finds the block among those that are shared.
        if !arena.free_under_lock(id) || !self.shares.add(ptr, loan) {
            drop(state);
            return Err(self.misuse(ptr, Pointer::NotLive));
        }
        Ok((bytes, under))
    }

    /// Whether another process may use the block that starts here, so that its pages must stay where they are.
    pub(crate) fn is_shared(&self, ptr: DevicePtr) -> bool {
        self.is_here() && self.shares.has(ptr)
    }

    /// What a free of a live block comes to, where blocks are shared. Under the lock.
    pub(super) fn free_shared(&self, ptr: DevicePtr, stream: &Stream) -> Freed {
        if self.shares.any() { self.shares.free(ptr, || stream.fence()) } else { Freed::Now }
    }

    /// Frees the blocks that their owners have freed, and nobody else uses any more. Returns whether there were any.
    pub(super) fn collect_shares(&self) -> bool {
        if !self.shares.any() {
            return false;
        }
        let freed = self.shares.collect();
        if freed.is_empty() {
            return false;
        }
        let mut state = self.state.lock();
        for (ptr, fence) in freed {
            if let Pointer::Live(id) = state.look_up(ptr) {
                self.free_kept(&mut state, id, fence);
            }
        }
        let is_last_of_destroyed = state.destroyed && self.counted().blocks.current == 0;
        drop(state);
        if is_last_of_destroyed {
            self.give_all_back_slow();
        }
        true
    }

    fn free_kept(&self, state: &mut PoolState, id: ExtentId, fence: Fence) {
        let PoolState { arena, locked, .. } = state;
        let (requested, size) = (arena.requested(id), arena.bytes(id));
        if arena.free(id, fence) {
            self.caches.count_free(locked, requested, size);
        }
    }
}

// ---- the others -------------------------------------------------------------------------------------

/// Made when the first is opened. The pool's only handle goes here, so that it is destroyed.
fn new_pool(context: &Context) -> Result<OfOthers> {
    let memory = Arc::new(ImportedMemory::new(context.device().clone()));
    let pool = PoolBuilder::of_others(context, memory.clone(), SHARED).build()?;
    Ok(OfOthers { memory, pool: pool.inner().clone() })
}

/// A block of another process, open in this one.
#[derive(Debug)]
pub(crate) struct OpenedBlock {
    pub(crate) pool: Arc<PoolInner>,
    pub(crate) ptr: DevicePtr,
    pub(crate) bytes: u64,
    pub(crate) event: SharedEvent,
}

impl Context {
    /// Opens what another process shared, for work on `stream`, if `accept` takes its token.
    pub(crate) fn open_block(
        &self,
        received: Received,
        stream: &Stream,
        accept: impl FnOnce(&SharedToken) -> Result<()>,
    ) -> Result<OpenedBlock> {
        let timelines = self.timelines();
        timelines.check_process()?;
        if !Arc::ptr_eq(stream.timelines(), timelines) {
            return Err(Error::WrongDevice { what: "stream", pool: SHARED.to_owned() });
        }
        let (token, mut descriptors) = received.into_parts();
        accept(&token)?;
        self.check_token(&token)?;
        let counted = keep_budget(&token, &mut descriptors)?;
        let (event, lease, pages) = open_descriptors(timelines, &token, descriptors)?;
        let mut of_others = self.of_others().lock();
        let OfOthers { memory, pool } = match &mut *of_others {
            Some(known) => known,
            none => none.insert(new_pool(self)?),
        };
        // What is free, but was in use when it was freed.
        pool.trim(0)?;
        let granularity = self.device().properties().granularity;
        let room = token.bytes.next_multiple_of(granularity);
        let import = Import::open(self.device(), pages, (token.offset, room), (lease, counted))?;
        event.wait(stream)?;
        memory.set_next(Some(import));
        let opened = pool.alloc_import(token.bytes, stream);
        memory.set_next(None);
        Ok(OpenedBlock { pool: pool.clone(), ptr: opened?, bytes: token.bytes, event })
    }

    /// Whether this device can map what the token says.
    fn check_token(&self, token: &SharedToken) -> Result<()> {
        let bad = |why| Err(Error::BadToken { why });
        if !self.device().reaches(token.device)? {
            let here = self.device().identity()?;
            return bad(format!(
                "it is memory of device {}, which device {here} cannot reach: open it with a context of that one",
                token.device
            ));
        }
        let granularity = self.device().properties().granularity;
        if let Some(page) = token.pages.iter().find(|page| !page.is_multiple_of(granularity)) {
            return bad(format!("its pages of {page} bytes are no multiple of {granularity} bytes"));
        }
        Ok(())
    }
}

const SHARED: &str = "shared";

impl PoolInner {
    /// Makes the import that is next a block.
    fn alloc_import(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
        let units = self.caches.sizes().units(bytes);
        if units >= MOST_UNITS {
            return Err(Error::SizeOverflow { bytes, count: 1 });
        }
        let ptr = {
            let mut state = self.state.lock();
            match state.arena.alloc_as_segment(units, stream) {
                Ok(found) => self.hand_out(&mut state, &found, bytes),
                Err(refusal) => {
                    drop(state);
                    return Err(self.refused(refusal));
                }
            }
        };
        self.recording.alloc(ptr, bytes, stream);
        Ok(ptr)
    }

    fn refused(&self, refusal: crate::extents::Refusal) -> Error {
        match self.shortage_of(refusal) {
            Err(error) => error,
            Ok(_) => self.no_host_memory("memory of another process", 0),
        }
    }
}

/// Keeps the last descriptor's file, without the descriptor, where there is one of a budget.
fn keep_budget(token: &SharedToken, descriptors: &mut Vec<OwnedFd>) -> Result<Option<OpenFile>> {
    let Some(file) = token.budget_descriptor.then(|| descriptors.pop()).flatten() else { return Ok(None) };
    let kind = rustix::fs::fstat(&file).map(|found| FileType::from_raw_mode(found.st_mode));
    let kept = if kind == Ok(FileType::RegularFile) { OpenFile::keep(&file).ok() } else { None };
    match kept {
        Some(kept) => Ok(Some(kept)),
        None => {
            let why = "its last descriptor is no budget's: pass them in the order of Shared::descriptors";
            Err(Error::BadToken { why: why.to_owned() })
        }
    }
}

/// The event, the lease, and the pages with their lengths.
type Opened = (SharedEvent, Arc<Borrowed>, Vec<(PageExport, u64)>);

fn open_descriptors(
    timelines: &Arc<Timelines>,
    token: &SharedToken,
    descriptors: Vec<OwnedFd>,
) -> Result<Opened> {
    let missing = || Error::BadToken { why: "descriptors are missing".to_owned() };
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(missing);
    let lease = Arc::new(Borrowed::begin(next()?, &next()?)?);
    let descriptor = match token.event_descriptor {
        true => Some(next()?),
        false => None,
    };
    if lease.owner_is_gone() {
        return Err(Error::OwnerGone);
    }
    let handle = timelines.device().open_event(EventExport { data: token.event, descriptor })?;
    let event = Arc::new(OwnedEvent { timelines: timelines.clone(), handle });
    let event = SharedEvent { event, lease: Some(lease.clone()) };
    let exports = descriptors.zip(&token.positions);
    let exports = exports.map(|(descriptor, position)| PageExport { descriptor, position: *position });
    Ok((event, lease, exports.zip(token.pages.iter().copied()).collect()))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Buffer;
    use crate::device::sim::{Call, SimDevice, SimOptions};
    use crate::fixtures::{Bench, Freeing, MIB};
    use crate::pool::registry::Registered;

    fn pass(shared: &Shared) -> Received {
        let descriptors =
            shared.descriptors().iter().map(|file| file.try_clone_to_owned().unwrap()).collect();
        Received::new(shared.token().clone(), descriptors).unwrap()
    }

    #[test]
    fn imports_are_segments_of_their_own() {
        let Bench { context, pool, stream, sim } = Bench::new(|pool| pool);
        let buffers: Vec<_> = [300, 5000, 3 << 20, 40 << 20]
            .map(|bytes| Buffer::<u8>::new(&pool, bytes, &stream).unwrap())
            .into_iter()
            .collect();
        let open =
            |buffer: &Buffer<u8>| context.open_shared::<u8>(pass(&buffer.share().unwrap()), &stream).unwrap();
        let taken = sim.calls()[Call::CreatePage];
        let mut opened: Vec<_> = buffers.iter().chain(&buffers).map(open).collect();
        assert_eq!(sim.calls()[Call::CreatePage], taken);
        let imports = context.of_others().lock().as_ref().unwrap().pool.clone();
        imports.check().unwrap();
        assert_eq!(imports.counted().blocks.current, 8);
        // Some go, and others come: nobody gets what another one had.
        opened.truncate(3);
        context.synchronize().unwrap();
        imports.check().unwrap();
        assert_eq!(imports.counted().blocks.current, 3);
        opened.extend(buffers.iter().map(open));
        imports.check().unwrap();
        let mut starts: Vec<_> = opened.iter().map(|opened| opened.buffer.ptr()).collect();
        starts.sort();
        starts.dedup();
        assert_eq!(starts.len(), 7);
        drop(opened);
        context.synchronize().unwrap();
        assert!(imports.holds_nothing());
        imports.check().unwrap();
    }

    #[test]
    fn an_import_is_unmapped_when_its_stream_is_done() {
        let Bench { context, pool, stream, sim } = Bench::new(|pool| pool);
        let buffer = Buffer::<u8>::new(&pool, 3 << 20, &stream).unwrap();
        let opened = context.open_shared::<u8>(pass(&buffer.share().unwrap()), &stream).unwrap();
        let imports = context.of_others().lock().as_ref().unwrap().pool.clone();
        stream.synchronize().unwrap();
        let unmapped = sim.calls()[Call::Unmap];
        sim.launch(stream.handle(), Duration::from_millis(5)).unwrap();
        drop(opened);
        assert!(!imports.holds_nothing());
        assert_eq!(sim.calls()[Call::Unmap], unmapped);
        stream.synchronize().unwrap();
        assert!(imports.holds_nothing());
        // One that is idle is unmapped at once.
        let opened = context.open_shared::<u8>(pass(&buffer.share().unwrap()), &stream).unwrap();
        stream.synchronize().unwrap();
        drop(opened);
        assert!(imports.holds_nothing());
    }

    #[test]
    fn a_block_that_was_freed_meanwhile_is_not_shared() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let block = pool.alloc(4096, &stream).unwrap();
        pool.free_block(block, &stream).unwrap();
        // It lies in a magazine.
        assert!(matches!(pool.share(block, &stream), Err(Error::DoubleFree { .. })));
        assert!(!pool.inner().is_shared(block));
        assert_eq!(pool.alloc(4096, &stream).unwrap(), block);
    }

    #[test]
    fn what_others_use_is_neither_moved_nor_given_back() {
        let sim = SimDevice::new(SimOptions::default().capacity(256 * MIB)).unwrap();
        let context = Context::new(sim.clone());
        let (pool, stream) = (Pool::builder(&context).build().unwrap(), context.create_stream().unwrap());
        let buffer = Buffer::<u8>::new(&pool, 100 << 20, &stream).unwrap();
        let opened = context.open_shared::<u8>(pass(&buffer.share().unwrap()), &stream).unwrap();
        drop(buffer);
        // What is free is remapped for this one, and that block is not.
        let blocks: Vec<_> = (0..10).map(|_| pool.alloc(10 * MIB, &stream).unwrap()).collect();
        blocks.iter().step_by(2).for_each(|block| pool.free_block(*block, &stream).unwrap());
        let long = pool.alloc(90 * MIB, &stream).unwrap();
        assert_eq!(pool.reserved().current, pool.reserved().high);
        assert!(pool.alloc(60 * MIB, &stream).is_err());
        drop(opened);
        stream.synchronize().unwrap();
        pool.alloc(60 * MIB, &stream).unwrap();
        pool.free_block(long, &stream).unwrap();
        pool.check().unwrap();
    }
}
