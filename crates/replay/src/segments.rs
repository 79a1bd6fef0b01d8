//! What the recorded allocator held of the driver, over time: segments, and for expandable segments their pages.

use std::collections::BTreeMap;

/// A change of what is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentOp {
    /// How many ops of the trace came before it.
    pub before_op: usize,
    /// Microseconds since the trace began.
    pub time_us: u64,
    /// What happened to it.
    pub kind: SegmentKind,
    /// What was taken or given back.
    pub segment: Segment,
}

/// What happens to a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentKind {
    /// It was taken from the driver.
    Alloc,
    /// It was given back.
    Free,
    /// Memory was mapped into an expandable segment.
    Map,
    /// Memory of an expandable segment was unmapped.
    Unmap,
}

impl SegmentKind {
    /// Whether more is held afterwards.
    pub fn grows(self) -> bool {
        matches!(self, Self::Alloc | Self::Map)
    }
}

/// A stretch of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins; 0 where the recorder does not say.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// The stream that it serves, as the recorder named it.
    pub stream: u64,
}

/// The segments of one device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Segments {
    /// What was taken and given back, in order.
    pub ops: Vec<SegmentOp>,
    /// What was held when the recording ended; `None` where the recorder does not say.
    pub at_end: Option<Vec<Segment>>,
}

impl Segments {
    /// Bytes that were held after so many ops of the trace; `None` where segments were not recorded.
    pub fn held_after(&self, ops: usize) -> Option<u64> {
        let sum = |ops: &[SegmentOp]| {
            let signed = ops.iter().map(|op| {
                let bytes = i128::from(op.segment.bytes);
                if op.kind.grows() { bytes } else { -bytes }
            });
            signed.sum::<i128>()
        };
        let (earlier, later) = self.ops.split_at(self.ops.partition_point(|op| op.before_op <= ops));
        let held = match &self.at_end {
            Some(segments) => {
                segments.iter().map(|segment| i128::from(segment.bytes)).sum::<i128>() - sum(later)
            }
            None if self.ops.is_empty() => return None,
            None => sum(earlier),
        };
        Some(u64::try_from(held.max(0)).unwrap_or(u64::MAX))
    }

    /// What was held after so many ops of the trace, by rising address; `None` where segments were not recorded, or without
    /// their addresses. What an expandable segment has mapped is one where it touches.
    pub fn after(&self, ops: usize) -> Option<Vec<(u64, u64)>> {
        let mut all = self.ops.iter().map(|op| op.segment).chain(self.at_end.iter().flatten().copied());
        if self.at_end.is_none() && self.ops.is_empty() || all.any(|segment| segment.address == 0) {
            return None;
        }
        let (earlier, later) = self.ops.split_at(self.ops.partition_point(|op| op.before_op <= ops));
        let mut held = Stretches::default();
        match &self.at_end {
            Some(segments) => {
                segments.iter().for_each(|segment| held.add(segment, false));
                later.iter().rev().for_each(|op| held.change(op, !op.kind.grows()));
            }
            None => earlier.iter().for_each(|op| held.change(op, op.kind.grows())),
        }
        Some(held.0.into_iter().map(|(start, end)| (start, end - start)).collect())
    }

    /// The most bytes that were held at once; `None` where segments were not recorded.
    pub fn most_held(&self) -> Option<u64> {
        // Relative to the start of the recording, which the end tells.
        let (mut now, mut most) = (0i128, 0i128);
        for op in &self.ops {
            let bytes = i128::from(op.segment.bytes);
            now += if op.kind.grows() { bytes } else { -bytes };
            most = most.max(now);
        }
        let at_end = self.at_end.iter().flatten().map(|segment| i128::from(segment.bytes)).sum::<i128>();
        let at_start = (at_end - now).max(0);
        let known = self.at_end.is_some() || most > 0;
        known.then(|| u64::try_from(at_start + most).unwrap_or(u64::MAX))
    }
}

/// Stretches of addresses: where each begins and ends.
#[derive(Debug, Default)]
struct Stretches(BTreeMap<u64, u64>);

impl Stretches {
    fn change(&mut self, op: &SegmentOp, is_held: bool) {
        let joins = matches!(op.kind, SegmentKind::Map | SegmentKind::Unmap);
        if is_held { self.add(&op.segment, joins) } else { self.remove(&op.segment) }
    }

    fn add(&mut self, segment: &Segment, joins: bool) {
        let (mut start, mut end) = (segment.address, segment.address.saturating_add(segment.bytes));
        if joins {
            if let Some((&before, &until)) = self.0.range(..start).next_back().filter(|held| *held.1 >= start)
            {
                (start, end) = (before, end.max(until));
            }
            if let Some(until) = self.0.remove(&end) {
                end = until;
            }
        }
        self.0.insert(start, end);
    }

    fn remove(&mut self, segment: &Segment) {
        let (start, end) = (segment.address, segment.address.saturating_add(segment.bytes));
        let first = self.0.range(..=start).next_back().map_or(start, |(&from, _)| from);
        let met: Vec<(u64, u64)> = self.0.range(first..end).map(|(&from, &to)| (from, to)).collect();
        for (from, to) in met.into_iter().filter(|(_, to)| *to > start) {
            self.0.remove(&from);
            let left = [(from, start), (end, to)].into_iter().filter(|(from, to)| from < to);
            self.0.extend(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(before_op: usize, kind: SegmentKind, address: u64, bytes: u64) -> SegmentOp {
        SegmentOp { before_op, time_us: 0, kind, segment: Segment { address, bytes, stream: 0 } }
    }

    #[test]
    fn what_was_held_is_told_back_from_the_end() {
        use SegmentKind as K;
        let ops = vec![
            op(1, K::Alloc, 100, 50),
            op(2, K::Alloc, 150, 50),
            op(3, K::Free, 100, 50),
            op(4, K::Map, 1000, 20),
            op(5, K::Map, 1020, 20),
            op(6, K::Unmap, 1010, 10),
        ];
        let end = [(150, 50), (1000, 10), (1020, 20)];
        let end = end.map(|(address, bytes)| Segment { address, bytes, stream: 0 }).to_vec();
        let back = Segments { ops: ops.clone(), at_end: Some(end) };
        let forth = Segments { ops, at_end: None };
        for segments in [back, forth] {
            let after = |ops| segments.after(ops).unwrap();
            assert_eq!(after(6), [(150, 50), (1000, 10), (1020, 20)]);
            assert_eq!(after(5), [(150, 50), (1000, 40)]);
            // Two segments that touch are two.
            assert_eq!(after(2), [(100, 50), (150, 50)]);
            assert_eq!(after(0), []);
        }
        assert_eq!(Segments::default().after(0), None);
        let nowhere = Segments { ops: vec![op(0, K::Alloc, 0, 10)], at_end: None };
        assert_eq!(nowhere.after(1), None);
    }
}
