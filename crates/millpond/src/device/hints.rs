//! What the devices without a driver (`host` and `sim`) remember of advice on managed memory, and of prefetches.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Advice, DevicePtr, Residency};

/// Bytes that the system maps at once: advice and prefetches act on whole pages of it.
const PAGE: u64 = 4096;

/// What was said, by ranges that do not overlap. A range of which nothing was said is not there.
#[derive(Debug, Default)]
pub(super) struct Hints {
    /// By the first byte: the end, and what holds up to there.
    ranges: BTreeMap<u64, (u64, Residency)>,
}

impl Hints {
    /// Changes what holds for the pages of a range.
    pub(super) fn set(&mut self, at: DevicePtr, bytes: u64, change: impl Fn(&mut Residency)) {
        let Range { start, end } = pages(at, bytes);
        self.cut_at(start);
        self.cut_at(end);
        let known: Vec<_> =
            self.ranges.range(start..end).map(|(&at, &(end, said))| (at, end, said)).collect();
        let mut next = start;
        for (at, until, said) in known {
            self.put(next..at, Residency::default(), &change);
            self.put(at..until, said, &change);
            next = until;
        }
        self.put(next..end, Residency::default(), &change);
    }

    /// Notes advice. Who uses the range is nothing that could be asked for.
    pub(super) fn advise(&mut self, at: DevicePtr, bytes: u64, advice: Advice) {
        match advice {
            Advice::ReadMostly(is) => self.set(at, bytes, |said| said.read_mostly = is),
            Advice::PreferredLocation(place) => self.set(at, bytes, |said| said.preferred = place),
            Advice::AccessedBy(..) => {}
        }
    }

    /// What holds for all pages of a range.
    pub(super) fn of(&self, at: DevicePtr, bytes: u64) -> Residency {
        let Range { start, end } = pages(at, bytes);
        let first = self.ranges.range(..=start).next_back().filter(|(_, (end, _))| *end > start);
        let Some((_, &(mut next, mut all))) = first else { return Residency::default() };
        for (&at, &(until, said)) in self.ranges.range(start + 1..end) {
            if at != next {
                return Residency::default();
            }
            all.last_prefetch = all.last_prefetch.filter(|_| all.last_prefetch == said.last_prefetch);
            all.preferred = all.preferred.filter(|_| all.preferred == said.preferred);
            all.read_mostly &= said.read_mostly;
            next = until;
        }
        if next < end { Residency::default() } else { all }
    }

    /// The memory is gone.
    pub(super) fn forget(&mut self, at: DevicePtr, bytes: u64) {
        self.set(at, bytes, |said| *said = Residency::default());
    }

    /// Lets a range end, and the next one start, at an address.
    fn cut_at(&mut self, at: u64) {
        if let Some((_, before)) = self.ranges.range_mut(..at).next_back()
            && before.0 > at
        {
            let after = std::mem::replace(&mut before.0, at);
            let said = before.1;
            self.ranges.insert(at, (after, said));
        }
    }

    fn put(&mut self, range: Range<u64>, mut said: Residency, change: impl Fn(&mut Residency)) {
        if range.is_empty() {
            return;
        }
        change(&mut said);
        if said == Residency::default() {
            self.ranges.remove(&range.start);
        } else {
            self.ranges.insert(range.start, (range.end, said));
        }
    }
}

/// The pages that have a byte of the range, of which there is one.
fn pages(at: DevicePtr, bytes: u64) -> Range<u64> {
    at.raw() / PAGE * PAGE..(at.raw() + bytes.max(1)).next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Place;

    const START: DevicePtr = DevicePtr::new(1 << 20);

    #[test]
    fn what_is_said_holds_for_whole_pages_and_for_no_others() {
        let mut hints = Hints::default();
        hints.advise(START.offset(PAGE + 1), PAGE, Advice::ReadMostly(true));
        let is_read_mostly = |page: u64| hints.of(START.offset(page * PAGE), 1).read_mostly;
        assert_eq!([0, 1, 2, 3].map(is_read_mostly), [false, true, true, false]);
        assert!(
            !hints.of(START, 2 * PAGE).read_mostly && !hints.of(START.offset(PAGE), 3 * PAGE).read_mostly
        );
        assert!(hints.of(START.offset(PAGE), 2 * PAGE).read_mostly);
    }

    #[test]
    fn a_range_has_what_all_its_pages_have() {
        let mut hints = Hints::default();
        hints.set(START, 8 * PAGE, |said| said.last_prefetch = Some(Place::Device));
        hints.advise(START.offset(2 * PAGE), 2 * PAGE, Advice::PreferredLocation(Some(Place::Host)));
        let both = Residency { preferred: Some(Place::Host), ..hints.of(START, 8 * PAGE) };
        assert_eq!(both.last_prefetch, Some(Place::Device));
        assert_eq!(
            (hints.of(START, 8 * PAGE).preferred, hints.of(START.offset(2 * PAGE), PAGE)),
            (None, both)
        );
        hints.set(START.offset(3 * PAGE), PAGE, |said| said.last_prefetch = Some(Place::Host));
        assert_eq!(hints.of(START, 8 * PAGE).last_prefetch, None);
        assert_eq!(hints.of(START, 3 * PAGE).last_prefetch, Some(Place::Device));
    }

    #[test]
    fn what_is_taken_back_or_gone_leaves_nothing() {
        let mut hints = Hints::default();
        for page in [0, 4, 2] {
            hints.advise(START.offset(page * PAGE), 2 * PAGE, Advice::ReadMostly(true));
        }
        hints.advise(START.offset(PAGE), 3 * PAGE, Advice::ReadMostly(false));
        assert_eq!(hints.ranges.len(), 2);
        hints.forget(START, 6 * PAGE);
        assert!(hints.ranges.is_empty());
    }
}
