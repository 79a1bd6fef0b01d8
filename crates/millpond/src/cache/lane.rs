//! What one thread caches of one stream: a magazine per size class.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::growth::Growth;
use super::magazine::{Item, Magazine};
use super::sizes::{MAGAZINES, MagazineIndex};
use super::strays::Strays;
use crate::arena::Place;
use crate::order::{StreamKey, Timeline, TimelineId};

/// What is remembered of blocks that a magazine did not have.
///
/// Of exact sizes: what became of the last one that had no room. A large block is better off in the arena, where it
/// coalesces, unless just its size is wanted again soon: so such a magazine earns its room.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Ghost {
    /// The block's length in bytes.
    bytes: u64,
    /// Blocks of that length that had no room, one after the other.
    run: u32,
    /// Requests in a row that a block would have served that had no room.
    regrets: u32,
    /// Blocks that were borrowed from longer classes in a row.
    borrowed: u32,
    /// What the thread had allocated by the last of them.
    borrowed_at: u64,
}

/// Blocks of one length, freed one after the other, from which on it is worth keeping them: a thread that only
/// frees brings them to the depot for those who allocate.
const LONG_RUN: u32 = 32;

/// Requests in a row that had to ask the arena for what they had just given it, from which on it is worth keeping. Each
/// block that lies in a magazine breaks up what the arena has in one piece: with room for whatever is missed twice,
/// recorded jobs hold 0.3 % more (docs/pages.md).
pub(super) const MANY_REGRETS: u32 = 16;

/// Blocks that a class borrows in a row before it should have one of its own. A loop would go on borrowing: what is borrowed
/// goes back to where it came from.
const MOST_BORROWED: u32 = 64;

/// Allocations, of whatever size, between two that are in a row.
const IN_A_ROW: u64 = 4;

impl Ghost {
    const NEW: Self = Self { bytes: 0, run: 0, regrets: 0, borrowed: 0, borrowed_at: 0 };

    /// A block of this length found no room; returns whether there should be some.
    pub(super) fn note_free(&mut self, bytes: u64) -> bool {
        self.run = if self.bytes == bytes { self.run + 1 } else { 1 };
        self.bytes = bytes;
        self.run >= LONG_RUN
    }

    /// The class has no block, after so many allocations by the thread; returns whether it may borrow one.
    pub(super) fn may_borrow(&mut self, allocations: u64) -> bool {
        let is_in_a_row = allocations - self.borrowed_at <= IN_A_ROW;
        self.borrowed = if is_in_a_row { self.borrowed + 1 } else { 1 };
        self.borrowed_at = allocations;
        self.borrowed <= MOST_BORROWED
    }

    /// A block of this length was not found; returns whether there should be room for it: the last ones that had none would
    /// have been what was asked for.
    pub(super) fn note_alloc(&mut self, bytes: u64) -> bool {
        let regretted = self.bytes == bytes;
        self.regrets = if regretted { (self.regrets + 1).min(MANY_REGRETS) } else { 0 };
        (self.bytes, self.run) = (0, 0);
        self.regrets == MANY_REGRETS
    }
}

/// The magazines of a lane.
#[derive(Debug)]
pub(super) struct Magazines {
    all: [Magazine; MAGAZINES],
    ghosts: [Ghost; MAGAZINES],
    growths: [Growth; MAGAZINES],
    /// A bit for each magazine that may hold blocks, so that taking all back need not look at the many others.
    with_room: [u64; MAGAZINES.div_ceil(64)],
}

impl Magazines {
    /// A constant, since it is long: what is computed is put together elsewhere, and copied.
    const NEW: Self = Self {
        all: [const { Magazine::NEW }; _],
        ghosts: [Ghost::NEW; _],
        growths: [Growth::NEW; _],
        with_room: [0; _],
    };

    #[inline]
    pub(super) fn magazine(&mut self, index: MagazineIndex) -> &mut Magazine {
        let first = NonNull::from(&mut self.all).cast::<Magazine>();
        // SAFETY: an index of this type is less than `MAGAZINES`.
        unsafe { first.byte_add(index.place()).as_mut() }
    }

    /// What is remembered of blocks that the magazine did not have.
    #[inline]
    pub(super) fn ghost(&mut self, index: MagazineIndex) -> &mut Ghost {
        // SAFETY: as in `magazine`.
        unsafe { self.ghosts.get_unchecked_mut(index.number()) }
    }

    /// Whether the large blocks grow that one of so many bytes, which is asked for, would lie among.
    pub(super) fn grows(&mut self, index: MagazineIndex, bytes: u64) -> bool {
        let last = self.magazine(index).top().map(|item| item.entry().requested());
        self.growths[index.number()].note_alloc(bytes, last)
    }

    /// A block of the magazine was freed, in which so many bytes were asked for.
    pub(super) fn note_free(&mut self, index: MagazineIndex, requested: u64) {
        self.growths[index.number()].note_free(requested);
    }

