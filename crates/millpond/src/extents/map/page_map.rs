//! The page map: from an address to the descriptor of its block, without the pool's lock.
//!
//! Each allocated block has a [`BlockDescriptor`], under its number. A hash table leads from the block's address to it: a chain
//! of descriptors for each hash. So a free finds its block with a multiplication, a shift and two loads. Descriptors and chains
//! are [sparse](Sparse): they never move, and take the host's memory only where there are blocks. As blocks become more, chains
//! are split in two, a few with each allocation: so none waits for all.
//!
//! **Who may look.** Chains change only under the pool's lock. Whoever looks without it may be led into another chain, and find
//! nothing. Then it takes the lock, and looks again. It never finds a wrong descriptor: that of a block says where this starts.
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

use std::hint::cold_path;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::block_descriptor::{BlockDescriptor, Plain};
use super::extent::ExtentId;
use super::sparse::{Blank, Records, Sparse};

use crate::device::DevicePtr;
use crate::policy::addresses::{CHAINS, MOST_ALLOCATED, SPLIT_AT_ONCE};

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
        // SAFETY: descriptors never move, and are kept as long as the arena. The caller promises the rest.
        unsafe { self.0.as_ref() }
    }
}

/// The first descriptor of a chain: its number, 0 for none, and above that the class of its block. So a free finds the block's
/// magazine while it still waits for the descriptor, which then says whether both belong together. Blocks of the last class that
/// it can name, and of longer ones, are found under the lock only: no device has one.
#[derive(Debug)]
struct First(AtomicU32);

// SAFETY: it is made of atomics, and zeros are a chain without descriptors.
unsafe impl Blank for First {}

impl First {
    #[inline(always)]
    fn get(&self) -> (u32, u32) {
        let both = self.0.load(Ordering::Relaxed);
        (both % MOST_ALLOCATED as u32, both / MOST_ALLOCATED as u32)
    }

    fn set(&self, number: u32, class: u32) {
        // Relaxed: who frees the block got its address from whoever allocated it, and sees this.
        let most = MOST_ALLOCATED as u32;
        self.0.store(class.min(u32::MAX / most) * most + number, Ordering::Relaxed);
    }
}

/// See the [module](self). Its tables are reserved once they are needed. On cache lines of its own, as all that threads read on the
/// fast path: somebody writes to what would lie beside it. (Processors fetch lines in pairs.)
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct PageMap(OnceLock<Tables>);

#[derive(Debug)]
struct Tables {
    /// By number: one more than a block's id, so that number 0 is that of no block.
    descriptors: Sparse<BlockDescriptor>,
    /// By hash: where its chain begins. There are [several](chains_for) chains for each block.
    chains: Sparse<First>,
    /// One less than how many chains there are, a power of two. Written under the pool's lock, where that changes.
    mask: AtomicU32,
    growth: Growth,
}

/// Written under the pool's lock, with each block: so on a cache line that the fast path does not read.
#[derive(Debug)]
#[repr(align(128))]
struct Growth {
    /// Chains grow twice as many at once, and blocks move to their new chains a few at a time: those of the chains below this
    /// have. A block that has not yet is in the chain that its hash had before.
    split: AtomicU32,
    /// Allocated blocks.
    blocks: AtomicU32,
}

impl Tables {
    /// As many as the process has addresses for, and room for as many records; `None` where it has none.
    fn new<R>() -> Option<(Self, Records<R>)> {
        let halves = std::iter::successors(Some(MOST_ALLOCATED), |most| Some(most / 2));
        halves.take_while(|most| *most > 0).find_map(|most| {
            // Some pages more: where the two lie a power of two apart, processors take lines of one for lines of the other
            // (AMD's way predictor), and a pair takes twice as long (docs/lab/mechanisms.md, "tables by place").
            let (descriptors, chains) = (Sparse::new(most)?, Sparse::new(chains_for(most) + (5 << 10))?);
            let [mask, split, blocks] = [1, 1, 0].map(AtomicU32::new);
            let tables = Self { descriptors, chains, mask, growth: Growth { split, blocks } };
            Some((tables, Records::new(most - 1)?))
        })
    }

