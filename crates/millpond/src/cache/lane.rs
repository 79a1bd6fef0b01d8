//! What one thread caches of one stream: a magazine per size class.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::gate::Behind;
use super::growth::Growth;
use super::magazine::{Buffer, Item, Magazine, Open, STRIDE};
use super::sizes::{MAGAZINES, MagazineIndex};
use super::strays::Strays;
use crate::extents::Place;
use crate::host::{shrink, try_box};
use crate::order::{StreamKey, Timeline, TimelineId};

/// What is remembered of blocks that a magazine did not have.
///
/// Of exact sizes: what became of the last one that had no room. A large block is better off in the arena, where it
/// coalesces, unless just its size is wanted again soon: so such a magazine earns its room.
#[derive(Debug, Clone, Copy)]
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
///
/// What the fast path reads comes first, and is as short as can be; what else there is to know of a magazine has a
/// record, once it is asked for.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Magazines {
    /// [`Timeline::serial`] of the stream. The first field, since the sentinel has no other.
    serial: u64,
    all: [Magazine; MAGAZINES],
    /// By rising numbers of magazines. A magazine that has none is without room.
    records: Vec<Record>,
    /// One more than the place of each magazine's record; 0 for none.
    record_of: [u16; MAGAZINES],
}

/// What else there is to know of a magazine.
#[derive(Debug)]
struct Record {
    number: usize,
    buffer: Buffer,
    /// Bytes of the longest block that the magazine may hold; 0 as long as it had no room.
    longest: u64,
    /// Whether that is a large one.
    is_large: bool,
    ghost: Ghost,
    growth: Growth,
}

/// A magazine with all that is known of it.
#[derive(Debug)]
pub(super) struct Known<'a> {
    /// Itself.
    pub(super) magazine: Open<'a>,
    /// What is remembered of blocks that it did not have.
    pub(super) ghost: &'a mut Ghost,
    pub(super) growth: &'a mut Growth,
    longest: &'a mut u64,
    is_large: &'a mut bool,
}

/// The serial number of [`Magazines::closed`].
static NO_STREAM: u64 = 0;

impl Behind for Magazines {
    #[inline]
    unsafe fn serial(lane: NonNull<Self>) -> u64 {
        // SAFETY: the caller's promise. Both a lane and the sentinel begin with the number.
        unsafe { lane.cast::<u64>().read() }
    }

    fn closed() -> NonNull<Self> {
        NonNull::from(&NO_STREAM).cast()
    }
}

impl Magazines {
    /// Of no stream, and without room. A constant, since it is long: what is computed is put together elsewhere, and
    /// copied.
    const NEW: Self =
        Self { serial: 0, all: [const { Magazine::NEW }; _], records: Vec::new(), record_of: [0; _] };

    #[inline]
    pub(super) fn magazine(&mut self, index: MagazineIndex) -> &mut Magazine {
        const { assert!(std::mem::offset_of!(Self, all) == STRIDE, "places count from the lane's start") };
        let start = NonNull::from(self).cast::<Magazine>();
        // SAFETY: an index of this type names one of the magazines.
        unsafe { start.byte_add(index.place()).as_mut() }
    }

    /// The magazine with all that is known of it; `None` where the host has no memory to note that.
    #[inline]
    pub(super) fn known(&mut self, index: MagazineIndex) -> Option<Known<'_>> {
        let number = index.number();
        let place = match self.record_of[number] {
            0 => self.add_record_slow(number)?,
            more => usize::from(more) - 1,
        };
        Some(self.records[place].with(&mut self.all))
    }

    #[cold]
    fn add_record_slow(&mut self, number: usize) -> Option<usize> {
        self.records.try_reserve(1).ok()?;
        let place = self.records.partition_point(|record| record.number < number);
        self.records.insert(place, Record::new(number));
        self.note_places(place);
        Some(place)
    }

    /// Notes where the records are from this one on.
    fn note_places(&mut self, from: usize) {
        for (place, record) in self.records.iter().enumerate().skip(from) {
            self.record_of[record.number] = place as u16 + 1;
        }
    }

    /// Calls `each` with every magazine whose number is in the range and that was ever asked for.
    fn for_each(&mut self, range: Range<usize>, mut each: impl FnMut(Known<'_>)) {
        let first = self.records.partition_point(|record| record.number < range.start);
        for record in &mut self.records[first..] {
            if record.number >= range.end {
                break;
            }
            each(record.with(&mut self.all));
        }
    }

    /// Every block held, and where.
    fn items(&self) -> impl Iterator<Item = (Place, &Item)> {
        self.records.iter().flat_map(|record| {
            let magazine = &self.all[record.number];
            // SAFETY: the buffer is the magazine's with the record's number.
            let items = unsafe { record.buffer.items(magazine) };
            items.iter().map(|item| (magazine.place(), item))
        })
    }
}

