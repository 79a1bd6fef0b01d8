//! The page map: from an address to the descriptor of its block, without the pool's lock.
//!
//! Each allocated block has a [`BlockDescriptor`], under its number. Each region has a [`RegionMap`] of those numbers,
//! one for each granule. A granule is a unit in the small zone, and the shortest block in the large zone. [`PageMap`]
//! publishes them, so that a free finds its block with a comparison, a shift and two loads. Both are [sparse](Sparse):
//! they take the host's memory only where there are blocks. A number has 4 bytes, and a descriptor 64.
//!
//! An allocated block is *live* while the program holds it and *cached* while it lies in a thread's magazine. Whoever
//! has it writes its descriptor, without an atomic read-modify-write. The arena allocates blocks and takes them back
//! only under the pool's lock.
//!
//! **Freed twice at once.** Two threads that free one block within the same nanoseconds both find it live, and each
//! puts it into a magazine. The descriptor then names one of the two magazines: the last that wrote it. Whoever takes a
//! block out of a magazine first checks that the descriptor names this magazine and the block's address
//! ([`BlockDescriptor::is_in`]). It may be another block's by now. The other copy is a *stray*: it is dropped, counted
//! and reported. So a block is never handed out twice, and the arena never takes back what is live or somebody else's.
//! A block that went back to the arena has no address in its descriptor. So a copy whose free was still under way is
//! not handed out either.
//!
//! One order is not seen, since the free would need an atomic read-modify-write. A thread stops inside its free, after
//! it found the block live, until the descriptor is another block's. It then writes to that one. A block at the same
//! address may be handed out twice. One elsewhere is not, but its own free is refused, and it stays allocated.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::block_descriptor::BlockDescriptor;
use super::extent::ExtentId;
use super::sparse::{Blank, Sparse};
use crate::device::DevicePtr;

// SAFETY: it is made of atomics, and zeros are the descriptor of no block.
unsafe impl Blank for BlockDescriptor {}

/// Names a descriptor while its block is allocated; see [`DescriptorRef::get`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DescriptorRef(NonNull<BlockDescriptor>);

// SAFETY: a descriptor is made of atomics, and may be read and written from any thread.
unsafe impl Send for DescriptorRef {}

impl DescriptorRef {
    #[inline]
    pub(crate) fn new(descriptor: &BlockDescriptor) -> Self {
        Self(NonNull::from(descriptor))
    }

    /// That of a static descriptor.
    pub(crate) const fn of_static(descriptor: *const BlockDescriptor) -> Self {
        Self(NonNull::new(descriptor.cast_mut()).expect("a static has an address"))
    }

    /// The descriptor.
    ///
    /// # Safety
    /// The block is allocated, and its arena is alive; or the descriptor is static.
    #[inline]
    pub(crate) unsafe fn get<'a>(self) -> &'a BlockDescriptor {
        // SAFETY: descriptors never move, and are kept as long as any region's map. An arena drops a map only when no
        // block of the region is allocated. The caller promises the rest.
        unsafe { self.0.as_ref() }
    }
}

/// Blocks that one arena may have allocated: as many as 4 GiB of the host's addresses have numbers. That is 32 GiB of
/// the shortest blocks.
const MOST_ALLOCATED: usize = if cfg!(all(unix, not(miri))) { 1 << 26 } else { 1 << 16 };

/// The descriptors of all blocks of an arena, by number: one more than a block's id, so that number 0 is that of no
/// block.
#[derive(Debug)]
pub(super) struct Descriptors(Sparse<BlockDescriptor>);

impl Descriptors {
    /// Room for as many descriptors as the process has addresses for; `None` where it has none.
    pub(super) fn new() -> Option<Self> {
        let halves = std::iter::successors(Some(MOST_ALLOCATED), |most| Some(most / 2));
        halves.take_while(|most| *most > 0).find_map(Sparse::new).map(Self)
    }

    /// Lets the descriptors of blocks with ids below `end` be written; `false` where the host has no memory, or no
    /// addresses, for them. Under the pool's lock.
    pub(super) fn back(&self, end: usize) -> bool {
        self.0.back(0..end + 1)
    }

