//! A stream cache: what one thread caches of one stream, a magazine per size class.

use std::ptr::NonNull;
use std::sync::Arc;

use super::asymmetric_lock::Guarded;
use super::magazine::{Buffer, BufferedMagazine, Item, Magazine, STRIDE};
use super::sizes::{MAGAZINES, MagazineIndex};
use super::strays::Strays;
use crate::extents::Place;
use crate::host::{shrink, try_box};
use crate::order::{StreamKey, Timeline, TimelineId};
use crate::policy::borrowing::Borrowing;

/// The magazines of a stream cache.
///
/// What the fast path reads comes first, and is as short as can be. All else is in a magazine's record, made when it is
/// first asked for.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Magazines {
    /// [`Timeline::serial`] of the stream. The first field, since the sentinel has no other.
    serial: u64,
    all: [Magazine; MAGAZINES],
    /// By rising numbers of magazines. A magazine that has none is without room.
    records: Vec<MagazineRecord>,
    /// One more than the place of each magazine's record; 0 for none.
    record_of: [u16; MAGAZINES],
}

/// What else there is to know of a magazine.
#[derive(Debug)]
struct MagazineRecord {
    number: usize,
    buffer: Buffer,
    /// Bytes of the longest block that the magazine may hold; 0 as long as it had no room.
    longest: u64,
    /// Whether that is a large one.
    is_large: bool,
    borrowing: Borrowing,
}

/// A magazine with all that is known of it.
#[derive(Debug)]
pub(super) struct Known<'a> {
    /// Itself.
    pub(super) magazine: BufferedMagazine<'a>,
    pub(super) borrowing: &'a mut Borrowing,
    longest: &'a mut u64,
    is_large: &'a mut bool,
}

/// The serial number of [`Magazines::closed`].
static NO_STREAM: u64 = 0;

impl Guarded for Magazines {
    #[inline]
    unsafe fn serial(magazines: NonNull<Self>) -> u64 {
        // SAFETY: the caller's promise. Both magazines and the sentinel begin with the number.
        unsafe { magazines.cast::<u64>().read() }
    }

    fn closed() -> NonNull<Self> {
        NonNull::from(&NO_STREAM).cast()
    }
}

impl Magazines {
    /// Of no stream, and without room. A constant, since it is long: a computed value would be built elsewhere and
    /// copied.
    const NEW: Self =
        Self { serial: 0, all: [const { Magazine::NEW }; _], records: Vec::new(), record_of: [0; _] };

    #[inline]
    pub(super) fn magazine(&mut self, index: MagazineIndex) -> &mut Magazine {
        const {
            assert!(std::mem::offset_of!(Self, all) == STRIDE, "places count from the start of the magazines")
        };
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
        self.records.insert(place, MagazineRecord::new(number));
        self.note_places(place);
        Some(place)
    }

    /// Notes where the records are from this one on.
    fn note_places(&mut self, from: usize) {
        for (place, record) in self.records.iter().enumerate().skip(from) {
            self.record_of[record.number] = place as u16 + 1;
        }
    }

