//! Blocks: the pieces that address space is cut into, linked in address order.

use std::ops::{Index, IndexMut};

use crate::host::shrink;
use crate::order::Fence;
use crate::physical::PageId;

/// Names a block of one arena. Recycled when the block is joined with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockId(pub(super) u32);

/// Which of the two kinds of region a block lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Zone {
    Small = 0,
    Large = 1,
}

impl Zone {
    pub(super) const BOTH: [Self; 2] = [Self::Small, Self::Large];
}

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// In the program's hands, or in a magazine; the region's table says which.
    Allocated,
    /// Backed by pages, ready for whom its fence allows.
    Free,
    /// Nothing is mapped. Starts and ends at base pages.
    Unmapped,
    /// An old mapping of a page that now backs another address. Starts and ends at base pages.
    PendingUnmap(PageId),
    /// The record is unused.
    Unused,
}

/// The pages that lie wholly in a block.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Whole {
    pub(super) count: u32,
    /// For each length that one of them has in base pages, the bit of its binary logarithm.
    pub(super) classes: u32,
}

/// A piece of a region. In two cache lines, of which the first is what walks over blocks and most changes need: an
/// allocation or a free comes by several blocks, which lie anywhere.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Block {
    pub(super) state: State,
    pub(super) region: u32,
    pub(super) zone: Zone,
    /// Whether the id is in the arena's list of unmerged blocks. Stays with the id when the block goes.
    listed: bool,
    /// First unit, counted from the region's start.
    pub(super) start: u64,
    /// Length in units, never 0.
    pub(super) units: u64,
    pub(super) prev: Option<BlockId>,
    pub(super) next: Option<BlockId>,
    /// Free blocks: the count of frees when the youngest part of it was freed.
    pub(super) freed: u64,
    /// Free blocks: the pages that lie wholly in it, once a miss has asked (see `donors`).
    pub(super) whole: Option<Whole>,
    /// Free blocks, and those pending unmap: the work to wait for. Allocated blocks: the streams of recorded uses.
    pub(super) fence: Fence,
}

const _: () = assert!(size_of::<Block>() == 128, "a block has two cache lines");

impl Block {
    /// The one block of a new region.
    pub(super) fn whole(region: u32, zone: Zone, units: u64, state: State) -> Self {
        Self {
            state,
            zone,
            region,
            start: 0,
            units,
            prev: None,
            next: None,
            fence: Fence::empty(),
            freed: 0,
            whole: None,
            listed: false,
        }
    }

    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.start + self.units
    }
}

/// Records that there is room for at first: as for `regions`, what is not used is address space only.
const FIRST_RECORDS: usize = 1 << 11;

/// All blocks of one arena.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    records: Vec<Block>,
    vacant: Vec<BlockId>,
}

impl Blocks {
    /// Enters a block.
    pub(super) fn add(&mut self, block: Block) -> BlockId {
        let id = self.vacant_record();
        let record = &mut self[id];
        let listed = record.listed;
        *record = block;
        record.listed = listed;
        id
    }

    /// Sees to it that so many blocks more need no memory of the host's, nor does it when any of all are joined. `false`
    /// where the host refuses it.
    #[inline]
    pub(super) fn make_room(&mut self, more: usize) -> bool {
        self.vacant.len() >= more || self.make_room_slow(more)
    }

    #[cold]
    fn make_room_slow(&mut self, more: usize) -> bool {
        if self.records.capacity() == 0 && self.records.try_reserve_exact(FIRST_RECORDS).is_err() {
            return false;
        }
        // One joined block is vacant at a time, but all may come to be.
        self.records.try_reserve(more).is_ok()
            && self.vacant.try_reserve(self.records.capacity() - self.vacant.len()).is_ok()
    }

    /// Gives back the host's memory of records behind the last that is in use. Returns the first id that is none now.
    pub(super) fn shrink(&mut self) -> BlockId {
        let used =
            self.records.iter().rposition(|block| block.state != State::Unused).map_or(0, |last| last + 1);
        self.records.truncate(used);
        shrink(&mut self.records, FIRST_RECORDS);
        self.vacant.retain(|id| (id.0 as usize) < used);
        // All records may come to be vacant.
        shrink(&mut self.vacant, self.records.capacity());
        BlockId(used as u32)
    }