impl Record {
    fn new(number: usize) -> Self {
        let (ghost, growth) = (Ghost::NEW, Growth::NEW);
        Self { number, buffer: Buffer::NEW, longest: 0, is_large: false, ghost, growth }
    }

    /// The magazine, one of these, and what is known of it.
    fn with<'a>(&'a mut self, all: &'a mut [Magazine; MAGAZINES]) -> Known<'a> {
        // SAFETY: the buffer was made for it, or is that of no room at all, as a magazine's is at first.
        let magazine = unsafe { Open::new(&mut all[self.number], &mut self.buffer) };
        let Self { longest, is_large, ghost, growth, .. } = self;
        Known { magazine, ghost, growth, longest, is_large }
    }

    /// Bytes that the magazine may hold.
    fn granted(&self) -> u64 {
        self.buffer.room() as u64 * self.longest
    }
}

/// What one thread caches of one stream: a magazine per size class.
#[derive(Debug)]
struct Lane {
    /// The timeline's.
    slot: usize,
    /// [`Timeline::serial`] of the stream.
    serial: u64,
    /// What the stream's timeline is called.
    of: TimelineId,
    /// There while the lane is in use. A raw pointer owns them, since the gate knows it too, and a `Box` would claim that
    /// there is no other way to them.
    magazines: Option<NonNull<Magazines>>,
    /// What is known of the magazines, which are empty, while they are not there.
    parked: Vec<Record>,
}

// SAFETY: a lane owns its magazines, of which nothing is bound to a thread.
unsafe impl Send for Lane {}

impl Lane {
    /// The magazines, while the lane is in use.
    fn magazines(&mut self) -> Option<&mut Magazines> {
        // SAFETY: the lane's own, until it is dropped. Who has the lane has them: the gate leads to one of the two.
        self.magazines.map(|mut magazines| unsafe { magazines.as_mut() })
    }

    /// The lane's own.
    fn seen(&self) -> Option<&Magazines> {
        // SAFETY: as in `magazines`.
        self.magazines.map(|magazines| unsafe { magazines.as_ref() })
    }

    /// The records, wherever they are.
    fn records(&self) -> &[Record] {
        self.seen().map_or(&self.parked, |magazines| &magazines.records)
    }

    /// Empties the magazines.
    fn drain(&mut self, strays: &Strays, mut each: impl FnMut(TimelineId, Item)) {
        let of = self.of;
        if let Some(magazines) = self.magazines() {
            magazines.for_each(0..MAGAZINES, |mut known| {
                let place = known.magazine.place();
                known.magazine.give_up_all(|item| strays.sort_out(item, place, |item| each(of, item)));
            });
        }
    }

    /// The magazines, with what was known of them if they are not there; `None` where the host has no memory for them.
    #[inline]
    fn unpark(&mut self) -> Option<&mut Magazines> {
        if self.magazines.is_none() {
            self.unpark_slow();
        }
        let serial = self.serial;
        let magazines = self.magazines()?;
        // A door may lead to them: that of the calling thread, which is outside.
        magazines.serial = serial;
        Some(magazines)
    }

    #[cold]
    fn unpark_slow(&mut self) {
        let records = std::mem::take(&mut self.parked);
        self.magazines = try_box(Magazines::NEW);
        match self.magazines() {
            Some(magazines) => {
                magazines.records = records;
                magazines.note_places(0);
            }
            None => self.parked = records,
        }
    }

