//! A stream cache: what one thread caches of one stream, a magazine per size class.

use std::mem::take;
use std::ptr::NonNull;

use super::asymmetric_lock::Guarded;
use super::magazine::{Item, Magazine};
use super::sizes::{MAGAZINES, MagazineIndex};
use super::totals::Totals;
use crate::extents::{Arena, Place};
use crate::order::{Stream, StreamKey, TimelineId};
use crate::policy::borrowing::{CLASSES_TO_BORROW_FROM, may_borrow};
use crate::system::host_memory::try_box;

/// The magazines of a stream cache.
///
/// What the fast path reads comes first, and is as short as can be.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Magazines {
    /// [`StreamKey::serial`] of the stream. The first field, since the sentinel has no other.
    serial: u64,
    all: [Magazine; MAGAZINES],
    /// What the stream's timeline is called.
    of: TimelineId,
    /// How often a block was borrowed here, or refused.
    borrowed: u64,
    /// Whether they are in the [list](StreamCaches::with_room) of those with room, and which comes after them there.
    is_listed: bool,
    next: Option<NonNull<Self>>,
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
        is_listed: false,
        next: None,
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
        self.all[index.number() + 1..].iter_mut().take(classes).find_map(|longer| longer.take_top(|_| true))
    }

    /// Empties the magazines into the arena. They lose their room.
    fn drain(&mut self, totals: &Totals, arena: &mut Arena) {
        let of = self.of;
        self.all
            .iter_mut()
            .filter(|magazine| magazine.has_room())
            .for_each(|magazine| magazine.drain(of, totals, arena));
    }

    /// Empties one magazine into the arena. It loses its room.
    fn vacate(&mut self, index: MagazineIndex, totals: &Totals, arena: &mut Arena) {
        let of = self.of;
        self.magazine(index).drain(of, totals, arena);
    }

    /// Every block held, and where.
    fn items(&self) -> impl Iterator<Item = (Place, Item)> {
        self.all.iter().flat_map(|magazine| magazine.items().iter().map(|item| (magazine.place(), *item)))
    }
}

