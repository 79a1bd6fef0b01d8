//! `binned`: power-of-two size classes with free lists, the pool that C++ projects write for themselves.
//!
//! A block is never split: its class is its size for ever. A free is deferred: it records an event, and the block goes
//! back to its class once the event is complete. That is found out on a miss, in [`Binned::process_deferred`]. So a
//! program that runs ahead of the device holds a block for every free that the device has not reached.

use std::collections::VecDeque;
use std::sync::Arc;

use millpond::device::{Device, DeviceError, DevicePtr, StreamId};
use millpond::{Context, Error, Result, Stream};
use parking_lot::Mutex;

use crate::books::{Block, Books, round_up};
use crate::events::{Events, Recorded};
use crate::{Allocator, Usage};

/// Bytes of the smallest class, as a power of two.
const SMALLEST: u32 = 512u32.ilog2();
/// Bytes of the largest class, as a power of two.
const LARGEST: u32 = (2u32 << 30).ilog2();
const CLASSES: usize = (LARGEST - SMALLEST + 1) as usize;

/// A free that the device may not have reached.
#[derive(Debug)]
struct Deferred {
    ptr: DevicePtr,
    class: usize,
    after: Vec<Recorded>,
}

/// Power-of-two size classes with free lists; a free is deferred until the device has reached it.
///
/// Blocks above 2 GiB have no class: the driver allocates and frees them each time.
#[derive(Debug)]
pub struct Binned {
    device: Arc<dyn Device>,
    classes: [Mutex<Vec<DevicePtr>>; CLASSES],
    deferred: Mutex<VecDeque<Deferred>>,
    events: Events,
    books: Mutex<Books<Option<usize>>>,
}

impl Binned {
    /// An empty pool over the context's device.
    pub fn new(context: &Context) -> Self {
        let device = context.device().clone();
        Self {
            classes: std::array::from_fn(|_| Mutex::default()),
            deferred: Mutex::default(),
            events: Events::new(device.clone()),
            books: Mutex::new(Books::new(Self::NAME)),
            device,
        }
    }

    /// The name in [`NAMES`](crate::NAMES).
    pub const NAME: &str = "binned";

    /// Moves the frees that the device has reached to their free lists. Does not wait.
    ///
    /// # Errors
    /// The device's own, at the first event that cannot be asked; the rest stays deferred.
    pub fn process_deferred(&self) -> Result<()> {
        let mut deferred = self.deferred.lock();
        // A stream runs in order: after its first incomplete event, its later ones need not be asked.
        let mut busy = Vec::new();
        let mut at = 0;
        while let Some(free) = deferred.get(at) {
            if self.is_complete(free, &mut busy)? {
                if let Some(free) = deferred.remove(at) {
                    self.events.recycle(free.after);
                    self.classes[free.class].lock().push(free.ptr);
                }
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    fn is_complete(&self, free: &Deferred, busy: &mut Vec<StreamId>) -> Result<bool> {
        for event in &free.after {
            if busy.contains(&event.stream) {
                return Ok(false);
            }
            if !self.events.is_complete(event)? {
                busy.push(event.stream);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn cached(&self, class: usize) -> Result<Option<DevicePtr>> {
        // The lock is let go before the deferred frees are looked at, which takes it.
        let ready = self.classes[class].lock().pop();
        if ready.is_some() {
            return Ok(ready);
        }
        self.process_deferred()?;
        Ok(self.classes[class].lock().pop())
    }

    /// A segment of the driver's; where it has none left, again after the cache was given back.
    fn segment(&self, bytes: u64) -> Result<DevicePtr> {
        let ptr = match self.device.alloc_segment(bytes) {
            Err(full @ DeviceError::OutOfMemory { .. }) => {
                self.device.synchronize().map_err(|_| full.clone())?;
                self.trim().map_err(|_| full)?;
                self.device.alloc_segment(bytes)
            }
            other => other,
        }?;
        let mut books = self.books.lock();
        books.usage.calls.alloc += 1;
        books.reserve(bytes);
        Ok(ptr)
    }

    /// Gives back a segment that nobody can use any more. Waits for the device.
    fn release(&self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        // SAFETY: `ptr` came from `segment`, and the caller took it off the free list or out of the books, so
        // nobody else has it.
        unsafe { self.device.free_segment(ptr) }?;
        let mut books = self.books.lock();
        books.usage.calls.free += 1;
        books.unreserve(bytes);
        Ok(())
    }

    fn free_block(&self, ptr: DevicePtr, block: &Block<Option<usize>>, stream: &Stream) -> Result<()> {
        let Some(class) = block.place else {
            return self.release(ptr, round_up(block.bytes, self.granularity())?);
        };
        let others = block.uses.iter().filter(|used| used.id() != stream.id());
        let after = self.events.record_all(std::iter::once(stream).chain(others))?;
        self.deferred.lock().push_back(Deferred { ptr, class, after });
        Ok(())
    }

    fn granularity(&self) -> u64 {
        self.device.properties().granularity
    }
}

impl Allocator for Binned {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn allocate(&self, bytes: u64, _stream: &Stream) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        let class = class_of(bytes);
        let ptr = match class {
            None => self.segment(round_up(bytes, self.granularity())?)?,
            Some(class) => match self.cached(class)? {
                Some(ptr) => ptr,
                None => self.segment(class_bytes(class))?,
            },
        };
        self.books.lock().open(ptr, bytes, class);
        Ok(ptr)
    }

    unsafe fn free(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        // Out of the table before anybody can be given the block anew.
        let block = self.books.lock().close(ptr)?;
        let freed = self.free_block(ptr, &block, stream);
        if freed.is_err() {
            self.books.lock().reopen(ptr, block);
        }
        freed
    }

    fn record_use(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        self.books.lock().note_use(ptr, stream)
    }

    fn trim(&self) -> Result<()> {
        self.process_deferred()?;
        for (class, free) in self.classes.iter().enumerate() {
            loop {
                let Some(ptr) = free.lock().pop() else { break };
                if let Err(error) = self.release(ptr, class_bytes(class)) {
                    free.lock().push(ptr);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.books.lock().usage
    }
}

impl Drop for Binned {
    /// Gives back everything but the live blocks, whose users may still be at work.
    fn drop(&mut self) {
        let given_back = self.device.synchronize().map_err(Error::from).and_then(|()| self.trim());
        if let Err(error) = given_back {
            tracing::warn!(%error, "the binned allocator could not give its memory back");
        }
    }
}

/// The class whose blocks hold `bytes`, if there is one that large.
fn class_of(bytes: u64) -> Option<usize> {
    let class = bytes.max(1 << SMALLEST).checked_next_power_of_two()?.ilog2() - SMALLEST;
    (class < CLASSES as u32).then_some(class as usize)
}

const fn class_bytes(class: usize) -> u64 {
    1 << (class as u32 + SMALLEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_holds_its_sizes_the_last_two_gibibytes() {
        assert_eq!(class_of(1), Some(0));
        assert_eq!(class_of(512), Some(0));
        assert_eq!(class_of(513), Some(1));
        assert_eq!(class_of(2 << 30), Some(CLASSES - 1));
        assert_eq!(class_bytes(CLASSES - 1), 2 << 30);
        assert_eq!(class_of((2 << 30) + 1), None);
        assert_eq!(class_of(u64::MAX), None);
    }
}
