//! What the recorded allocator held of the driver, over time: segments, and for expandable segments their pages.

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