#[cfg(test)]
thread_local! {
    /// Stream caches that this thread emptied.
    pub(super) static DRAINED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// All stream caches of one thread in one pool.
#[derive(Debug)]
pub(super) struct StreamCaches {
    /// Sorted by the streams' slots. Raw pointers own the magazines: lock entries have copies, and a `Box` would claim to be the only
    /// one.
    by_slot: Vec<(StreamKey, NonNull<Magazines>)>,
    /// The first of those that got room since they were last drained. The others hold nothing.
    with_room: Option<NonNull<Magazines>>,
    /// The magazine that has room for the one large block that the thread keeps outside of throughput mode.
    kept: Option<(NonNull<Magazines>, MagazineIndex)>,
    /// The length of the large block that the thread freed last. And whether the last one that it asked for was as long.
    freed: u64,
    is_repeated: bool,
}

// SAFETY: the stream caches own their magazines, of which nothing is bound to a thread.
unsafe impl Send for StreamCaches {}

impl StreamCaches {
    pub(super) const NEW: Self =
        Self { by_slot: Vec::new(), with_room: None, kept: None, freed: 0, is_repeated: false };

    fn place_of(&self, slot: usize) -> Result<usize, usize> {
        self.by_slot.binary_search_by_key(&slot, |(stream, _)| stream.slot)
    }

    /// The magazines of a stream, if it has a stream cache. They stay until that is changed: by
    /// [`of_or_add`](Self::of_or_add) for another stream, or [`clear`](Self::clear).
    pub(super) fn of_stream(&self, stream: StreamKey) -> Option<NonNull<Magazines>> {
        let (of, magazines) = self.by_slot[self.place_of(stream.slot).ok()?];
        (of == stream).then_some(magazines)
    }

    /// The magazines of every stream cache, and which stream's they are.
    pub(super) fn all(&self) -> impl Iterator<Item = (StreamKey, NonNull<Magazines>)> {
        self.by_slot.iter().copied()
    }

    /// The magazines of a stream, made if need be, as [`of_stream`](Self::of_stream) gives them; `None` where the host has no
    /// memory for them. Those of a stream that is gone and had the same slot are emptied into the arena.
    pub(super) fn of_or_add(
        &mut self,
        stream: &Stream,
        totals: &Totals,
        arena: &mut Arena,
    ) -> Option<NonNull<Magazines>> {
        let key = stream.key();
        let place = match self.place_of(key.slot) {
            Ok(place) => place,
            Err(place) => {
                self.by_slot.try_reserve(1).ok()?;
                self.by_slot.insert(place, (key, try_box(Magazines::NEW)?));
                place
            }
        };
        let (of, magazines) = &mut self.by_slot[place];
        // SAFETY: they are there until `clear`. Who has the stream caches has them: the lock guards both.
        let its = unsafe { magazines.as_mut() };
        if its.serial != key.serial {
            its.drain(totals, arena);
            // A lock entry may lead to them: that of the calling thread, which is outside.
            (*of, its.serial, its.of) = (key, key.serial, stream.timeline().id);
        }
        Some(*magazines)
    }

    /// Notes that a magazine of the stream, whose magazines these are, gets room: so [`drain`](Self::drain) looks there.
    pub(super) fn list(&mut self, stream: StreamKey, magazines: &mut Magazines) {
        if !std::mem::replace(&mut magazines.is_listed, true) {
            // Not made of the reference, which claims to be the only one as long as it lives.
            let first = self.of_stream(stream);
            magazines.next = std::mem::replace(&mut self.with_room, first);
        }
    }

    /// Gives the magazine of the stream, whose magazines these are, room for the one large block that the thread keeps. It keeps none
    /// now. `false` where the host has no memory.
    pub(super) fn make_room_to_keep(
        &mut self,
        stream: StreamKey,
        mut magazines: NonNull<Magazines>,
        index: MagazineIndex,
    ) -> bool {
        // SAFETY: as in `of_or_add`.
        let its = unsafe { magazines.as_mut() };
        // Where it has room, that is left of throughput mode.
        if !its.magazine(index).has_room() {
            let Some(room) = Magazine::with_room(1) else { return false };
            *its.magazine(index) = room;
            self.list(stream, its);
            self.kept = Some((magazines, index));
        }
        true
    }

    /// Notes the length of a large block that the thread is about to get from the arena.
    pub(super) fn note_requested(&mut self, bytes: u64) {
        self.is_repeated = bytes == self.freed;
    }

    /// Notes the length of a large block that the thread frees. Returns whether the thread asked for just that when it last freed one.
    pub(super) fn note_freed(&mut self, bytes: u64) -> bool {
        let before = std::mem::replace(&mut self.freed, bytes);
        self.is_repeated && before == bytes
    }

    /// Gives the arena the large block that the thread keeps. Its magazine loses its room.
    pub(super) fn give_up_kept(&mut self, totals: &Totals, arena: &mut Arena) {
        if let Some((mut magazines, index)) = self.kept.take() {
            // SAFETY: as in `of_or_add`: `clear` forgets what is kept.
            unsafe { magazines.as_mut() }.vacate(index, totals, arena);
        }
    }

    /// Empties the magazines of every stream cache into the arena. Looks only at those that may hold something.
    pub(super) fn drain(&mut self, totals: &Totals, arena: &mut Arena) {
        self.kept = None;
        while let Some(mut magazines) = self.with_room {
            // SAFETY: as in `of_or_add`: what is listed is there until `clear`.
            let magazines = unsafe { magazines.as_mut() };
            self.with_room = magazines.next.take();
            magazines.is_listed = false;
            magazines.drain(totals, arena);
            #[cfg(test)]
            DRAINED.set(DRAINED.get() + 1);
        }
    }

    /// Drops all stream caches, which are empty. No owner has their magazines: it is outside, and its lock entries are
    /// closed, or it is the calling thread.
    pub(super) fn clear(&mut self) {
        (self.with_room, self.kept) = (None, None);
        for (_, magazines) in take(&mut self.by_slot) {
            // SAFETY: the pointer came from `try_box` (`of_or_add`), and is given up here only.
            drop(unsafe { Box::from_raw(magazines.as_ptr()) });
        }
    }

    /// Every block held, and where.
    pub(super) fn items(&self) -> impl Iterator<Item = (Place, Item)> {
        // SAFETY: as in `of_or_add`.
        self.all().flat_map(|(_, magazines)| unsafe { magazines.as_ref() }.items())
    }
}

impl Drop for StreamCaches {
    fn drop(&mut self) {
        self.clear();
    }
}