    /// The chain of an address, if all had moved. The hash is Fibonacci's (Knuth, TAOCP 6.4): blocks in a row have different ones.
    /// Of its upper half, the lower bits: so a chain is split in two by one bit more.
    #[inline(always)]
    fn number_of(&self, ptr: DevicePtr) -> u32 {
        // Relaxed: whatever mask there ever was leads into the table.
        ((u128::from(ptr.raw()) * 0x9e37_79b9_7f4a_7c15) >> 64) as u32 & self.mask.load(Ordering::Relaxed)
    }

    /// Where a chain begins.
    #[inline(always)]
    fn first(&self, chain: u32) -> &First {
        // SAFETY: the table was as long whenever the mask was set. The system has read access to all of it.
        unsafe { self.chains.first().add(chain as usize).as_ref() }
    }

    /// The descriptor whose number this is, which was read from the tables.
    #[inline(always)]
    fn descriptor(&self, number: u32) -> &BlockDescriptor {
        // SAFETY: only numbers of descriptors are written there, and there is a descriptor of no block, which is number 0.
        unsafe { self.descriptors.first().add(number as usize).as_ref() }
    }

    /// How many chains there are.
    fn chains(&self) -> u32 {
        self.mask.load(Ordering::Relaxed) + 1
    }

    /// The chain that the blocks of this one may still be in.
    fn not_split(&self, chain: u32) -> Option<u32> {
        let half = self.chains() / 2;
        // Relaxed: under the lock. Without it, a block is not found, and looked for under the lock.
        (chain >= half && chain - half >= self.growth.split.load(Ordering::Relaxed)).then(|| chain - half)
    }

    /// The descriptor in a chain whose block starts here.
    fn find_in(&self, chain: u32, ptr: DevicePtr) -> Option<&BlockDescriptor> {
        let mut number = self.first(chain).get().0;
        while number != 0 {
            let descriptor = self.descriptor(number);
            if descriptor.starts_at(ptr) {
                return Some(descriptor);
            }
            number = descriptor.next();
        }
        None
    }

    /// Puts an allocated block into its chain.
    fn chain(&self, number: u32) {
        let descriptor = self.descriptor(number);
        let first = self.first(self.number_of(descriptor.ptr()));
        descriptor.set_next(first.get().0);
        first.set(number, descriptor.class());
    }

    /// Takes a block out of a chain; `false` where it is in another one.
    fn unchain(&self, chain: u32, number: u32) -> bool {
        let (first, gone) = (self.first(chain), self.descriptor(number));
        if first.get().0 == number {
            first.set(gone.next(), self.descriptor(gone.next()).class());
            return true;
        }
        let mut before = first.get().0;
        while before != 0 {
            let descriptor = self.descriptor(before);
            if descriptor.next() == number {
                descriptor.set_next(gone.next());
                return true;
            }
            before = descriptor.next();
        }
        false
    }

    /// Has twice as many chains where there are few for the blocks, and moves some blocks to their new ones.
    #[inline]
    fn grow(&self, blocks: u32) {
        let (mut half, mut split) = (self.chains() / 2, self.growth.split.load(Ordering::Relaxed));
        if split == half
            && blocks as usize * CHAINS > 2 * half as usize
            && self.chains.back(4 * half as usize)
        {
            cold_path();
            // The new chains are zeros. What is not found there is looked for in the old ones, which takes longer.
            (half, split) = (2 * half, 0);
            self.growth.split.store(split, Ordering::Relaxed);
            self.mask.store(2 * half - 1, Ordering::Relaxed);
        }
        if split < half {
            cold_path();
            self.split_until((split + SPLIT_AT_ONCE).min(half));
        }
    }

    /// Moves the blocks of the chains below this to their new ones.
    fn split_until(&self, end: u32) {
        for chain in self.growth.split.load(Ordering::Relaxed)..end {
            let mut number = self.first(chain).get().0;
            while number != 0 {
                let descriptor = self.descriptor(number);
                let next = descriptor.next();
                if self.number_of(descriptor.ptr()) != chain {
                    self.unchain(chain, number);
                    self.chain(number);
                }
                number = next;
            }
        }
        self.growth.split.store(end, Ordering::Relaxed);
    }