    /// Gives back the host's memory of blocks with these ids, none of which is allocated. Under the pool's lock.
    pub(super) fn let_go(&self, ids: Range<usize>) {
        let end = (ids.end + 1).min(self.0.len());
        if ids.start + 1 < end {
            self.0.let_go(ids.start + 1..end);
        }
    }
}

/// Where allocated blocks start in one region.
#[derive(Debug)]
pub(crate) struct RegionMap {
    base: DevicePtr,
    granule_shift: u32,
    numbers: Numbers,
    /// Which of them is that of the region's first granule.
    first: usize,
    descriptors: Arc<Descriptors>,
}

/// By granule: the number of the allocated block there; 0 for none.
#[derive(Debug)]
enum Numbers {
    Own(Sparse<AtomicU32>),
    /// Those of a longer range, which the segments in it share.
    Of(Arc<RegionMap>),
}

impl RegionMap {
    fn numbers_here(&self) -> &Sparse<AtomicU32> {
        match &self.numbers {
            Numbers::Own(numbers) => numbers,
            Numbers::Of(range) => range.numbers_here(),
        }
    }

    /// Numbers for a region of `bytes`, in which blocks start at least `granule` bytes (a power of two) apart. `None`
    /// where the process has not enough addresses left.
    pub(super) fn numbers(bytes: u64, granule: u64) -> Option<Sparse<AtomicU32>> {
        Sparse::new(usize::try_from(bytes.div_ceil(granule)).ok()?)
    }

    /// The host's memory that such numbers may take.
    pub(super) fn bytes_of_numbers(bytes: u64, granule: u64) -> u64 {
        bytes.div_ceil(granule).saturating_mul(size_of::<AtomicU32>() as u64)
    }

    /// A map of these numbers, for the region at `base`, of blocks with these descriptors.
    pub(super) fn new(
        base: DevicePtr,
        granule: u64,
        numbers: Sparse<AtomicU32>,
        descriptors: Arc<Descriptors>,
    ) -> Self {
        Self { base, granule_shift: granule.ilog2(), numbers: Numbers::Own(numbers), first: 0, descriptors }
    }

    /// The map of a region that lies within this one, with the same numbers; `None` where it does not.
    pub(super) fn part(self: &Arc<Self>, base: DevicePtr, bytes: u64) -> Option<Self> {
        let start = base.raw().checked_sub(self.base.raw())?;
        let is_granule = start.trailing_zeros() >= self.granule_shift;
        let first = self.granule_of(start);
        let end = self.granule_of(start.checked_add(bytes)?);
        let (numbers, descriptors) = (Numbers::Of(self.clone()), self.descriptors.clone());
        let part = Self { base, granule_shift: self.granule_shift, numbers, first, descriptors };
        (is_granule && end <= self.numbers_here().len()).then_some(part)
    }

    /// Lets blocks start in these bytes of the region from now on; `false` where the host has no memory for that. Under
    /// the pool's lock.
    pub(super) fn back(&self, bytes: Range<u64>) -> bool {
        self.numbers_here().back(self.granule_of(bytes.start)..self.granule_of(bytes.end - 1) + 1)
    }

    /// Gives back what these bytes of the region take of the host's memory. No block in them is allocated. Under the
    /// pool's lock.
    pub(super) fn let_go(&self, bytes: Range<u64>) {
        let mask = (1 << self.granule_shift) - 1;
        let (first, end) = (self.granule_of(bytes.start + mask), self.granule_of(bytes.end));
        if first < end {
            self.numbers_here().let_go(first..end);
        }
    }

    /// The granule that byte `at` of the region lies in.
    fn granule_of(&self, at: u64) -> usize {
        self.first + (at >> self.granule_shift) as usize
    }

    /// Where the number of the block that starts at byte `at` is, and its descriptor, or that of no block.
    fn number_and_descriptor(&self, at: u64) -> Option<(&AtomicU32, &BlockDescriptor)> {
        let number = self.numbers_here().get(self.granule_of(at))?;
        // Relaxed: under the pool's lock.
        Some((number, self.descriptors.0.get(number.load(Ordering::Relaxed) as usize)?))
    }

