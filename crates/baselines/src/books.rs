//! What every baseline keeps of its live blocks: the table that a free looks them up in, and the counters.

use std::collections::VecDeque;

use millpond::device::DevicePtr;
use millpond::{Error, Level, Result, Stream};
use rustc_hash::FxHashMap;

use crate::Usage;

/// Freed pointers remembered, so that a double free is called one. A pointer freed longer ago is foreign.
const REMEMBERED: usize = 1024;

/// A live block: what was asked for, who else uses it, and what its allocator needs to free it.
#[derive(Debug)]
pub(crate) struct Block<T> {
    /// Bytes asked for.
    pub(crate) bytes: u64,
    /// Streams noted by `record_use`, each once.
    pub(crate) uses: Vec<Stream>,
    /// The allocator's own.
    pub(crate) place: T,
}

/// The live blocks of one allocator and its counters, kept under one lock so that they always agree.
#[derive(Debug)]
pub(crate) struct Books<T> {
    allocator: &'static str,
    live: FxHashMap<DevicePtr, Block<T>>,
    freed: VecDeque<DevicePtr>,
    pub(crate) usage: Usage,
}

impl<T> Books<T> {
    pub(crate) fn new(allocator: &'static str) -> Self {
        Self {
            allocator,
            live: FxHashMap::default(),
            freed: VecDeque::with_capacity(REMEMBERED),
            usage: Usage::default(),
        }
    }

    /// Enters a block that was just allocated.
    pub(crate) fn open(&mut self, ptr: DevicePtr, bytes: u64, place: T) {
        raise(&mut self.usage.requested, bytes);
        self.live.insert(ptr, Block { bytes, uses: Vec::new(), place });
    }

    /// Takes a block out to be freed. From here on nobody else can free it.
    pub(crate) fn close(&mut self, ptr: DevicePtr) -> Result<Block<T>> {
        let Some(block) = self.live.remove(&ptr) else { return Err(self.why_not_live(ptr)) };
        if self.freed.len() == REMEMBERED {
            self.freed.pop_front();
        }
        self.freed.push_back(ptr);
        lower(&mut self.usage.requested, block.bytes);
        Ok(block)
    }

    /// Puts a block back whose free failed.
    pub(crate) fn reopen(&mut self, ptr: DevicePtr, block: Block<T>) {
        self.usage.requested.current += block.bytes;
        self.live.insert(ptr, block);
    }

    /// Notes that `stream` uses the block.
    pub(crate) fn note_use(&mut self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        let Some(block) = self.live.get_mut(&ptr) else { return Err(self.why_not_live(ptr)) };
        if block.uses.iter().all(|known| known.id() != stream.id()) {
            block.uses.push(stream.clone());
        }
        Ok(())
    }

    /// Counts `bytes` more held from the device.
    pub(crate) fn reserve(&mut self, bytes: u64) {
        raise(&mut self.usage.reserved, bytes);
    }

    /// Counts `bytes` given back to the device.
    pub(crate) fn unreserve(&mut self, bytes: u64) {
        lower(&mut self.usage.reserved, bytes);
    }

    #[cold]
    fn why_not_live(&self, ptr: DevicePtr) -> Error {
        let pool = self.allocator.to_owned();
        let around =
            self.live.iter().find(|(start, block)| **start < ptr && ptr.raw() - start.raw() < block.bytes);
        if let Some((&start, _)) = around {
            return Error::InteriorPointer { ptr, start, offset: ptr.raw() - start.raw(), pool };
        }
        if self.freed.contains(&ptr) {
            Error::DoubleFree { ptr, pool }
        } else {
            Error::ForeignPointer { ptr, pool }
        }
    }
}

fn raise(level: &mut Level, by: u64) {
    level.current += by;
    level.high = level.high.max(level.current);
}

fn lower(level: &mut Level, by: u64) {
    level.current -= by;
}

/// `bytes` rounded up to a multiple of `unit`, a power of two.
pub(crate) fn round_up(bytes: u64, unit: u64) -> Result<u64> {
    debug_assert!(unit.is_power_of_two());
    match bytes.checked_add(unit - 1) {
        Some(sum) => Ok(sum & !(unit - 1)),
        None => Err(Error::SizeOverflow { bytes, count: 1 }),
    }
}