    /// Gives back the memory of the magazines, which are empty, but for what is known of them.
    fn park(&mut self) {
        let Some(magazines) = self.magazines() else { return };
        magazines.for_each(0..MAGAZINES, |mut known| known.magazine.stow());
        let mut records = std::mem::take(&mut magazines.records);
        shrink(&mut records, 0);
        self.parked = records;
        self.free();
    }

    fn free(&mut self) {
        if let Some(magazines) = self.magazines.take() {
            // SAFETY: the pointer came from `try_box` (`unpark`), and is given up here only. No owner has it: it is
            // outside, and its doors are closed, or it is the calling thread.
            drop(unsafe { Box::from_raw(magazines.as_ptr()) });
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.free();
    }
}

/// The lanes of one thread in one pool.
#[derive(Debug)]
pub(super) struct Lanes {
    /// By the timelines' slots.
    lanes: Vec<Lane>,
    /// Where the lane lies that was used last: each request asks for it several times.
    last: usize,
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
        Self { lanes: Vec::new(), last: 0, strays, granted: 0, granted_large: 0, small: Counted::default() }
    }

    #[inline]
    fn place_of(&self, slot: usize) -> Result<usize, usize> {
        if self.lanes.get(self.last).is_some_and(|lane| lane.slot == slot) {
            return Ok(self.last);
        }
        self.lanes.binary_search_by_key(&slot, |lane| lane.slot)
    }

    /// The magazines of a stream, if it has a lane. By the owner.
    pub(super) fn of(&mut self, stream: StreamKey) -> Option<&mut Magazines> {
        let place = self.place_of(stream.slot).ok()?;
        let lane = &mut self.lanes[place];
        if lane.serial == stream.serial { lane.unpark() } else { None }
    }

    /// The magazines of a stream, if it has a lane in use. They stay until the lane is taken in hand: by
    /// [`of_or_add`](Self::of_or_add) for another stream, [`give_back`](Self::give_back) or [`clear`](Self::clear).
    pub(super) fn of_stream(&self, stream: StreamKey) -> Option<NonNull<Magazines>> {
        let lane = &self.lanes[self.place_of(stream.slot).ok()?];
        if lane.serial == stream.serial { lane.magazines } else { None }
    }

    /// The magazines of every lane, and which stream's they are.
    pub(super) fn all(&self) -> impl Iterator<Item = (StreamKey, NonNull<Magazines>)> {
        let of = |lane: &Lane| {
            let (serial, slot) = (lane.serial, lane.slot);
            Some((StreamKey { serial, slot }, lane.magazines?))
        };
        self.lanes.iter().filter_map(of)
    }

    /// The magazines of a stream, made if need be; `None` where the host has no memory for them. A lane of a stream that
    /// is gone and had the same slot is emptied: its blocks are given to `each`.
    #[inline]
    pub(super) fn of_or_add(
        &mut self,
        timeline: &Timeline,
        each: impl FnMut(TimelineId, Item),
    ) -> Option<&mut Magazines> {
        let place = match self.place_of(timeline.id.slot as usize) {
            Ok(place) if self.lanes[place].serial == timeline.serial => place,
            _ => self.add_slow(timeline, each)?,
        };
        self.last = place;
        self.lanes[place].unpark()
    }

    #[cold]
    fn add_slow(&mut self, timeline: &Timeline, each: impl FnMut(TimelineId, Item)) -> Option<usize> {
        let slot = timeline.id.slot as usize;
        let (serial, of) = (timeline.serial, timeline.id);
        let place = match self.place_of(slot) {
            Ok(place) => place,
            Err(place) => {
                self.lanes.try_reserve(1).ok()?;
                self.lanes.insert(place, Lane { slot, serial, of, magazines: None, parked: Vec::new() });
                place
            }
        };
        let lane = &mut self.lanes[place];
        lane.drain(&self.strays, each);
        (lane.serial, lane.of) = (serial, of);
        Some(place)
    }

