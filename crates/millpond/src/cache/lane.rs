//! What one thread caches of one stream: a magazine per size class.

use std::sync::Arc;

use super::sizes::{MAGAZINES, MagazineIndex};
use crate::arena::EntryRef;
use crate::device::DevicePtr;
use crate::order::{Tick, Timeline, TimelineId};

/// A block in a magazine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    pub(super) ptr: DevicePtr,
    pub(super) entry: EntryRef,
    /// Length in units.
    pub(super) units: u64,
    /// The stream's tick when the block was freed, for the day it goes back to the arena.
    pub(super) tick: Tick,
}

/// A stack of blocks of about one size, the one freed last on top.
#[derive(Debug, Default)]
pub(super) struct Magazine {
    /// Never longer than `room`; its capacity is never less.
    items: Vec<Item>,
    /// Blocks that it may hold; see [`Lanes::grant`].
    room: usize,
}

impl Magazine {
    /// The block on top.
    #[inline]
    pub(super) fn top(&self) -> Option<&Item> {
        self.items.last()
    }

    /// Takes the block off the top.
    #[inline]
    pub(super) fn drop_top(&mut self) {
        self.items.pop();
    }

    /// Brings the youngest block of exactly this length to the top, if there is one.
    #[inline(never)]
    pub(super) fn bring_up(&mut self, units: u64) -> bool {
        let Some(at) = self.items.iter().rposition(|item| item.units == units) else { return false };
        self.items[at..].rotate_left(1);
        true
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.items.len() >= self.room
    }

    /// Adds a block to a magazine that is not full.
    #[inline]
    pub(super) fn push(&mut self, item: Item) {
        debug_assert!(self.items.len() < self.items.capacity(), "a magazine that is full");
        // `Vec::push` would look again whether it must grow.
        if let Some(place) = self.items.spare_capacity_mut().first_mut() {
            place.write(item);
            // SAFETY: one more item is initialised now, within the capacity.
            unsafe { self.items.set_len(self.items.len() + 1) };
        }
    }

    /// Blocks that a restock may bring: half of what it may hold.
    pub(super) fn restock_by(&self) -> usize {
        (self.room / 2).saturating_sub(self.items.len())
    }

    /// Gives up the older half, rounded up.
    pub(super) fn give_up_half(&mut self) -> impl Iterator<Item = Item> + '_ {
        self.items.drain(..self.items.len().div_ceil(2))
    }
}

/// Blocks of this size that a magazine ever holds. Larger ones are fewer: a magazine is searched where it holds
/// several sizes, and what it holds may be many bytes.
const fn most_of(bytes: u64) -> usize {
    match bytes {
        0..=0x8000 => 64,
        0x8001..=0xF_FFFF => 32,
        _ => 16,
    }
}

/// What one thread caches of one stream: a magazine per size class.
#[derive(Debug)]
pub(super) struct Lane {
    /// Kept, so that no other timeline can have its address.
    timeline: Arc<Timeline>,
    magazines: Box<[Magazine; MAGAZINES]>,
}

impl Lane {
    #[inline]
    pub(super) fn magazine(&mut self, of: MagazineIndex) -> &mut Magazine {
        // SAFETY: an index of this type is less than `MAGAZINES`.
        unsafe { self.magazines.get_unchecked_mut(of.get()) }
    }
}

/// The lanes of one thread in one pool, by the timelines' slots.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: Vec<Option<Lane>>,
    /// Bytes that the magazines may hold together, if each holds as many blocks as it may.
    granted: u64,
}

impl Lanes {
    /// The lane of a stream, if there is one.
    #[inline]
    pub(super) fn of(&mut self, timeline: &Arc<Timeline>) -> Option<&mut Lane> {
        let lane = self.lanes.get_mut(timeline.id.slot as usize)?.as_mut()?;
        Arc::ptr_eq(&lane.timeline, timeline).then_some(lane)
    }

    /// The lane of a stream, made if need be. A lane of a stream that is gone and had the same slot is
    /// emptied: its blocks are given to `each`.
    pub(super) fn of_or_add(
        &mut self,
        timeline: &Arc<Timeline>,
        mut each: impl FnMut(TimelineId, Item),
    ) -> &mut Lane {
        let slot = timeline.id.slot as usize;
        if self.lanes.len() <= slot {
            self.lanes.resize_with(slot + 1, || None);
        }
        if let Some(old) = &mut self.lanes[slot]
            && !Arc::ptr_eq(&old.timeline, timeline)
        {
            for item in old.magazines.iter_mut().flat_map(|magazine| magazine.items.drain(..)) {
                each(old.timeline.id, item);
            }
            old.timeline = timeline.clone();
        }
        self.lanes[slot].get_or_insert_with(|| {
            let magazines = Box::new(std::array::from_fn(|_| Magazine::default()));
            Lane { timeline: timeline.clone(), magazines }
        })
    }

    /// Lets a full magazine of a lane that is there hold more blocks of `bytes`, if that may be, so that all
    /// magazines of the thread together never hold more than `limit` bytes. Returns whether it has room now.
    pub(super) fn grant(
        &mut self,
        timeline: &Arc<Timeline>,
        magazine: MagazineIndex,
        bytes: u64,
        limit: u64,
    ) -> bool {
        // Blocks of one magazine differ by an eighth at most.
        let each = bytes + bytes / 8;
        let left = limit.saturating_sub(self.granted) / each;
        let Some(lane) = self.of(timeline) else { return false };
        let magazine = lane.magazine(magazine);
        let wanted = (2 * magazine.room).max(4).min(most_of(bytes));
        let more = wanted.saturating_sub(magazine.room).min(usize::try_from(left).unwrap_or(usize::MAX));
        magazine.room += more;
        magazine.items.reserve_exact(magazine.room - magazine.items.len());
        let has_room = !magazine.is_full();
        self.granted += more as u64 * each;
        has_room
    }

    /// Empties every lane.
    pub(super) fn drain(&mut self, mut each: impl FnMut(TimelineId, Item)) {
        for lane in self.lanes.iter_mut().flatten() {
            let of = lane.timeline.id;
            for item in lane.magazines.iter_mut().flat_map(|magazine| magazine.items.drain(..)) {
                each(of, item);
            }
        }
    }

    /// Takes back every grant; the lanes are empty.
    pub(super) fn revoke_grants(&mut self) {
        self.granted = 0;
        for magazine in self.lanes.iter_mut().flatten().flat_map(|lane| lane.magazines.iter_mut()) {
            debug_assert!(magazine.items.is_empty());
            magazine.room = 0;
        }
    }

    /// Every block held.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Item> {
        self.lanes.iter().flatten().flat_map(|lane| lane.magazines.iter()).flat_map(|magazine| &magazine.items)
    }

    /// Bytes that may be held.
    pub(super) fn granted(&self) -> u64 {
        self.granted
    }
}
