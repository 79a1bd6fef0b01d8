//! A live block of a pool, lent to other processes.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use super::event::SharedEvent;
use super::exports;
use super::lease::Lent;
use super::socket;
use super::token::{Flag, Header, SharedToken};
use crate::budgets::Tenancy;
use crate::core::giving_back::{collect_some_held, free_behind};
use crate::core::{Core, HasCore, Hold};
use crate::device::{DevicePtr, MemoryKind, PageHandle};
use crate::error::{Error, Result};
use crate::extents::Pointer;
use crate::order::{OwnedEvent, Stream};
use crate::system::close_on_fork::CloseOnFork;

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
    /// In the order of [`descriptors`](Self::descriptors). None once this is being dropped.
    descriptors: Vec<Arc<CloseOnFork>>,
    event: SharedEvent,
    /// The block.
    ptr: DevicePtr,
    pool: Arc<dyn HasCore>,
}

impl Shared {
    /// Sends the token and the descriptors to another process, which [receives](crate::Received::receive) them. As often as there
    /// are processes to share with.
    ///
    /// # Errors
    /// [`Error::Socket`] where they cannot be sent.
    pub fn send(&self, socket: &UnixStream) -> Result<()> {
        self.pool.check_process()?;
        collect_some_held(&self.pool);
        socket::send(socket, &self.token, &self.descriptors())
    }

    /// What the memory is, for a transport of your own.
    #[must_use]
    pub fn token(&self) -> &SharedToken {
        &self.token
    }

    /// The descriptors that another process needs, in this order: two for the lease, one for the event on some devices, one
    /// for each page, and one where the pool has a named budget. None in a forked child, which closes them: for a child, make
    /// copies before it is forked.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.descriptors.iter().filter_map(|file| file.here()).map(AsFd::as_fd).collect()
    }

    /// The event that orders the work of all processes on the memory. When this was made, it was recorded after what the
    /// stream had been given.
    #[must_use]
    pub fn event(&self) -> &SharedEvent {
        &self.event
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The lease, which is the first, ends behind the descriptors of the pages: until then those pages stay.
        while self.descriptors.pop().is_some() {}
        // Where nobody else has it, a block that was freed is the pool's again at once.
        if self.pool.is_here() {
            free_behind(&self.pool, self.pool.holds.collect_at(self.ptr).into_iter().collect());
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("token", &self.token).finish_non_exhaustive()
    }
}

/// What others may do with a block, until they are done.
#[derive(Debug)]
struct Loan {
    lent: Lent,
    /// Others may use it as long as the lease lasts.
    _event: Arc<OwnedEvent>,
}

/// Pages with their bytes, and where on the first of them a block begins.
type PagesUnder = (Vec<(PageHandle, u64)>, u64);

impl Loan {
    /// Notes the loan of a live block. Returns its bytes, and what they lie on.
    fn note(self, core: &Core, ptr: DevicePtr, bytes: Option<u64>) -> Result<(u64, PagesUnder)> {
        let mut state = core.state.lock();
        core.check_allocates(&state)?;
        let (pointer, _) = state.arenas.look_up(ptr);
        let Pointer::Live(id) = pointer else {
            drop(state);
            return Err(core.misuse(ptr, pointer));
        };
        let not_shareable = |why| Error::NotShareable { pool: core.name_of(), why };
        if state.arenas.keeping_at(ptr).is_some() {
            return Err(not_shareable("it is memory of a capture: share a block that was allocated outside"));
        }
        let arena = &state.arenas.own;
        let bytes = bytes.unwrap_or_else(|| arena.requested(id));
        let mut pages = arena.pages_under(ptr..ptr.offset(bytes)).peekable();
        let Some(first) = pages.peek().filter(|page| !arena.pages.is_segment(page.id)) else {
            return Err(not_shareable("the device has no virtual memory, so its memory is no pages"));
        };
        let before = ptr.raw() - first.at.raw();
        let under = (pages.map(|page| arena.pages.handle(page.id)).collect(), before);
        // A free finds the block among those that are shared.
        if !arena.free_under_lock(id) || !core.holds.add(ptr, Box::new(self)) {
            drop(state);
            return Err(core.misuse(ptr, Pointer::NotLive));
        }
        Ok((bytes, under))
    }
}

impl Hold for Loan {
    fn is_over(&mut self, now: Instant) -> bool {
        self.lent.is_over(now)
    }
}

/// Lets other processes open a block: so many bytes, and the bytes of an element. By default all, as bytes.
pub(crate) fn share(
    core: Arc<dyn HasCore>,
    ptr: DevicePtr,
    elements: Option<(u64, usize)>,
    stream: &Stream,
) -> Result<Shared> {
    core.check_process()?;
    core.check_stream(stream)?;
    let not_shareable = |why| Error::NotShareable { pool: core.name_of(), why };
    if core.wrapping.is_some() {
        return Err(not_shareable("its pool is guarded: share blocks of a pool without a guard"));
    }
    if ptr.is_null() {
        return Err(not_shareable("a buffer of no bytes has no memory"));
    }
    if core.device.properties().memory != MemoryKind::Device || core.keeps_nothing {
        return Err(not_shareable("only a device's own memory can be: copy it to a pool of that"));
    }
    collect_some_held(&core);
    let identity = core.device.identity()?;
    let (handle, export) = core.device.create_shared_event()?;
    // SAFETY: it was created above.
    let event = Arc::new(unsafe { OwnedEvent::new(core.timelines.device(), handle) });
    let event = SharedEvent { event, timelines: core.timelines.clone(), lease: None };
    // The event is to come behind all bytes.
    core.last_restore.order(&core.timelines, stream)?;
    event.record(stream)?;
    let (lent, lease) = Lent::new()?;
    let loan = Loan { lent, _event: event.event.clone() };
    let (bytes, (under, offset)) = loan.note(&core, ptr, elements.map(|(bytes, _)| bytes))?;
    // From here on the block is kept. If an export fails, its only lease ends here.
    let mut descriptors: Vec<_> = lease.into_iter().map(Arc::new).collect();
    let mut flags = export.descriptor.as_ref().map_or(0, |_| Flag::Event as u32);
    descriptors.extend(export.descriptor.map(CloseOnFork::new).map(Arc::new));
    let (mut exports, mut pages) = (Vec::with_capacity(under.len()), Vec::with_capacity(under.len()));
    for (page, bytes) in under {
        // SAFETY: the page backs the block, which stays allocated until its lease ends. That ends behind these descriptors: here they
        // are dropped first, as they come later, and `Shared` drops them first.
        let export = unsafe { exports::export((core.number, page), core.device.as_ref()) }?;
        pages.push([export.position, bytes]);
        exports.push(export.descriptor);
    }
    let first_page = ptr.raw() - offset;
    let bytes_of_pages: u64 = pages.iter().map(|[_, bytes]| bytes).sum();
    let lend = |tenancy: &Tenancy| tenancy.lend(first_page..first_page + bytes_of_pages);
    let counted = core.limits.tenancy().map(lend).transpose()?;
    flags |= counted.as_ref().map_or(0, |_| Flag::Budget as u32);
    descriptors.extend(exports);
    descriptors.extend(counted.map(CloseOnFork::new).map(Arc::new));
    let header = Header {
        magic: Header::MAGIC,
        device: identity.0,
        event: export.data,
        flags,
        element: elements.map_or(1, |(_, element)| element as u32),
        offset,
        bytes,
    };
    let token = SharedToken { header, pages };
    Ok(Shared { token, descriptors, event, ptr, pool: core })
}
