//! From an address to what is known of the block there, readable without the pool's lock.
//!
//! Each region has a [`Table`] with one [`Entry`] for every place where a block may start: every unit in the
//! small zone; in the large zone, whose blocks are never shorter than a granule, one per granule. The tables
//! of address ranges are published in [`Views`], so that a free finds its block with a comparison and a
//! shift. Entries take memory of the host's where blocks started ([`Entries`]).
//!
//! A block that has left the arena is *out*. It is *live* while the program holds it and *cached* while it
//! lies in a thread's magazine; who has it writes its entry, so that needs no atomic read-modify-write. Only
//! the pool's lock lets blocks out and takes them back.
//!
//! **Freed twice at once.** Two threads that free one block within the same nanoseconds both find it live, and each
//! puts it into a magazine. The entry then names one of the two magazines: the last that wrote it. Whoever takes a
//! block out of a magazine, to hand it out or to give it back, first looks whether the entry names this magazine
//! ([`Entry::is_in`]). The other copy is a *stray*: it is dropped, counted and reported. So a block is never handed
//! out twice, and the arena never takes back what is live or somebody else's. An entry whose block went back to the
//! arena has a length that no block has ([`GONE`]), so that a copy whose free was still under way then is not
//! handed out either. One order is not seen, since the free would need an atomic read-modify-write for it: a thread
//! that is stopped inside its free, after it found the block live, until the same block was handed out again.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::BlockId;
use super::entries::Entries;
use crate::device::DevicePtr;
use crate::order::Tick;

/// What is known of the block that starts at one place. On a cache line of its own: threads that own neighbouring
/// blocks write their entries all the time.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Entry {
    /// The address of the live block, so that a free compares it with what it was given and knows all it must. With
    /// [`USES`] added for a block that other streams use it is no address that a device has ([`Device::reserve`]). For
    /// a block that is not live, the [place](Place) where it is. 0 for no block.
    ///
    /// [`Device::reserve`]: crate::device::Device::reserve
    key: AtomicU64,
    /// Bytes of a live block that were asked for.
    requested: AtomicU64,
    /// Length in bytes. Constant while the block is out. Afterwards [`GONE`] is added.
    bytes: AtomicU64,
    /// Where the block starts. Constant while it is out, and 0 afterwards.
    start: AtomicU64,
    /// The stream's tick when the block was last freed to a magazine.
    tick: AtomicU64,
    /// Constant while the block is out, as is `id`.
    label: AtomicU32,
    id: AtomicU32,
}

/// Other streams' uses of the live block are recorded, so that its free is the arena's.
const USES: u64 = 1 << 62;

/// Added to the length in the entry of a block that is the arena's again: more than any block has.
pub(crate) const GONE: u64 = 1 << 62;

/// Where a block is that is out and not live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(u64);

impl Place {
    /// Between two places, in the depot, or in the hands of whoever has the pool's lock.
    pub(crate) const BETWEEN: Self = Self(1);

    /// In this magazine, which does not move while it holds blocks. Its address in the host's memory is not where a
    /// block starts: a host and its devices share one range of addresses, and simulated ones begin far below the heap.
    #[inline]
    pub(crate) fn of<M>(magazine: &M) -> Self {
        const { assert!(align_of::<M>() > 1, "its address is another place than `BETWEEN`") };
        Self(std::ptr::from_ref(magazine).addr() as u64)
    }
}

/// Blocks are shorter than this, in units: 16 TiB in the smallest units.
pub(crate) const MOST_UNITS: u64 = 1 << 36;

impl Entry {
    /// A block leaves the arena, and is nobody's for now.
    fn open(&self, ptr: DevicePtr, id: BlockId, bytes: u64) {
        debug_assert!(ptr.raw() < USES, "a device with addresses beyond 2^62");
        // Relaxed, here and where nothing else is said: whoever reads an entry that matters to him got the block's
        // address from a thread that wrote it, or holds the pool's lock. For other addresses (a double free, a foreign
        // pointer) any value seen is a value that was there, and none of them says more than that.
        self.id.store(id.0, Ordering::Relaxed);
        self.label.store(0, Ordering::Relaxed);
        self.start.store(ptr.raw(), Ordering::Relaxed);
        self.key.store(Place::BETWEEN.0, Ordering::Relaxed);
        // Release: who reads this length with Acquire sees what comes before it (`bytes_of_live`).
        self.bytes.store(bytes, Ordering::Release);
    }

