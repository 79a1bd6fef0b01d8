//! A stream cache: what one thread caches of one stream, a magazine per size class.

use std::ptr::NonNull;

use super::asymmetric_lock::Guarded;
use super::magazine::{Item, Magazine};
use super::sizes::{MAGAZINES, MagazineIndex};
use super::totals::Totals;
use crate::extents::{Arena, Place};
use crate::host::try_box;
use crate::order::{StreamKey, Timeline, TimelineId};
use crate::policy::borrowing::{CLASSES_TO_BORROW_FROM, may_borrow};

/// The magazines of a stream cache.
///
/// What the fast path reads comes first, and is as short as can be.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Magazines {
    /// [`Timeline::serial`] of the stream. The first field, since the sentinel has no other.
    serial: u64,
    all: [Magazine; MAGAZINES],
    /// What the stream's timeline is called.
    of: TimelineId,
    /// How often a block was borrowed here, or refused.
    borrowed: u64,
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
        of: TimelineId { slot: 0, generation: 0 },
        all: [const { Magazine::NEW }; _],
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

    /// A block of one of the next longer classes, unless this class is to get one of its own: it wastes less than another
    /// block would take, and neighbouring classes seldom run out together.
    pub(super) fn borrow(&mut self, index: MagazineIndex) -> Option<Item> {
        self.borrowed += 1;
        let classes = if may_borrow(self.borrowed) { CLASSES_TO_BORROW_FROM } else { 0 };
        index.longer().take(classes).find_map(|longer| self.magazine(longer).take_top(|_| true))
    }

    /// Empties the magazines into the arena. Large blocks' lose their room.
    fn drain(&mut self, is_large: impl Fn(MagazineIndex) -> bool, totals: &Totals, arena: &mut Arena) {
        for (number, magazine) in self.all.iter_mut().enumerate().filter(|(_, magazine)| magazine.has_room())
        {
            let place = magazine.place();
            magazine.give_up(magazine.items().len(), |item| item.give_back(place, self.of, totals, arena));
            if is_large(MagazineIndex::of_number(number)) {
                *magazine = Magazine::NEW;
            }
        }
    }

    /// Every block held, and where.
    fn items(&self) -> impl Iterator<Item = (Place, Item)> {
        self.all.iter().flat_map(|magazine| magazine.items().iter().map(|item| (magazine.place(), *item)))
    }
}

/// What one thread caches of one stream: magazines of its own. A raw pointer owns them: lock entries have a copy, and a `Box`
/// would claim to be the only one.
#[derive(Debug)]
struct StreamCache(NonNull<Magazines>);

// SAFETY: a stream cache owns its magazines, of which nothing is bound to a thread.
unsafe impl Send for StreamCache {}

impl StreamCache {
    fn magazines(&self) -> &Magazines {
        // SAFETY: its own, until it is dropped. Who has the stream cache has them: the lock guards both.
        unsafe { self.0.as_ref() }
    }

    fn magazines_mut(&mut self) -> &mut Magazines {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }

    fn stream(&self) -> StreamKey {
        let Magazines { serial, of, .. } = self.magazines();
        StreamKey { serial: *serial, slot: of.slot as usize }
    }
}

impl Drop for StreamCache {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `try_box` (`add_slow`), and is given up here only. No owner has it: it is outside,
        // and its lock entries are closed, or it is the calling thread.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// All stream caches of one thread in one pool.
#[derive(Debug)]
pub(super) struct StreamCaches {
    /// Sorted by the timelines' slots.
    by_slot: Vec<StreamCache>,
}

impl StreamCaches {
    pub(super) const NEW: Self = Self { by_slot: Vec::new() };

    #[inline]
    fn place_of(&self, slot: usize) -> Result<usize, usize> {
        self.by_slot.binary_search_by_key(&slot, |cache| cache.stream().slot)
    }

    /// The magazines of a stream, if it has a stream cache. They stay until that is changed: by
    /// [`of_or_add`](Self::of_or_add) for another stream, or [`clear`](Self::clear).
    pub(super) fn of_stream(&self, stream: StreamKey) -> Option<NonNull<Magazines>> {
        let cache = &self.by_slot[self.place_of(stream.slot).ok()?];
        (cache.stream() == stream).then_some(cache.0)
    }

    /// The magazines of every stream cache, and which stream's they are.
    pub(super) fn all(&self) -> impl Iterator<Item = (StreamKey, NonNull<Magazines>)> {
        self.by_slot.iter().map(|cache| (cache.stream(), cache.0))
    }

    /// The magazines of a stream, made if need be, as [`of_stream`](Self::of_stream) gives them; `None` where the host has no
    /// memory for them. Those of a stream that is gone and had the same slot are emptied into the arena.
    #[inline]
    pub(super) fn of_or_add(
        &mut self,
        timeline: &Timeline,
        totals: &Totals,
        arena: &mut Arena,
    ) -> Option<NonNull<Magazines>> {
        let place = match self.place_of(timeline.id.slot as usize) {
            Ok(place) => place,
            Err(place) => self.add_slow(place)?,
        };
        let magazines = self.by_slot[place].magazines_mut();
        if magazines.serial != timeline.serial {
            magazines.drain(|_| false, totals, arena);
            // A lock entry may lead to them: that of the calling thread, which is outside.
            (magazines.serial, magazines.of) = (timeline.serial, timeline.id);
        }
        Some(self.by_slot[place].0)
    }

    #[cold]
    fn add_slow(&mut self, place: usize) -> Option<usize> {
        self.by_slot.try_reserve(1).ok()?;
        self.by_slot.insert(place, StreamCache(try_box(Magazines::NEW)?));
        Some(place)
    }

    /// Empties the magazines of every stream cache into the arena. `is_large` says whether a magazine is one of large blocks.
    pub(super) fn drain(
        &mut self,
        is_large: impl Fn(MagazineIndex) -> bool,
        totals: &Totals,
        arena: &mut Arena,
    ) {
        self.by_slot.iter_mut().for_each(|cache| cache.magazines_mut().drain(&is_large, totals, arena));
    }

    /// Drops all stream caches, which are empty.
    pub(super) fn clear(&mut self) {
        self.by_slot = Vec::new();
    }

    /// Every block held, and where.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, Item)> {
        self.by_slot.iter().flat_map(|cache| cache.magazines().items())
    }
}
