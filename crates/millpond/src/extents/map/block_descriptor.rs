//! What is known of an allocated block, and who may say so: see [`page_map`](super::page_map).

use std::mem::MaybeUninit;

use super::atomics::{AtomicU32, AtomicU64, Ordering};
use super::extent::ExtentId;
use crate::device::{ADDRESSES_END, DevicePtr};
use crate::order::Tick;

/// What is known of an allocated block. On a cache line of its own: threads that own neighbouring
/// blocks write their descriptors all the time.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct BlockDescriptor {
    /// The address of the live block, so that a free compares it with what it was given and knows all it must. With
    /// [`ADDRESSES_END`] added for a block that other streams use it is no address that a device has ([`Device::reserve`]). For
    /// a block that is not live, the [place](Place) where it is. 0 for no block.
    ///
    /// [`Device::reserve`]: crate::device::Device::reserve
    key: AtomicU64,
    /// Bytes of a live block that were asked for.
    requested: AtomicU64,
    /// Length in bytes. Constant while the block is allocated.
    bytes: AtomicU64,
    /// Where the block starts. Constant while it is allocated, and 0 afterwards.
    start: AtomicU64,
    /// The stream's tick when the block was last freed to a magazine.
    tick: AtomicU64,
    /// The [class](crate::policy::size_classes) of its length. Constant while the block is allocated, as is `id`.
    class: AtomicU32,
    id: AtomicU32,
    /// The number of the next descriptor in the chain of the page map; 0 for none. The map's alone.
    next: AtomicU32,
}

/// A live block without recorded uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain<'a> {
    pub(crate) descriptor: &'a BlockDescriptor,
    pub(crate) class: u32,
    pub(crate) bytes: u64,
}

/// Where an allocated block is that is not live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(pub(in crate::extents) u64);

impl Place {
    /// Between two places, in the depot, or in the hands of whoever has the pool's lock.
    pub(crate) const BETWEEN: Self = Self(1);

    /// In this magazine, which does not move while it holds blocks. No block starts at its address in the host's
    /// memory. A host and its devices share one range of addresses, and simulated ones begin far below the heap.
    #[inline]
    pub(crate) fn of<M>(magazine: &M) -> Self {
        const { assert!(align_of::<M>() > 1, "its address is another place than `BETWEEN`") };
        Self(std::ptr::from_ref(magazine).addr() as u64)
    }
}

/// Blocks are shorter than this, in units: 16 TiB in the smallest units.
pub(crate) const MOST_UNITS: u64 = 1 << 36;

