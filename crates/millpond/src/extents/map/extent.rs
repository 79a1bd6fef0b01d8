//! Extents: the pieces that address space is cut into, linked in address order.

use std::ops::{Index, IndexMut};

use super::layout::Zone;
use super::sparse::Records;
use crate::order::Fence;
use crate::physical::{IdleMapping, PageId};
use crate::policy::addresses::MOST_ALLOCATED;
use crate::system::host_memory::shrink;

/// Names an extent of one arena. Recycled when the extent is joined with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ExtentId(pub(in crate::extents) u32);

/// What an extent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::extents) enum ExtentState {
    /// Live, or in a magazine; the block descriptor says which.
    Allocated,
    /// Backed by pages; its fence says who may use it.
    Free,
    /// A part of a place that is being entered: backed, and about to be joined with the other parts. It is on no list.
    Entered,
    /// Nothing is mapped. Starts and ends at base pages.
    Unmapped,
    /// An old mapping of a page that moved away, which is removed once its work is complete. Starts and ends at base
    /// pages.
    PendingUnmap(PageId),
    /// An old mapping that stays as long as nothing else needs its addresses: the page may come back. As long as the
    /// page. The work on it may be under way, or come again with a graph: nobody removes it.
    Dormant(PageId),
    /// A dormant mapping whose work is complete, so that it may be removed. Its fence is empty.
    Idle(IdleMapping),
    /// A segment that leaves ([`segments`](super::super::segments)), and all of its region. In no index.
    Leaving(PageId),
    /// The record is unused.
    Unused,
}

/// A piece of a region. Takes two cache lines. Walks and most changes need the first only: each request touches
/// several, scattered ones.
#[derive(Debug)]
#[repr(C, align(64))]
pub(in crate::extents) struct Extent {
    pub(in crate::extents) state: ExtentState,
    pub(in crate::extents) region: u32,
    pub(in crate::extents) zone: Zone,
    /// First unit, counted from the region's start.
    pub(in crate::extents) start: u64,
    /// Length in units, never 0.
    pub(in crate::extents) units: u64,
    pub(in crate::extents) prev: Option<ExtentId>,
    pub(in crate::extents) next: Option<ExtentId>,
    /// Free extents: the count of frees when the youngest part of it was freed.
    pub(in crate::extents) freed: u64,
    /// Free extents, and old mappings: the work to wait for. Allocated blocks: the streams of recorded uses.
    pub(in crate::extents) fence: Fence,
    /// Old mappings and free extents: the neighbours on their list. Blocks: those before and behind in their region.
    pub(in crate::extents) link: Link,
}

/// The extents before and behind one on a list, or the blocks before and behind one in a region.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::extents) struct Link {
    pub(in crate::extents) prev: Option<ExtentId>,
    pub(in crate::extents) next: Option<ExtentId>,
}

const _: () = assert!(size_of::<Extent>() == 128, "an extent has two cache lines");

impl Extent {
    /// The one extent of a new region.
    pub(in crate::extents) fn whole(region: u32, zone: Zone, units: u64, state: ExtentState) -> Self {
        let (fence, link) = (Fence::empty(), Link::default());
        Self { state, zone, region, start: 0, units, prev: None, next: None, freed: 0, fence, link }
    }

    #[inline]
    pub(in crate::extents) fn end(&self) -> u64 {
        self.start + self.units
    }
}

/// Why there are no more extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::extents) enum NoRoom {
    /// The host refuses memory, or has no addresses left.
    HostMemory,
    /// There are as many as there can be.
    MostExtents(usize),
}

const IN_USE: &str = "an id in use names a record";

/// All extents of one arena.
#[derive(Debug, Default)]
pub(in crate::extents) struct Extents {
    /// Once there are any.
    records: Option<Records<Extent>>,
    vacant: Vec<ExtentId>,
    /// How many have to be vacant before it is looked for memory to give back.
    look_from: usize,
}

impl Extents {
    /// Enters an extent.
    pub(in crate::extents) fn add(&mut self, extent: Extent) -> ExtentId {
        let id = self.vacant_record();
        self[id] = extent;
        id
    }

