//! A magazine: a stack of blocks of about one size.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use super::totals::Totals;
use crate::device::DevicePtr;
use crate::extents::{Allocation, BlockDescriptor, DescriptorRef, Place};

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

    /// As [`BlockDescriptor::leave`].
    #[inline]
    pub(super) fn leave(&self, place: Place) -> bool {
        self.descriptor().leave(place, self.ptr)
    }

    /// Gives `each` the block, which leaves its place. A copy that is a stray there is dropped, and noted.
    #[inline]
    pub(super) fn leave_or_note(self, place: Place, totals: &Totals, each: impl FnOnce(Self)) {
        if self.leave(place) {
            each(self);
        } else {
            // A block that was handed out again meanwhile has its new length.
            let (requested, bytes) = self.descriptor().last_counted();
            totals.note_stray([requested as i64, bytes as i64, 2]);
        }
    }

    pub(super) fn out(&self) -> Allocation {
        Allocation { ptr: self.ptr, descriptor: self.descriptor, bytes: self.bytes(), misses: 0 }
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

/// What the fast path knows of a magazine. The block freed last is on top.
///
/// All else is in a [`Buffer`]: a stream cache has many magazines, mostly unused, so that a word more for each counts.
/// An address of 0 marks both ends of the buffer. So the fast path sees an empty or full magazine where it reads or
/// writes anyway.
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

    /// The block on top.
    #[inline]
    pub(super) fn top(&self) -> Option<&Item> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: an item lies below `top`.
        Some(unsafe { self.top.sub(1).as_ref() })
    }

    /// The block on top, or an item of no block, which is in no magazine.
    #[inline]
    pub(super) fn top_or_end(&self) -> &Item {
        // SAFETY: an item lies below `top`, also at the lower end.
        unsafe { self.top.sub(1).as_ref() }
    }

    /// Takes the block on top, if it is of such a length, and no stray.
    pub(super) fn take_top(&mut self, is_wanted: impl FnOnce(u64) -> bool) -> Option<Item> {
        let place = self.place();
        let item = *self.top().filter(|item| item.is_in(place) && is_wanted(item.bytes()))?;
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
}

/// Where the blocks of a magazine lie. The magazine's `top` lies in it.
///
/// The lower end, then places, as many as the magazine may hold blocks, then the upper end. Empty for [`NO_ROOM`].
#[derive(Debug)]
pub(super) struct Buffer(Vec<Item>);

// SAFETY: a buffer owns its places, of which nothing is bound to a thread.
unsafe impl Send for Buffer {}

impl Buffer {
    pub(super) const NEW: Self = Self(Vec::new());

    /// One for so many blocks; `None` where the host has no memory for them.
    fn with_room(room: usize) -> Option<Self> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(room + 2).ok()?;
        slots.push(Item::END);
        slots.resize(room + 1, Item::FREE);
        slots.push(Item::END);
        Some(Self(slots))
    }

    /// Where the first block lies.
    fn first(&self) -> NonNull<Item> {
        let own = NonNull::new(self.0.as_ptr().cast_mut()).filter(|_| !self.0.is_empty());
        // SAFETY: a buffer has two ends at least.
        unsafe { own.unwrap_or(NO_START).add(1) }
    }

    /// The blocks of the magazine whose buffer it is, the youngest last.
    ///
    /// # Safety
    /// It is the magazine's.
    pub(super) unsafe fn items<'a>(&'a self, magazine: &'a Magazine) -> &'a [Item] {
        let first = self.first();
        // SAFETY: the places from the first one to `top` have items, which are borrowed with both.
        unsafe {
            let len = magazine.top.offset_from_unsigned(first);
            slice::from_raw_parts(first.as_ptr(), len)
        }
    }
}

/// A magazine with its buffer, for the slow paths.
#[derive(Debug)]
pub(super) struct BufferedMagazine<'a> {
    magazine: &'a mut Magazine,
    buffer: &'a mut Buffer,
}

impl Deref for BufferedMagazine<'_> {
    type Target = Magazine;

    fn deref(&self) -> &Magazine {
        self.magazine
    }
}

impl DerefMut for BufferedMagazine<'_> {
    fn deref_mut(&mut self) -> &mut Magazine {
        self.magazine
    }
}

impl<'a> BufferedMagazine<'a> {
    /// # Safety
    /// The buffer is the magazine's.
    pub(super) unsafe fn new(magazine: &'a mut Magazine, buffer: &'a mut Buffer) -> Self {
        Self { magazine, buffer }
    }

    /// The blocks, the youngest last.
    pub(super) fn items(&self) -> &[Item] {
        // SAFETY: as `new` was promised.
        unsafe { self.buffer.items(self.magazine) }
    }

    /// Blocks in it.
    pub(super) fn len(&self) -> usize {
        self.items().len()
    }

    /// Blocks that it may hold.
    pub(super) fn room(&self) -> usize {
        self.buffer.0.len().saturating_sub(2)
    }

    /// The lowest `len` places have items, and the magazine those.
    fn set_len(&mut self, len: usize) {
        // SAFETY: so many places there are.
        self.magazine.top = unsafe { self.buffer.first().add(len) };
    }

