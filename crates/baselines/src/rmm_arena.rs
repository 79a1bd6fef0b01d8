//! `rmm-arena`: the rules of RMM's `arena_memory_resource`. Learnt from `arena_memory_resource_impl.hpp` and `detail/arena.hpp`.
//!
//! **How one request passes through.** It is rounded to a size class, of which there are four from one power of two to the next. Up to
//! 1 MiB, it goes to the first free block of its stream's arena, by address. Where that has none, the arena takes a *superblock* of at
//! least 1 MiB from the global arena. Longer requests take a superblock of their own there. Where nothing fits, all streams' arenas
//! give back their empty superblocks, after a wait for the device.
//!
//! **What differs.** RMM takes half of the device at once, or as much as the program says, and never more. Here the arena has all that
//! is free, and what counts as held is how far into it the program came: as much as the arena would have to be given. Threads that use
//! the default stream share one arena here.

use std::collections::BTreeMap;
use std::sync::Arc;

use millpond::device::{Device, DeviceError, DevicePtr};
use millpond::{Context, Error, Result, Stream};
use parking_lot::Mutex;

use crate::books::Books;
use crate::streams::{StreamNumber, Streams};
use crate::{Allocator, Usage};

/// The least bytes of a superblock. Longer requests go to the global arena.
const SUPERBLOCK: u64 = 1 << 20;

/// The least size class, which all sizes are multiples of.
const UNIT: u64 = 256;

/// A stretch of the arena, and its free blocks by address.
#[derive(Debug)]
struct Superblock {
    bytes: u64,
    free: BTreeMap<u64, u64>,
}

/// Superblocks by address.
#[derive(Debug, Default)]
struct Arena(BTreeMap<u64, Superblock>);

#[derive(Debug)]
struct State {
    streams: Streams,
    /// Where all memory begins, and how much of it was ever used; `None` before the first request.
    taken: Option<(u64, u64)>,
    global: Arena,
    /// Of each stream.
    arenas: BTreeMap<StreamNumber, Arena>,
    /// Of each live block: its rounded bytes.
    books: Books<u64>,
}

/// RMM's arena.
#[derive(Debug)]
pub struct RmmArena {
    device: Arc<dyn Device>,
    state: Mutex<State>,
}

/// The next size class: `5, 6, 7 or 8 << k`, and all multiples of 256 up to 2 KiB. RMM's table has 54 KiB in place of 56.
fn size_class(bytes: u64) -> Result<u64> {
    match bytes {
        0xC001..=0xD800 => Ok(54 << 10),
        0xD801..=0x10000 => Ok(64 << 10),
        _ => {
            let spacing = bytes.checked_next_power_of_two().map(|power| (power / 8).max(UNIT));
            let class = spacing.and_then(|spacing| bytes.checked_next_multiple_of(spacing));
            class.ok_or(Error::SizeOverflow { bytes, count: 1 })
        }
    }
}

impl Superblock {
    fn new(start: u64, bytes: u64) -> Self {
        Self { bytes, free: BTreeMap::from([(start, bytes)]) }
    }

    fn is_empty(&self) -> bool {
        self.free.first_key_value().is_some_and(|(_, bytes)| *bytes == self.bytes)
    }

    fn fits(&self, bytes: u64) -> bool {
        self.free.values().any(|free| *free >= bytes)
    }

    /// Takes the first free block that is long enough.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let (start, found) =
            self.free.iter().find(|(_, free)| **free >= bytes).map(|(at, free)| (*at, *free))?;
        self.free.remove(&start);
        if found > bytes {
            self.free.insert(start + bytes, found - bytes);
        }
        Some(start)
    }

    fn put(&mut self, mut start: u64, mut bytes: u64) {
        if let Some(behind) = self.free.remove(&(start + bytes)) {
            bytes += behind;
        }
        let before = self.free.range(..start).next_back().map(|(at, bytes)| (*at, *bytes));
        if let Some((at, before)) = before.filter(|(at, bytes)| at + bytes == start) {
            (start, bytes) = (at, before + bytes);
        }
        self.free.insert(start, bytes);
    }
}