    /// Whether there is a list for them. It has to be [given](Self::begin).
    pub(in crate::extents) fn has_begun(&self) -> bool {
        self.records.is_some()
    }

    /// Where they will be.
    pub(in crate::extents) fn begin(&mut self, records: Records<Extent>) {
        self.records = Some(records);
    }

    /// Whether so many more extents, with fences of so many streams, take no memory of the host's.
    #[inline]
    pub(in crate::extents) fn has_room(&self, more: usize, streams: usize) -> bool {
        let unwritten = self.records.as_ref().map_or(0, |records| records.backed() - records.len());
        self.vacant.len() + unwritten >= more && !Fence::would_be_long(streams)
    }

    /// Reserves the host's memory for so many more, and for joining any of them. `describe` does so for what belongs to all with
    /// ids below a bound.
    #[cold]
    pub(in crate::extents) fn make_room(
        &mut self,
        more: usize,
        streams: usize,
        describe: impl FnOnce(usize) -> bool,
    ) -> Result<(), NoRoom> {
        let Some(records) = &mut self.records else { return Err(NoRoom::HostMemory) };
        let end = records.len() + more.saturating_sub(self.vacant.len());
        if end > records.most() {
            // With fewer addresses of the process's there can be fewer.
            let is_most = records.most() >= MOST_ALLOCATED - 1;
            return Err(if is_most { NoRoom::MostExtents(records.most()) } else { NoRoom::HostMemory });
        }
        // All records may become vacant.
        let has_room = records.back(end)
            && self.vacant.try_reserve(records.backed() - self.vacant.len()).is_ok()
            && describe(records.backed())
            // Records are written once they are used. But a long fence needs one that is there.
            && (!Fence::would_be_long(streams) || self.make_room_for_fences(more, streams));
        if has_room { Ok(()) } else { Err(NoRoom::HostMemory) }
    }

    fn make_room_for_fences(&mut self, more: usize, streams: usize) -> bool {
        let new = more.saturating_sub(self.vacant.len());
        for _ in 0..new {
            let id = self.unused_record();
            self.vacant.push(id);
        }
        // Those at the back are taken first. Let that be the lowest, so that the host's memory behind the last in use goes back.
        let from = self.vacant.len() - new;
        self.vacant[from..].reverse();
        self.vacant.rotate_right(new);
        let next = self.vacant.len() - more;
        let Self { records: Some(records), vacant, .. } = self else { return false };
        vacant[next..].iter().all(|id| {
            let fence = &mut records[id.0 as usize].fence;
            fence.make_room(streams.saturating_sub(fence.len()))
        })
    }

    /// Gives back the host's memory behind the last record in use, where that is at least half of it. Returns what ids stay below
    /// then. Most calls look at no record: so many must have become vacant since the last look in vain.
    pub(in crate::extents) fn shrink(&mut self) -> Option<usize> {
        let records = self.records.as_mut()?;
        if self.vacant.len() < self.look_from.max(records.len() / 2) {
            return None;
        }
        let last = records.iter().rposition(|extent| extent.state != ExtentState::Unused);
        let used = last.map_or(0, |last| last + 1);
        if used > records.len() / 2 {
            self.look_from = self.vacant.len() + records.len() / 8;
            return None;
        }
        self.look_from = 0;
        records.truncate(used);
        self.vacant.retain(|id| (id.0 as usize) < used);
        // All records may become vacant.
        shrink(&mut self.vacant, records.backed());
        Some(used)
    }

    /// Bytes of the host's that those below the last take.
    pub(in crate::extents) fn host_bytes(&self) -> u64 {
        self.records.as_ref().map_or(0, |records| size_of_val(&records[..]) as u64)
    }

    /// A record that is unused.
    #[inline]
    fn vacant_record(&mut self) -> ExtentId {
        self.vacant.pop().unwrap_or_else(|| self.unused_record())
    }

    /// A record behind all others.
    #[cold]
    fn unused_record(&mut self) -> ExtentId {
        let records = self.records.as_mut().expect("room is made before an extent is added");
        let id = u32::try_from(records.len()).expect("fewer than 2^32 extents");
        records.push(Extent::whole(0, Zone::Small, 0, ExtentState::Unused));
        ExtentId(id)
    }

