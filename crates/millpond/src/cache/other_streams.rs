//! Blocks that other streams freed: in throughput mode, fetched from the depot without the pool's lock.
//!
//! The stream must first be ordered after the other's work, which may take device calls. So there are two steps: the
//! thread looks what the depot has, and leaves its cache. Then, with the stream ordered after the
//! [fence](OtherStreamBlocks::fence) of what was seen, it takes blocks behind that fence: the same or others.

use super::caches::{Caches, Found};
use super::sizes::MagazineIndex;
use super::stream_cache::Known;
use super::tally::Tally;
use super::thread::Entered;
use crate::order::{Fence, Stream, Tick, TimelineId};
use crate::policy::{Mechanism, without};

/// Blocks of another stream, seen in the depot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OtherStreamBlocks {
    /// Their length.
    bytes: u64,
    of: TimelineId,
    /// The tick up to which they were freed.
    until: Tick,
}

impl OtherStreamBlocks {
    /// What has to be reached before they are used.
    pub(crate) fn fence(&self) -> Fence {
        Fence::at(self.of, self.until)
    }
}

impl Caches {
    /// Looks for blocks for a request of so many bytes among those that other streams freed, where the calling
    /// thread's magazine has room for some.
    #[cold]
    pub(crate) fn find_of_other_stream(&self, bytes: u64, stream: &Stream) -> Option<OtherStreamBlocks> {
        if !self.in_throughput_mode() || !self.sizes.is_cached(bytes) || without(Mechanism::OtherStreams) {
            return None;
        }
        // A closed cache may mean that the stream is being captured.
        let Entered { magazines, tally: _, passage: _passage } =
            self.enter::<true>(Tally::to_alloc, stream)?;
        let units = self.sizes.units_in_throughput_mode(bytes);
        if magazines.known(MagazineIndex::of(units))?.magazine.restock_by() == 0 {
            return None;
        }
        let bytes = self.sizes.bytes(units);
        let (of, until) = self.depot.other_with(stream.timeline().id, bytes)?;
        Some(OtherStreamBlocks { bytes, of, until })
    }

    /// A block for a request of so many bytes from what was seen, after which the stream is ordered now; brings more of
    /// the same.
    pub(crate) fn alloc_of_other_stream(
        &self,
        bytes: u64,
        stream: &Stream,
        seen: OtherStreamBlocks,
    ) -> Option<Found> {
        let Entered { magazines, tally, passage } = self.enter::<true>(Tally::to_alloc, stream)?;
        let size = seen.bytes;
        let Known { mut magazine, .. } = magazines.known(MagazineIndex::of(self.sizes.exact_units(size)))?;
        let before = magazine.len();
        let is_narrow = self.fetch(&mut magazine, tally, (seen.of, seen.until), size);
        let now = stream.timeline().now();
        // From here on, as if this stream had freed them now.
        let place = magazine.place();
        for item in magazine.above(before) {
            if item.is_in(place) {
                item.descriptor().make_cached(place, now);
            }
        }
        if !magazine.has_on_top(size) {
            return None;
        }
        tally.rise_slow(bytes, size);
        let ptr = Self::hand_out(magazine.take_top(size)?, bytes, passage);
        Some(Found { ptr, is_narrow })
    }
}