    /// Allocates the block that starts at byte `at` of the region, where one [may](Self::back), and whose descriptor
    /// may be [written](Descriptors::back). Under the pool's lock.
    pub(super) fn open(&self, at: u64, id: ExtentId, bytes: u64) -> DescriptorRef {
        let (granule, number) = (self.granule_of(at), id.0 as usize + 1);
        debug_assert!(self.numbers_here().is_backed(granule) && self.descriptors.0.is_backed(number));
        let place = self.numbers_here().get(granule).expect("the block lies in the region");
        let descriptor =
            self.descriptors.0.get(number).expect("descriptors are backed before a block gets an id");
        // Relaxed: who frees the block got its address from whoever allocated it, and sees this.
        place.store(number as u32, Ordering::Relaxed);
        descriptor.open(self.base.offset(at), id, bytes);
        DescriptorRef::new(descriptor)
    }

    /// Takes back the allocated block that starts at byte `at`.
    pub(super) fn close(&self, at: u64) {
        if let Some((number, descriptor)) = self.number_and_descriptor(at) {
            descriptor.close();
            number.store(0, Ordering::Relaxed);
        }
    }

    /// The allocated block that starts at byte `at`.
    pub(super) fn allocated_at(&self, at: u64) -> Option<&BlockDescriptor> {
        let (_, descriptor) = self.number_and_descriptor(at)?;
        descriptor.starts_at(self.base.offset(at)).then_some(descriptor)
    }
}

/// What a look-up needs of one region, in one place.
#[derive(Debug, Default)]
struct MapRange {
    base: AtomicU64,
    /// 0 until the range is published.
    bytes: AtomicU64,
    granule_shift: AtomicU8,
    /// Where the number for address 0 would be, if there were one. From there an address leads to its number without a
    /// subtraction. The free of a block that was just allocated would wait for that.
    zero: AtomicPtr<AtomicU32>,
    descriptors: AtomicPtr<BlockDescriptor>,
    /// Keeps the map.
    map: AtomicPtr<RegionMap>,
}

/// The maps of a pool's address ranges. Once published they stay, also when the range is given back. An arena has two ranges as
/// a rule: one for each zone, or one around all its segments. Blocks in a fifth one go to the arena when they are freed.
#[derive(Debug, Default)]
pub(crate) struct PageMap([MapRange; 4]);

impl PageMap {
    /// Publishes a map, if there is room. Called under the pool's lock.
    pub(super) fn publish(&self, base: DevicePtr, bytes: u64, map: &Arc<RegionMap>) {
        // Relaxed: only the holder of the lock writes.
        let Some(range) = self.0.iter().find(|range| range.bytes.load(Ordering::Relaxed) == 0) else {
            return;
        };
        let granule_shift = map.granule_shift;
        let granules = bytes.div_ceil(1 << granule_shift);
        assert!(
            map.first == 0 && granules <= map.numbers_here().len() as u64,
            "a map has a number for each granule"
        );
        assert_eq!(base.raw() % (1 << granule_shift), 0, "ranges are aligned, and granules divide that");
        range.base.store(base.raw(), Ordering::Relaxed);
        range.granule_shift.store(granule_shift as u8, Ordering::Relaxed);
        let zero = map.numbers_here().first().as_ptr().wrapping_sub((base.raw() >> granule_shift) as usize);
        range.zero.store(zero, Ordering::Relaxed);
        range.descriptors.store(map.descriptors.0.first().as_ptr(), Ordering::Relaxed);
        range.map.store(Arc::into_raw(map.clone()).cast_mut(), Ordering::Relaxed);
        // Release: who sees the length sees the rest, too.
        range.bytes.store(bytes, Ordering::Release);
    }

    /// The descriptor of the block that starts in the granule in which an address lies, or of no block; `None`
    /// outside of the ranges.
    pub(crate) fn find(&self, ptr: DevicePtr) -> Option<&BlockDescriptor> {
        self.0.iter().find_map(|range| range.find(ptr))
    }