impl BlockDescriptor {
    /// That of no block.
    pub(crate) const fn none() -> Self {
        // SAFETY: atomics of the machine are their values, and zeros are the descriptor of no block.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    /// That of no block, of a model's atomics.
    #[cfg(loom)]
    pub(in crate::extents) fn modelled() -> Self {
        Self {
            key: AtomicU64::new(0),
            requested: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            start: AtomicU64::new(0),
            tick: AtomicU64::new(0),
            class: AtomicU32::new(0),
            id: AtomicU32::new(0),
            next: AtomicU32::new(0),
        }
    }

    /// A block leaves the arena, and is nobody's for now.
    pub(in crate::extents) fn open(&self, ptr: DevicePtr, id: ExtentId, bytes: u64, class: u32) {
        debug_assert!(ptr.raw() < ADDRESSES_END, "a device has no such address");
        // Relaxed, here and where nothing else is said. A reader to whom the descriptor matters got the block's address
        // from a thread that wrote it, or holds the pool's lock. For other addresses (a double free, a foreign pointer)
        // any value seen is one that was there. None of them says more than that.
        self.id.store(id.0, Ordering::Relaxed);
        self.class.store(class, Ordering::Relaxed);
        self.start.store(ptr.raw(), Ordering::Relaxed);
        self.key.store(Place::BETWEEN.0, Ordering::Relaxed);
        // Release: who reads this length with Acquire sees what comes before it (`bytes_of_live`).
        self.bytes.store(bytes, Ordering::Release);
    }

    /// The block is the arena's again.
    pub(in crate::extents) fn close(&self) {
        self.start.store(0, Ordering::Relaxed);
        self.key.store(0, Ordering::Relaxed);
    }

    /// The program gets the block at `ptr`, of which it asked for so many bytes.
    #[inline]
    pub(crate) fn make_live(&self, ptr: DevicePtr, requested: u64) {
        self.requested.store(requested, Ordering::Relaxed);
        // Release: pairs with the Acquire in `is_plain`. A thread that got the pointer, by whatever way, so sees the
        // class and the lengths of this life of the block.
        self.key.store(ptr.raw(), Ordering::Release);
    }

    /// The program gave the block back to the magazine at `place`, at `tick` of the stream that freed it.
    #[inline]
    pub(crate) fn make_cached(&self, place: Place, tick: Tick) {
        self.tick.store(tick, Ordering::Relaxed);
        self.move_to(place);
    }

    /// The allocated block that is not live lies elsewhere now.
    #[inline]
    pub(crate) fn move_to(&self, place: Place) {
        self.key.store(place.0, Ordering::Relaxed);
    }

    /// Whether the block at `ptr` is there. By whoever has a copy of it in that place: the descriptor may be another
    /// block's.
    #[inline]
    pub(crate) fn is_in(&self, place: Place, ptr: DevicePtr) -> bool {
        self.key.load(Ordering::Relaxed) == place.0 && self.starts_at(ptr)
    }

    /// Takes the block at `ptr` from whoever has it at `place`. It changes nothing and returns `false` if the block is
    /// not there, or was the arena's already.
    pub(crate) fn leave(&self, place: Place, ptr: DevicePtr) -> bool {
        let is_there = self.is_in(place, ptr);
        if is_there {
            self.move_to(Place::BETWEEN);
        }
        is_there
    }

    /// Takes the live block at `ptr`, which has no recorded uses, out of the program's hands; `false`, and nothing
    /// changed, where another thread was first. Under the pool's lock.
    pub(crate) fn claim(&self, ptr: DevicePtr) -> bool {
        // A load and a store: other threads' frees have no read-modify-write either, so that one here would exclude
        // nothing. Whichever comes last has the block, and the other has a stray.
        let is_live = self.is_plain(ptr);
        if is_live {
            self.move_to(Place::BETWEEN);
        }
        is_live
    }

    /// Where the allocated block starts.
    #[inline]
    pub(crate) fn ptr(&self) -> DevicePtr {
        DevicePtr::new(self.start.load(Ordering::Relaxed))
    }

    /// Notes that other streams use the live block; `false` where it is not live.
    pub(in crate::extents) fn note_uses(&self) -> bool {
        let live = self.start.load(Ordering::Relaxed);
        // A read-modify-write: another thread may free the block meanwhile, which would be a mistake. Where it is not
        // live, or noted already, nothing is to be done.
        let noted =
            self.key.compare_exchange(live, live | ADDRESSES_END, Ordering::Relaxed, Ordering::Relaxed);
        noted.is_ok_and(|_| live != 0) || noted == Err(live | ADDRESSES_END)
    }

    /// Whether a live block without recorded uses starts at `ptr`, an address for which the descriptor was
    /// found (`PageMap::find`).
    #[inline]
    pub(crate) fn is_plain(&self, ptr: DevicePtr) -> bool {
        // Acquire: see `make_live`.
        self.key.load(Ordering::Acquire) == ptr.raw()
    }

    #[inline]
    pub(in crate::extents) fn starts_at(&self, ptr: DevicePtr) -> bool {
        self.ptr() == ptr
    }

    /// Whether the program holds the block.
    pub(crate) fn is_live(&self) -> bool {
        let start = self.ptr().raw();
        start != 0 && self.key.load(Ordering::Relaxed) & !ADDRESSES_END == start
    }

    /// Bytes of a live block that were asked for.
    #[inline]
    pub(crate) fn requested(&self) -> u64 {
        self.requested.load(Ordering::Relaxed)
    }

    /// Length of the block that is, or was last, allocated.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The block, if it is live, without recorded uses, of this class, and starts at `ptr`.
    #[inline(always)]
    pub(in crate::extents) fn plain(&self, ptr: DevicePtr, class: u32) -> Option<Plain<'_>> {
        let bytes = self.bytes_of_live();
        (self.is_plain(ptr) && self.class() == class).then_some(Plain { descriptor: self, class, bytes })
    }

    /// What [`bytes`](Self::bytes) is before [`is_plain`](Self::is_plain) is asked. If that answers yes, the length is
    /// the block's, even if the block goes back to the arena meanwhile.
    #[inline]
    pub(crate) fn bytes_of_live(&self) -> u64 {
        // Acquire: comes before the look at the key.
        self.bytes.load(Ordering::Acquire)
    }

    /// What was counted when a copy of the block was freed, as far as that is still known: bytes asked for, and its
    /// length.
    pub(crate) fn last_counted(&self) -> (u64, u64) {
        (self.requested(), self.bytes())
    }

    /// The tick at which a cached block was freed.
    pub(crate) fn tick(&self) -> Tick {
        self.tick.load(Ordering::Relaxed)
    }

    #[inline]
    pub(in crate::extents) fn next(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    pub(in crate::extents) fn set_next(&self, number: u32) {
        self.next.store(number, Ordering::Relaxed);
    }

    /// The arena's name of an allocated block.
    pub(crate) fn id(&self) -> ExtentId {
        ExtentId(self.id.load(Ordering::Relaxed))
    }

    /// The class of the length of the block that is, or was last, allocated.
    #[inline]
    pub(crate) fn class(&self) -> u32 {
        self.class.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
impl BlockDescriptor {
    /// Where the block is, of one that is not live.
    pub(crate) fn place(&self) -> Place {
        Place(self.key.load(Ordering::Relaxed))
    }

    /// The descriptor of a cached block at `ptr`.
    pub(crate) fn for_test(ptr: DevicePtr, bytes: u64) -> Self {
        let descriptor = Self::none();
        descriptor.open(ptr, ExtentId(0), bytes, 0);
        descriptor
    }
}
