//! A magazine: a stack of blocks of about one size.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use super::caches::Few;
use crate::arena::{Entry, EntryRef, Out, Place};
use crate::device::DevicePtr;

/// A block in a magazine. The entry knows the address too, but an allocation need not wait for it: a free has found the
/// entry in several loads, each of which needs the one before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    pub(super) ptr: DevicePtr,
    entry: EntryRef,
}

impl Item {
    #[inline]
    pub(super) fn new(ptr: DevicePtr, entry: &Entry) -> Self {
        Self { ptr, entry: EntryRef::new(entry) }
    }

    /// What is known of the block.
    #[inline]
    pub(super) fn entry(&self) -> &Entry {
        // SAFETY: what is cached is out, and the caches do not outlive the pool.
        unsafe { self.entry.get() }
    }

    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.entry().bytes()
    }

    pub(super) fn out(&self) -> Out {
        Out { ptr: self.ptr, entry: self.entry, bytes: self.bytes(), misses: 0 }
    }
}

/// See the [module](self). The block freed last is on top.
///
/// A vector in parts: with the place above the top block, rather than a length, the fast path finds an item without
/// arithmetic. docs/speed.md has what that gives.
#[derive(Debug)]
#[repr(align(32))]
pub(super) struct Magazine {
    /// Where the next block goes: above the one on top. From `start` to `limit`.
    top: NonNull<Item>,
    /// What `top` may reach; see [`Lanes::grant`](super::lane::Lanes::grant). Within the buffer, or at its end.
    limit: NonNull<Item>,
    /// The buffer, and the items that it has room for, of which those below `top` are there.
    start: NonNull<Item>,
    capacity: usize,
}

/// Bytes between two magazines of a lane.
pub(super) const STRIDE: usize = size_of::<Magazine>();

impl Default for Magazine {
    fn default() -> Self {
        Self::NEW
    }
}

impl Magazine {
    /// One without room.
    pub(super) const NEW: Self = {
        let start = NonNull::dangling();
        Self { top: start, limit: start, start, capacity: 0 }
    };

    // ---- the fast path ---------------------------------------------------------------------------

