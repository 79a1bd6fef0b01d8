//! A stream cache: what one thread caches of one stream, a magazine per size class.

use std::ptr::NonNull;
use std::sync::Arc;

use super::asymmetric_lock::Guarded;
use super::magazine::{Buffer, BufferedMagazine, Item, Magazine};
use super::sizes::{MAGAZINES, MagazineIndex};
use super::totals::Totals;
use crate::extents::Place;
use crate::host::try_box;
use crate::order::{StreamKey, Timeline, TimelineId};
use crate::policy::borrowing::{CLASSES_TO_BORROW_FROM, may_borrow};

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
    /// In the order in which they were asked for. A magazine that has none is without room.
    records: Vec<MagazineRecord>,
    /// One more than the place of each magazine's record; 0 for none.
    record_of: [u16; MAGAZINES],
    /// How often a block was borrowed here, or refused.
    borrowed: u64,
}

/// What else there is to know of a magazine.
#[derive(Debug)]
struct MagazineRecord {
    number: usize,
    buffer: Buffer,
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
    const NEW: Self = Self {
        serial: 0,
        all: [const { Magazine::NEW }; _],
        records: Vec::new(),
        record_of: [0; _],
        borrowed: 0,
    };

    #[inline]
    pub(super) fn magazine(&mut self, index: MagazineIndex) -> &mut Magazine {
        const {
            assert!(
                std::mem::offset_of!(Self, all) == size_of::<Magazine>(),
                "places count from the start of the magazines"
            )
        };
        let start = NonNull::from(self).cast::<Magazine>();
        // SAFETY: an index of this type names one of the magazines.
        unsafe { start.byte_add(index.place()).as_mut() }
    }