    /// The block is the arena's again.
    fn close(&self) {
        self.start.store(0, Ordering::Relaxed);
        self.key.store(0, Ordering::Relaxed);
        // Release: as in `open`.
        self.bytes.store(self.bytes() | GONE, Ordering::Release);
    }

    /// The program gets the block at `ptr`, of which it asked for so many bytes.
    #[inline]
    pub(crate) fn make_live(&self, ptr: DevicePtr, requested: u64) {
        self.requested.store(requested, Ordering::Relaxed);
        // Release: pairs with the Acquire in `is_plain`, so that a thread that got the pointer by whatever way sees
        // the label and the lengths that belong to this life of the block.
        self.key.store(ptr.raw(), Ordering::Release);
    }

    /// The program gave the block back to the magazine at `place`, at `tick` of the stream that freed it.
    #[inline]
    pub(crate) fn make_cached(&self, place: Place, tick: Tick) {
        // Most often it is what it was: a load costs less than a store.
        if self.tick.load(Ordering::Relaxed) != tick {
            self.tick.store(tick, Ordering::Relaxed);
        }
        self.move_to(place);
    }

    /// The block that is out and not live lies elsewhere now.
    #[inline]
    pub(crate) fn move_to(&self, place: Place) {
        self.key.store(place.0, Ordering::Relaxed);
    }

    /// Whether the block is there. By whoever has a copy of it in that place.
    #[inline]
    pub(crate) fn is_in(&self, place: Place) -> bool {
        self.key.load(Ordering::Relaxed) == place.0
    }

    /// Takes the block out of the hands of whoever has it at `place`; `false`, and nothing changed, where it is not
    /// there, or was the arena's already.
    pub(crate) fn leave(&self, place: Place) -> bool {
        let is_there = self.is_in(place) && self.bytes() & GONE == 0;
        if is_there {
            self.move_to(Place::BETWEEN);
        }
        is_there
    }

    /// Takes the live block at `ptr`, which has no recorded uses, out of the program's hands; `false`, and nothing
    /// changed, where another thread was first. Under the pool's lock.
    pub(crate) fn claim(&self, ptr: DevicePtr) -> bool {
        // Acquire: as in `is_plain`.
        let order = (Ordering::Acquire, Ordering::Relaxed);
        self.key.compare_exchange(ptr.raw(), Place::BETWEEN.0, order.0, order.1).is_ok()
    }

    /// Where the block that is out starts.
    pub(crate) fn ptr(&self) -> DevicePtr {
        DevicePtr::new(self.start.load(Ordering::Relaxed))
    }

