//! `stream-ordered`: the driver's own stream-ordered pool (`cuMemAllocAsync`) with the release threshold at its
//! maximum, as cudarc users tune it.

use std::sync::Arc;

use millpond::device::{Device, DevicePtr};
use millpond::{Context, Level, Result, Stream};
use parking_lot::Mutex;

use crate::books::{Block, Books};
use crate::{Allocator, Usage};

/// The driver's stream-ordered pool, which keeps what it has.
///
/// The pool behind it belongs to the device object: two of these over one device share it, and its reserved
/// bytes are those of both.
#[derive(Debug)]
pub struct StreamOrdered {
    device: Arc<dyn Device>,
    books: Mutex<Books<()>>,
}

impl StreamOrdered {
    /// The driver's stream-ordered pool of the context's device.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`](millpond::device::DeviceError::Unsupported) where the driver has none.
    pub fn new(context: &Context) -> Result<Self> {
        let device = context.device().clone();
        device.driver_pool()?;
        Ok(Self { device, books: Mutex::new(Books::new(Self::NAME)) })
    }

    /// The name in [`NAMES`](crate::NAMES).
    pub const NAME: &str = "stream-ordered";

    /// Orders the free after the recorded uses, as cudarc's slices do: the freeing stream waits for them.
    fn free_after_uses(&self, ptr: DevicePtr, block: &Block<()>, stream: &Stream) -> Result<()> {
        for used in block.uses.iter().filter(|used| used.id() != stream.id()) {
            stream.wait_for(used)?;
        }
        // SAFETY: the books had it, so it came from `alloc_async`, and they have it no more. Recorded uses are
        // ordered before by the waits above, all other use by the caller.
        unsafe { self.device.driver_pool()?.free_async(ptr, stream.handle()) }?;
        Ok(())
    }
}

impl Allocator for StreamOrdered {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        // SAFETY: the stream is borrowed, so its handle is valid.
        let ptr = unsafe { self.device.driver_pool()?.alloc_async(bytes, stream.handle()) }?;
        let mut books = self.books.lock();
        books.usage.calls.alloc += 1;
        books.open(ptr, bytes, ());
        Ok(ptr)
    }

    unsafe fn free(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        // Out of the table before the driver knows: the next allocation may get this address at once.
        let block = self.books.lock().close(ptr)?;
        let freed = self.free_after_uses(ptr, &block, stream);
        let mut books = self.books.lock();
        match freed {
            Ok(()) => books.usage.calls.free += 1,
            Err(_) => books.reopen(ptr, block),
        }
        freed
    }

    fn record_use(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        self.books.lock().note_use(ptr, stream)
    }

    /// The driver's pool keeps what it has, as its threshold says.
    fn trim(&self) -> Result<()> {
        Ok(())
    }

    fn usage(&self) -> Usage {
        let held = self.device.driver_pool().and_then(|pool| pool.async_usage());
        let mut books = self.books.lock();
        // Where the driver does not answer, the last figures stand.
        if let Ok(held) = held {
            books.usage.reserved = Level { current: held.reserved, high: held.reserved_high };
        }
        books.usage
    }
}
