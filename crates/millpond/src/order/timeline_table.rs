//! Which timelines there are, by what the driver calls their streams, by handle, and by their own names.

use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, Weak};

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

use super::fence::TimelineId;
use super::timeline::{Promise, Timeline, thread_of};
use crate::device::{StreamHandle, StreamId};

/// The timelines, and who holds their streams. One stream has one timeline however often it is presented. By different promises,
/// it may have several: each promise has its own end. No step takes longer where there are more streams.
#[derive(Debug)]
pub(super) struct TimelineTable<H> {
    pub(super) slots: Vec<Option<Entered<H>>>,
    /// The slots that are free, with room for all.
    pub(super) free: Vec<u32>,
    /// The slots of the streams that somebody holds, or whose thread lives: by what the driver calls the stream, and by handle.
    pub(super) by_id: HashTable<u32>,
    pub(super) by_handle: HashTable<u32>,
}

/// A timeline, and who holds its stream.
type Entered<H> = (Arc<Timeline>, Weak<H>);

pub(super) fn hash<T: Hash>(name: T, promise: Promise) -> u64 {
    FxBuildHasher.hash_one((name, promise))
}

/// The hash of the stream in a slot that is found, by what the driver calls it, or by handle.
fn hash_in<T: Hash, H>(slots: &[Option<Entered<H>>], slot: u32, name: impl FnOnce(&Timeline) -> T) -> u64 {
    slots[slot as usize].as_ref().map_or(0, |(timeline, _)| hash(name(timeline), timeline.promise))
}

impl<H> Default for TimelineTable<H> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), by_id: HashTable::new(), by_handle: HashTable::new() }
    }
}

impl<H> TimelineTable<H> {
    /// The timeline, unless it is gone: then all of it is reached.
    #[inline]
    pub(super) fn get(&self, id: TimelineId) -> Option<&Arc<Timeline>> {
        let (timeline, _) = self.slots.get(id.slot as usize)?.as_ref()?;
        (timeline.id == id).then_some(timeline)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Timeline>> {
        self.slots.iter().flatten().map(|(timeline, _)| timeline)
    }

    /// The stream, if somebody holds it by a promise that suffices for a caller with this one.
    pub(super) fn find(&self, handle: StreamHandle, id: StreamId, promise: Promise) -> Option<Arc<H>> {
        let suffice: &[_] = match promise {
            Promise::Stays => &[Promise::Stays],
            Promise::WhileRegistered => &[Promise::Stays, Promise::WhileRegistered],
            Promise::UntilDropped => &[Promise::Stays, Promise::UntilDropped],
            Promise::OfThread => &[Promise::OfThread],
            Promise::InCalls => &[Promise::Stays, Promise::WhileRegistered, Promise::InCalls],
        };
        suffice.iter().find_map(|promise| {
            #[cfg(test)]
            LOOKS.set(LOOKS.get() + 1);
            let of =
                |slot: &u32| self.slots[*slot as usize].as_ref().filter(|(_, held)| held.strong_count() > 0);
            let has = |slot: &u32, is_it: &dyn Fn(&Timeline) -> bool| {
                of(slot).is_some_and(|(timeline, _)| timeline.promise == *promise && is_it(timeline))
            };
            let name = (handle, thread_of(handle));
            let has_id =
                |it: &Timeline| it.stream == id && (it.name() == name || *promise != Promise::OfThread);
            let by_id = self.by_id.find(hash(id, *promise), |slot| has(slot, &has_id));
            // What the driver does not identify is known by its handle, where somebody promised that it stays.
            let by_handle = || {
                let has_handle = id.is_in_capture() && *promise != Promise::InCalls;
                let is_it = |slot: &u32| has(slot, &|it| it.name() == name);
                has_handle.then(|| self.by_handle.find(hash(name, *promise), is_it)).flatten()
            };
            // Who lets go of it now still has its place.
            let held = |slot: &u32| of(slot)?.1.upgrade();
            by_id.and_then(held).or_else(|| by_handle().and_then(held))
        })
    }

    /// Makes room for one more; `false` where the host has no memory.
    pub(super) fn make_room(&mut self) -> bool {
        let more = (self.slots.len() + 1).saturating_sub(self.free.len());
        (!self.free.is_empty() || self.slots.try_reserve(1).is_ok())
            && self.free.try_reserve(more).is_ok()
            && self.by_id.try_reserve(1, |slot| hash_in(&self.slots, *slot, |it| it.stream)).is_ok()
            && self.by_handle.try_reserve(1, |slot| hash_in(&self.slots, *slot, Timeline::name)).is_ok()
    }

    /// A free slot, which is taken with [`put`](Self::put). There is [room](Self::make_room).
    pub(super) fn free_slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 streams at once")
        })
    }

    pub(super) fn put(&mut self, timeline: Arc<Timeline>, held: Weak<H>) {
        let (slot, promise) = (timeline.id.slot, timeline.promise);
        let hashes = [hash(timeline.stream, promise), hash(timeline.name(), promise)];
        self.slots[slot as usize] = Some((timeline, held));
        let Self { slots, by_id, by_handle, .. } = self;
        // There is room: no hash is computed anew.
        by_id.insert_unique(hashes[0], slot, |slot| hash_in(slots, *slot, |it| it.stream));
        by_handle.insert_unique(hashes[1], slot, |slot| hash_in(slots, *slot, Timeline::name));
    }

    /// The timeline of the calling thread's default stream, whoever holds it: the one that the driver calls so, if it says.
    pub(super) fn of_this_thread(&self, id: Option<StreamId>) -> Option<&Entered<H>> {
        let name = (StreamHandle::PER_THREAD, thread_of(StreamHandle::PER_THREAD));
        let entered = |slot: u32| self.slots[slot as usize].as_ref();
        let is_it = |slot: &u32| {
            entered(*slot).is_some_and(|(timeline, _)| {
                let is_named = timeline.promise == Promise::OfThread && timeline.name() == name;
                is_named && !timeline.is_retired() && id.is_none_or(|id| timeline.stream == id)
            })
        };
        entered(*self.by_handle.find(hash(name, Promise::OfThread), is_it)?)
    }

    /// Somebody holds the stream again.
    pub(super) fn hold(&mut self, timeline: Arc<Timeline>, held: Weak<H>) {
        let slot = timeline.id.slot as usize;
        self.slots[slot] = Some((timeline, held));
    }

    /// Nobody finds the timeline any more. Returns whether somebody did.
    pub(super) fn hide(&mut self, timeline: &Timeline) -> bool {
        let (slot, promise) = (timeline.id.slot, timeline.promise);
        let mut was_there = false;
        let names = [
            (&mut self.by_id, hash(timeline.stream, promise)),
            (&mut self.by_handle, hash(timeline.name(), promise)),
        ];
        for (table, hash) in names {
            if let Ok(entry) = table.find_entry(hash, |other| *other == slot) {
                entry.remove();
                was_there = true;
            }
        }
        was_there
    }

    /// The timeline is complete, and gone.
    pub(super) fn remove(&mut self, id: TimelineId) {
        self.slots[id.slot as usize] = None;
        self.free.push(id.slot);
    }
}

#[cfg(test)]
thread_local! {
    /// Names that this thread looked up.
    pub(super) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