    fn note_room(&mut self, index: MagazineIndex) {
        self.with_room[index.number() / 64] |= 1 << (index.number() % 64);
    }

    /// Calls `each` with every magazine whose number is in the range and that may hold blocks.
    fn for_each(&mut self, range: Range<usize>, mut each: impl FnMut(&mut Magazine)) {
        for (number, word) in self.with_room.iter_mut().enumerate().skip(range.start / 64) {
            if *word == 0 {
                continue;
            }
            let mut rest = *word & bits_of(number, &range);
            while rest != 0 {
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                let magazine = &mut self.all[number * 64 + bit as usize];
                each(magazine);
                if magazine.room() == 0 {
                    *word &= !(1 << bit);
                }
            }
        }
    }
}

/// Those bits of a word, of many in a row, that stand for numbers in the range.
fn bits_of(word: usize, range: &Range<usize>) -> u64 {
    let below = |end: usize| match end.saturating_sub(word * 64) {
        count @ 0..64 => (1 << count) - 1,
        _ => u64::MAX,
    };
    below(range.end) & !below(range.start)
}

/// What one thread caches of one stream: a magazine per size class.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// [`Timeline::serial`] of the stream; 0 for none.
    serial: u64,
    /// There where there is a stream. A raw pointer owns them, since the gate knows it too, and a `Box` would claim
    /// that there is no other way to them.
    magazines: Option<NonNull<Magazines>>,
    /// What the stream's timeline is called.
    of: Option<TimelineId>,
}

// SAFETY: a lane owns its magazines, of which nothing is bound to a thread.
unsafe impl Send for Lane {}

impl Lane {
    /// The magazines, of a lane that has a stream.
    fn magazines(&mut self) -> Option<&mut Magazines> {
        // SAFETY: the lane's own, until it is dropped. Who has the lane has them: the gate leads to one of the two.
        self.magazines.map(|mut magazines| unsafe { magazines.as_mut() })
    }

    /// The lane's own.
    fn seen(&self) -> Option<&Magazines> {
        // SAFETY: as in `magazines`.
        self.magazines.map(|magazines| unsafe { magazines.as_ref() })
    }

    /// Empties the magazines.
    fn drain(&mut self, strays: &Strays, mut each: impl FnMut(TimelineId, Item)) {
        let (Some(of), Some(magazines)) = (self.of, self.magazines()) else { return };
        magazines.for_each(0..MAGAZINES, |magazine| {
            let place = magazine.place();
            magazine.give_up_all(|item| strays.sort_out(item, place, |item| each(of, item)));
        });
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(magazines) = self.magazines {
            // SAFETY: the pointer came from `Box::into_raw` (`add_slow`), and is given up here only.
            drop(unsafe { Box::from_raw(magazines.as_ptr()) });
        }
    }
}

/// The lanes of one thread in one pool, by the timelines' slots.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    strays: Arc<Strays>,
    /// Bytes that the magazines may hold together, if each holds as many blocks as it may.
    granted: u64,
    /// The part of that in magazines of large blocks.
    granted_large: u64,
    /// What the magazines of small blocks held when that was last counted.
    pub(super) small: Counted,
}

/// Bytes that were counted, and how many blocks the thread had freed by then.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counted {
    pub(super) bytes: u64,
    pub(super) frees: u64,
}

/// What bounds the room of a magazine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Bytes of the longest block that it may hold.
    pub(super) longest: u64,
    /// Whether it is for large blocks.
    pub(super) is_large: bool,
    /// Bytes that all magazines of the thread may hold together.
    pub(super) limit: u64,
    pub(super) in_haste: bool,
}