    /// Records that there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.records.capacity()
    }

    /// A record that is unused.
    #[inline]
    fn vacant_record(&mut self) -> BlockId {
        self.vacant.pop().unwrap_or_else(|| self.new_record_slow())
    }

    #[cold]
    fn new_record_slow(&mut self) -> BlockId {
        if self.records.capacity() == 0 {
            self.records.reserve_exact(FIRST_RECORDS);
        }
        self.records.push(Block::whole(0, Zone::Small, 0, State::Unused));
        BlockId(u32::try_from(self.records.len() - 1).expect("fewer than 2^32 blocks"))
    }

    /// Two records at once.
    #[inline]
    fn both(&mut self, a: BlockId, b: BlockId) -> [&mut Block; 2] {
        let both = self.records.get_disjoint_mut([a.0 as usize, b.0 as usize]);
        both.expect("two blocks have two records, and ids in use name records")
    }

    /// The block with this name; `None` where it never named a block.
    pub(super) fn get(&self, id: BlockId) -> Option<&Block> {
        self.records.get(id.0 as usize)
    }

    /// Whether the id names a block in this state now.
    pub(super) fn is(&self, id: BlockId, state: State) -> bool {
        self[id].state == state
    }

    /// Notes that the id is listed as unmerged or no longer; returns whether it was.
    pub(super) fn set_listed(&mut self, id: BlockId, listed: bool) -> bool {
        std::mem::replace(&mut self[id].listed, listed)
    }

    /// Cuts a block in two at unit `at`, which lies inside it. The id keeps the left part; the right part,
    /// with the same state and fence, is returned. Indexes are the caller's.
    pub(super) fn split(&mut self, id: BlockId, at: u64) -> BlockId {
        let new = self.vacant_record();
        let [left, right] = self.both(id, new);
        debug_assert!(left.start < at && at < left.end());
        // Field by field: a record is long, and one made elsewhere would be copied here.
        (right.state, right.zone, right.region) = (left.state, left.zone, left.region);
        (right.start, right.units) = (at, left.end() - at);
        (right.prev, right.next) = (Some(id), left.next);
        right.fence.clone_from(&left.fence);
        right.freed = left.freed;
        right.whole = None;
        left.units = at - left.start;
        let next = left.next.replace(new);
        if let Some(next) = next {
            self[next].prev = Some(new);
        }
        new
    }

    /// Cuts the first units off a block, which is longer than that, as a block without a fence, and returns it. The id keeps
    /// what is left, with its fence: a free block that others are cut from stays the same. Indexes and the region's first
    /// block are the caller's.
    pub(super) fn split_front(&mut self, id: BlockId, units: u64) -> BlockId {
        let new = self.vacant_record();
        let [front, rest] = self.both(new, id);
        debug_assert!(0 < units && units < rest.units);
        (front.state, front.zone, front.region) = (rest.state, rest.zone, rest.region);
        (front.start, front.units) = (rest.start, units);
        front.next = Some(id);
        front.fence = Fence::empty();
        front.freed = rest.freed;
        front.whole = None;
        rest.start += units;
        rest.units -= units;
        let prev = rest.prev.replace(new);
        front.prev = prev;
        if let Some(prev) = prev {
            self[prev].next = Some(new);
        }
        new
    }

    /// Moves the bound between a block and its next, which is longer than that, up by so many units. Indexes are the
    /// caller's.
    pub(super) fn move_bound(&mut self, left: BlockId, right: BlockId, units: u64) {
        let [left, right] = self.both(left, right);
        debug_assert!(left.end() == right.start && units < right.units);
        left.units += units;
        right.start += units;
        right.units -= units;
    }

    /// Sees to it that to [split](Self::split) a block twice takes no memory of the host's for the fence, given that there
    /// is room for the blocks; `false` where it is refused.
    pub(super) fn make_room_to_split(&mut self, id: BlockId) -> bool {
        !self[id].fence.is_long() || self.make_room_for_fences(self[id].fence.len())
    }

    /// Two records that are taken next can have fences of so many streams.
    #[cold]
    fn make_room_for_fences(&mut self, streams: usize) -> bool {
        while self.vacant.len() < 2 {
            let new = self.new_record_slow();
            self.vacant.insert(0, new);
        }
        let next = self.vacant.len() - 2;
        (next..next + 2).all(|at| {
            let id = self.vacant[at];
            let fence = &mut self[id].fence;
            fence.make_room(streams.saturating_sub(fence.len()))
        })
    }

    /// Sees to it that to [join](Self::join) the fences of two blocks takes no memory of the host's; `false` where it is
    /// refused.
    pub(super) fn make_room_to_join(&mut self, a: BlockId, b: BlockId) -> bool {
        let [a, b] = self.both(a, b);
        let (long, short) = if a.fence.len() < b.fence.len() { (b, a) } else { (a, b) };
        long.fence.make_room_to_join(&short.fence)
    }

    /// Joins two neighbours, in either order; the fences are joined too. Returns the id that keeps the whole;
    /// the other is vacant. Indexes are the caller's.
    pub(super) fn join(&mut self, a: BlockId, b: BlockId) -> BlockId {
        let (left, right) = if self[a].start < self[b].start { (a, b) } else { (b, a) };
        debug_assert_eq!(self[left].next, Some(right));
        let [kept, gone] = self.both(left, right);
        gone.state = State::Unused;
        kept.units += gone.units;
        kept.next = gone.next;
        kept.freed = kept.freed.max(gone.freed);
        if kept.fence.len() < gone.fence.len() {
            std::mem::swap(&mut kept.fence, &mut gone.fence);
        }
        // The fence of a record that is unused stays where it is, and is written over.
        kept.fence.join(&gone.fence);
        let next = kept.next;
        if let Some(next) = next {
            self[next].prev = Some(left);
        }
        self.vacant.push(right);
        left
    }

    /// Removes a block that is its region's only one.
    pub(super) fn remove_alone(&mut self, id: BlockId) {
        let gone = &mut self[id];
        debug_assert!(gone.prev.is_none() && gone.next.is_none());
        gone.state = State::Unused;
        gone.fence = Fence::empty();
        self.vacant.push(id);
    }

    /// Every block that is in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.records
            .iter()
            .zip(0..)
            .filter(|(block, _)| block.state != State::Unused)
            .map(|(block, id)| (BlockId(id), block))
    }
}

impl Index<BlockId> for Blocks {
    type Output = Block;
    #[inline]
    fn index(&self, id: BlockId) -> &Block {
        &self.records[id.0 as usize]
    }
}

impl IndexMut<BlockId> for Blocks {
    #[inline]
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.records[id.0 as usize]
    }
}