    /// As [`find`](Self::find), in the first two ranges only, where nearly all addresses lie. It has no loop and no
    /// call, for which the fast path would have to save its registers.
    #[inline(always)]
    pub(crate) fn find_soon(&self, ptr: DevicePtr) -> Option<&BlockDescriptor> {
        let [first, second, ..] = &self.0;
        let mut range = first;
        if !range.contains(ptr) {
            range = second;
            if !range.contains(ptr) {
                std::hint::cold_path();
                return None;
            }
        }
        // SAFETY: just asked.
        Some(unsafe { range.descriptor(ptr) })
    }
}

impl MapRange {
    fn find(&self, ptr: DevicePtr) -> Option<&BlockDescriptor> {
        // SAFETY: asked for.
        self.contains(ptr).then(|| unsafe { self.descriptor(ptr) })
    }

    #[inline(always)]
    fn contains(&self, ptr: DevicePtr) -> bool {
        // Acquire: see `publish`.
        let bytes = self.bytes.load(Ordering::Acquire);
        ptr.raw().wrapping_sub(self.base.load(Ordering::Relaxed)) < bytes
    }

    /// The descriptor of the block that starts in the granule in which an address lies, or of no block.
    ///
    /// # Safety
    /// The range [contains](Self::contains) it.
    #[inline(always)]
    unsafe fn descriptor(&self, ptr: DevicePtr) -> &BlockDescriptor {
        let granule = ptr.raw() >> self.granule_shift.load(Ordering::Relaxed);
        let number = self.zero.load(Ordering::Relaxed).wrapping_add(granule as usize);
        // SAFETY: the range begins at a granule. So this is as many numbers behind the first as the address is granules
        // behind the range's start. The map is kept by the range until the page map is dropped, and has
        // numbers for the whole range. Each is 0 or that of a descriptor, which the map keeps. (That none lies at 0
        // the compiler would not know.)
        unsafe {
            // Relaxed: see `RegionMap::open`. Whoever frees what is not his may see any number that was there.
            let descriptor =
                self.descriptors.load(Ordering::Relaxed).add((*number).load(Ordering::Relaxed) as usize);
            std::hint::assert_unchecked(!descriptor.is_null());
            &*descriptor
        }
    }
}

