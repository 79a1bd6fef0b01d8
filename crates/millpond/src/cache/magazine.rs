//! A magazine: a stack of blocks of about one size.

use std::ptr::{NonNull, slice_from_raw_parts_mut};
use std::slice;

use super::totals::Totals;
use crate::device::DevicePtr;
use crate::extents::{Arena, BlockDescriptor, DescriptorRef, Place};
use crate::log::log;
use crate::order::{Fence, TimelineId};

/// A block in a magazine. The descriptor knows the address, too, but so an allocation need not wait for it. A free has
/// found the descriptor in several loads, each of which needs the one before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    pub(super) ptr: DevicePtr,
    descriptor: DescriptorRef,
}

impl Item {
    #[inline]
    pub(super) fn new(ptr: DevicePtr, descriptor: &BlockDescriptor) -> Self {
        Self { ptr, descriptor: DescriptorRef::new(descriptor) }
    }

    /// What is known of the block.
    #[inline]
    pub(super) fn descriptor(&self) -> &BlockDescriptor {
        // SAFETY: what is cached is out, and the caches do not outlive the pool.
        unsafe { self.descriptor.get() }
    }

    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.descriptor().bytes()
    }

    /// Whether the block is in the magazine at `place`, from which this copy was taken: else it is a stray, or none.
    #[inline]
    pub(super) fn is_in(&self, place: Place) -> bool {
        self.descriptor().is_in(place, self.ptr)
    }

    /// Notes a copy that is a stray, which is dropped.
    #[cold]
    pub(super) fn note_stray(&self, totals: &Totals) {
        // A block that was handed out again meanwhile has its new length.
        let (requested, bytes) = self.descriptor().last_counted();
        totals.note_stray([requested as i64, bytes as i64, 2]);
    }

    /// The block leaves its place, and goes to the arena, behind the work of the stream that it was freed on. A copy that is
    /// a stray there is dropped.
    pub(super) fn give_back(&self, place: Place, of: TimelineId, totals: &Totals, arena: &mut Arena) {
        let descriptor = self.descriptor();
        if !descriptor.leave(place, self.ptr) {
            self.note_stray(totals);
        } else if !arena.take_back(descriptor, Fence::at(of, descriptor.tick())) {
            log!(
                ERROR,
                "a cache gave up a block that is not allocated; it is dropped",
                descriptor = format_args!("{descriptor:?}")
            );
        }
    }
}

/// The descriptor of no block.
static NO_BLOCK: BlockDescriptor = BlockDescriptor::none();

impl Item {
    /// Below the first block, and where the last one that may be there would have the next one above it.
    const END: Self = Self::none(DevicePtr::NULL);

    /// A place that is free: any but the ends has an address.
    const FREE: Self = Self::none(DevicePtr::new(1));

    const fn none(ptr: DevicePtr) -> Self {
        Self { ptr, descriptor: DescriptorRef::of_static(&raw const NO_BLOCK) }
    }
}

/// The buffer of all magazines without room.
struct NoRoom([Item; 2]);

// SAFETY: nobody writes to it.
unsafe impl Sync for NoRoom {}

static NO_ROOM: NoRoom = NoRoom([Item::END; _]);

/// Where [`NO_ROOM`] starts.
const NO_START: NonNull<Item> = {
    let start = NonNull::new((&raw const NO_ROOM.0).cast::<Item>().cast_mut());
    start.expect("a static has an address")
};

/// A stack of blocks in a buffer of its own. The block freed last is on top.
///
/// The buffer has the lower end, then as many places as the magazine may hold blocks, then the upper end. An address of
/// 0 marks both ends. So the fast path sees an empty or full magazine where it reads or writes anyway. Slow paths find
/// the ends by a walk over 64 places at most: a stream cache has many magazines, mostly unused, so that a word more for
/// each counts.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Magazine {
    /// Where the next block goes: above the one on top.
    top: NonNull<Item>,
}

impl Magazine {
    /// One without room.
    // SAFETY: a buffer has two ends at least.
    pub(super) const NEW: Self = Self { top: unsafe { NO_START.add(1) } };

    /// The block on top, or an item of no block, which is in no magazine.
    #[inline]
    pub(super) fn top(&self) -> &Item {
        // SAFETY: an item lies below `top`, also at the lower end.
        unsafe { self.top.sub(1).as_ref() }
    }

