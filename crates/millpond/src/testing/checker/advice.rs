//! Advice on managed memory that nobody has taken back.

use std::collections::BTreeMap;

use crate::device::{Advice, DevicePtr, Place};

/// The ranges that have advice.
#[derive(Debug, Default)]
pub(super) struct Advised {
    /// By the first byte: the end, and one bit for each advice.
    ranges: BTreeMap<u64, (u64, u8)>,
}

impl Advised {
    /// Notes advice, or that it was taken back. Of one range of bytes it is given and taken back as a whole.
    pub(super) fn note(&mut self, at: DevicePtr, bytes: u64, advice: Advice) {
        let (bit, is_given) = match advice {
            Advice::ReadMostly(is) => (1, is),
            Advice::PreferredLocation(place) => (2, place.is_some()),
            Advice::AccessedBy(Place::Device, is) => (4, is),
            Advice::AccessedBy(Place::Host, is) => (8, is),
        };
        let (end, bits) = self.ranges.entry(at.raw()).or_default();
        *end = at.raw() + bytes;
        *bits = if is_given { *bits | bit } else { *bits & !bit };
        if *bits == 0 {
            self.ranges.remove(&at.raw());
        }
    }

    /// Where there is advice on some of these bytes.
    pub(super) fn within(&self, at: DevicePtr, bytes: u64) -> Option<DevicePtr> {
        let (start, (end, _)) = self.ranges.range(..at.raw() + bytes).next_back()?;
        (*end > at.raw()).then_some(DevicePtr::new(*start))
    }

    /// The memory is gone.
    pub(super) fn forget(&mut self, at: DevicePtr, bytes: u64) {
        while let Some(start) = self.within(at, bytes) {
            self.ranges.remove(&start.raw());
        }
    }
}