impl Arena {
    /// Takes a block out of the first superblock that has one.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        self.0.values_mut().find_map(|superblock| superblock.take(bytes))
    }

    /// Gives a block back to the superblock that it lies in. Returns where that begins; `None` where it is in none of these.
    fn put(&mut self, start: u64, bytes: u64) -> Option<u64> {
        let (at, superblock) = self.0.range_mut(..=start).next_back()?;
        (start < at + superblock.bytes).then(|| superblock.put(start, bytes))?;
        Some(*at)
    }

    /// Takes the first superblock that a request fits in, and as much of it as that needs.
    fn acquire(&mut self, bytes: u64) -> Option<(u64, Superblock)> {
        let at = *self.0.iter().find(|(_, superblock)| superblock.fits(bytes))?.0;
        let superblock = self.0.remove(&at)?;
        let least = bytes.max(SUPERBLOCK);
        if !superblock.is_empty() || superblock.bytes < least + SUPERBLOCK {
            return Some((at, superblock));
        }
        self.0.insert(at + least, Superblock::new(at + least, superblock.bytes - least));
        Some((at, Superblock::new(at, least)))
    }

    /// Adds a superblock, which joins its neighbours if it is empty, as they are.
    fn release(&mut self, mut start: u64, mut superblock: Superblock) {
        if superblock.is_empty() {
            let mut bytes = superblock.bytes;
            let behind = start + bytes;
            if self.0.get(&behind).is_some_and(Superblock::is_empty) {
                bytes += self.0.remove(&behind).map_or(0, |behind| behind.bytes);
            }
            let before = self.0.range(..start).next_back();
            let before = before.filter(|(at, before)| before.is_empty() && *at + before.bytes == start);
            if let Some((at, before)) = before.map(|(at, before)| (*at, before.bytes)) {
                self.0.remove(&at);
                (start, bytes) = (at, before + bytes);
            }
            superblock = Superblock::new(start, bytes);
        }
        self.0.insert(start, superblock);
    }

    /// The empty superblocks.
    fn remove_empty(&mut self) -> BTreeMap<u64, Superblock> {
        self.0.extract_if(.., |_, superblock| superblock.is_empty()).collect()
    }
}

impl State {
    fn take(&mut self, bytes: u64, own: StreamNumber) -> Option<u64> {
        if bytes <= SUPERBLOCK
            && let Some(found) = self.arenas.get_mut(&own).and_then(|arena| arena.take(bytes))
        {
            return Some(found);
        }
        let (at, mut superblock) = self.global.acquire(bytes)?;
        let found = superblock.take(bytes);
        let arena = if bytes > SUPERBLOCK { &mut self.global } else { self.arenas.entry(own).or_default() };
        arena.0.insert(at, superblock);
        found
    }

    /// Takes back a block, whose work is complete or the stream's own.
    fn put(&mut self, start: u64, bytes: u64) {
        if self.arenas.values_mut().any(|arena| arena.put(start, bytes).is_some()) {
            return;
        }
        let within = self.global.put(start, bytes);
        if let Some(at) = within
            && let Some(superblock) = self.global.0.remove(&at)
        {
            self.global.release(at, superblock);
        }
    }

    /// Has all streams' arenas give back what is empty.
    fn defragment(&mut self) {
        for arena in self.arenas.values_mut() {
            for (at, superblock) in arena.remove_empty() {
                self.global.release(at, superblock);
            }
        }
    }
}

impl RmmArena {
    /// The name in [`OF_RMM`](crate::OF_RMM).
    pub const NAME: &str = "rmm-arena";

    /// An arena over the context's device, which takes its memory with the first request.
    pub fn new(context: &Context) -> Self {
        let (streams, global, arenas) = Default::default();
        let state = State { streams, taken: None, global, arenas, books: Books::new(Self::NAME) };
        Self { device: context.device().clone(), state: Mutex::new(state) }
    }

    /// Takes all that is free of the device.
    #[cold]
    fn begin(&self, state: &mut State) -> Result<()> {
        let bytes = self.device.memory_info()?.free / SUPERBLOCK * SUPERBLOCK;
        let out_of_memory = |requested| DeviceError::OutOfMemory { call: "alloc_segment", requested };
        let start =
            if bytes == 0 { Err(out_of_memory(SUPERBLOCK)) } else { self.device.alloc_segment(bytes) }?;
        state.books.usage.calls.alloc += 1;
        state.taken = Some((start.raw(), 0));
        state.global.0.insert(start.raw(), Superblock::new(start.raw(), bytes));
        Ok(())
    }
}