    /// The block on top.
    #[inline]
    pub(super) fn top(&self) -> Option<&Item> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: an item lies below `top`.
        Some(unsafe { self.top.sub(1).as_ref() })
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
        self.top >= self.limit
    }

    /// Adds a block.
    ///
    /// # Safety
    /// The magazine is not full.
    #[inline]
    pub(super) unsafe fn push(&mut self, item: Item) {
        debug_assert!(!self.is_full(), "a magazine that is full");
        // SAFETY: the caller's promise: `top` lies below `limit`, and so within the buffer.
        unsafe {
            self.top.write(item);
            self.top = self.top.add(1);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.top == self.start
    }

    /// What the entries of its blocks say: that they are here. Where one says something else, the block was freed twice at
    /// once, and its copy here is a *stray* (see `arena/table.rs`).
    #[inline]
    pub(super) fn place(&self) -> Place {
        Place::of(self)
    }

    // ---- the slow ways ---------------------------------------------------------------------------

    /// The blocks, the youngest last.
    pub(super) fn items(&self) -> &[Item] {
        // SAFETY: the items from `start` to `top` are there, and borrowed with the magazine.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len()) }
    }

    /// Blocks in it.
    pub(super) fn len(&self) -> usize {
        // SAFETY: both point into the buffer, `top` not below `start`.
        unsafe { self.top.offset_from_unsigned(self.start) }
    }

    /// Blocks that it may hold.
    pub(super) fn room(&self) -> usize {
        // SAFETY: both point into the buffer, `limit` not below `start`.
        unsafe { self.limit.offset_from_unsigned(self.start) }
    }

    /// Lets it hold so many blocks, no fewer than it holds.
    pub(super) fn set_room(&mut self, room: usize) {
        assert!(room >= self.len(), "a magazine holds no more than it may");
        let mut items = self.as_vec();
        let more = room - items.len();
        items.reserve_exact(more);
        drop(items);
        // SAFETY: the buffer has room for so many.
        self.limit = unsafe { self.start.add(room) };
    }

    /// The parts as the vector that they are, which may grow. What becomes of it is the magazine's when this is dropped.
    fn as_vec(&mut self) -> AsVec<'_> {
        // SAFETY: the parts are those of a vector of so many items, of that capacity; nobody uses them until they are
        // written back, when the magazine, which is borrowed, can be used again.
        let items = unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len(), self.capacity) };
        AsVec { items: ManuallyDrop::new(items), room: self.room(), of: self }
    }

    /// Takes the youngest block of exactly this length out, if there is one. Its entry says that it left.
    pub(super) fn take_alike(&mut self, bytes: u64) -> Option<Item> {
        if self.is_empty() || !self.bring_up(bytes) {
            return None;
        }
        let place = self.place();
        self.as_vec().pop().filter(|item| item.entry().leave(place))
    }

    /// Brings the youngest block of exactly this length to the top, if there is one that is no stray.
    #[inline(never)]
    pub(super) fn bring_up(&mut self, bytes: u64) -> bool {
        let place = self.place();
        let is_wanted = |item: &Item| item.bytes() == bytes && item.entry().is_in(place);
        let Some(at) = self.items().iter().rposition(is_wanted) else { return false };
        self.as_vec()[at..].rotate_left(1);
        true
    }

    /// The blocks above the lowest `count`.
    pub(super) fn above(&self, count: usize) -> &[Item] {
        &self.items()[count..]
    }

    /// Blocks that a restock may bring: half of what it may hold.
    pub(super) fn restock_by(&self) -> usize {
        (self.room() / 2).saturating_sub(self.len())
    }

    /// The older half, rounded up.
    pub(super) fn older_half(&self) -> &[Item] {
        &self.items()[..self.len().div_ceil(2)]
    }

    /// Gives up the older half, rounded up.
    pub(super) fn give_up_half(&mut self) -> Few<Item> {
        let half = self.len().div_ceil(2);
        self.as_vec().drain(..half).collect()
    }

    /// Gives up all blocks, the oldest first.
    pub(super) fn give_up_all(&mut self, each: impl FnMut(Item)) {
        self.as_vec().drain(..).for_each(each);
    }

    /// Whether it may hold as many blocks of this length as any magazine ever.
    pub(super) fn is_at_most(&self, bytes: u64, in_haste: bool) -> bool {
        self.room() >= most_of(bytes, in_haste)
    }

    /// Blocks of this length that it should be allowed next, where what it may hold is too little.
    pub(super) fn next_room(&self, bytes: u64, in_haste: bool) -> usize {
        let first = if bytes < LARGE { 4 } else { 1 };
        (2 * self.room()).max(first).min(most_of(bytes, in_haste))
    }

    /// Writes to the entries of the `count` blocks on top, which came from the depot, that they are here: another thread
    /// wrote them last, and all together they come to this processor's cache sooner than one by one when they are
    /// handed out. Those that were no longer in the depot are strays here.
    pub(super) fn draw_near(&self, count: usize) {
        let (from, place) = (self.len().saturating_sub(count), self.place());
        for item in self.above(from) {
            if item.entry().leave(Place::BETWEEN) {
                item.entry().move_to(place);
            }
        }
    }
}

impl Drop for Magazine {
    fn drop(&mut self) {
        // SAFETY: the parts are those of a vector, and are used no more.
        drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len(), self.capacity) });
    }
}

/// See [`Magazine::as_vec`].
struct AsVec<'a> {
    items: ManuallyDrop<Vec<Item>>,
    /// Of the magazine.
    room: usize,
    of: &'a mut Magazine,
}

impl Deref for AsVec<'_> {
    type Target = Vec<Item>;

    fn deref(&self) -> &Vec<Item> {
        &self.items
    }
}

impl DerefMut for AsVec<'_> {
    fn deref_mut(&mut self) -> &mut Vec<Item> {
        &mut self.items
    }
}

impl Drop for AsVec<'_> {
    fn drop(&mut self) {
        let (len, capacity) = (self.items.len(), self.items.capacity());
        // SAFETY: a vector's buffer has an address, and room for its capacity, of which `len` items are there.
        unsafe {
            let start = NonNull::new_unchecked(self.items.as_mut_ptr());
            self.of.top = start.add(len);
            self.of.limit = start.add(self.room.min(capacity));
            self.of.start = start;
        }
        self.of.capacity = capacity;
    }
}

