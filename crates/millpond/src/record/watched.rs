//! What a tool that watches this process hears of one pool, by NVTX: which blocks the program has, and marks.

use std::sync::atomic::{AtomicU64, Ordering};

use super::clock::Moment;
use crate::device::{Device, DevicePtr, Kind, MemoryKind};
use crate::figures::counters::Counters;
use crate::nvtx::{Blocks, Mark, Until, blocks, marks};
use crate::order::Stream;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Watched {
    marks: Option<Marks>,
    /// Where blocks are told of, if they are checked.
    blocks: Option<&'static Blocks>,
}

/// The counts that were marked last.
#[derive(Debug)]
struct Marks {
    /// The pool's.
    name: Box<str>,
    /// The most that was held.
    reserved: AtomicU64,
    remapped: AtomicU64,
    waits: AtomicU64,
    retries: AtomicU64,
}

impl Watched {
    /// `device` is the pool's, and open.
    pub(super) fn new(name: &str, device: &dyn Device) -> Self {
        let zero = || AtomicU64::new(0);
        let marks = marks().then(|| Marks {
            name: name.into(),
            reserved: zero(),
            remapped: zero(),
            waits: zero(),
            retries: zero(),
        });
        let properties = device.properties();
        let has_segments = (properties.kind, properties.memory) == (Kind::Cuda, MemoryKind::Device)
            && !properties.virtual_memory;
        Self { marks, blocks: if has_segments { blocks() } else { None } }
    }

    /// Whether the tool is to hear of each block.
    #[inline]
    pub(super) fn checks_blocks(&self) -> bool {
        self.blocks.is_some()
    }

    /// The program has this block.
    #[inline]
    pub(super) fn alloc(&self, ptr: DevicePtr, bytes: u64, stream: &Stream) {
        if let Some(blocks) = self.blocks {
            let is_captured = stream.timeline().is_captured(true);
            let until = if is_captured == Ok(Some(true)) { Until::SegmentEnds } else { Until::Freed };
            blocks.begin(ptr.raw(), bytes, Moment::now().ticks(), until);
        }
    }

    /// The program freed the block, at a moment when nobody else could have it yet.
    pub(super) fn free(&self, ptr: DevicePtr, before: Moment) {
        if let Some(blocks) = self.blocks {
            blocks.end(ptr.raw(), before.ticks());
        }
    }

    /// Marks what the pool has done since the last call.
    #[inline]
    pub(super) fn look(&self, counters: &Counters) {
        if let Some(marks) = &self.marks {
            marks.look(counters);
        }
    }

    /// The program is told that there is no memory for so many bytes.
    pub(super) fn out_of_memory(&self, bytes: u64) {
        if let Some(marks) = &self.marks {
            marks.tell("out of memory", bytes);
        }
    }
}

impl Marks {
    #[cold]
    fn look(&self, counters: &Counters) {
        let reserved = counters.reserved.current();
        if rise(&self.reserved, reserved) > 0 {
            self.tell("grew", reserved);
        }
        let waits = counters.stream_waits.get();
        for (told, count, what) in [
            (&self.remapped, counters.pages_remapped.get(), "remapped pages"),
            (&self.waits, waits, "waits for another stream"),
            (&self.retries, counters.retries.get(), "made room"),
        ] {
            let more = rise(told, count);
            if more > 0 {
                self.tell(what, more);
            }
        }
    }

    fn tell(&self, what: &str, figure: u64) {
        Mark { text: &format!("{what}: {}", self.name), figure }.tell();
    }
}

/// By how much a count is above what was marked last. Of threads that find it risen at once, one gets it.
fn rise(told: &AtomicU64, count: u64) -> u64 {
    // Relaxed: the value alone is used.
    count.saturating_sub(told.fetch_max(count, Ordering::Relaxed))
}
