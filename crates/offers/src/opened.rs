//! Blocks of other processes that are open here, each page once.
//!
//! A block of another process comes with the page that it lies on, and that holds other blocks, too. Those that are opened
//! later need neither a message nor a call of the driver: they lie as far behind the first one as there.
//!
//! **Why the page stays what it is.** The first block of a page is shared as any other, until nothing on the page is open
//! here. So its owner keeps that block allocated, and the page under it. The other blocks on the page are not held: who
//! opens them by this makes sure that they are freed only afterwards, as PyTorch does. A block on several pages has them to
//! itself, so that no small block holds a large one.

use std::collections::BTreeMap;

use millpond::bindings::{self, Mutex};
use millpond::device::DevicePtr;
use millpond::{Context, Error, Pool, Received, SharedEvent, Stream};

/// Where a block lies in the process that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number of the process's socket, and that of the pool.
    pub(crate) owner: (u64, u64),
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

/// A block that is open here, and what lies on its page.
#[derive(Debug)]
pub struct OpenedBlock {
    pool: Pool,
    block: DevicePtr,
    /// With it, the other process's memory counts as in use.
    _event: SharedEvent,
    /// The owner, and where it has what is open: the page, or the block where that lies on several.
    there: ((u64, u64), u64),
    /// Where that begins here, and its bytes.
    here: u64,
    bytes: u64,
    is_page: bool,
    /// Blocks that were opened, and not closed.
    users: usize,
}

impl OpenedBlock {
    fn new(place: &Place, received: Received, context: &Context, stream: &Stream) -> millpond::Result<Self> {
        let page = bindings::page_around(&received);
        let (pool, block, bytes, event) = bindings::open_shared(context, received, stream)?;
        let (offset, bytes) = page.unwrap_or((0, bytes));
        // Wraps where the place is not true. Then it is nobody's page: what is open here is found by its bounds here.
        let there = (place.owner, place.start.wrapping_sub(offset));
        let (here, is_page) = (block.raw() - offset, page.is_some());
        Ok(Self { pool, block, _event: event, there, here, bytes, is_page, users: 1 })
    }

    /// Gives it back, behind the work that the stream was given so far.
    ///
    /// # Safety
    /// No other work uses the memory, and nobody uses it from now on.
    ///
    /// # Errors
    /// As for [`Pool::free`].
    pub unsafe fn close(self, stream: &Stream) -> millpond::Result<()> {
        // SAFETY: the caller's promise; the block was opened for this.
        unsafe { self.pool.free(self.block, stream) }
    }

    /// Where a block that lies wholly in this page begins here.
    fn find(&self, place: &Place) -> Option<DevicePtr> {
        let (owner, start) = self.there;
        let offset = place.start.checked_sub(start)?;
        let is_in = owner == place.owner && offset.checked_add(place.bytes)? <= self.bytes;
        is_in.then(|| DevicePtr::new(self.here + offset))
    }
}

#[derive(Debug, Default)]
struct Tables {
    /// By where it begins here.
    open: BTreeMap<u64, OpenedBlock>,
    /// Where each page begins here, by its owner and where it begins there.
    pages: BTreeMap<((u64, u64), u64), u64>,
}

impl Tables {
    fn reuse(&mut self, place: &Place) -> Option<DevicePtr> {
        let (_, here) = self.pages.range(..=(place.owner, place.start)).next_back()?;
        let page = self.open.get_mut(here)?;
        let found = page.find(place)?;
        page.users += 1;
        Some(found)
    }

    fn enter(&mut self, opened: OpenedBlock) {
        if opened.is_page {
            // One that is open twice is found at the second place from now on, until that is closed.
            self.pages.insert(opened.there, opened.here);
        }
        self.open.insert(opened.here, opened);
    }

    fn close(&mut self, at: DevicePtr) -> Option<OpenedBlock> {
        let (_, opened) = self.open.range_mut(..=at.raw()).next_back()?;
        if at.raw() - opened.here >= opened.bytes {
            return None;
        }
        opened.users -= 1;
        if opened.users > 0 {
            return None;
        }
        let here = opened.here;
        let closed = self.open.remove(&here)?;
        if self.pages.get(&closed.there) == Some(&here) {
            self.pages.remove(&closed.there);
        }
        Some(closed)
    }
}

/// What is open here, of all other processes, on one device.
#[derive(Debug, Default)]
pub struct OpenedBlocks(Mutex<Tables>);

impl OpenedBlocks {
    /// Where a block of another process is here. `ask` gets it from its owner, where it lies on no page that is open. It is to be
    /// [closed](Self::close).
    ///
    /// # Errors
    /// Those of `ask`, and as for [`Context::open_shared`].
    pub fn open<E: From<Error>>(
        &self,
        place: &Place,
        ask: impl FnOnce() -> Result<Received, E>,
        context: &Context,
        stream: &Stream,
    ) -> Result<DevicePtr, E> {
        if let Some(found) = self.0.lock().reuse(place) {
            return Ok(found);
        }
        // Without the lock: the owner may take its time.
        let opened = OpenedBlock::new(place, ask()?, context, stream)?;
        let block = opened.block;
        self.0.lock().enter(opened);
        Ok(block)
    }

    /// Ends one use of a block, by its address here. Returns what is to be given back, if that was the last use.
    pub fn close(&self, at: DevicePtr) -> Option<OpenedBlock> {
        self.0.lock().close(at)
    }
}
