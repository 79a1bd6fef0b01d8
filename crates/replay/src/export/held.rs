//! The segments that an exported snapshot shows: as recorded where they hold every block, else made up.
//!
//! memory_viz rewinds a snapshot from its end, and shows nothing at all once a block lies in no segment. So every
//! block must lie in a segment for as long as it lives.

use std::collections::{BTreeMap, BTreeSet};

use crate::segments::{Segment, SegmentOp, Segments};
use crate::trace::{OpKind, Trace};

/// What blocks are rounded up to.
const UNIT: u64 = 512;

/// Made-up segments begin and end at multiples of this.
const SLOT: u64 = 2 << 20;

/// Segments for an export of the trace.
pub(super) fn segments(trace: &Trace) -> Segments {
    if trace.segments.at_end.is_some() && hold_every_block(trace) {
        trace.segments.clone()
    } else {
        Segments { ops: Vec::new(), at_end: Some(stretches(trace)) }
    }
}

/// Blocks that are live at the end, by address, and whether only the completion of their free is missing.
pub(super) fn live_at_end(trace: &Trace) -> BTreeMap<u64, (u32, bool)> {
    let mut last: Vec<Option<OpKind>> = vec![None; trace.blocks.len()];
    for op in &trace.ops {
        last[op.block as usize] = Some(op.kind);
    }
    let live = last.iter().enumerate().filter(|(_, kind)| **kind != Some(OpKind::FreeCompleted));
    live.map(|(block, kind)| {
        (trace.blocks[block].address, (block as u32, *kind == Some(OpKind::FreeRequested)))
    })
    .collect()
}

/// Whether every block lies in what is held whenever it lives, seen from the end.
fn hold_every_block(trace: &Trace) -> bool {
    let mut held = HeldRanges::default();
    for segment in trace.segments.at_end.iter().flatten() {
        held.add(segment);
    }
    let mut live: BTreeSet<u64> = live_at_end(trace).into_keys().collect();
    if !live.iter().all(|&address| held.holds(address)) {
        return false;
    }
    let mut changes = trace.segments.ops.iter().rev().peekable();
    for (at, op) in trace.ops.iter().enumerate().rev() {
        while let Some(change) = changes.next_if(|change| change.before_op > at) {
            if !held.undo(change, &live) {
                return false;
            }
        }
        if trace.is_refused(op.block) {
            continue;
        }
        let address = trace.blocks[op.block as usize].address;
        match op.kind {
            OpKind::FreeCompleted if !held.holds(address) => return false,
            OpKind::FreeCompleted => live.insert(address),
            OpKind::FreeRequested => false,
            OpKind::Alloc => live.remove(&address),
        };
    }
    changes.all(|change| held.undo(change, &live))
}

/// HeldRanges memory: where each stretch begins and ends. Stretches that touch are one.
#[derive(Debug, Default)]
struct HeldRanges(BTreeMap<u64, u64>);

impl HeldRanges {
    fn holds(&self, address: u64) -> bool {
        self.0.range(..=address).next_back().is_some_and(|(_, &end)| address < end)
    }

    fn add(&mut self, segment: &Segment) {
        let (mut start, mut end) = (segment.address, segment.address.saturating_add(segment.bytes));
        if let Some((&before, &until)) = self.0.range(..=start).next_back()
            && until >= start
        {
            (start, end) = (before, end.max(until));
        }
        while let Some((&next, &until)) = self.0.range(start..=end).next() {
            self.0.remove(&next);
            end = end.max(until);
        }
        self.0.insert(start, end);
    }

    /// Takes a change back; `false` where that cannot be, or a block would lose its memory.
    fn undo(&mut self, change: &SegmentOp, live: &BTreeSet<u64>) -> bool {
        let Segment { address: start, bytes, .. } = change.segment;
        if !change.kind.grows() {
            self.add(&change.segment);
            return true;
        }
        let end = start.saturating_add(bytes);
        let Some((&from, &until)) = self.0.range(..=start).next_back() else { return false };
        if until < end || live.range(start..end).next().is_some() {
            return false;
        }
        self.0.remove(&from);
        let left = [(from, start), (end, until)].into_iter().filter(|(from, until)| from < until);
        self.0.extend(left);
        true
    }
}

/// The stretches of addresses in which blocks ever were, held all the time.
fn stretches(trace: &Trace) -> Vec<Segment> {
    let mut held = HeldRanges::default();
    let blocks = || (0u32..).zip(&trace.blocks).filter(|(number, _)| !trace.is_refused(*number));
    for (_, block) in blocks() {
        let start = block.address / SLOT * SLOT;
        let end = block.address.saturating_add(block.size.max(1)).div_ceil(SLOT).saturating_mul(SLOT);
        held.add(&Segment { address: start, bytes: end - start, stream: 0 });
    }
    let mut streams = BTreeMap::new();
    for (_, block) in blocks() {
        streams.entry(block.address).or_insert(trace.streams[usize::from(block.stream)]);
    }
    let stream = |start| streams.range(start..).next().map_or(0, |(_, &stream)| stream);
    let segment = |(address, end)| Segment { address, bytes: end - address, stream: stream(address) };
    held.0.into_iter().map(segment).collect()
}

/// A part of a segment, from its start to its end: a live block, or nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentPart {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// The block, and whether only the completion of its free is missing.
    pub(super) block: Option<(u32, bool)>,
}

/// What lies in a segment at the end: parts that fill it, one behind the other.
pub(super) fn parts(trace: &Trace, segment: &Segment, live: &BTreeMap<u64, (u32, bool)>) -> Vec<SegmentPart> {
    let end = segment.address.saturating_add(segment.bytes);
    let mut parts = Vec::new();
    let mut at = segment.address;
    let mut blocks = live.range(segment.address..end).peekable();
    while let Some((&address, &(block, pending))) = blocks.next() {
        if address > at {
            parts.push(SegmentPart { address: at, bytes: address - at, block: None });
        }
        let next = blocks.peek().map_or(end, |(next, _)| **next);
        let size = trace.blocks[block as usize].size.max(1).div_ceil(UNIT).saturating_mul(UNIT);
        let bytes = size.min(next - address);
        parts.push(SegmentPart { address, bytes, block: Some((block, pending)) });
        at = address + bytes;
    }
    if at < end {
        parts.push(SegmentPart { address: at, bytes: end - at, block: None });
    }
    parts
}