    /// From now on there are half as many chains. What is no chain any more is zeros.
    fn halve(&self) {
        let half = self.chains() / 2;
        self.split_until(half);
        self.mask.store(half - 1, Ordering::Relaxed);
        self.growth.split.store(half / 2, Ordering::Relaxed);
        for chain in half..2 * half {
            let first = self.first(chain);
            let mut number = first.get().0;
            if number != 0 {
                first.set(0, 0);
            }
            while number != 0 {
                let next = self.descriptor(number).next();
                self.chain(number);
                number = next;
            }
        }
    }
}

impl PageMap {
    /// Reserves the tables, and room for as many records as there can be blocks. `None` where the process has no addresses for
    /// them.
    pub(in crate::extents) fn begin<R>(&self) -> Option<Records<R>> {
        let (tables, records) = Tables::new()?;
        _ = self.0.set(tables);
        Some(records)
    }

    /// Sees to it that blocks with ids below `end` can be allocated; `false` where the host has no memory, or no addresses, for
    /// them. Under the pool's lock, like all that changes.
    pub(in crate::extents) fn back(&self, end: usize) -> bool {
        self.0.get().is_some_and(|tables| tables.descriptors.back(end + 1) && tables.chains.back(2))
    }

    /// Gives back what is too much for the blocks that there are. They have ids below `end`.
    pub(in crate::extents) fn shrink(&self, end: usize) {
        let Some(tables) = self.0.get() else { return };
        let wanted = chains_for(tables.growth.blocks.load(Ordering::Relaxed) as usize);
        while tables.chains() as usize > wanted {
            tables.halve();
        }
        tables.chains.let_go(tables.chains() as usize);
        tables.descriptors.let_go(end + 1);
    }

    /// Allocates the block, for whose id there is [memory](Self::back).
    pub(in crate::extents) fn open(
        &self,
        ptr: DevicePtr,
        id: ExtentId,
        bytes: u64,
        class: u32,
    ) -> DescriptorRef {
        let tables = self.0.get().expect("descriptors are backed before a block gets an id");
        let number = id.0 + 1;
        let descriptor = tables.descriptor(number);
        descriptor.open(ptr, id, bytes, class);
        let blocks = tables.growth.blocks.load(Ordering::Relaxed) + 1;
        tables.growth.blocks.store(blocks, Ordering::Relaxed);
        tables.grow(blocks);
        tables.chain(number);
        DescriptorRef::new(descriptor)
    }

    /// Takes back the allocated block with this id.
    pub(in crate::extents) fn close(&self, id: ExtentId) {
        let Some(tables) = self.0.get() else { return };
        let (number, gone) = (id.0 + 1, tables.descriptor(id.0 + 1));
        let chain = tables.number_of(gone.ptr());
        if !tables.unchain(chain, number) {
            let is_there = tables.not_split(chain).is_some_and(|chain| tables.unchain(chain, number));
            debug_assert!(is_there, "an allocated block is in its chain");
        }
        tables.growth.blocks.store(tables.growth.blocks.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        gone.close();
    }

    /// The descriptor of the allocated block with this id.
    pub(in crate::extents) fn of_block(&self, id: ExtentId) -> Option<&BlockDescriptor> {
        let descriptor = self.0.get()?.descriptors.get(id.0 as usize + 1)?;
        (!descriptor.ptr().is_null()).then_some(descriptor)
    }

    /// The descriptor of the allocated block that starts here.
    pub(crate) fn find(&self, ptr: DevicePtr) -> Option<&BlockDescriptor> {
        // Null is no block's, and is where one starts that is gone.
        let tables = self.0.get().filter(|_| !ptr.is_null())?;
        let chain = tables.number_of(ptr);
        let found = tables.find_in(chain, ptr);
        found.or_else(|| tables.find_in(tables.not_split(chain)?, ptr))
    }

    /// The live block without recorded uses that starts here.
    pub(crate) fn find_plain(&self, ptr: DevicePtr) -> Option<Plain<'_>> {
        let descriptor = self.find(ptr)?;
        descriptor.plain(ptr, descriptor.class())
    }

