//! The linked list: chunks in address order within a segment, segments in the order in which they came. An index has the free
//! ones in that order, so that a search passes no live chunk.

use std::collections::BTreeMap;

use millpond::Stream;
use millpond::device::DevicePtr;

/// Names a chunk. Names of merged chunks are used again.
pub(super) type ChunkId = usize;

/// Where a chunk is in the list: the number of its segment, and its address.
type Position = (u64, u64);

#[derive(Debug)]
struct Chunk {
    start: DevicePtr,
    bytes: u64,
    /// Segments are numbered in the order in which they came.
    segment: u64,
    /// Whether this is the first chunk of its segment, and so is not merged with the one before it.
    first: bool,
    /// The streams that used it before it was freed; `None` while it is live.
    free: Option<Vec<Stream>>,
    before: Option<ChunkId>,
    after: Option<ChunkId>,
}

/// A chunk that was free and is live now, and the streams to be ordered after.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) id: ChunkId,
    pub(super) start: DevicePtr,
    pub(super) used_by: Vec<Stream>,
}

/// The list. Slots of `chunks` that are in no list are in `spare`.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    chunks: Vec<Chunk>,
    spare: Vec<ChunkId>,
    tail: Option<ChunkId>,
    /// The free chunks, in the order of the list.
    free: BTreeMap<Position, ChunkId>,
    /// Segments that came so far.
    segments: u64,
}

impl Chunks {
    /// Appends a segment as one free chunk.
    pub(super) fn add_segment(&mut self, start: DevicePtr, bytes: u64) {
        let (before, segment) = (self.tail, self.segments);
        self.segments += 1;
        let chunk = Chunk { start, bytes, segment, first: true, free: Some(Vec::new()), before, after: None };
        self.link(chunk);
    }

    /// Takes the first free chunk of at least `bytes`, and splits off what is more.
    pub(super) fn take(&mut self, bytes: u64) -> Option<Taken> {
        let (&position, &id) = self.free.iter().find(|(_, id)| self.chunks[**id].bytes >= bytes)?;
        self.free.remove(&position);
        let chunk = &mut self.chunks[id];
        let used_by = chunk.free.take()?;
        let start = chunk.start;
        if chunk.bytes > bytes {
            let rest = Chunk {
                start: start.offset(bytes),
                bytes: chunk.bytes - bytes,
                segment: chunk.segment,
                first: false,
                free: Some(used_by.clone()),
                before: Some(id),
                after: chunk.after,
            };
            chunk.bytes = bytes;
            self.link(rest);
        }
        Some(Taken { id, start, used_by })
    }

    /// Makes a live chunk free, and merges it with its free neighbours.
    pub(super) fn give(&mut self, id: ChunkId, used_by: Vec<Stream>) {
        self.chunks[id].free = Some(used_by);
        self.free.insert(self.position(id), id);
        if let Some(after) = self.chunks[id].after {
            self.merge_if_free(id, after);
        }
        if let Some(before) = self.chunks[id].before {
            self.merge_if_free(before, id);
        }
    }

    /// A segment that is one free chunk.
    pub(super) fn free_segment(&self) -> Option<(ChunkId, DevicePtr, u64)> {
        let ends = |chunk: &Chunk| chunk.after.is_none_or(|after| self.chunks[after].first);
        self.free
            .values()
            .map(|&id| (id, &self.chunks[id]))
            .find(|(_, chunk)| chunk.first && ends(chunk))
            .map(|(id, chunk)| (id, chunk.start, chunk.bytes))
    }

    /// Removes a segment that [`free_segment`](Self::free_segment) found.
    pub(super) fn remove_segment(&mut self, id: ChunkId) {
        self.unlink(id);
    }

    fn position(&self, id: ChunkId) -> Position {
        (self.chunks[id].segment, self.chunks[id].start.raw())
    }

    /// Merges `right` into `left`, its neighbour, if both are free and of one segment.
    fn merge_if_free(&mut self, left: ChunkId, right: ChunkId) {
        if self.chunks[left].free.is_none() || self.chunks[right].first {
            return;
        }
        let Some(streams) = self.chunks[right].free.take() else { return };
        let bytes = self.chunks[right].bytes;
        self.unlink(right);
        let chunk = &mut self.chunks[left];
        chunk.bytes += bytes;
        join(chunk.free.get_or_insert_default(), streams);
    }