    /// Lets an empty magazine hold so many blocks. `false`, and nothing done, where the host has no memory for them.
    pub(super) fn set_room(&mut self, room: usize) -> bool {
        assert!(self.is_empty(), "a magazine with blocks keeps its room");
        let buffer = if room == 0 { Some(Buffer::NEW) } else { Buffer::with_room(room) };
        let is_there = buffer.is_some();
        if let Some(buffer) = buffer {
            *self.buffer = buffer;
            self.set_len(0);
        }
        is_there
    }

    /// The blocks above the lowest `count`.
    pub(super) fn above(&self, count: usize) -> &[Item] {
        &self.items()[count..]
    }

    /// Blocks that a restock may bring: half of what it may hold, and one at least where there is room.
    pub(super) fn restock_by(&self) -> usize {
        self.room().div_ceil(2).saturating_sub(self.len())
    }

    /// The older half, rounded up.
    pub(super) fn older_half(&self) -> &[Item] {
        &self.items()[..self.len().div_ceil(2)]
    }

    /// Gives up the oldest blocks, so many.
    pub(super) fn give_up(&mut self, count: usize, each: impl FnMut(Item)) {
        let (first, len) = (self.buffer.first(), self.len());
        self.items()[..count].iter().copied().for_each(each);
        // SAFETY: the magazine has so many items, of which those after `count` move down.
        unsafe { first.copy_from(first.add(count), len - count) };
        self.set_len(len - count);
    }

    /// Writes to the descriptors of the `count` blocks on top, which came from the depot, that they are here. Another thread
    /// wrote them last: together they come to this processor's cache sooner than one by one later. Those that were no
    /// longer in the depot are strays here.
    pub(super) fn claim_top(&self, count: usize) {
        let (from, place) = (self.len().saturating_sub(count), self.place());
        for item in self.above(from) {
            if item.leave(Place::BETWEEN) {
                item.descriptor().move_to(place);
            }
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

    /// A magazine of its own.
    struct Alone(Magazine, Buffer);

    impl Alone {
        fn open(&mut self) -> BufferedMagazine<'_> {
            // SAFETY: the two belong together.
            unsafe { BufferedMagazine::new(&mut self.0, &mut self.1) }
        }
    }

    /// A magazine with room for so many blocks, and as many of these as it takes. In a box, since it must not move while
    /// it holds blocks.
    fn with(descriptors: &[BlockDescriptor], room: usize) -> Box<Alone> {
        let mut alone = Box::new(Alone(Magazine::NEW, Buffer::NEW));
        let mut magazine = alone.open();
        assert!(magazine.set_room(room));
        for descriptor in descriptors {
            if !magazine.is_full() {
                // SAFETY: just asked.
                unsafe { magazine.push(Item::new(descriptor.ptr(), descriptor)) };
                descriptor.move_to(magazine.place());
            }
        }
        alone
    }

    fn places(items: &[Item]) -> Vec<u64> {
        items.iter().map(|item| item.ptr.raw() >> 20).collect()
    }

    #[test]
    fn it_takes_what_fits_and_gives_the_youngest_first() {
        let descriptors = descriptors(6);
        let mut alone = with(&descriptors, 4);
        assert!(alone.open().is_full() && alone.open().room() == 4);
        let magazine = &mut alone.0;
        for place in [4, 3, 2, 1] {
            assert_eq!(magazine.top().map(|item| item.ptr.raw() >> 20), Some(place));
            // SAFETY: there was one on top.
            unsafe { magazine.drop_top() };
        }
        assert!(magazine.top().is_none() && magazine.is_empty() && !magazine.is_full());
    }

    #[test]
    fn one_without_room_is_full_and_empty() {
        let mut alone = Alone(Magazine::NEW, Buffer::NEW);
        assert!(alone.0.is_full() && alone.0.is_empty() && alone.0.top().is_none());
        let mut magazine = alone.open();
        assert!(magazine.items().is_empty() && magazine.take_top(|_| true).is_none());
        assert!(magazine.set_room(1) && !magazine.is_full());
        assert!(magazine.set_room(0) && magazine.is_full() && magazine.is_empty());
    }

    #[test]
    fn the_older_half_goes_and_then_all() {
        let descriptors = descriptors(5);
        let mut alone = with(&descriptors, 8);
        let mut magazine = alone.open();
        assert_eq!(places(magazine.older_half()), [1, 2, 3]);
        let mut half = Vec::new();
        magazine.give_up(3, |item| half.push(item));
        assert_eq!(places(&half), [1, 2, 3]);
        assert_eq!((places(magazine.items()), magazine.room()), (vec![4, 5], 8));
        let mut all = Vec::new();
        magazine.give_up(2, |item| all.push(item));
        assert_eq!((places(&all), magazine.len(), magazine.room()), (vec![4, 5], 0, 8));
        assert!(!magazine.is_full());
    }

    #[test]
    fn the_block_on_top_is_taken_if_it_fits_and_is_no_stray() {
        let descriptors = descriptors(3);
        let mut alone = with(&descriptors, 8);
        let mut magazine = alone.open();
        assert!(magazine.take_top(|bytes| bytes == 1024).is_none());
        assert_eq!(magazine.take_top(|bytes| bytes == 512).map(|item| item.ptr.raw() >> 20), Some(3));
        // A copy of a block that lies elsewhere.
        descriptors[1].move_to(Place::BETWEEN);
        assert!(magazine.take_top(|_| true).is_none());
        assert_eq!(places(magazine.items()), [1, 2]);
    }
}