/// Blocks of this size that a magazine ever holds. Larger ones are fewer: a magazine is searched where it holds
/// several sizes, and what it holds may be many bytes. In haste, few ways to the depot count for more.
const fn most_of(bytes: u64, in_haste: bool) -> usize {
    match bytes {
        _ if in_haste => 64,
        0..=0x8000 => 64,
        0x8001..=0xF_FFFF => 32,
        LARGE.. => 16,
    }
}

/// Bytes from which on a magazine is short.
const LARGE: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries of `count` blocks, of 512 and 1024 bytes in turn.
    fn entries(count: u64) -> Vec<Entry> {
        (0..count).map(|at| Entry::for_test(DevicePtr::new((at + 1) << 20), 512 << (at % 2))).collect()
    }

    /// A magazine with room for so many blocks, and as many of these as it takes.
    fn with(entries: &[Entry], room: usize) -> Box<Magazine> {
        let mut magazine = Box::<Magazine>::default();
        magazine.set_room(room);
        for entry in entries {
            if !magazine.is_full() {
                // SAFETY: just asked.
                unsafe { magazine.push(Item::new(entry.ptr(), entry)) };
                entry.move_to(magazine.place());
            }
        }
        magazine
    }

    fn places(items: &[Item]) -> Vec<u64> {
        items.iter().map(|item| item.ptr.raw() >> 20).collect()
    }

    #[test]
    fn it_takes_as_many_as_it_has_room_for_and_gives_the_youngest_first() {
        let entries = entries(6);
        let mut magazine = with(&entries, 4);
        assert!(magazine.is_full() && magazine.room() == 4);
        for place in [4, 3, 2, 1] {
            assert_eq!(magazine.top().map(|item| item.ptr.raw() >> 20), Some(place));
            // SAFETY: there was one on top.
            unsafe { magazine.drop_top() };
        }
        assert!(magazine.top().is_none() && magazine.is_empty() && !magazine.is_full());
    }

    #[test]
    fn one_without_room_is_full_and_empty() {
        let magazine = Magazine::default();
        assert!(magazine.is_full() && magazine.is_empty() && magazine.items().is_empty());
    }

    #[test]
    fn more_room_keeps_the_blocks_and_less_room_the_buffer() {
        let entries = entries(40);
        let mut magazine = with(&entries, 3);
        magazine.set_room(40);
        assert_eq!((places(magazine.items()), magazine.room()), (vec![1, 2, 3], 40));
        magazine.set_room(3);
        assert!(magazine.is_full());
        magazine.set_room(4);
        // SAFETY: there is room for one.
        unsafe { magazine.push(Item::new(entries[9].ptr(), &entries[9])) };
        assert_eq!(places(magazine.items()), [1, 2, 3, 10]);
    }

    #[test]
    fn the_older_half_goes_and_then_all() {
        let entries = entries(5);
        let mut magazine = with(&entries, 8);
        assert_eq!(places(magazine.older_half()), [1, 2, 3]);
        assert_eq!(places(&magazine.give_up_half()), [1, 2, 3]);
        assert_eq!((places(magazine.items()), magazine.room()), (vec![4, 5], 8));
        let mut all = Vec::new();
        magazine.give_up_all(|item| all.push(item));
        assert_eq!((places(&all), magazine.len(), magazine.room()), (vec![4, 5], 0, 8));
    }

    #[test]
    fn the_youngest_of_a_length_is_found_below_others() {
        let entries = entries(5);
        let mut magazine = with(&entries, 8);
        assert!(magazine.bring_up(1024));
        assert_eq!(places(magazine.items()), [1, 2, 3, 5, 4]);
        assert_eq!(magazine.take_alike(512).map(|item| item.ptr.raw() >> 20), Some(5));
        assert!(magazine.take_alike(2048).is_none());
        assert_eq!(places(magazine.items()), [1, 2, 3, 4]);
        // A copy of a block that lies elsewhere.
        entries[3].move_to(Place::BETWEEN);
        assert_eq!(magazine.take_alike(1024).map(|item| item.ptr.raw() >> 20), Some(2));
    }
}