    /// Puts a chunk into a slot and between its neighbours.
    fn link(&mut self, chunk: Chunk) {
        let (before, after) = (chunk.before, chunk.after);
        let id = match self.spare.pop() {
            Some(id) => {
                self.chunks[id] = chunk;
                id
            }
            None => {
                self.chunks.push(chunk);
                self.chunks.len() - 1
            }
        };
        if self.chunks[id].free.is_some() {
            self.free.insert(self.position(id), id);
        }
        self.join_neighbours(before, Some(id));
        self.join_neighbours(Some(id), after);
    }

    fn unlink(&mut self, id: ChunkId) {
        let (before, after) = (self.chunks[id].before, self.chunks[id].after);
        self.join_neighbours(before, after);
        self.free.remove(&self.position(id));
        self.chunks[id].free = None;
        self.spare.push(id);
    }

    fn join_neighbours(&mut self, left: Option<ChunkId>, right: Option<ChunkId>) {
        if let Some(left) = left {
            self.chunks[left].after = right;
        }
        match right {
            Some(right) => self.chunks[right].before = left,
            None => self.tail = left,
        }
    }
}

/// Adds the streams that are not there yet.
pub(super) fn join(streams: &mut Vec<Stream>, more: Vec<Stream>) {
    for stream in more {
        if streams.iter().all(|known| known.id() != stream.id()) {
            streams.push(stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: DevicePtr = DevicePtr::new(1 << 30);

    fn layout(chunks: &Chunks) -> Vec<(u64, u64, bool)> {
        let ids = std::iter::successors(chunks.tail, |&id| chunks.chunks[id].before);
        let chunk = |id: ChunkId| {
            let chunk = &chunks.chunks[id];
            (chunk.start.raw() - BASE.raw(), chunk.bytes, chunk.free.is_some())
        };
        let mut layout: Vec<_> = ids.map(chunk).collect();
        layout.reverse();
        let free = layout.iter().filter(|(_, _, is_free)| *is_free);
        assert_eq!(free.count(), chunks.free.len(), "the index has the free chunks");
        layout
    }

    fn take(chunks: &mut Chunks, bytes: u64) -> ChunkId {
        chunks.take(bytes).expect("a free chunk is large enough").id
    }

    #[test]
    fn the_first_chunk_that_fits_is_split_and_merged() {
        let mut chunks = Chunks::default();
        chunks.add_segment(BASE, 4096);
        let [a, b, c] = [1024, 512, 256].map(|bytes| take(&mut chunks, bytes));
        chunks.give(a, Vec::new());
        chunks.give(c, Vec::new());
        assert_eq!(layout(&chunks), [(0, 1024, true), (1024, 512, false), (1536, 2560, true)]);
        let d = take(&mut chunks, 256);
        assert_eq!(layout(&chunks)[..2], [(0, 256, false), (256, 768, true)]);
        chunks.give(b, Vec::new());
        chunks.give(d, Vec::new());
        assert_eq!(layout(&chunks), [(0, 4096, true)]);
    }

    #[test]
    fn chunks_of_different_segments_are_never_merged() {
        let mut chunks = Chunks::default();
        chunks.add_segment(BASE, 1024);
        chunks.add_segment(BASE.offset(1024), 1024);
        let [a, b] = [1024, 1024].map(|bytes| take(&mut chunks, bytes));
        chunks.give(b, Vec::new());
        chunks.give(a, Vec::new());
        assert_eq!(layout(&chunks), [(0, 1024, true), (1024, 1024, true)]);
    }

    #[test]
    fn only_a_free_segment_is_offered_for_removal() {
        let mut chunks = Chunks::default();
        chunks.add_segment(BASE, 1024);
        chunks.add_segment(BASE.offset(4096), 1024);
        let a = take(&mut chunks, 256);
        let (id, start, bytes) = chunks.free_segment().expect("the second is free");
        assert_eq!((start, bytes), (BASE.offset(4096), 1024));
        chunks.remove_segment(id);
        assert!(chunks.free_segment().is_none());
        chunks.give(a, Vec::new());
        let (id, ..) = chunks.free_segment().expect("the first is free now");
        chunks.remove_segment(id);
        assert_eq!(layout(&chunks), []);
        assert_eq!(chunks.tail, None);
    }
}