    /// As [`find_plain`](Self::find_plain), if it is the first or second in its chain, as nearly all are. It has no loop and no
    /// call, for which the fast path would have to save its registers.
    #[inline(always)]
    pub(crate) fn find_soon(&self, ptr: DevicePtr) -> Option<Plain<'_>> {
        let tables = self.0.get().filter(|_| !ptr.is_null())?;
        let (number, class) = tables.first(tables.number_of(ptr)).get();
        let first = tables.descriptor(number);
        let found = first.plain(ptr, class);
        if found.is_some() {
            return found;
        }
        let second = tables.descriptor(first.next());
        second.plain(ptr, second.class())
    }
}

/// How many chains so many blocks have.
fn chains_for(blocks: usize) -> usize {
    (CHAINS * blocks).next_power_of_two().max(2)
}

#[cfg(test)]
mod tests {
    use super::super::block_descriptor::Place;
    use super::*;
    use crate::device::ADDRESSES_END;

    const BASE: DevicePtr = DevicePtr::new(7 << 40);

    fn map_of(end: usize) -> PageMap {
        let map = PageMap::default();
        assert!(map.find(BASE).is_none() && map.begin::<u64>().is_some() && map.back(end));
        map
    }

    #[test]
    fn a_descriptor_is_found_only_at_its_blocks_first_byte() {
        let map = map_of(64);
        let ptr = BASE.offset((5 << 20) + 512);
        assert!(map.find(ptr).is_none() && map.of_block(ExtentId(7)).is_none());
        map.open(ptr, ExtentId(7), 2 << 20, 9);
        for other in [BASE.offset(5 << 20), ptr.offset(1), ptr.offset(512), DevicePtr::NULL] {
            assert!(map.find(other).is_none() && map.find_soon(other).is_none());
        }
        let descriptor = map.find(ptr).expect("the block is allocated");
        assert!(std::ptr::eq(map.of_block(ExtentId(7)).expect("it is allocated"), descriptor));
        assert_eq!(
            (descriptor.id(), descriptor.bytes(), descriptor.is_live()),
            (ExtentId(7), 2 << 20, false)
        );
        assert!(!descriptor.is_plain(ptr) && map.find_soon(ptr).is_none() && map.find_plain(ptr).is_none());
        descriptor.make_live(ptr, 300);
        assert_eq!((descriptor.is_live(), descriptor.requested()), (true, 300));
        for found in [map.find_soon(ptr), map.find_plain(ptr)] {
            let Plain { descriptor: found, class, bytes } = found.expect("it is live");
            assert!(std::ptr::eq(found, descriptor) && (class, bytes) == (9, 2 << 20));
        }
        assert!(!descriptor.is_plain(BASE.offset(5 << 20)));
        descriptor.note_uses();
        assert!(descriptor.is_live() && !descriptor.is_plain(ptr) && map.find_soon(ptr).is_none());
        let here = Place::of(&descriptor);
        descriptor.make_cached(here, 3);
        assert_eq!((descriptor.id(), descriptor.class(), descriptor.tick()), (ExtentId(7), 9, 3));
        assert!(!descriptor.is_live() && map.find(ptr).is_some());
        map.close(ExtentId(7));
        assert!(map.find(ptr).is_none() && map.of_block(ExtentId(7)).is_none());
    }

    #[test]
    fn a_block_whose_class_no_chain_can_name_is_found_under_the_lock() {
        let (map, ptr, class) = (map_of(4), BASE, u32::MAX / MOST_ALLOCATED as u32 + 1);
        // SAFETY: the block is allocated.
        unsafe { map.open(ptr, ExtentId(1), 512, class).get() }.make_live(ptr, 512);
        assert!(
            map.find_soon(ptr).is_none() && map.find_plain(ptr).is_some_and(|found| found.class == class)
        );
    }

