//! Fences: for each stream, the tick to reach. Also used as a stream's vector clock.

use smallvec::SmallVec;

use super::{Tick, TimelineId};

/// A set of (timeline, tick), sorted by timeline, each timeline once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fence(SmallVec<[(TimelineId, Tick); 4]>);

impl Clone for Fence {
    #[inline]
    fn clone(&self) -> Self {
        // What `SmallVec` derives pushes one by one.
        Self(match self.0[..] {
            [] => SmallVec::new(),
            [one] => SmallVec::from_buf_and_len([one; 4], 1),
            ref several => SmallVec::from_slice(several),
        })
    }

    #[inline]
    fn clone_from(&mut self, other: &Self) {
        match (&mut self.0[..], &other.0[..]) {
            // Nearly always.
            ([mine], [theirs]) => *mine = *theirs,
            _ => {
                self.0.clear();
                self.0.extend_from_slice(&other.0);
            }
        }
    }
}

impl Fence {
    /// The fence that is always reached.
    pub(crate) fn empty() -> Self {
        Self(SmallVec::new())
    }

    /// The fence of one stream's tick.
    pub(crate) fn at(timeline: TimelineId, tick: Tick) -> Self {
        let mut entries = SmallVec::new();
        entries.push((timeline, tick));
        Self(entries)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many streams it names.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TimelineId, Tick)> + '_ {
        self.0.iter().copied()
    }

    /// The tick named for `timeline`, or 0, which every timeline has reached.
    pub(crate) fn tick_of(&self, timeline: TimelineId) -> Tick {
        match self.0.binary_search_by_key(&timeline, |entry| entry.0) {
            Ok(at) => self.0[at].1,
            Err(_) => 0,
        }
    }

    /// Makes the fence name at least `tick` for `timeline`.
    pub(crate) fn raise(&mut self, timeline: TimelineId, tick: Tick) {
        // One after the other: there are few.
        let at = self.0.iter().position(|entry| entry.0 >= timeline).unwrap_or(self.0.len());
        match self.0.get_mut(at) {
            Some(entry) if entry.0 == timeline => entry.1 = entry.1.max(tick),
            _ => self.0.insert(at, (timeline, tick)),
        }
    }

    /// Takes the later tick per stream.
    #[inline]
    pub(crate) fn join(&mut self, other: &Self) {
        match (&mut self.0[..], &other.0[..]) {
            // Nearly always.
            ([mine], [theirs]) if mine.0 == theirs.0 => mine.1 = mine.1.max(theirs.1),
            (mine, theirs) if same_streams(mine, theirs) => {
                mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| mine.1 = mine.1.max(theirs.1));
            }
            _ => other.iter().for_each(|(timeline, tick)| self.raise(timeline, tick)),
        }
    }

    /// Whether both name the same streams, at whatever ticks.
    #[inline]
    pub(crate) fn same_streams(&self, other: &Self) -> bool {
        match (&self.0[..], &other.0[..]) {
            // Nearly always.
            ([mine], [theirs]) => mine.0 == theirs.0,
            (mine, theirs) => same_streams(mine, theirs),
        }
    }

    /// Keeps only the entries for which `keep` holds.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(TimelineId, Tick) -> bool) {
        self.0.retain(|entry| keep(entry.0, entry.1));
    }
}

fn same_streams(mine: &[(TimelineId, Tick)], theirs: &[(TimelineId, Tick)]) -> bool {
    mine.len() == theirs.len() && mine.iter().zip(theirs).all(|(a, b)| a.0 == b.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(slot: u32) -> TimelineId {
        TimelineId { slot, generation: 0 }
    }

    #[test]
    fn joining_takes_the_later_tick_per_stream() {
        let mut a = Fence::at(id(1), 5);
        a.raise(id(3), 2);
        let mut b = Fence::at(id(3), 7);
        b.raise(id(2), 1);
        b.raise(id(1), 4);
        a.join(&b);
        assert_eq!(a.iter().collect::<Vec<_>>(), [(id(1), 5), (id(2), 1), (id(3), 7)]);
        assert_eq!(a.tick_of(id(9)), 0);
    }

    #[test]
    fn a_recycled_slot_is_another_timeline() {
        let old = TimelineId { slot: 1, generation: 0 };
        let new = TimelineId { slot: 1, generation: 1 };
        let fence = Fence::at(old, 3);
        assert_eq!(fence.tick_of(new), 0);
        assert!(!fence.same_streams(&Fence::at(new, 3)));
    }
}