impl Allocator for RmmArena {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        let rounded = size_class(bytes)?;
        let state = &mut *self.state.lock();
        if state.taken.is_none() {
            self.begin(state)?;
        }
        let own = state.streams.number(stream);
        let found = match state.take(rounded, own) {
            Some(found) => found,
            None => {
                self.device.synchronize()?;
                state.defragment();
                let out_of_memory = DeviceError::OutOfMemory { call: "alloc_segment", requested: rounded };
                state.take(rounded, own).ok_or(out_of_memory)?
            }
        };
        if let Some((start, used)) = &mut state.taken {
            let more = (found + rounded - *start).saturating_sub(*used);
            *used += more;
            state.books.reserve(more);
        }
        let ptr = DevicePtr::new(found);
        state.books.open(ptr, bytes, rounded);
        Ok(ptr)
    }

    unsafe fn free(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        let state = &mut *self.state.lock();
        let block = state.books.close(ptr)?;
        let bytes = block.place;
        let own = state.streams.number(stream);
        let is_own = state.arenas.get(&own).is_some_and(|arena| {
            let before = arena.0.range(..=ptr.raw()).next_back();
            before.is_some_and(|(at, superblock)| ptr.raw() < at + superblock.bytes)
        });
        // RMM waits for the stream, unless its own arena has the block, and knows no other streams that use it.
        let waits = block.uses.iter().filter(|used| used.id() != stream.id());
        let waits = waits.chain((!is_own).then_some(stream));
        if let Err(error) = waits.into_iter().try_for_each(Stream::synchronize) {
            state.books.reopen(ptr, block);
            return Err(error);
        }
        state.put(ptr.raw(), bytes);
        Ok(())
    }

    fn record_use(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        self.state.lock().books.note_use(ptr, stream)
    }

    /// Gives all of it back where nothing is live; RMM does so at its end.
    fn trim(&self) -> Result<()> {
        let state = &mut *self.state.lock();
        let Some((start, used)) = state.taken.filter(|_| state.books.usage.requested.current == 0) else {
            return Ok(());
        };
        // SAFETY: it came from `alloc_segment`, and all of it is free. Work that used it was given to the device before its frees.
        // The call waits for that.
        unsafe { self.device.free_segment(DevicePtr::new(start)) }?;
        (state.taken, state.global, state.arenas) = Default::default();
        state.books.usage.calls.free += 1;
        state.books.unreserve(used);
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.state.lock().books.usage
    }
}

impl Drop for RmmArena {
    fn drop(&mut self) {
        if let Err(error) = self.trim() {
            tracing::warn!(%error, "RMM's arena could not give its memory back");
        }
    }
}

#[cfg(test)]
mod tests {
    use millpond::device::sim::{SimDevice, SimOptions};

    use super::*;

    #[test]
    fn size_classes_are_those_of_the_table() {
        let classes = [1, 257, 2049, 2560, 50 << 10, 55 << 10, 1 << 20, (1 << 20) + 1]
            .map(|bytes| size_class(bytes).unwrap());
        assert_eq!(classes, [256, 512, 2560, 2560, 54 << 10, 64 << 10, 1 << 20, 1280 << 10]);
        assert!(size_class(u64::MAX).is_err());
    }

    #[test]
    fn short_blocks_share_a_superblock_and_what_is_empty_goes_back() {
        let context = Context::new(SimDevice::new(SimOptions::default().capacity(4 << 20)).unwrap());
        let arena = RmmArena::new(&context);
        let streams = [context.create_stream().unwrap(), context.create_stream().unwrap()];
        let held = |arena: &RmmArena| arena.usage().reserved.current;
        let first = arena.allocate(4096, &streams[0]).unwrap();
        let second = arena.allocate(4096, &streams[0]).unwrap();
        assert_eq!((second.raw() - first.raw(), held(&arena)), (4096, 8192));
        let other = arena.allocate(4096, &streams[1]).unwrap();
        assert_eq!(other.raw() - first.raw(), SUPERBLOCK, "a superblock of its own");
        let long = arena.allocate(2 << 20, &streams[0]).unwrap();
        assert_eq!(held(&arena), 4 << 20);
        // SAFETY: here and below, the blocks are this test's, without work.
        let free = |ptr| unsafe { arena.free(ptr, &streams[0]) }.unwrap();
        [first, second, long].into_iter().for_each(free);
        let longer = 5 << 19;
        assert!(arena.allocate(longer, &streams[1]).is_err(), "it lies between");
        free(other);
        _ = arena.allocate(longer, &streams[1]).unwrap();
        assert_eq!(held(&arena), 4 << 20);
    }
}