    /// Calls `each` with every magazine that was ever asked for.
    fn for_each(&mut self, mut each: impl FnMut(Known<'_>)) {
        for record in &mut self.records {
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

impl MagazineRecord {
    fn new(number: usize) -> Self {
        Self { number, buffer: Buffer::NEW, longest: 0, is_large: false, borrowing: Borrowing::default() }
    }

    /// The magazine, one of these, and what is known of it.
    fn with<'a>(&'a mut self, all: &'a mut [Magazine; MAGAZINES]) -> Known<'a> {
        // SAFETY: the buffer was made for it, or is that of no room at all, as a magazine's is at first.
        let magazine = unsafe { BufferedMagazine::new(&mut all[self.number], &mut self.buffer) };
        let Self { longest, is_large, borrowing, .. } = self;
        Known { magazine, borrowing, longest, is_large }
    }

    /// Bytes that the magazine may hold.
    fn granted(&self) -> u64 {
        self.buffer.room() as u64 * self.longest
    }
}

/// What one thread caches of one stream: a magazine per size class.
#[derive(Debug)]
struct StreamCache {
    /// The timeline's.
    slot: usize,
    /// [`Timeline::serial`] of the stream.
    serial: u64,
    /// What the stream's timeline is called.
    of: TimelineId,
    /// There while the stream cache is in use. A raw pointer owns them: lock entries have a copy, and a `Box` would claim
    /// to be the only one.
    magazines: Option<NonNull<Magazines>>,
    /// The records while the magazines, then empty, are not there.
    parked: Vec<MagazineRecord>,
}

// SAFETY: a stream cache owns its magazines, of which nothing is bound to a thread.
unsafe impl Send for StreamCache {}

impl StreamCache {
    /// The magazines, while the stream cache is in use.
    fn magazines(&mut self) -> Option<&mut Magazines> {
        // SAFETY: its own, until it is dropped. Who has the stream cache has them: the lock guards both.
        self.magazines.map(|mut magazines| unsafe { magazines.as_mut() })
    }

    /// As `magazines`, to be read only.
    fn seen(&self) -> Option<&Magazines> {
        // SAFETY: as in `magazines`.
        self.magazines.map(|magazines| unsafe { magazines.as_ref() })
    }

    /// The records, wherever they are.
    fn records(&self) -> &[MagazineRecord] {
        self.seen().map_or(&self.parked, |magazines| &magazines.records)
    }

    /// Empties the magazines.
    fn drain(&mut self, strays: &Strays, mut each: impl FnMut(TimelineId, Item)) {
        let of = self.of;
        if let Some(magazines) = self.magazines() {
            magazines.for_each(|mut known| {
                let place = known.magazine.place();
                known.magazine.give_up_all(|item| strays.sort_out(item, place, |item| each(of, item)));
            });
        }
    }

    /// The magazines, made again from their records if need be; `None` where the host has no memory for them.
    #[inline]
    fn unpark(&mut self) -> Option<&mut Magazines> {
        if self.magazines.is_none() {
            self.unpark_slow();
        }
        let serial = self.serial;
        let magazines = self.magazines()?;
        // A lock entry may lead to them: that of the calling thread, which is outside.
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

    /// Gives back the memory of the magazines, which are empty, but for their records.
    fn park(&mut self) {
        let Some(magazines) = self.magazines() else { return };
        magazines.for_each(|mut known| known.magazine.stow());
        let mut records = std::mem::take(&mut magazines.records);
        shrink(&mut records, 0);
        self.parked = records;
        self.free();
    }

    fn free(&mut self) {
        if let Some(magazines) = self.magazines.take() {
            // SAFETY: the pointer came from `try_box` (`unpark`), and is given up here only. No owner has it: it is
            // outside, and its lock entries are closed, or it is the calling thread.
            drop(unsafe { Box::from_raw(magazines.as_ptr()) });
        }
    }
}

impl Drop for StreamCache {
    fn drop(&mut self) {
        self.free();
    }
}

/// All stream caches of one thread in one pool.
#[derive(Debug)]
pub(super) struct StreamCaches {
    /// Sorted by the timelines' slots.
    by_slot: Vec<StreamCache>,
    /// The place of the one used last: each request asks for it several times.
    last: usize,
    strays: Arc<Strays>,
    /// Bytes that the magazines may hold together, if each holds as many blocks as it may.
    granted: u64,
    /// The part of that in magazines of large blocks.
    granted_large: u64,
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
    pub(super) in_throughput_mode: bool,
}

impl StreamCaches {
    pub(super) fn new(strays: Arc<Strays>) -> Self {
        Self { by_slot: Vec::new(), last: 0, strays, granted: 0, granted_large: 0 }
    }

    #[inline]
    fn place_of(&self, slot: usize) -> Result<usize, usize> {
        if self.by_slot.get(self.last).is_some_and(|cache| cache.slot == slot) {
            return Ok(self.last);
        }
        self.by_slot.binary_search_by_key(&slot, |cache| cache.slot)
    }

    /// The magazines of a stream, if it has a stream cache. By the owner.
    pub(super) fn of(&mut self, stream: StreamKey) -> Option<&mut Magazines> {
        let place = self.place_of(stream.slot).ok()?;
        let cache = &mut self.by_slot[place];
        if cache.serial == stream.serial { cache.unpark() } else { None }
    }

    /// The magazines of a stream, if it has a stream cache in use. They stay until that is changed: by
    /// [`of_or_add`](Self::of_or_add) for another stream, [`give_back`](Self::give_back) or [`clear`](Self::clear).
    pub(super) fn of_stream(&self, stream: StreamKey) -> Option<NonNull<Magazines>> {
        let cache = &self.by_slot[self.place_of(stream.slot).ok()?];
        if cache.serial == stream.serial { cache.magazines } else { None }
    }

    /// The magazines of every stream cache, and which stream's they are.
    pub(super) fn all(&self) -> impl Iterator<Item = (StreamKey, NonNull<Magazines>)> {
        let of = |cache: &StreamCache| {
            let (serial, slot) = (cache.serial, cache.slot);
            Some((StreamKey { serial, slot }, cache.magazines?))
        };
        self.by_slot.iter().filter_map(of)
    }

    /// The magazines of a stream, made if need be; `None` where the host has no memory for them. Those of a stream that
    /// is gone and had the same slot are emptied: the blocks are given to `each`.
    #[inline]
    pub(super) fn of_or_add(
        &mut self,
        timeline: &Timeline,
        each: impl FnMut(TimelineId, Item),
    ) -> Option<&mut Magazines> {
        let place = match self.place_of(timeline.id.slot as usize) {
            Ok(place) if self.by_slot[place].serial == timeline.serial => place,
            _ => self.add_slow(timeline, each)?,
        };
        self.last = place;
        self.by_slot[place].unpark()
    }

    #[cold]
    fn add_slow(&mut self, timeline: &Timeline, each: impl FnMut(TimelineId, Item)) -> Option<usize> {
        let slot = timeline.id.slot as usize;
        let (serial, of) = (timeline.serial, timeline.id);
        let place = match self.place_of(slot) {
            Ok(place) => place,
            Err(place) => {
                self.by_slot.try_reserve(1).ok()?;
                self.by_slot
                    .insert(place, StreamCache { slot, serial, of, magazines: None, parked: Vec::new() });
                place
            }
        };
        let cache = &mut self.by_slot[place];
        cache.drain(&self.strays, each);
        (cache.serial, cache.of) = (serial, of);
        Some(place)
    }

    /// Lets a full magazine hold more blocks, within the bounds, if the stream has a cache. Returns whether there is
    /// room now.
    pub(super) fn grant(&mut self, stream: StreamKey, magazine: MagazineIndex, bounds: &Bounds) -> bool {
        let Bounds { longest: bytes, is_large, limit, in_throughput_mode } = *bounds;
        let left = limit.saturating_sub(self.granted) / bytes;
        let Some(known) = self.of(stream).and_then(|magazines| magazines.known(magazine)) else {
            return false;
        };
        let mut magazine = known.magazine;
        let more = magazine.next_room(bytes, in_throughput_mode).saturating_sub(magazine.room());
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

    /// Empties the magazines of every stream cache. Draining a magazine of large blocks cuts its room by
    /// what it held. `is_large` says whether a block of so many bytes is large.
    pub(super) fn drain(&mut self, is_large: impl Fn(u64) -> bool, mut each: impl FnMut(TimelineId, Item)) {
        for cache in &mut self.by_slot {
            let of = cache.of;
            let Some(magazines) = cache.magazines() else { continue };
            magazines.for_each(|known| {
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

    /// Takes back every grant; the stream caches are empty.
    pub(super) fn revoke_grants(&mut self) {
        (self.granted, self.granted_large) = (0, 0);
        for cache in &mut self.by_slot {
            if let Some(magazines) = cache.magazines() {
                magazines.for_each(|mut known| _ = known.magazine.set_room(0));
            }
            cache.parked.iter_mut().for_each(|record| record.buffer = Buffer::NEW);
        }
    }

    /// Gives back what host memory is not needed at rest; the stream caches are empty. Those of streams that are gone go.
    pub(super) fn give_back(&mut self, is_gone: impl Fn(TimelineId) -> bool) {
        self.by_slot.retain(|cache| !is_gone(cache.of));
        self.by_slot.iter_mut().for_each(StreamCache::park);
        shrink(&mut self.by_slot, 0);
        let records = || self.by_slot.iter().flat_map(StreamCache::records);
        self.granted = records().map(MagazineRecord::granted).sum();
        self.granted_large = records().filter(|record| record.is_large).map(MagazineRecord::granted).sum();
    }

    /// Drops all stream caches, which are empty.
    pub(super) fn clear(&mut self) {
        (self.granted, self.granted_large) = (0, 0);
        self.by_slot = Vec::new();
    }

    /// Every block held, and where.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, &Item)> {
        self.by_slot.iter().filter_map(StreamCache::seen).flat_map(Magazines::items)
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
