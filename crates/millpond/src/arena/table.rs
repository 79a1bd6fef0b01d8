//! From an address to what is known of the block there, readable without the pool's lock.
//!
//! Each region has a [`Table`] with one [`Entry`] for every place where a block may start: every unit in the
//! small zone; in the large zone, whose blocks are never shorter than a granule, one per granule. The tables
//! of address ranges are published in [`Views`], so that a free finds its block with two subtractions, a
//! shift and two loads. Entries come in chunks that are made when the first block starts there.
//!
//! A block that has left the arena is *out*. It is *live* while the program holds it and *cached* while it
//! lies in a thread's magazine; who has it writes its entry, so that needs no atomic read-modify-write. Only
//! the pool's lock lets blocks out and takes them back.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use super::BlockId;
use crate::device::DevicePtr;
use crate::order::Tick;

/// What is known of the block that starts at one place.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Low half: the byte within the granule at which it starts, and from bit `OFFSET_BITS` on what it is
    /// (`LIVE`, `CACHED`, with `USES`; 0 for no block). High half: bytes of it that were not asked for.
    state: AtomicU64,
    /// The block's id in the low half, its label in the high. Constant while the block is out.
    block: AtomicU64,
    /// Length in bytes. Constant while the block is out.
    bytes: AtomicU64,
    /// The stream's tick when the block was last freed to a magazine.
    tick: AtomicU64,
}

/// A granule is at most 2 MiB.
const OFFSET_BITS: u32 = 24;
const OFFSET: u64 = (1 << OFFSET_BITS) - 1;
const LIVE: u64 = 1 << OFFSET_BITS;
const CACHED: u64 = 2 << OFFSET_BITS;
/// Other streams' uses of the block are recorded, so that its free is the arena's.
const USES: u64 = 4 << OFFSET_BITS;

/// Blocks are shorter than this, in units: 16 TiB in the smallest units.
pub(crate) const MOST_UNITS: u64 = 1 << 36;

impl Entry {
    /// A block leaves the arena: it starts `offset` bytes into the entry's granule and is cached for now.
    fn open(&self, offset: u32, id: BlockId, bytes: u64) {
        // Relaxed, here and where nothing else is said: whoever reads an entry that matters to him got the block's address from a thread
        // that wrote it, or holds the pool's lock. For other addresses (a double free, a foreign pointer) any
        // value seen is a value that was there, and none of them says more than that.
        self.block.store(u64::from(id.0), Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.state.store(CACHED | u64::from(offset), Ordering::Relaxed);
    }

    /// The block is the arena's again.
    fn close(&self) {
        self.state.store(0, Ordering::Relaxed);
    }

    /// The program gets the block, of which it did not ask for `slack` bytes.
    #[inline]
    pub(crate) fn make_live(&self, slack: u64) {
        // Release: pairs with the Acquire in `slack_if_plain`, so that a thread that got the pointer by whatever way
        // sees the label and the length that belong to this life of the block.
        self.state.store(slack << 32 | LIVE | self.offset(), Ordering::Release);
    }

    /// The program gave the block back to a magazine, at `tick` of the stream that freed it.
    #[inline]
    pub(crate) fn make_cached(&self, offset: u64, tick: Tick) {
        self.tick.store(tick, Ordering::Relaxed);
        self.state.store(CACHED | offset, Ordering::Relaxed);
    }

    /// The byte within the entry's granule at which the block starts.
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.state.load(Ordering::Relaxed) & OFFSET
    }

    /// Notes that other streams use the live block.
    pub(super) fn note_uses(&self) {
        // A read-modify-write: the program may use the block on several threads at once.
        self.state.fetch_or(USES, Ordering::Relaxed);
    }

    /// Bytes not asked for, of the live block without recorded uses that starts `offset` bytes into the
    /// granule; `None` where there is none.
    #[inline]
    pub(crate) fn slack_if_plain(&self, offset: u64) -> Option<u64> {
        // Acquire: see `make_live`.
        let state = self.state.load(Ordering::Acquire);
        (state as u32 == (LIVE + offset) as u32).then_some(state >> 32)
    }