    /// Notes that other streams use the live block.
    pub(super) fn note_uses(&self) {
        let live = self.start.load(Ordering::Relaxed);
        // A read-modify-write: another thread may free the block meanwhile, which would be a mistake. Where it is not
        // live, or noted already, nothing is to be done.
        let _ = self.key.compare_exchange(live, live | USES, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether a live block without recorded uses starts at `ptr`, an address for which the entry was
    /// [found](Views::find).
    #[inline]
    pub(crate) fn is_plain(&self, ptr: DevicePtr) -> bool {
        // Acquire: see `make_live`.
        self.key.load(Ordering::Acquire) == ptr.raw()
    }

    fn starts_at(&self, ptr: DevicePtr) -> bool {
        self.ptr() == ptr
    }

    /// Whether the program holds the block.
    pub(crate) fn is_live(&self) -> bool {
        let start = self.ptr().raw();
        start != 0 && self.key.load(Ordering::Relaxed) & !USES == start
    }

    /// Bytes of a live block that were asked for.
    #[inline]
    pub(crate) fn requested(&self) -> u64 {
        self.requested.load(Ordering::Relaxed)
    }

    /// Length of a block that is out; [`GONE`] and more of one that is not.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What [`bytes`](Self::bytes) is before [`is_plain`](Self::is_plain) is asked: if it answers yes, the length is
    /// that of the block, also where it goes back to the arena meanwhile.
    #[inline]
    pub(crate) fn bytes_of_live(&self) -> u64 {
        // Acquire: comes before the look at the key.
        self.bytes.load(Ordering::Acquire)
    }

    /// What was counted when a copy of the block was freed, as far as that is still known: bytes asked for, and its
    /// length.
    pub(crate) fn last_counted(&self) -> (u64, u64) {
        (self.requested(), self.bytes() & !GONE)
    }

    /// The tick at which a cached block was freed.
    pub(crate) fn tick(&self) -> Tick {
        self.tick.load(Ordering::Relaxed)
    }

    /// The arena's name of a block that is out.
    pub(crate) fn id(&self) -> BlockId {
        BlockId(self.id.load(Ordering::Relaxed))
    }

    /// A number that whoever has a block that is out may put down here. 0 at first.
    #[inline]
    pub(crate) fn label(&self) -> u32 {
        self.label.load(Ordering::Relaxed)
    }

    /// Puts the number down. Under the pool's lock.
    pub(crate) fn set_label(&self, label: u32) {
        self.label.store(label, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl Entry {
    /// Where the block is, of one that is not live.
    pub(crate) fn place(&self) -> Place {
        Place(self.key.load(Ordering::Relaxed))
    }

    /// The entry of a cached block at `ptr`.
    pub(crate) fn for_test(ptr: DevicePtr, bytes: u64) -> Self {
        let entry = Self {
            key: AtomicU64::new(0),
            requested: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            start: AtomicU64::new(0),
            tick: AtomicU64::new(0),
            label: AtomicU32::new(0),
            id: AtomicU32::new(0),
        };
        entry.open(ptr, BlockId(0), bytes);
        entry
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

/// The entries of one region.
#[derive(Debug)]
pub(crate) struct Table {
    base: DevicePtr,
    granule_shift: u32,
    count: u64,
    entries: Entries,
}

impl Table {
    /// Entries for a region of `bytes`, in which blocks start at least `granule` bytes (a power of two) apart. `None`
    /// where the process has not enough addresses left.
    pub(super) fn entries(bytes: u64, granule: u64) -> Option<Entries> {
        Entries::new(usize::try_from(bytes.div_ceil(granule)).ok()?)
    }

    /// The host's memory that such entries may take.
    pub(super) fn bytes_of_entries(bytes: u64, granule: u64) -> u64 {
        bytes.div_ceil(granule).saturating_mul(size_of::<Entry>() as u64)
    }

    /// A table of these entries, for the region at `base`.
    pub(super) fn new(base: DevicePtr, bytes: u64, granule: u64, entries: Entries) -> Self {
        Self { base, granule_shift: granule.ilog2(), count: bytes.div_ceil(granule), entries }
    }

    /// Lets blocks start in these bytes of the region from now on; `false` where the host has no memory for that. Under
    /// the pool's lock.
    pub(super) fn back(&self, bytes: Range<u64>) -> bool {
        self.entries.back(self.number(bytes.start)..self.number(bytes.end - 1) + 1)
    }

    /// Gives back what entries take of the host's memory in these bytes of the region, in which no block is out. Under
    /// the pool's lock.
    pub(super) fn let_go(&self, bytes: Range<u64>) {
        let mask = (1 << self.granule_shift) - 1;
        let (first, end) = (self.number(bytes.start + mask), self.number(bytes.end));
        if first < end {
            self.entries.let_go(first..end);
        }
    }

    /// The number of the entry for byte `at` of the region.
    fn number(&self, at: u64) -> usize {
        (at >> self.granule_shift) as usize
    }

    /// The entry for byte `at` of the region.
    fn entry(&self, at: u64) -> Option<&Entry> {
        let number = self.number(at);
        // SAFETY: it is one of those that there are, and they stay as long as the table.
        ((number as u64) < self.count).then(|| unsafe { self.entries.first().add(number).as_ref() })
    }

    /// Lets a block out that starts at byte `at` of the region, where one [may](Self::back). Under the pool's lock.
    pub(super) fn open(&self, at: u64, id: BlockId, bytes: u64) -> EntryRef {
        let number = self.number(at);
        // Panics where there are fewer entries, or it may not be written.
        self.entries.note_used(number);
        // SAFETY: as in `entry`: there is a part for it.
        let entry = unsafe { self.entries.first().add(number).as_ref() };
        entry.open(self.base.offset(at), id, bytes);
        EntryRef::new(entry)
    }

    /// Takes back the block that is out and starts at byte `at`.
    pub(super) fn close(&self, at: u64) {
        if let Some(entry) = self.entry(at) {
            entry.close();
        }
    }

    /// The block that is out and starts at byte `at`.
    pub(super) fn out_at(&self, at: u64) -> Option<&Entry> {
        self.entry(at).filter(|entry| entry.starts_at(self.base.offset(at)))
    }
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
    /// Where the entry for address 0 would be, if there were one: from there an address leads to its entry without a
    /// subtraction, for which the free of a block that was just allocated would wait.
    zero: AtomicPtr<Entry>,
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
        let granule_shift = table.granule_shift;
        assert!(bytes.div_ceil(1 << granule_shift) <= table.count, "a table has an entry for each granule");
        assert_eq!(base.raw() % (1 << granule_shift), 0, "ranges are aligned, and granules divide that");
        view.base.store(base.raw(), Ordering::Relaxed);
        view.granule_shift.store(granule_shift as u8, Ordering::Relaxed);
        let zero = table.entries.first().as_ptr().wrapping_sub((base.raw() >> granule_shift) as usize);
        view.zero.store(zero, Ordering::Relaxed);
        view.table.store(Arc::into_raw(table.clone()).cast_mut(), Ordering::Relaxed);
        // Release: who sees the length sees the rest, too.
        view.bytes.store(bytes, Ordering::Release);
    }

    /// The entry for the granule that an address lies in; `None` outside of the ranges.
    pub(crate) fn find(&self, ptr: DevicePtr) -> Option<&Entry> {
        self.0.iter().find_map(|view| view.find(ptr))
    }

    /// As [`find`](Self::find), in the first two ranges only, where nearly all addresses lie: no loop, and no call, for
    /// which the fast path would have to put away what it has in registers.
    #[inline(always)]
    pub(crate) fn find_soon(&self, ptr: DevicePtr) -> Option<&Entry> {
        let [first, second, ..] = &self.0;
        let mut view = first;
        if !view.contains(ptr) {
            view = second;
            if !view.contains(ptr) {
                return None;
            }
        }
        // SAFETY: just asked.
        Some(unsafe { view.entry(ptr) })
    }
}

impl View {
    fn find(&self, ptr: DevicePtr) -> Option<&Entry> {
        // SAFETY: asked for.
        self.contains(ptr).then(|| unsafe { self.entry(ptr) })
    }

    #[inline(always)]
    fn contains(&self, ptr: DevicePtr) -> bool {
        // Acquire: see `publish`.
        let bytes = self.bytes.load(Ordering::Acquire);
        ptr.raw().wrapping_sub(self.base.load(Ordering::Relaxed)) < bytes
    }

    /// The entry for the granule that an address lies in.
    ///
    /// # Safety
    /// The range [contains](Self::contains) it.
    #[inline(always)]
    unsafe fn entry(&self, ptr: DevicePtr) -> &Entry {
        let granule = ptr.raw() >> self.granule_shift.load(Ordering::Relaxed);
        let entry = self.zero.load(Ordering::Relaxed).wrapping_add(granule as usize);
        // SAFETY: the range begins at a granule, so that this is the entry by as many granules from the first as the
        // address is from the range's start. The table is kept by the view until the views are dropped, and has entries
        // for the whole range. (That none lies at 0 the compiler would not know.)
        unsafe {
            std::hint::assert_unchecked(!entry.is_null());
            &*entry
        }
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

    fn table(base: DevicePtr, bytes: u64, granule: u64) -> Arc<Table> {
        let entries = Table::entries(bytes, granule).expect("there are addresses");
        let table = Table::new(base, bytes, granule, entries);
        assert!(table.back(0..bytes));
        Arc::new(table)
    }

    #[test]
    fn an_entry_is_found_only_at_the_byte_where_its_block_starts() {
        let base = DevicePtr::new(7 << 40);
        let table = table(base, 1 << 30, 1 << 20);
        let views = Views::default();
        views.publish(base, 1 << 30, &table);
        let ptr = base.offset((5 << 20) + 512);
        assert!(table.out_at(5 << 20).is_none());
        table.open((5 << 20) + 512, BlockId(7), 2 << 20);
        assert!(table.out_at(5 << 20).is_none());
        assert!(table.out_at((5 << 20) + 1024).is_none());
        let entry = table.out_at((5 << 20) + 512).expect("the block is out");
        assert_eq!((entry.id(), entry.bytes(), entry.is_live()), (BlockId(7), 2 << 20, false));
        assert!(!entry.is_plain(ptr));
        entry.make_live(ptr, 300);
        assert_eq!((entry.is_live(), entry.requested()), (true, 300));
        let found = views.find(ptr).expect("the address lies in the view");
        assert!(found.is_plain(ptr) && std::ptr::eq(found, entry));
        assert!(!entry.is_plain(base.offset(5 << 20)));
        entry.note_uses();
        assert!(entry.is_live() && !entry.is_plain(ptr));
        entry.set_label(9);
        let here = Place::of(&entry);
        entry.make_cached(here, 3);
        assert_eq!((entry.id(), entry.label(), entry.tick()), (BlockId(7), 9, 3));
        assert!(!entry.is_live() && table.out_at((5 << 20) + 512).is_some());
        table.close((5 << 20) + 512);
        assert!(table.out_at((5 << 20) + 512).is_none());
    }

    #[test]
    fn a_block_leaves_one_place_once() {
        let ptr = DevicePtr::new(7 << 40);
        let (entry, magazines) = (Entry::for_test(ptr, 512), [1_u64, 2]);
        let [here, there] = [Place::of(&magazines[0]), Place::of(&magazines[1])];
        entry.make_live(ptr, 300);
        assert!(entry.claim(ptr) && !entry.claim(ptr), "the second free comes too late");
        entry.make_cached(here, 1);
        entry.make_cached(there, 1);
        assert!(!entry.leave(here) && entry.leave(there) && !entry.leave(there));
        entry.close();
        // A free that was under way.
        entry.make_cached(here, 1);
        assert!(entry.is_in(here) && !entry.leave(here) && !entry.is_live());
        assert_eq!(entry.last_counted(), (300, 512));
    }

    #[test]
    fn no_address_is_taken_for_a_cached_block_or_one_that_other_streams_use() {
        let base = DevicePtr::new(7 << 40);
        let table = table(base, 1 << 30, 512);
        let views = Views::default();
        views.publish(base, 1 << 30, &table);
        let ptr = base.offset(512);
        table.open(512, BlockId(1), 512);
        // What the entry holds now, and would hold with uses, read as addresses.
        for made_up in [Place::BETWEEN.0, ptr.raw() | USES, 0, u64::MAX] {
            assert!(views.find(DevicePtr::new(made_up)).is_none());
        }
        // Neither does an address within the block.
        assert!(!views.find(ptr).expect("in the view").is_plain(ptr));
        views.find(ptr).expect("in the view").make_live(ptr, 512);
        assert!(!views.find(ptr.offset(1)).expect("in the view").is_plain(ptr.offset(1)));
    }
}