    #[test]
    fn every_block_is_found_however_many_come_and_go() {
        let map = map_of(4);
        let at = |id: u32| BASE.offset(u64::from(id) * 512);
        let ids = |map: &PageMap| (0..1000).filter(|id| map.find(at(*id)).is_some()).collect::<Vec<_>>();
        // With some chains at first, and with thousands later.
        for id in 0..1000_u32 {
            assert!(id % 100 != 4 || map.back(id as usize + 100));
            // SAFETY: the block is allocated.
            unsafe { map.open(at(id), ExtentId(id), 512, 0).get() }.make_live(at(id), 512);
            assert_eq!(map.find(at(id)).map(BlockDescriptor::id), Some(ExtentId(id)));
        }
        assert_eq!(ids(&map), (0..1000).collect::<Vec<_>>());
        // Those that have not moved to their new chains are found under the lock only.
        map.0.get().iter().for_each(|tables| tables.split_until(tables.chains() / 2));
        let soon = (0..1000).filter(|id| map.find_soon(at(*id)).is_some()).count();
        assert!(soon > 990, "{soon} of a thousand are the first or second of their chains");
        (0..1000).filter(|id| id % 7 != 3).for_each(|id| map.close(ExtentId(id)));
        let left: Vec<_> = (0..1000).filter(|id| id % 7 == 3).collect();
        assert_eq!(ids(&map), left);
        map.shrink(1000);
        assert_eq!(ids(&map), left);
        (8..1000).filter(|id| id % 7 == 3).for_each(|id| map.close(ExtentId(id)));
        map.shrink(8);
        assert_eq!((ids(&map), map.0.get().map(Tables::chains)), (vec![3], Some(chains_for(1) as u32)));
        map.close(ExtentId(3));
        map.shrink(0);
        assert!(ids(&map).is_empty());
    }

    #[test]
    fn a_look_without_the_lock_finds_the_block_or_nothing() {
        let rounds = if cfg!(miri) { 2 } else { 200 };
        let map = map_of(4);
        let at = |id: u32| BASE.offset(u64::from(id) * 512);
        // SAFETY: the block is allocated.
        let live = |id| unsafe { map.open(at(id), ExtentId(id), 512, 0).get() }.make_live(at(id), 512);
        (0..4).for_each(live);
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looks = || {
                let mut found = 0;
                while !is_done.load(Ordering::Relaxed) || found == 0 {
                    for id in 0..4 {
                        let soon = map.find_soon(at(id)).map(|plain| plain.descriptor);
                        let known = [map.find(at(id)), soon].into_iter().flatten();
                        assert!(known.inspect(|_| found += 1).all(|block| block.id() == ExtentId(id)));
                    }
                    assert!(map.find_soon(DevicePtr::NULL).is_none());
                }
            };
            scope.spawn(looks);
            // Others come and go, at the same addresses under other ids, and the table with them.
            for round in 0..rounds {
                assert!(map.back(64));
                for id in 4..64 {
                    map.open(at(id + round % 7), ExtentId(id), 512, 0);
                }
                (4..64).rev().for_each(|id| map.close(ExtentId(id)));
                map.shrink(4);
            }
            is_done.store(true, Ordering::Relaxed);
        });
        assert!((0..4).all(|id| map.find(at(id)).is_some()));
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
        descriptor.open(ptr.offset(512), ExtentId(0), 512, 0);
        descriptor.make_cached(here, 1);
        assert!(!descriptor.leave(here, ptr) && descriptor.leave(here, ptr.offset(512)));
    }

    #[test]
    fn no_address_matches_a_cached_block_or_one_with_uses() {
        let map = map_of(4);
        let ptr = BASE.offset(512);
        map.open(ptr, ExtentId(1), 512, 0);
        // What the descriptor holds now, and would hold with uses, read as addresses.
        for made_up in [Place::BETWEEN.0, ptr.raw() | ADDRESSES_END, 0, u64::MAX] {
            assert!(map.find(DevicePtr::new(made_up)).is_none());
        }
        let descriptor = map.find(ptr).expect("it is allocated");
        assert!(!descriptor.is_plain(ptr));
        descriptor.make_live(ptr, 512);
        assert!(descriptor.is_plain(ptr) && !descriptor.is_plain(ptr.offset(1)));
    }
}