    fn starts_at(&self, offset: u64) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        state & (LIVE | CACHED) != 0 && state & OFFSET == offset
    }

    /// Whether the program holds the block.
    pub(crate) fn is_live(&self) -> bool {
        self.state.load(Ordering::Relaxed) & LIVE != 0
    }

    /// Bytes of a live block that were not asked for.
    pub(crate) fn slack(&self) -> u64 {
        self.state.load(Ordering::Relaxed) >> 32
    }

    /// Length of a block that is out.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The tick at which a cached block was freed.
    pub(crate) fn tick(&self) -> Tick {
        self.tick.load(Ordering::Relaxed)
    }

    /// The arena's name of a block that is out.
    pub(crate) fn id(&self) -> BlockId {
        BlockId(self.block.load(Ordering::Relaxed) as u32)
    }

    /// A number that whoever has a block that is out may put down here. 0 at first.
    #[inline]
    pub(crate) fn label(&self) -> u32 {
        (self.block.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Puts the number down. Under the pool's lock.
    pub(crate) fn set_label(&self, label: u32) {
        let id = self.block.load(Ordering::Relaxed) as u32;
        self.block.store(u64::from(label) << 32 | u64::from(id), Ordering::Relaxed);
    }
}

/// Names an entry for as long as its block is out; see [`EntryRef::get`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryRef(NonNull<Entry>);

// SAFETY: an entry is made of atomics, and may be read and written from any thread.
unsafe impl Send for EntryRef {}

impl EntryRef {
    #[inline]
    pub(crate) fn new(entry: &Entry) -> Self {
        Self(NonNull::from(entry))
    }

    /// The entry.
    ///
    /// # Safety
    /// The block is out, and its arena is alive.
    #[inline]
    pub(crate) unsafe fn get<'a>(self) -> &'a Entry {
        // SAFETY: a region's table is kept while any block in it is out (an arena removes a region only when
        // it is one void or one free segment), and entries never move. The caller promises the rest.
        unsafe { self.0.as_ref() }
    }
}

/// Entries in a chunk.
const CHUNK: u64 = 4096;

#[derive(Debug)]
struct Chunk([Entry; CHUNK as usize]);

/// Stands for every chunk in which no block ever started: a look-up needs no test for it.
static EMPTY: Chunk = {
    #[expect(
        clippy::declare_interior_mutable_const,
        reason = "repeated into the static, where it is never written"
    )]
    const NOTHING: Entry = Entry {
        state: AtomicU64::new(0),
        block: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        tick: AtomicU64::new(0),
    };
    Chunk([NOTHING; CHUNK as usize])
};

fn empty() -> *mut Chunk {
    (&raw const EMPTY).cast_mut()
}

/// The entries of one region.
#[derive(Debug)]
pub(crate) struct Table {
    granule_shift: u32,
    chunks: Box<[AtomicPtr<Chunk>]>,
}

impl Table {
    /// Entries for a region of `bytes`, in which blocks start at least `granule` bytes (a power of two) apart.
    pub(super) fn new(bytes: u64, granule: u64) -> Self {
        let granule_shift = granule.ilog2();
        let chunks = (bytes >> granule_shift).div_ceil(CHUNK) as usize;
        Self {
            granule_shift,
            chunks: std::iter::repeat_with(|| AtomicPtr::new(empty())).take(chunks).collect(),
        }
    }

    /// The byte within its granule.
    #[inline]
    fn within(&self, at: u64) -> u64 {
        at & ((1 << self.granule_shift) - 1)
    }

    /// The entry for byte `at` of the region.
    #[inline]
    fn entry(&self, at: u64) -> Option<&Entry> {
        let granule = at >> self.granule_shift;
        let chunk = self.chunks.get((granule / CHUNK) as usize)?;
        // Acquire: pairs with the Release in `entry_or_add`, so that the chunk is seen as it was made.
        // SAFETY: a chunk, once there, stays until the table is dropped.
        let chunk = unsafe { &*chunk.load(Ordering::Acquire) };
        Some(&chunk.0[place_in_chunk(granule)])
    }

    /// The entry for byte `at`. Called under the pool's lock.
    fn entry_or_add(&self, at: u64) -> &Entry {
        let granule = at >> self.granule_shift;
        let chunk = &self.chunks[(granule / CHUNK) as usize];
        // Relaxed: chunks are made under the lock, which the caller holds.
        let mut known = chunk.load(Ordering::Relaxed);
        if known == empty() {
            // SAFETY: a chunk is made of atomic integers, for which zero bytes are zeros.
            known = Box::into_raw(unsafe { Box::<Chunk>::new_zeroed().assume_init() });
            // Release: see `entry`.
            chunk.store(known, Ordering::Release);
        }
        // SAFETY: as in `entry`.
        &unsafe { &*known }.0[place_in_chunk(granule)]
    }

    /// Lets a block out that starts at byte `at` of the region.
    pub(super) fn open(&self, at: u64, id: BlockId, bytes: u64) -> EntryRef {
        let entry = self.entry_or_add(at);
        entry.open(self.within(at) as u32, id, bytes);
        EntryRef::new(entry)
    }

    /// Takes back the block that starts at byte `at`.
    pub(super) fn close(&self, at: u64) {
        if let Some(entry) = self.entry(at) {
            entry.close();
        }
    }