impl Drop for PageMap {
    fn drop(&mut self) {
        for range in &mut self.0 {
            let map = *range.map.get_mut();
            if !map.is_null() {
                // SAFETY: the pointer came from `Arc::into_raw` in `publish`, and is given up here only.
                drop(unsafe { Arc::from_raw(map.cast_const()) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::block_descriptor::Place;
    use super::*;
    use crate::device::ADDRESSES_END;

    fn map(base: DevicePtr, bytes: u64, granule: u64) -> Arc<RegionMap> {
        let numbers = RegionMap::numbers(bytes, granule).expect("there are addresses");
        let descriptors = Arc::new(Descriptors::new().expect("there are addresses"));
        assert!(descriptors.back(64));
        let map = RegionMap::new(base, granule, numbers, descriptors);
        assert!(map.back(0..bytes));
        Arc::new(map)
    }

    #[test]
    fn a_descriptor_is_found_only_at_its_blocks_first_byte() {
        let base = DevicePtr::new(7 << 40);
        let map = map(base, 1 << 30, 1 << 20);
        let page_map = PageMap::default();
        page_map.publish(base, 1 << 30, &map);
        let ptr = base.offset((5 << 20) + 512);
        assert!(map.allocated_at(5 << 20).is_none());
        map.open((5 << 20) + 512, ExtentId(7), 2 << 20);
        assert!(map.allocated_at(5 << 20).is_none());
        assert!(map.allocated_at((5 << 20) + 1024).is_none());
        let descriptor = map.allocated_at((5 << 20) + 512).expect("the block is allocated");
        assert_eq!(
            (descriptor.id(), descriptor.bytes(), descriptor.is_live()),
            (ExtentId(7), 2 << 20, false)
        );
        assert!(!descriptor.is_plain(ptr));
        descriptor.make_live(ptr, 300);
        assert_eq!((descriptor.is_live(), descriptor.requested()), (true, 300));
        let found = page_map.find(ptr).expect("the address lies in the range");
        assert!(found.is_plain(ptr) && std::ptr::eq(found, descriptor));
        assert!(!descriptor.is_plain(base.offset(5 << 20)));
        descriptor.note_uses();
        assert!(descriptor.is_live() && !descriptor.is_plain(ptr));
        descriptor.set_label(9);
        let here = Place::of(&descriptor);
        descriptor.make_cached(here, 3);
        assert_eq!((descriptor.id(), descriptor.label(), descriptor.tick()), (ExtentId(7), 9, 3));
        assert!(!descriptor.is_live() && map.allocated_at((5 << 20) + 512).is_some());
        map.close((5 << 20) + 512);
        assert!(map.allocated_at((5 << 20) + 512).is_none());
    }

    #[test]
    fn a_block_leaves_one_place_once() {
        let ptr = DevicePtr::new(7 << 40);
        let (descriptor, magazines) = (BlockDescriptor::for_test(ptr, 512), [1_u64, 2]);
        let [here, there] = [Place::of(&magazines[0]), Place::of(&magazines[1])];
        descriptor.make_live(ptr, 300);
        assert!(descriptor.claim(ptr) && !descriptor.claim(ptr), "the second free comes too late");
        descriptor.make_cached(here, 1);
        descriptor.make_cached(there, 1);
        assert!(
            !descriptor.leave(here, ptr) && descriptor.leave(there, ptr) && !descriptor.leave(there, ptr)
        );
        descriptor.close();
        // A free that was under way.
        descriptor.make_cached(here, 1);
        assert!(!descriptor.leave(here, ptr) && !descriptor.is_live());
        assert_eq!(descriptor.last_counted(), (300, 512));
        // The descriptor is another block's, in the same magazine.
        descriptor.open(ptr.offset(512), ExtentId(0), 512);
        descriptor.make_cached(here, 1);
        assert!(!descriptor.leave(here, ptr) && descriptor.leave(here, ptr.offset(512)));
    }

    #[test]
    fn no_address_matches_a_cached_block_or_one_with_uses() {
        let base = DevicePtr::new(7 << 40);
        let map = map(base, 1 << 30, 512);
        let page_map = PageMap::default();
        page_map.publish(base, 1 << 30, &map);
        let ptr = base.offset(512);
        map.open(512, ExtentId(1), 512);
        // What the descriptor holds now, and would hold with uses, read as addresses.
        for made_up in [Place::BETWEEN.0, ptr.raw() | ADDRESSES_END, 0, u64::MAX] {
            assert!(page_map.find(DevicePtr::new(made_up)).is_none());
        }
        // Neither does an address within the block.
        assert!(!page_map.find(ptr).expect("in the range").is_plain(ptr));
        page_map.find(ptr).expect("in the range").make_live(ptr, 512);
        assert!(!page_map.find(ptr.offset(1)).expect("in the range").is_plain(ptr.offset(1)));
    }

    #[test]
    fn a_part_of_a_range_has_the_ranges_numbers() {
        let (start, page_map) = (DevicePtr::new(7 << 40), PageMap::default());
        let window = map(start, 1 << 30, 512);
        page_map.publish(start, 1 << 30, &window);
        let part = |base: u64, bytes| window.part(start.offset(base), bytes);
        assert!(part((1 << 30) - 512, 1024).is_none() && part(100, 512).is_none());
        assert!(window.part(DevicePtr::new((7 << 40) - 512), 1024).is_none());
        let [low, high] = [0, 1 << 20].map(|base| part(base, 1 << 20).expect("it lies within"));
        low.open(1024, ExtentId(1), 512);
        high.open(1024, ExtentId(2), 512);
        let id = |at: u64| page_map.find(start.offset(at)).expect("in the range").id();
        assert_eq!([id(1024), id((1 << 20) + 1024)], [ExtentId(1), ExtentId(2)]);
        low.close(1024);
        assert!(low.allocated_at(1024).is_none() && high.allocated_at(1024).is_some());
    }
}
