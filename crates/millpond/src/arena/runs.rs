//! Runs: blocks that one stream asked for one after another, placed one behind the other.
//!
//! What a program asks for in a row it often frees in a row: a layer's activations, or the caches of one request.
//! Where such blocks lie side by side, a page that two of them share is free soon after the first has died, and
//! the run costs the rest of one slot at its end. Placed each on slots of its own, every block costs such a rest;
//! placed wherever the fewest pages are missing, each pins pages with strangers, which live for longer.
//!
//! Only misses run on, and only where much is pinned (`placing`): a hit costs no device call, wherever it lies.

use super::find::Want;
use super::placing::Place;
use super::{Arena, Zone};
use crate::order::{Stream, StreamKey};

/// Streams whose runs are known. Beyond them, the stream that began its run first begins another.
const MOST_RUNS: usize = 16;

/// Where each stream's last miss went.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Region and first unit.
    last: Vec<(StreamKey, (u32, u64))>,
}

impl Runs {
    fn note(&mut self, stream: StreamKey, at: (u32, u64)) {
        if let Some(run) = self.last.iter_mut().find(|(of, _)| *of == stream) {
            run.1 = at;
            return;
        }
        if self.last.len() == MOST_RUNS {
            self.last.remove(0);
        }
        self.last.push((stream, at));
    }

    fn of(&self, stream: StreamKey) -> Option<(u32, u64)> {
        self.last.iter().find(|(of, _)| *of == stream).map(|(_, at)| *at)
    }
}

impl Arena {
    /// Notes where a miss went.
    pub(super) fn note_run(&mut self, want: &Want, stream: &Stream, place: &Place) {
        if want.zone == Zone::Large {
            self.runs.note(stream.key(), (place.region, place.start));
        }
    }

    /// The place right behind the block that the stream's last miss was for, while that block is out.
    pub(super) fn next_of_run(&self, want: &Want, stream: &Stream) -> Option<Place> {
        let (region, start) = self.runs.of(stream.key())?;
        let last = self.regions.out_at(region, start * self.layout.unit_bytes)?.id();
        self.place_from(self.blocks[last].next?, want, stream)
    }
}