    /// The magazine with its buffer; `None` where the host has no memory to note that.
    #[inline]
    pub(super) fn buffered(&mut self, index: MagazineIndex) -> Option<BufferedMagazine<'_>> {
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
        self.records.push(MagazineRecord { number, buffer: Buffer::NEW });
        self.record_of[number] = self.records.len() as u16;
        Some(self.records.len() - 1)
    }

    /// A block of one of the next longer classes, unless this class is to get one of its own: it wastes less than another
    /// block would take, and neighbouring classes seldom run out together.
    pub(super) fn borrow(&mut self, index: MagazineIndex) -> Option<Item> {
        self.borrowed += 1;
        let classes = if may_borrow(self.borrowed) { CLASSES_TO_BORROW_FROM } else { 0 };
        index.longer().take(classes).find_map(|longer| self.magazine(longer).take_top(|_| true))
    }

    /// Calls `each` with every magazine that was ever asked for.
    fn for_each(&mut self, mut each: impl FnMut(MagazineIndex, BufferedMagazine<'_>)) {
        for record in &mut self.records {
            each(MagazineIndex::of_number(record.number), record.with(&mut self.all));
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
    /// The magazine, one of these, with its buffer.
    fn with<'a>(&'a mut self, all: &'a mut [Magazine; MAGAZINES]) -> BufferedMagazine<'a> {
        // SAFETY: the buffer was made for it, or is that of no room at all, as a magazine's is at first.
        unsafe { BufferedMagazine::new(&mut all[self.number], &mut self.buffer) }
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
    /// A raw pointer owns them: lock entries have a copy, and a `Box` would claim to be the only one.
    magazines: NonNull<Magazines>,
}

// SAFETY: a stream cache owns its magazines, of which nothing is bound to a thread.
unsafe impl Send for StreamCache {}

impl StreamCache {
    fn magazines(&mut self) -> &mut Magazines {
        // SAFETY: its own, until it is dropped. Who has the stream cache has them: the lock guards both.
        unsafe { self.magazines.as_mut() }
    }

    /// Empties the magazines. Large blocks' lose their room.
    fn drain(
        &mut self,
        totals: &Totals,
        is_large: &impl Fn(MagazineIndex) -> bool,
        mut each: impl FnMut(TimelineId, Item),
    ) {
        let of = self.of;
        self.magazines().for_each(|number, mut magazine| {
            let place = magazine.place();
            magazine.give_up(magazine.len(), |item| item.leave_or_note(place, totals, |item| each(of, item)));
            if magazine.room() > 0 && is_large(number) {
                magazine.set_room(0);
            }
        });
    }

    /// Becomes that of another stream, once it is empty.
    fn give_to(&mut self, timeline: &Timeline) {
        (self.serial, self.of) = (timeline.serial, timeline.id);
        // A lock entry may lead to them: that of the calling thread, which is outside.
        self.magazines().serial = timeline.serial;
    }
}

impl Drop for StreamCache {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `try_box` (`add_slow`), and is given up here only. No owner has it: it is outside,
        // and its lock entries are closed, or it is the calling thread.
        drop(unsafe { Box::from_raw(self.magazines.as_ptr()) });
    }
}

/// All stream caches of one thread in one pool.
#[derive(Debug)]
pub(super) struct StreamCaches {
    /// Sorted by the timelines' slots.
    by_slot: Vec<StreamCache>,
    totals: Arc<Totals>,
}

impl StreamCaches {
    pub(super) fn new(totals: Arc<Totals>) -> Self {
        Self { by_slot: Vec::new(), totals }
    }

    #[inline]
    fn place_of(&self, slot: usize) -> Result<usize, usize> {
        self.by_slot.binary_search_by_key(&slot, |cache| cache.slot)
    }

    /// The magazines of a stream, if it has a stream cache. They stay until that is changed: by
    /// [`of_or_add`](Self::of_or_add) for another stream, or [`clear`](Self::clear).
    pub(super) fn of_stream(&self, stream: StreamKey) -> Option<NonNull<Magazines>> {
        let cache = &self.by_slot[self.place_of(stream.slot).ok()?];
        (cache.serial == stream.serial).then_some(cache.magazines)
    }

    /// The same, for the owner.
    pub(super) fn of(&mut self, stream: StreamKey) -> Option<&mut Magazines> {
        // SAFETY: as in `StreamCache::magazines`.
        self.of_stream(stream).map(|mut magazines| unsafe { magazines.as_mut() })
    }

    /// The magazines of every stream cache, and which stream's they are.
    pub(super) fn all(&self) -> impl Iterator<Item = (StreamKey, NonNull<Magazines>)> {
        self.by_slot
            .iter()
            .map(|cache| (StreamKey { serial: cache.serial, slot: cache.slot }, cache.magazines))
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
            Ok(place) => {
                let cache = &mut self.by_slot[place];
                cache.drain(&self.totals, &|_| false, each);
                cache.give_to(timeline);
                place
            }
            Err(place) => self.add_slow(place, timeline)?,
        };
        Some(self.by_slot[place].magazines())
    }

    #[cold]
    fn add_slow(&mut self, place: usize, timeline: &Timeline) -> Option<usize> {
        self.by_slot.try_reserve(1).ok()?;
        let magazines = try_box(Magazines::NEW)?;
        let (slot, serial, of) = (timeline.id.slot as usize, timeline.serial, timeline.id);
        let mut cache = StreamCache { slot, serial, of, magazines };
        cache.give_to(timeline);
        self.by_slot.insert(place, cache);
        Some(place)
    }

    /// Empties the magazines of every stream cache. `is_large` says whether a magazine is one of large blocks.
    pub(super) fn drain(
        &mut self,
        is_large: impl Fn(MagazineIndex) -> bool,
        mut each: impl FnMut(TimelineId, Item),
    ) {
        let Self { by_slot, totals } = self;
        by_slot.iter_mut().for_each(|cache| cache.drain(totals, &is_large, &mut each));
    }

    /// Drops all stream caches, which are empty.
    pub(super) fn clear(&mut self) {
        self.by_slot = Vec::new();
    }

    /// Every block held, and where.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, &Item)> {
        // SAFETY: as in `StreamCache::magazines`.
        self.by_slot.iter().map(|cache| unsafe { cache.magazines.as_ref() }).flat_map(Magazines::items)
    }
}