impl Lanes {
    pub(super) fn new(strays: Arc<Strays>) -> Self {
        Self { lanes: Vec::new(), strays, granted: 0, granted_large: 0, small: Counted::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.lanes.len()
    }

    /// The magazines of a stream, if it has a lane.
    pub(super) fn of(&mut self, stream: StreamKey) -> Option<&mut Magazines> {
        self.lanes.get_mut(stream.slot).filter(|lane| lane.serial == stream.serial)?.magazines()
    }

    /// The magazines of a stream, if it has a lane, which they stay in as long as there are lanes.
    pub(super) fn of_stream(&self, stream: StreamKey) -> Option<NonNull<Magazines>> {
        let lane = self.lanes.get(stream.slot)?;
        if lane.serial == stream.serial { lane.magazines } else { None }
    }

    /// The magazines of every lane, and which stream's they are.
    pub(super) fn all(&self) -> impl Iterator<Item = (StreamKey, NonNull<Magazines>)> {
        self.lanes
            .iter()
            .zip(0..)
            .filter_map(|(lane, slot)| Some((StreamKey { serial: lane.serial, slot }, lane.magazines?)))
    }

    /// The magazines of a stream, made if need be. A lane of a stream that is gone and had the same slot is
    /// emptied: its blocks are given to `each`.
    #[inline]
    pub(super) fn of_or_add(
        &mut self,
        timeline: &Timeline,
        each: impl FnMut(TimelineId, Item),
    ) -> &mut Magazines {
        let slot = timeline.id.slot as usize;
        if self.lanes.get(slot).is_none_or(|lane| lane.serial != timeline.serial) {
            self.add_slow(timeline, each);
        }
        self.lanes[slot].magazines().expect("a lane of a stream has magazines")
    }

    #[cold]
    fn add_slow(&mut self, timeline: &Timeline, each: impl FnMut(TimelineId, Item)) {
        let slot = timeline.id.slot as usize;
        if self.lanes.len() <= slot {
            self.lanes.resize_with(slot + 1, Lane::default);
        }
        let lane = &mut self.lanes[slot];
        lane.drain(&self.strays, each);
        lane.magazines.get_or_insert_with(|| NonNull::from(Box::leak(Box::new(Magazines::NEW))));
        (lane.serial, lane.of) = (timeline.serial, Some(timeline.id));
    }

    /// Lets a full magazine of a lane that is there hold more blocks, if that may be. Returns whether there is room
    /// now.
    pub(super) fn grant(&mut self, stream: StreamKey, magazine: MagazineIndex, bounds: &Bounds) -> bool {
        let Bounds { longest: bytes, is_large, limit, in_haste } = *bounds;
        let left = limit.saturating_sub(self.granted) / bytes;
        let Some(magazines) = self.of(stream) else { return false };
        magazines.note_room(magazine);
        let magazine = magazines.magazine(magazine);
        let more = magazine.next_room(bytes, in_haste).saturating_sub(magazine.room());
        let more = more.min(usize::try_from(left).unwrap_or(usize::MAX));
        magazine.set_room(magazine.room() + more);
        let has_room = !magazine.is_full();
        self.granted += more as u64 * bytes;
        if is_large {
            self.granted_large += more as u64 * bytes;
        }
        has_room
    }

    /// Empties the magazines from `from` on of every lane. What those of large blocks held in vain, they may hold no
    /// more. `large` gives the longest length in the magazine of a large block, and `None` for a small one.
    pub(super) fn drain(
        &mut self,
        from: MagazineIndex,
        large: impl Fn(u64) -> Option<u64>,
        mut each: impl FnMut(TimelineId, Item),
    ) {
        for lane in &mut self.lanes {
            if let (Some(of), Some(magazines)) = (lane.of, lane.magazines()) {
                magazines.for_each(from.number()..MAGAZINES, |magazine| {
                    if magazine.is_empty() {
                        return;
                    }
                    let place = magazine.place();
                    let is_here = |item: &&Item| item.entry().is_in(place);
                    let longest = magazine.items().iter().find(is_here).and_then(|item| large(item.bytes()));
                    let less = magazine.len();
                    magazine.give_up_all(|item| self.strays.sort_out(item, place, |item| each(of, item)));
                    if let Some(longest) = longest {
                        magazine.set_room(magazine.room() - less);
                        self.granted -= less as u64 * longest;
                        self.granted_large -= less as u64 * longest;
                    }
                });
            }
        }
    }

    /// Takes back every grant; the lanes are empty.
    pub(super) fn revoke_grants(&mut self) {
        (self.granted, self.granted_large) = (0, 0);
        for magazines in self.lanes.iter_mut().filter_map(Lane::magazines) {
            magazines.for_each(0..MAGAZINES, |magazine| {
                debug_assert!(magazine.is_empty());
                magazine.set_room(0);
            });
        }
    }

    /// Bytes that the magazines before `end` hold, if the blocks of each are as long as they can be beside its first.
    pub(super) fn held_below(&mut self, end: MagazineIndex, longest: impl Fn(u64) -> u64) -> u64 {
        let mut held = 0;
        for magazines in self.lanes.iter_mut().filter_map(Lane::magazines) {
            magazines.for_each(0..end.number(), |magazine| {
                let bytes = magazine.items().first().map_or(0, |item| longest(item.bytes()));
                held += bytes * magazine.len() as u64;
            });
        }
        held
    }

    /// Every block held, and where.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, &Item)> {
        let magazines = self.lanes.iter().filter_map(Lane::seen).flat_map(|magazines| &magazines.all);
        magazines.flat_map(|magazine| magazine.items().iter().map(|item| (magazine.place(), item)))
    }

    /// Bytes that may be held.
    pub(super) fn granted(&self) -> u64 {
        self.granted
    }

    /// The part of that in magazines of large blocks.
    pub(super) fn granted_large(&self) -> u64 {
        self.granted_large
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_that_is_empty_now_and_then_borrows_and_one_in_a_loop_gets_its_own() {
        let mut ghost = Ghost::default();
        assert!((1..1000).all(|step| ghost.may_borrow(step * 100)));
        let mut in_a_loop = (100_000..).map(|allocations| ghost.may_borrow(allocations));
        assert_eq!(in_a_loop.position(|may_borrow| !may_borrow), Some(MOST_BORROWED as usize));
    }
}
