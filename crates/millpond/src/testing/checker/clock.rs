//! Vector clocks: how far each stream's work is known to have come.

use smallvec::SmallVec;

/// Numbers the work given to one stream, from 1.
pub(super) type Tick = u64;

/// Tells the devices of a group apart: the number in their names there; 0 for a device without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct DeviceNumber(pub(super) u32);

/// Names a stream for ever; handles are recycled, keys are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct StreamKey(pub(super) u32);

/// One piece of work: the stream it was given to, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) stream: StreamKey,
    pub(super) tick: Tick,
}

/// For each stream, the tick up to which its work is ordered before something. Dense: a test has few streams.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Clock(Vec<Tick>);

impl Clock {
    pub(super) fn tick_of(&self, stream: StreamKey) -> Tick {
        self.0.get(stream.0 as usize).copied().unwrap_or(0)
    }

    pub(super) fn raise(&mut self, work: Work) {
        let at = work.stream.0 as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] = self.0[at].max(work.tick);
    }

    pub(super) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    pub(super) fn covers(&self, work: Work) -> bool {
        self.tick_of(work.stream) >= work.tick
    }
}

/// The last use on each stream. An earlier use on the same stream is ordered before, so it needs no entry.
#[derive(Debug, Clone, Default)]
pub(super) struct Uses(SmallVec<[Work; 2]>);

impl Uses {
    pub(super) fn add(&mut self, work: Work) {
        match self.0.iter_mut().find(|known| known.stream == work.stream) {
            Some(known) => known.tick = known.tick.max(work.tick),
            None => self.0.push(work),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Work> + '_ {
        self.0.iter().copied()
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(Work) -> bool) {
        self.0.retain(|work| keep(*work));
    }
}