    /// Takes the block on top, if it is of such a length, and no stray.
    pub(super) fn take_top(&mut self, is_wanted: impl FnOnce(u64) -> bool) -> Option<Item> {
        let place = self.place();
        let item = *self.top();
        if !item.is_in(place) || !is_wanted(item.bytes()) {
            return None;
        }
        // SAFETY: there is one on top.
        unsafe { self.drop_top() };
        Some(item)
    }

    /// Takes the block off the top.
    ///
    /// # Safety
    /// The magazine is not empty.
    #[inline]
    pub(super) unsafe fn drop_top(&mut self) {
        debug_assert!(!self.is_empty(), "a magazine that is empty");
        // SAFETY: the caller's promise: an item lies below `top`.
        self.top = unsafe { self.top.sub(1) };
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        // SAFETY: `top` is at most at the upper end of the buffer.
        unsafe { (*self.top.as_ptr()).ptr.is_null() }
    }

    /// Adds a block.
    ///
    /// # Safety
    /// The magazine is not full.
    #[inline]
    pub(super) unsafe fn push(&mut self, item: Item) {
        debug_assert!(!self.is_full(), "a magazine that is full");
        debug_assert!(!item.ptr.is_null(), "a block has an address");
        // SAFETY: the caller's promise: `top` lies below the upper end.
        unsafe {
            self.top.write(item);
            self.top = self.top.add(1);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        // SAFETY: `top` is above the lower end of the buffer.
        unsafe { (*self.top.as_ptr().sub(1)).ptr.is_null() }
    }

    /// What the descriptors of its blocks say: that they are here. Where one says something else, the block was freed twice at
    /// once, and its copy here is a *stray* (see [totals](super::totals)).
    #[inline]
    pub(super) fn place(&self) -> Place {
        Place::of(self)
    }

    // ---- for the slow paths, which look for the ends ---------------------------------------------

    /// One for so many blocks, one at least; `None` where the host has no memory for them.
    pub(super) fn with_room(room: usize) -> Option<Self> {
        debug_assert!(room > 0, "one without room has no buffer");
        let mut places = Vec::new();
        places.try_reserve_exact(room + 2).ok()?;
        places.push(Item::END);
        places.resize(room + 1, Item::FREE);
        places.push(Item::END);
        let start = NonNull::from(Box::leak(places.into_boxed_slice())).cast::<Item>();
        // SAFETY: a buffer has two ends at least.
        Some(Self { top: unsafe { start.add(1) } })
    }

    /// Whether it has a buffer of its own.
    pub(super) fn has_room(&self) -> bool {
        !(self.is_empty() && self.is_full())
    }

    /// Where the first block lies, or will lie.
    fn first(&self) -> NonNull<Item> {
        let mut first = self.top;
        // SAFETY: the lower end lies below `top`, and nothing between has no address.
        while unsafe { !first.sub(1).as_ref().ptr.is_null() } {
            // SAFETY: just seen.
            first = unsafe { first.sub(1) };
        }
        first
    }

    /// Blocks that it may hold.
    pub(super) fn room(&self) -> usize {
        let mut end = self.top;
        // SAFETY: the upper end is `top`, or lies above it, and nothing between has no address.
        while unsafe { !(*end.as_ptr()).ptr.is_null() } {
            // SAFETY: just seen.
            end = unsafe { end.add(1) };
        }
        // SAFETY: both lie in the buffer.
        unsafe { end.offset_from_unsigned(self.first()) }
    }

    /// The blocks, the youngest last.
    pub(super) fn items(&self) -> &[Item] {
        let first = self.first();
        // SAFETY: the places from the first one to `top` have items, which are borrowed with the magazine.
        unsafe { slice::from_raw_parts(first.as_ptr(), self.top.offset_from_unsigned(first)) }
    }

    /// Blocks that a restock may bring: half of what it may hold, and one at least where there is room.
    pub(super) fn restock_by(&self) -> usize {
        self.room().div_ceil(2).saturating_sub(self.items().len())
    }

    /// The older half, rounded up.
    pub(super) fn older_half(&self) -> &[Item] {
        let items = self.items();
        &items[..items.len().div_ceil(2)]
    }

    /// Empties it into the arena, behind the work of the stream. It loses its room.
    pub(super) fn drain(&mut self, of: TimelineId, totals: &Totals, arena: &mut Arena) {
        let place = self.place();
        self.items().iter().for_each(|item| item.give_back(place, of, totals, arena));
        *self = Self::NEW;
    }

    /// Gives up the oldest blocks, so many.
    pub(super) fn give_up(&mut self, count: usize, each: impl FnMut(Item)) {
        let first = self.first();
        let (old, kept) = self.items().split_at(count);
        old.iter().copied().for_each(each);
        let left = kept.len();
        // SAFETY: the magazine has so many items, of which those after `count` move down.
        unsafe {
            first.copy_from(first.add(count), left);
            self.top = first.add(left);
        }
    }
}

impl Drop for Magazine {
    fn drop(&mut self) {
        if self.has_room() {
            let places = self.room() + 2;
            // SAFETY: the buffer came from `with_room`, and has two ends beside what it may hold.
            drop(unsafe { Box::from_raw(slice_from_raw_parts_mut(self.first().sub(1).as_ptr(), places)) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries of `count` blocks, of 512 and 1024 bytes in turn.
    fn descriptors(count: u64) -> Vec<BlockDescriptor> {
        (0..count)
            .map(|at| BlockDescriptor::for_test(DevicePtr::new((at + 1) << 20), 512 << (at % 2)))
            .collect()
    }

    /// A magazine with room for so many blocks, and as many of these as it takes. In a box, since it must not move while
    /// it holds blocks.
    fn with(descriptors: &[BlockDescriptor], room: usize) -> Box<Magazine> {
        let mut magazine = Box::new(Magazine::with_room(room).unwrap());
        for descriptor in descriptors {
            if !magazine.is_full() {
                // SAFETY: just asked.
                unsafe { magazine.push(Item::new(descriptor.ptr(), descriptor)) };
                descriptor.move_to(magazine.place());
            }
        }
        magazine
    }

    fn places(items: &[Item]) -> Vec<u64> {
        items.iter().map(|item| item.ptr.raw() >> 20).collect()
    }

    #[test]
    fn it_takes_what_fits_and_gives_the_youngest_first() {
        let descriptors = descriptors(6);
        let mut magazine = with(&descriptors, 4);
        assert!(magazine.is_full() && magazine.room() == 4);
        for place in [4, 3, 2, 1] {
            assert_eq!(magazine.top().ptr.raw() >> 20, place);
            // SAFETY: there was one on top.
            unsafe { magazine.drop_top() };
        }
        assert!(magazine.top().ptr.is_null() && magazine.is_empty() && !magazine.is_full());
    }

    #[test]
    fn one_without_room_is_full_and_empty() {
        let mut magazine = Magazine::NEW;
        assert!(magazine.is_full() && magazine.is_empty() && magazine.top().ptr.is_null());
        assert!(magazine.items().is_empty() && magazine.take_top(|_| true).is_none());
        assert!(!magazine.has_room() && magazine.room() == 0);
        magazine = Magazine::with_room(1).unwrap();
        assert!(magazine.has_room() && magazine.room() == 1 && !magazine.is_full());
    }

    #[test]
    fn the_older_half_goes_and_then_all() {
        let descriptors = descriptors(5);
        let mut magazine = with(&descriptors, 8);
        assert_eq!(places(magazine.older_half()), [1, 2, 3]);
        let mut half = Vec::new();
        magazine.give_up(3, |item| half.push(item));
        assert_eq!(places(&half), [1, 2, 3]);
        assert_eq!((places(magazine.items()), magazine.room()), (vec![4, 5], 8));
        let mut all = Vec::new();
        magazine.give_up(2, |item| all.push(item));
        assert_eq!((places(&all), magazine.items().len(), magazine.room()), (vec![4, 5], 0, 8));
        assert!(!magazine.is_full());
    }

    #[test]
    fn the_block_on_top_is_taken_if_it_fits_and_is_no_stray() {
        let descriptors = descriptors(3);
        let mut magazine = with(&descriptors, 8);
        assert!(magazine.take_top(|bytes| bytes == 1024).is_none());
        assert_eq!(magazine.take_top(|bytes| bytes == 512).map(|item| item.ptr.raw() >> 20), Some(3));
        // A copy of a block that lies elsewhere.
        descriptors[1].move_to(Place::BETWEEN);
        assert!(magazine.take_top(|_| true).is_none());
        assert_eq!(places(magazine.items()), [1, 2]);
    }
}
