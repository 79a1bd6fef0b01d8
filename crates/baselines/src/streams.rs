//! Streams by small numbers, so that blocks and pools can name one at the cost of an index.

use millpond::Stream;
use millpond::device::StreamId;
use rustc_hash::FxHashMap;

/// Names a stream of one [`Streams`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamNumber(u32);

impl StreamNumber {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The streams that an allocator has seen. It holds them as long as it lives: what it caches is ordered after
/// their work.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    numbers: FxHashMap<StreamId, StreamNumber>,
    streams: Vec<Stream>,
}

impl Streams {
    /// The stream's number; a new one where it was never seen.
    pub(crate) fn number(&mut self, stream: &Stream) -> StreamNumber {
        let next = StreamNumber(self.streams.len() as u32);
        let number = *self.numbers.entry(stream.id()).or_insert(next);
        if number == next {
            self.streams.push(stream.clone());
        }
        number
    }

    pub(crate) fn get(&self, number: StreamNumber) -> &Stream {
        &self.streams[number.index()]
    }
}
