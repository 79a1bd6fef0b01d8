//! Fences: for each stream, the tick to reach. Also used as a stream's vector clock.

use smallvec::{SmallVec, smallvec};

use crate::policy::streams::NAMED_INLINE;

/// A point on a timeline. Tick 0 is before everything.
pub(crate) type Tick = u64;

/// Names a timeline. Slots are recycled. A generation comes again after 2^32 timelines, when nothing names the first any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TimelineId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// The work that some fence named is complete. Made by [`Fence::reached`] and `Timelines::reached` only. What must not happen
/// before a fence is reached asks for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reached(());

/// A set of (timeline, tick), sorted by timeline, each timeline once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fence(SmallVec<[(TimelineId, Tick); NAMED_INLINE]>);

impl Clone for Fence {
    #[inline]
    fn clone(&self) -> Self {
        // What `SmallVec` derives pushes one by one.
        Self(SmallVec::from_slice(&self.0))
    }

    /// Within the room that there is: to cut an extent takes no memory that was not [set aside](Fence::make_room).
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
        Self(smallvec![(timeline, tick)])
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Proof that it is reached, of one that names no stream.
    #[inline]
    pub(crate) fn reached(&self) -> Option<Reached> {
        self.reached_if(|_, _| false)
    }

    /// Proof that it is reached, where `is_complete` says so of each stream's tick.
    #[inline]
    pub(super) fn reached_if(
        &self,
        mut is_complete: impl FnMut(TimelineId, Tick) -> bool,
    ) -> Option<Reached> {
        self.iter().all(|(id, tick)| is_complete(id, tick)).then_some(Reached(()))
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
        self.place_of(timeline).map_or(0, |at| self.0[at].1)
    }

    fn place_of(&self, timeline: TimelineId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&timeline, |entry| entry.0)
    }

    /// Makes the fence name at least `tick` for `timeline`.
    pub(crate) fn raise(&mut self, timeline: TimelineId, tick: Tick) {
        match self.place_of(timeline) {
            Ok(at) => self.0[at].1 = self.0[at].1.max(tick),
            Err(at) => self.0.insert(at, (timeline, tick)),
        }
    }

    /// Takes the later tick per stream: by searches, since what is long is joined with what names few.
    #[inline]
    pub(crate) fn join(&mut self, other: &Self) {
        match (&mut self.0[..], &other.0[..]) {
            // Nearly always.
            (mine, theirs) if same_streams(mine, theirs) => {
                mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| mine.1 = mine.1.max(theirs.1));
            }
            _ => other.iter().for_each(|(timeline, tick)| self.raise(timeline, tick)),
        }
    }

    /// Whether a fence of so many streams has memory of its own.
    #[inline]
    pub(crate) fn would_be_long(streams: usize) -> bool {
        streams > NAMED_INLINE
    }

    /// A copy with room for one stream more; `None` where the host has no memory for it.
    pub(crate) fn try_clone_to_raise(&self) -> Option<Self> {
        if self.0.len() < NAMED_INLINE {
            return Some(self.clone());
        }
        let mut copy = Self::empty();
        copy.0.try_reserve_exact(self.0.len() + 1).ok()?;
        copy.0.extend_from_slice(&self.0);
        Some(copy)
    }

    /// Reserves host memory for so many more streams; `false` where the host refuses it.
    pub(crate) fn make_room(&mut self, more: usize) -> bool {
        self.0.try_reserve(more).is_ok()
    }

    /// Reserves host memory to [join](Self::join) the other; `false` where the host refuses it.
    pub(crate) fn make_room_to_join(&mut self, other: &Self) -> bool {
        self.same_streams(other) || self.make_room(other.len())
    }

    /// As [`join`](Self::join); `false`, and nothing done, where the host has no memory for it.
    pub(crate) fn try_join(&mut self, other: &Self) -> bool {
        let has_room = self.make_room_to_join(other);
        if has_room {
            self.join(other);
        }
        has_room
    }

    /// Moves each entry to another tick; drops those without one.
    pub(crate) fn update(&mut self, mut tick: impl FnMut(TimelineId, Tick) -> Option<Tick>) {
        self.0.retain(|entry| {
            let now = tick(entry.0, entry.1);
            entry.1 = now.unwrap_or(entry.1);
            now.is_some()
        });
    }

    /// Whether both name the same streams, at whatever ticks.
    #[inline]
    pub(crate) fn same_streams(&self, other: &Self) -> bool {
        same_streams(&self.0, &other.0)
    }

    /// Keeps only the entries for which `keep` holds.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(TimelineId, Tick) -> bool) {
        note_looks(self.len());
        self.0.retain(|entry| keep(entry.0, entry.1));
    }
}

#[cfg(test)]
thread_local! {
    /// Entries that this thread looked at one after the other: what fences of many streams cost.
    pub(crate) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[inline]
fn note_looks(_entries: usize) {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + _entries);
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
    fn joining_agrees_with_raising_one_by_one() {
        let made = |slots: &[u32]| {
            let mut fence = Fence::empty();
            slots.iter().for_each(|slot| fence.raise(id(*slot), u64::from(slot * 7 % 5)));
            fence
        };
        let sets: [&[u32]; 7] = [
            &[],
            &[4],
            &[1, 2],
            &[2, 4, 6],
            &[0, 1, 2, 3, 9],
            &[5, 7, 8],
            &[9, 8, 7, 6, 5, 4, 3, 2, 1, 10, 20],
        ];
        for (a, b) in sets.iter().flat_map(|a| sets.iter().map(move |b| (a, b))) {
            let (mut joined, mut raised) = (made(a), made(a));
            let other = Fence(made(b).iter().map(|(id, tick)| (id, tick + 1)).collect());
            joined.join(&other);
            other.iter().for_each(|(id, tick)| raised.raise(id, tick));
            assert_eq!(joined, raised, "{a:?} and {b:?}");
            assert!(joined.0.is_sorted_by(|a, b| a.0 < b.0));
        }
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
