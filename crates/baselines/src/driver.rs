//! `driver`: a device allocation each time, and a free that waits for the device each time. What a program
//! does that never heard of pools (`cuMemAlloc`, `cuMemFree`).

use std::sync::Arc;

use millpond::device::{Device, DevicePtr};
use millpond::{Context, Result, Stream};
use parking_lot::Mutex;

use crate::books::Books;
use crate::{Allocator, Usage};

/// The driver's plain allocator: a device allocation and a synchronising free each time.
///
/// Reserved bytes are counted as asked for: what the driver rounds them to is its own.
#[derive(Debug)]
pub struct Driver {
    device: Arc<dyn Device>,
    books: Mutex<Books<()>>,
}

impl Driver {
    /// The driver's plain allocator of the context's device.
    pub fn new(context: &Context) -> Self {
        Self { device: context.device().clone(), books: Mutex::new(Books::new(Self::NAME)) }
    }

    /// The name in [`NAMES`](crate::NAMES).
    pub const NAME: &str = "driver";
}

impl Allocator for Driver {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn allocate(&self, bytes: u64, _stream: &Stream) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        let ptr = self.device.alloc_segment(bytes)?;
        let mut books = self.books.lock();
        books.usage.calls.alloc += 1;
        books.reserve(bytes);
        books.open(ptr, bytes, ());
        Ok(ptr)
    }

    unsafe fn free(&self, ptr: DevicePtr, _stream: &Stream) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        // Out of the table before the device knows: the next allocation may get this address at once.
        let block = self.books.lock().close(ptr)?;
        // SAFETY: the books had it, so it came from `alloc_segment`; they have it no more, so this is the only
        // free. The call waits for the device, recorded streams included.
        let freed = unsafe { self.device.free_segment(ptr) };
        let mut books = self.books.lock();
        match freed {
            Ok(()) => {
                books.usage.calls.free += 1;
                books.unreserve(block.bytes);
                Ok(())
            }
            Err(error) => {
                books.reopen(ptr, block);
                Err(error.into())
            }
        }
    }

    fn record_use(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        self.books.lock().note_use(ptr, stream)
    }

    fn trim(&self) -> Result<()> {
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.books.lock().usage
    }
}