    /// Two records at once.
    #[inline]
    fn both(&mut self, a: ExtentId, b: ExtentId) -> [&mut Extent; 2] {
        let records = self.records.as_deref_mut().expect(IN_USE);
        let both = records.get_disjoint_mut([a.0 as usize, b.0 as usize]);
        both.expect("two extents have two records, and ids in use name records")
    }

    /// Cuts an extent in two at unit `at`, which lies inside it. The id keeps the left part; the right part,
    /// with the same state and fence, is returned. Indexes are the caller's.
    pub(in crate::extents) fn split(&mut self, id: ExtentId, at: u64) -> ExtentId {
        let new = self.vacant_record();
        let [left, right] = self.both(id, new);
        debug_assert!(left.start < at && at < left.end());
        // Field by field: a record is long, and one made elsewhere would be copied here.
        (right.state, right.zone, right.region) = (left.state, left.zone, left.region);
        (right.start, right.units) = (at, left.end() - at);
        (right.prev, right.next) = (Some(id), left.next);
        right.fence.clone_from(&left.fence);
        right.freed = left.freed;
        left.units = at - left.start;
        let next = left.next.replace(new);
        if let Some(next) = next {
            self[next].prev = Some(new);
        }
        new
    }

    /// Reserves the host's memory to [join](Self::join) the fences of two extents; `false` where it is refused.
    pub(in crate::extents) fn make_room_to_join(&mut self, a: ExtentId, b: ExtentId) -> bool {
        let [a, b] = self.both(a, b);
        // As `join` does: of two that are as long, the left one keeps its fence.
        let (left, right) = if a.start < b.start { (a, b) } else { (b, a) };
        let (long, short) = if left.fence.len() < right.fence.len() { (right, left) } else { (left, right) };
        long.fence.make_room_to_join(&short.fence)
    }

    /// Joins two neighbours, in either order; the fences are joined too. Returns the id that keeps the whole;
    /// the other is vacant. Indexes are the caller's.
    pub(in crate::extents) fn join(&mut self, a: ExtentId, b: ExtentId) -> ExtentId {
        let (left, right) = if self[a].start < self[b].start { (a, b) } else { (b, a) };
        debug_assert_eq!(self[left].next, Some(right));
        let [kept, gone] = self.both(left, right);
        gone.state = ExtentState::Unused;
        kept.units += gone.units;
        kept.next = gone.next;
        kept.freed = kept.freed.max(gone.freed);
        if kept.fence.len() < gone.fence.len() {
            std::mem::swap(&mut kept.fence, &mut gone.fence);
        }
        // An unused record keeps its fence, which is later written over.
        kept.fence.join(&gone.fence);
        let next = kept.next;
        if let Some(next) = next {
            self[next].prev = Some(left);
        }
        self.vacant.push(right);
        left
    }

    /// Removes an extent that is its region's only one.
    pub(in crate::extents) fn remove_alone(&mut self, id: ExtentId) {
        let gone = &mut self[id];
        debug_assert!(gone.prev.is_none() && gone.next.is_none());
        gone.state = ExtentState::Unused;
        gone.fence = Fence::empty();
        self.vacant.push(id);
    }

    /// Every extent that is in use.
    pub(in crate::extents) fn iter(&self) -> impl Iterator<Item = (ExtentId, &Extent)> {
        self.records
            .iter()
            .flat_map(|records| records.iter())
            .zip(0..)
            .filter(|(extent, _)| extent.state != ExtentState::Unused)
            .map(|(extent, id)| (ExtentId(id), extent))
    }
}

impl Index<ExtentId> for Extents {
    type Output = Extent;
    #[inline]
    fn index(&self, id: ExtentId) -> &Extent {
        &self.records.as_deref().expect(IN_USE)[id.0 as usize]
    }
}

impl IndexMut<ExtentId> for Extents {
    #[inline]
    fn index_mut(&mut self, id: ExtentId) -> &mut Extent {
        &mut self.records.as_deref_mut().expect(IN_USE)[id.0 as usize]
    }
}