    /// The block that is out and starts at byte `at`.
    pub(super) fn out_at(&self, at: u64) -> Option<&Entry> {
        self.entry(at).filter(|entry| entry.starts_at(self.within(at)))
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        for chunk in &mut self.chunks {
            let chunk = *chunk.get_mut();
            if chunk != empty() {
                // SAFETY: the chunk came from `Box::into_raw`, and the table that named it is going.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
    }
}

/// Spreads neighbours over cache lines: threads that own neighbouring blocks write their entries all the time.
/// Multiplying by an odd number permutes the places; this one is the golden ratio of the chunk, which keeps
/// runs and strides of any length apart.
#[inline]
fn place_in_chunk(granule: u64) -> usize {
    ((granule * 2531) % CHUNK) as usize
}

/// Address ranges that can be looked up without the lock. An arena has two as a rule, one per zone; blocks in
/// ranges beyond these go to the arena when they are freed.
const VIEWS: usize = 4;

/// What a look-up needs of one table, in one place.
#[derive(Debug, Default)]
struct View {
    base: AtomicU64,
    /// 0 until the view is published.
    bytes: AtomicU64,
    granule_shift: AtomicU8,
    granule_mask: AtomicU64,
    chunks: AtomicPtr<AtomicPtr<Chunk>>,
    /// Keeps the table.
    table: AtomicPtr<Table>,
}

/// The tables of a pool's address ranges. Once published they stay, also when the range is given back.
#[derive(Debug, Default)]
pub(crate) struct Views([View; VIEWS]);

impl Views {
    /// Publishes a table, if there is room. Called under the pool's lock.
    pub(super) fn publish(&self, base: DevicePtr, bytes: u64, table: &Arc<Table>) {
        // Relaxed: only the holder of the lock writes.
        let Some(view) = self.0.iter().find(|view| view.bytes.load(Ordering::Relaxed) == 0) else { return };
        debug_assert!(bytes.div_ceil(CHUNK << table.granule_shift) <= table.chunks.len() as u64);
        view.base.store(base.raw(), Ordering::Relaxed);
        view.granule_shift.store(table.granule_shift as u8, Ordering::Relaxed);
        view.granule_mask.store(table.within(u64::MAX), Ordering::Relaxed);
        view.chunks.store(table.chunks.as_ptr().cast_mut(), Ordering::Relaxed);
        view.table.store(Arc::into_raw(table.clone()).cast_mut(), Ordering::Relaxed);
        // Release: who sees the length sees the rest, too.
        view.bytes.store(bytes, Ordering::Release);
    }

    /// The entry for an address, and the byte within the entry's granule; `None` outside of the ranges.
    #[inline]
    pub(crate) fn find(&self, ptr: DevicePtr) -> Option<(&Entry, u64)> {
        for view in &self.0 {
            // Acquire: see `publish`.
            let bytes = view.bytes.load(Ordering::Acquire);
            let at = ptr.raw().wrapping_sub(view.base.load(Ordering::Relaxed));
            if at < bytes {
                let shift = view.granule_shift.load(Ordering::Relaxed);
                let granule = at >> shift;
                // SAFETY: the table is kept by the view until the views are dropped, and has chunks for all
                // `bytes`.
                let chunk = unsafe { &*view.chunks.load(Ordering::Relaxed).add((granule / CHUNK) as usize) };
                // Acquire: see `Table::entry`.
                // SAFETY: a chunk, once there, stays until the table is dropped.
                let chunk = unsafe { &*chunk.load(Ordering::Acquire) };
                let within = at & view.granule_mask.load(Ordering::Relaxed);
                return Some((&chunk.0[place_in_chunk(granule)], within));
            }
        }
        None
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        for view in &mut self.0 {
            let table = *view.table.get_mut();
            if !table.is_null() {
                // SAFETY: the pointer came from `Arc::into_raw` in `publish`, and is given up here only.
                drop(unsafe { Arc::from_raw(table.cast_const()) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_lie_on_different_cache_lines() {
        let mut places: Vec<_> = (0..CHUNK).map(place_in_chunk).collect();
        for stride in [1, 2, 4, 8, 16, 32, 64, 128] {
            for at in 0..16 {
                for other in 0..at {
                    let apart = place_in_chunk(at * stride).abs_diff(place_in_chunk(other * stride));
                    assert!(apart >= 2, "blocks {at} and {other} of {stride} granules share a line");
                }
            }
        }
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len() as u64, CHUNK);
    }

    #[test]
    fn an_entry_is_found_only_at_the_byte_where_its_block_starts() {
        let table = Table::new(1 << 30, 1 << 20);
        assert!(table.out_at(5 << 20).is_none());
        table.open((5 << 20) + 512, BlockId(7), 2 << 20);
        assert!(table.out_at(5 << 20).is_none());
        assert!(table.out_at((5 << 20) + 1024).is_none());
        let entry = table.out_at((5 << 20) + 512).expect("the block is out");
        assert_eq!((entry.id(), entry.bytes(), entry.is_live()), (BlockId(7), 2 << 20, false));
        entry.make_live(300);
        assert_eq!(entry.slack_if_plain(512), Some(300));
        assert_eq!(entry.slack_if_plain(0), None);
        entry.note_uses();
        assert_eq!(entry.slack_if_plain(512), None);
        entry.set_label(9);
        entry.make_cached(512, 3);
        assert_eq!((entry.id(), entry.label(), entry.tick()), (BlockId(7), 9, 3));
        assert!(!entry.is_live() && table.out_at((5 << 20) + 512).is_some());
        table.close((5 << 20) + 512);
        assert!(table.out_at((5 << 20) + 512).is_none());
    }
}
