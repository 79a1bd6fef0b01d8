//! Fences: for each stream, the tick to reach. Also used as a stream's vector clock.

use smallvec::SmallVec;

use super::{Tick, TimelineId};

/// A set of (timeline, tick), sorted by timeline, each timeline once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fence(SmallVec<[(TimelineId, Tick); INLINE]>);

/// Streams that a fence names without memory of its own.
const INLINE: usize = 2;

impl Clone for Fence {
    #[inline]
    fn clone(&self) -> Self {
        // What `SmallVec` derives pushes one by one.
        Self(match self.0[..] {
            [] => SmallVec::new(),
            [one] => SmallVec::from_buf_and_len([one; INLINE], 1),
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

    /// Whether it names this timeline, and no other.
    #[inline]
    pub(crate) fn is_only_of(&self, timeline: TimelineId) -> bool {
        matches!(self.0[..], [(of, _)] if of == timeline)
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
        // One after the other: there are few.
        self.0.iter().find(|entry| entry.0 == timeline).map_or(0, |entry| entry.1)
    }

    /// Makes the fence name at least `tick` for `timeline`.
    pub(crate) fn raise(&mut self, timeline: TimelineId, tick: Tick) {
        self.raise_from(0, timeline, tick);
    }

    /// As [`raise`](Self::raise), where what comes before `from` names earlier timelines only. Returns where the next
    /// one has its place.
    fn raise_from(&mut self, from: usize, timeline: TimelineId, tick: Tick) -> usize {
        let mut at = from;
        while let Some(entry) = self.0.get_mut(at).filter(|entry| entry.0 <= timeline) {
            at += 1;
            if entry.0 == timeline {
                entry.1 = entry.1.max(tick);
                return at;
            }
        }
        self.0.insert(at, (timeline, tick));
        at + 1
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
            // Both are sorted: so is what is left to be looked at.
            _ => {
                let raise = |from, (timeline, tick)| self.raise_from(from, timeline, tick);
                other.iter().fold(0, raise);
            }
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