    /// Lets a full magazine of a lane that is there hold more blocks, if that may be. Returns whether there is room
    /// now.
    pub(super) fn grant(&mut self, stream: StreamKey, magazine: MagazineIndex, bounds: &Bounds) -> bool {
        let Bounds { longest: bytes, is_large, limit, in_haste } = *bounds;
        let left = limit.saturating_sub(self.granted) / bytes;
        let Some(known) = self.of(stream).and_then(|magazines| magazines.known(magazine)) else {
            return false;
        };
        let mut magazine = known.magazine;
        let more = magazine.next_room(bytes, in_haste).saturating_sub(magazine.room());
        let more = more.min(usize::try_from(left).unwrap_or(usize::MAX));
        if !magazine.set_room(magazine.room() + more) {
            return false;
        }
        (*known.longest, *known.is_large) = (bytes, is_large);
        let has_room = !magazine.is_full();
        self.granted += more as u64 * bytes;
        if is_large {
            self.granted_large += more as u64 * bytes;
        }
        has_room
    }

    /// Empties the magazines from `from` on of every lane. What those of large blocks held in vain, they may hold no
    /// more. `is_large` says whether a block of so many bytes is one.
    pub(super) fn drain(
        &mut self,
        from: MagazineIndex,
        is_large: impl Fn(u64) -> bool,
        mut each: impl FnMut(TimelineId, Item),
    ) {
        for lane in &mut self.lanes {
            let of = lane.of;
            let Some(magazines) = lane.magazines() else { continue };
            magazines.for_each(from.number()..MAGAZINES, |known| {
                let mut magazine = known.magazine;
                if magazine.is_empty() {
                    return;
                }
                let (place, less) = (magazine.place(), magazine.len());
                let is_here = |item: &&Item| item.is_in(place);
                let large = magazine.items().iter().find(is_here).is_some_and(|item| is_large(item.bytes()));
                magazine.give_up_all(|item| self.strays.sort_out(item, place, |item| each(of, item)));
                if large {
                    // Less room takes no memory.
                    magazine.set_room(magazine.room() - less);
                    self.granted -= less as u64 * *known.longest;
                    self.granted_large -= less as u64 * *known.longest;
                }
            });
        }
    }

    /// Takes back every grant; the lanes are empty.
    pub(super) fn revoke_grants(&mut self) {
        (self.granted, self.granted_large) = (0, 0);
        for lane in &mut self.lanes {
            if let Some(magazines) = lane.magazines() {
                magazines.for_each(0..MAGAZINES, |mut known| _ = known.magazine.set_room(0));
            }
            lane.parked.iter_mut().for_each(|record| record.buffer = Buffer::NEW);
        }
    }

    /// Gives back what host memory is not needed at rest; the lanes are empty. Those of streams that are gone go.
    pub(super) fn give_back(&mut self, is_gone: impl Fn(TimelineId) -> bool) {
        self.lanes.retain(|lane| !is_gone(lane.of));
        self.lanes.iter_mut().for_each(Lane::park);
        shrink(&mut self.lanes, 0);
        let records = || self.lanes.iter().flat_map(Lane::records);
        self.granted = records().map(Record::granted).sum();
        self.granted_large = records().filter(|record| record.is_large).map(Record::granted).sum();
    }

    /// Gives up all lanes, which are empty.
    pub(super) fn clear(&mut self) {
        (self.granted, self.granted_large) = (0, 0);
        self.lanes = Vec::new();
    }

    /// Bytes that the magazines before `end` hold, if the blocks of each are as long as they can be beside its first.
    pub(super) fn held_below(&mut self, end: MagazineIndex, longest: impl Fn(u64) -> u64) -> u64 {
        let mut held = 0;
        for magazines in self.lanes.iter_mut().filter_map(Lane::magazines) {
            magazines.for_each(0..end.number(), |Known { magazine, .. }| {
                let bytes = magazine.items().first().map_or(0, |item| longest(item.bytes()));
                held += bytes * magazine.len() as u64;
            });
        }
        held
    }

    /// Every block held, and where.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, &Item)> {
        self.lanes.iter().filter_map(Lane::seen).flat_map(Magazines::items)
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
        let mut ghost = Ghost::NEW;
        assert!((1..1000).all(|step| ghost.may_borrow(step * 100)));
        let mut in_a_loop = (100_000..).map(|allocations| ghost.may_borrow(allocations));
        assert_eq!(in_a_loop.position(|may_borrow| !may_borrow), Some(MOST_BORROWED as usize));
    }
}
