//! The chunks: neighbours in a list for each region, free ones in order of size. Knows nothing of devices.
//!
//! TensorFlow keeps a bin for each power of two, each in order of size and address. It searches them from the smallest
//! that can hold the request. One set in that order finds the same chunk.

use std::collections::BTreeSet;

use millpond::device::DevicePtr;
use slab::Slab;
use smallvec::SmallVec;

use crate::streams::StreamNumber;

/// Names a chunk. Names of chunks that were merged away are used again.
pub(super) type ChunkId = usize;

/// The streams that memory was used by, each once.
pub(super) type UsedBy = SmallVec<[StreamNumber; 2]>;

/// A chunk is split where this many bytes would be left over, even if that is less than half of it.
const TOO_MUCH_LEFT: u64 = 128 << 20;

#[derive(Debug)]
struct Chunk {
    start: DevicePtr,
    bytes: u64,
    /// The streams that used it before it was freed; `None` while it is live.
    free: Option<UsedBy>,
    /// The neighbours in the region.
    before: Option<ChunkId>,
    after: Option<ChunkId>,
}

/// A chunk that was free and is live now, and the streams to be ordered after.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) id: ChunkId,
    pub(super) start: DevicePtr,
    pub(super) used_by: UsedBy,
}

/// A region of which all is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FreeRegion {
    pub(super) id: ChunkId,
    pub(super) start: DevicePtr,
    pub(super) bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Chunks {
    chunks: Slab<Chunk>,
    /// By size, then address.
    free: BTreeSet<(u64, DevicePtr, ChunkId)>,
}

impl Chunks {
    /// Adds a region as one free chunk.
    pub(super) fn add_region(&mut self, start: DevicePtr, bytes: u64) {
        let chunk = Chunk { start, bytes, free: Some(UsedBy::new()), before: None, after: None };
        let id = self.chunks.insert(chunk);
        self.free.insert((bytes, start, id));
    }

    /// Takes the smallest free chunk of at least `bytes`. It is split where it is twice as large, or 128 MiB
    /// larger; else all of it is taken.
    pub(super) fn take(&mut self, bytes: u64) -> Option<Taken> {
        let &listed = self.free.range((bytes, DevicePtr::NULL, 0)..).next()?;
        self.free.remove(&listed);
        let (whole, start, id) = listed;
        let used_by = self.chunks[id].free.take()?;
        if whole / 2 >= bytes || whole - bytes >= TOO_MUCH_LEFT {
            self.split(id, bytes, used_by.clone());
        }
        Some(Taken { id, start, used_by })
    }

    /// Makes a live chunk free, merged with its free neighbours.
    pub(super) fn give(&mut self, mut id: ChunkId, mut used_by: UsedBy) {
        if let Some(after) = self.chunks[id].after
            && let Some(streams) = self.unlist(after)
        {
            add_streams(&mut used_by, &streams);
            self.absorb(id, after);
        }
        if let Some(before) = self.chunks[id].before
            && let Some(streams) = self.unlist(before)
        {
            add_streams(&mut used_by, &streams);
            self.absorb(before, id);
            id = before;
        }
        let chunk = &mut self.chunks[id];
        chunk.free = Some(used_by);
        self.free.insert((chunk.bytes, chunk.start, id));
    }

    /// The regions that are one free chunk.
    pub(super) fn free_regions(&self) -> impl Iterator<Item = FreeRegion> + '_ {
        self.free.iter().filter_map(|&(bytes, start, id)| {
            let chunk = &self.chunks[id];
            (chunk.before.is_none() && chunk.after.is_none()).then_some(FreeRegion { id, start, bytes })
        })
    }

    /// Forgets a region that [`free_regions`](Self::free_regions) found.
    pub(super) fn remove_region(&mut self, region: FreeRegion) {
        self.unlist(region.id);
        self.chunks.remove(region.id);
    }

    /// Takes a chunk out of the free ones, if it is one.
    fn unlist(&mut self, id: ChunkId) -> Option<UsedBy> {
        let chunk = &mut self.chunks[id];
        let used_by = chunk.free.take()?;
        self.free.remove(&(chunk.bytes, chunk.start, id));
        Some(used_by)
    }

    /// Cuts a live chunk after `bytes`; what follows is free.
    fn split(&mut self, id: ChunkId, bytes: u64, used_by: UsedBy) {
        let chunk = &mut self.chunks[id];
        let (start, rest, after) = (chunk.start.offset(bytes), chunk.bytes - bytes, chunk.after);
        chunk.bytes = bytes;
        let new = Chunk { start, bytes: rest, free: Some(used_by), before: Some(id), after };
        let new = self.chunks.insert(new);
        self.chunks[id].after = Some(new);
        if let Some(after) = after {
            self.chunks[after].before = Some(new);
        }
        self.free.insert((rest, start, new));
    }

    /// Adds `right` to `left`, its neighbour. Both are unlisted.
    fn absorb(&mut self, left: ChunkId, right: ChunkId) {
        let gone = self.chunks.remove(right);
        self.chunks[left].bytes += gone.bytes;
        self.chunks[left].after = gone.after;
        if let Some(after) = gone.after {
            self.chunks[after].before = Some(left);
        }
    }
}

/// Adds the streams that are not there yet.
pub(super) fn add_streams(streams: &mut UsedBy, more: &[StreamNumber]) {
    for stream in more {
        if !streams.contains(stream) {
            streams.push(*stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: DevicePtr = DevicePtr::new(1 << 40);
    const MIB: u64 = 1 << 20;

    fn region(bytes: u64) -> Chunks {
        let mut chunks = Chunks::default();
        chunks.add_region(BASE, bytes);
        chunks
    }

    fn free(chunks: &Chunks) -> Vec<(u64, u64)> {
        chunks.free.iter().map(|&(bytes, start, _)| (start.raw() - BASE.raw(), bytes)).collect()
    }

    #[test]
    fn a_chunk_is_split_from_twice_the_request_on() {
        let mut chunks = region(1023);
        chunks.take(512).expect("it is large enough");
        assert_eq!(free(&chunks), []);
        let mut chunks = region(1024);
        chunks.take(512).expect("it is large enough");
        assert_eq!(free(&chunks), [(512, 512)]);
    }

    #[test]
    fn a_chunk_is_split_where_128_mebibytes_would_be_left() {
        let mut chunks = region(428 * MIB);
        chunks.take(300 * MIB).expect("it is large enough");
        assert_eq!(free(&chunks), [(300 * MIB, 128 * MIB)]);
    }

    #[test]
    fn the_smallest_fitting_chunk_is_taken_and_neighbours_merge() {
        let mut chunks = region(4096);
        let [a, b, c] = [1024, 256, 512].map(|bytes| chunks.take(bytes).expect("there is room").id);
        chunks.give(a, UsedBy::new());
        chunks.give(c, UsedBy::new());
        assert_eq!(free(&chunks), [(0, 1024), (1280, 2816)]);
        assert_eq!(chunks.free_regions().count(), 0);
        assert_eq!(chunks.take(1024).expect("the first fits").start, BASE);
        chunks.give(a, UsedBy::new());
        chunks.give(b, UsedBy::new());
        assert_eq!(free(&chunks), [(0, 4096)]);
        let regions: Vec<_> = chunks.free_regions().collect();
        chunks.remove_region(regions[0]);
        assert!(chunks.take(256).is_none());
    }
}
