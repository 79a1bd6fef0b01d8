//! The miss path: where no free block fits, choose a place in address space and put pages behind it.

use std::sync::Arc;

use super::blocks::{Block, State};
use super::find::Want;
use super::regions::{NewRegion, Source};
use super::table::Table;
use super::{Arena, BlockId, Refusal, Zone};
use crate::device::DeviceError;
use crate::order::{Fence, Stream};
use crate::pages::{MapFailure, NoPage, PageId, Shortage};

/// A place for an allocation that is not wholly backed yet.
#[derive(Debug, Clone, Copy)]
struct Place {
    region: u32,
    /// The unit that the allocation will start at.
    start: u64,
    end: u64,
    /// The block that holds `start`.
    first: BlockId,
    /// Slots in `start..end` with no page.
    missing: u64,
}

/// A page that could be taken from a free block.
#[derive(Debug, Clone, Copy)]
struct Victim {
    page: PageId,
    slots: u32,
    /// The free block that the page lies in, or the first of the pieces it was cut into.
    block: BlockId,
    freed: u64,
}

/// Free blocks tried as one end of a place. The longest ones save the most pages; beyond a few the saving is
/// less than a page.
const GROWTH_CANDIDATES: usize = 16;

/// Pages considered for stealing in one miss. Bounds the miss where very much is free in pieces.
const VICTIMS: usize = 4096;

impl Arena {
    /// Backs a place for `want`; returns the free block there and the unit in it to start at.
    #[cold]
    pub(super) fn back(&mut self, want: &Want, stream: &Stream) -> Result<(BlockId, u64), Refusal> {
        if !self.device.properties().virtual_memory {
            return self.back_by_segment(want);
        }
        self.reap();
        let place = self.choose_place(want, stream)?;
        self.fill(want, &place, stream)?;
        Ok((self.join_window(&place), place.start))
    }

    // ---- where -----------------------------------------------------------------------------------

    /// The place for `want` that lacks the fewest pages, ready for `stream` but for those.
    fn choose_place(&mut self, want: &Want, stream: &Stream) -> Result<Place, Refusal> {
        let grown = self.best_growth(want, stream);
        let fresh = self.fresh_place(want)?;
        let Some(grown) = grown else { return Ok(fresh) };
        // At a tie, a large block starts on pages of its own, so that they can be stolen whole when it is
        // freed; a small one fills what its neighbours left.
        let grow = match want.zone {
            Zone::Small => grown.missing <= fresh.missing,
            Zone::Large => grown.missing < fresh.missing,
        };
        if grow && self.make_ready(&grown, stream)? { Ok(grown) } else { Ok(fresh) }
    }

    /// A place in the void that fits best.
    fn fresh_place(&mut self, want: &Want) -> Result<Place, Refusal> {
        let per_slot = self.layout.units_per_slot();
        let slots = want.units.div_ceil(per_slot);
        let void = self.void[want.zone as usize].at_least(slots * per_slot).next();
        let first = match void {
            Some(void) => void,
            None => self.add_region(want.zone, slots)?,
        };
        let Block { region, start, .. } = self.blocks[first];
        Ok(Place { region, start, end: start + want.units, first, missing: slots })
    }

    /// The place with the fewest missing slots that begins or ends with one of the longest free blocks.
    fn best_growth(&self, want: &Want, stream: &Stream) -> Option<Place> {
        self.free[want.zone as usize]
            .below(want.units)
            .take(GROWTH_CANDIDATES)
            .filter(|id| self.could_be_ready(*id, stream))
            .flat_map(|id| [self.grow_up(id, want, stream), self.grow_down(id, want, stream)])
            .flatten()
            .min_by_key(|place| place.missing)
    }

    fn grow_up(&self, id: BlockId, want: &Want, stream: &Stream) -> Option<Place> {
        let Block { region, start, .. } = self.blocks[id];
        let start = self.align_up(region, start, want.align);
        let end = start + want.units;
        let mut missing = 0;
        let mut at = id;
        while self.blocks[at].end() < end {
            at = self.blocks[at].next?;
            missing += self.missing_in(at, (start, end), stream)?;
        }
        (start < self.blocks[id].end()).then_some(Place { region, start, end, first: id, missing })
    }

    fn grow_down(&self, id: BlockId, want: &Want, stream: &Stream) -> Option<Place> {
        let region = self.blocks[id].region;
        let lowest = self.blocks[id].end().checked_sub(want.units)?;
        let start = self.align_down(region, lowest, want.align)?;
        let end = start + want.units;
        let mut missing = 0;
        let mut at = id;
        while self.blocks[at].start > start {
            at = self.blocks[at].prev?;
            missing += self.missing_in(at, (start, end), stream)?;
        }
        Some(Place { region, start, end, first: at, missing })
    }

    fn align_down(&self, region: u32, unit: u64, align: u64) -> Option<u64> {
        let up = self.align_up(region, unit, align);
        if up == unit { Some(unit) } else { up.checked_sub(align / self.layout.unit_bytes) }
    }

    /// Slots to be backed in the part of a block that lies in `window`, or `None` where the block cannot be
    /// part of a place.
    fn missing_in(&self, id: BlockId, window: (u64, u64), stream: &Stream) -> Option<u64> {
        match self.blocks[id].state {
            State::Free => self.could_be_ready(id, stream).then_some(0),
            State::Void => {
                let (first, end) = self.void_slots(id, window);
                Some(end - first)
            }
            _ => None,
        }
    }

    /// The slots of a void that a window covers, also in part.
    fn void_slots(&self, id: BlockId, window: (u64, u64)) -> (u64, u64) {
        let (block, per_slot) = (&self.blocks[id], self.layout.units_per_slot());
        (block.start.max(window.0) / per_slot, block.end().min(window.1).div_ceil(per_slot))
    }

    /// Whether the stream may use the free block now, or could be made to wait for it.
    fn could_be_ready(&self, id: BlockId, stream: &Stream) -> bool {
        self.policies.internal_dependencies
            || self.timelines.is_ready(&self.blocks[id].fence, stream.timeline(), self.policies)
    }

    /// Makes the stream wait for the free blocks in a place, where it must.
    fn make_ready(&mut self, place: &Place, stream: &Stream) -> Result<bool, Refusal> {
        let mut at = Some(place.first);
        while let Some(id) = at.filter(|id| self.blocks[*id].start < place.end) {
            if !self.make_block_ready(id, stream)? {
                return Ok(false);
            }
            at = self.blocks[id].next;
        }
        Ok(true)
    }

    fn make_block_ready(&mut self, id: BlockId, stream: &Stream) -> Result<bool, Refusal> {
        let block = &self.blocks[id];
        if block.state != State::Free
            || self.timelines.is_ready(&block.fence, stream.timeline(), self.policies)
        {
            return Ok(true);
        }
        if !self.policies.internal_dependencies
            || !self.timelines.make_wait(&block.fence, stream.timeline())?
        {
            return Ok(false);
        }
        self.counters.stream_waits.add(1);
        Ok(true)
    }

    // ---- with what -------------------------------------------------------------------------------

    /// Puts pages behind every slot of the place. On an error, what was backed so far is free memory.
    fn fill(&mut self, want: &Want, place: &Place, stream: &Stream) -> Result<(), Refusal> {
        let mut victims = self.victims(place, stream);
        let mut at = Some(place.first);
        while let Some(id) = at.filter(|id| self.blocks[*id].start < place.end) {
            let next = self.blocks[id].next;
            if self.blocks[id].state == State::Void {
                let (first, end) = self.void_slots(id, (place.start, place.end));
                self.fill_run(want, (place.region, first, end), id, &mut victims, stream)?;
            }
            at = next;
        }
        Ok(())
    }

    /// Backs the slots `run.1..run.2` of region `run.0`, which lie in the void block `void`.
    fn fill_run(
        &mut self,
        want: &Want,
        run: (u32, u64, u64),
        mut void: BlockId,
        victims: &mut Vec<Victim>,
        stream: &Stream,
    ) -> Result<(), Refusal> {
        let (region, mut slot, end) = run;
        while slot < end {
            let room = u32::try_from(end - slot).unwrap_or(u32::MAX);
            let slots = if let Some(page) = self.pages.take_parked(room) {
                self.attach_unmapped(page, (region, slot), &mut void)?
            } else if let Some(slots) = self.steal((region, slot), room, &mut void, victims, stream)? {
                slots
            } else {
                let page = self.create(want, room)?;
                self.attach_unmapped(page, (region, slot), &mut void)?
            };
            slot += u64::from(slots);
        }
        Ok(())
    }

    /// Creates a page of at most `room` slots, of the size that suits the block; smaller ones where memory
    /// is short.
    fn create(&mut self, want: &Want, room: u32) -> Result<PageId, Refusal> {
        let mut slots = self.page_slots(want, room);
        loop {
            match self.pages.create(slots) {
                Ok(page) => return Ok(page),
                Err(NoPage::Short(what)) if slots > 1 && what != Shortage::Headroom => slots /= 2,
                Err(error) => {
                    return Err(Refusal::of_page(error, u64::from(slots) * self.layout.slot_bytes));
                }
            }
        }
    }

    /// How long a new page should be where `room` slots of a large block are still to be backed: half of
    /// them, so that pages get shorter towards the block's end. A long block costs few mappings, and when a
    /// somewhat shorter one takes its place later, only short pages are left over or shared.
    fn page_slots(&self, want: &Want, room: u32) -> u32 {
        match want.zone {
            Zone::Small => 1,
            Zone::Large => room.div_ceil(2).next_power_of_two().min(self.layout.largest_page).min(room),
        }
    }

    /// The pages that free blocks outside the place could give to `stream`: the largest first, and of equal
    /// ones those of the block that has been free for longest, which is the least likely to be wanted soon.
    fn victims(&self, place: &Place, stream: &Stream) -> Vec<Victim> {
        let mut victims = Vec::new();
        for zone in Zone::BOTH {
            for id in self.free[zone as usize].at_least(self.layout.units_per_slot()) {
                let block = &self.blocks[id];
                let in_place =
                    block.region == place.region && block.start < place.end && place.start < block.end();
                if in_place || !self.could_be_ready(id, stream) {
                    continue;
                }
                let pages = self.whole_pages(id);
                victims.extend(pages.map(|(page, _, slots)| Victim {
                    page,
                    slots,
                    block: id,
                    freed: block.freed,
                }));
                if victims.len() >= VICTIMS {
                    break;
                }
            }
        }
        victims.sort_by(|a, b| b.slots.cmp(&a.slots).then(a.freed.cmp(&b.freed)));
        victims
    }

    /// The pages that lie wholly in a block: page, first slot, slots.
    pub(super) fn whole_pages(&self, id: BlockId) -> impl Iterator<Item = (PageId, u64, u32)> + '_ {
        let (block, per_slot) = (&self.blocks[id], self.layout.units_per_slot());
        let (mut slot, end) = (block.start.div_ceil(per_slot), block.end() / per_slot);
        std::iter::from_fn(move || {
            while slot < end {
                let page = self.regions.page_at(block.region, slot)?;
                let (_, home) = self.pages.get(page).home?;
                let (first, slots) = (u64::from(home), self.pages.get(page).slots);
                let whole = first == slot && first + u64::from(slots) <= end;
                slot = first + u64::from(slots);
                if whole {
                    return Some((page, first, slots));
                }
            }
            None
        })
    }

    // ---- moving pages ----------------------------------------------------------------------------

    /// Maps the largest page of at most `room` slots from a free block elsewhere to `to`; its old mapping
    /// becomes stale. Returns the page's slots, or `None` where there is no page to be had.
    fn steal(
        &mut self,
        to: (u32, u64),
        room: u32,
        void: &mut BlockId,
        victims: &mut Vec<Victim>,
        stream: &Stream,
    ) -> Result<Option<u32>, Refusal> {
        while let Some(best) = victims.iter().position(|victim| victim.slots <= room) {
            let victim = victims.remove(best);
            let Some((region, slot)) = self.pages.get(victim.page).home else { continue };
            let from = self.piece_at(victim.block, u64::from(slot) * self.layout.units_per_slot());
            if !self.make_block_ready(from, stream)? {
                continue;
            }
            let fence = self.blocks[from].fence.clone();
            let freed = self.blocks[from].freed;
            self.map_page(victim.page, to, void)?;
            self.make_stale(from, (region, u64::from(slot)), victim.page);
            self.attach(victim.page, to, void, fence, freed);
            self.counters.pages_stolen.add(1);
            return Ok(Some(victim.slots));
        }
        Ok(None)
    }

    /// The piece of what was one block, and is still linked from `first` on, that holds the unit.
    fn piece_at(&self, first: BlockId, unit: u64) -> BlockId {
        let mut at = first;
        while self.blocks[at].end() <= unit {
            at = self.blocks[at].next.expect("the pieces of a block cover what it covered");
        }
        at
    }

    /// Cuts the page's range out of the free block `from`; it stays mapped until its fence is reached.
    fn make_stale(&mut self, from: BlockId, (region, slot): (u32, u64), page: PageId) {
        let per_slot = self.layout.units_per_slot();
        let slots = self.pages.get(page).slots;
        let (start, end) = (slot * per_slot, (slot + u64::from(slots)) * per_slot);
        let middle = self.cut_free(from, start, end);
        self.regions.set_page(region, slot, slots, None);
        self.blocks[middle].state = State::Stale(page);
        self.stale.push(middle);
    }

    /// Maps a page that is mapped nowhere; it is parked again if that fails. Returns its slots.
    fn attach_unmapped(&mut self, page: PageId, to: (u32, u64), void: &mut BlockId) -> Result<u32, Refusal> {
        if let Err(error) = self.map_page(page, to, void) {
            self.pages.park(page);
            return Err(error);
        }
        self.attach(page, to, void, Fence::empty(), self.frees);
        Ok(self.pages.get(page).slots)
    }

    /// Maps a page at a slot of the void. A mapping that failed and could not be undone makes the slot stale.
    fn map_page(
        &mut self,
        page: PageId,
        (region, slot): (u32, u64),
        void: &mut BlockId,
    ) -> Result<(), Refusal> {
        let at = self.regions.address(region, slot * self.layout.units_per_slot(), &self.layout);
        match self.pages.map(page, at) {
            Ok(()) => Ok(()),
            Err(MapFailure::Clean(error)) => Err(map_refusal(error)),
            Err(MapFailure::Stuck(error)) => {
                let stuck = self.cut_void(void, slot, self.pages.get(page).slots);
                self.blocks[stuck].state = State::Stale(page);
                self.stale.push(stuck);
                Err(map_refusal(error))
            }
        }
    }

    /// Notes that a page, mapped already, now backs slots of the void: they become a free block.
    fn attach(
        &mut self,
        page: PageId,
        (region, slot): (u32, u64),
        void: &mut BlockId,
        fence: Fence,
        freed: u64,
    ) {
        let slots = self.pages.get(page).slots;
        let backed = self.cut_void(void, slot, slots);
        let block = &mut self.blocks[backed];
        block.state = State::Free;
        block.fence = fence;
        block.freed = freed;
        let first = u32::try_from(slot).expect("a region has fewer than 2^32 slots");
        self.pages.get_mut(page).home = Some((region, first));
        self.regions.set_page(region, slot, slots, Some(page));
        self.index_free(backed);
        // Its neighbours may be free too; whoever needs a longer block joins them.
        self.list_if_unmerged(backed);
    }

    /// Cuts slots out of a void block and takes them off the index. `void` then names what is left behind
    /// them, or the cut itself where nothing is.
    fn cut_void(&mut self, void: &mut BlockId, slot: u64, slots: u32) -> BlockId {
        let per_slot = self.layout.units_per_slot();
        let (start, end) = (slot * per_slot, (slot + u64::from(slots)) * per_slot);
        let zone = self.blocks[*void].zone as usize;
        self.void[zone].remove(&self.blocks[*void]);
        let mut cut = *void;
        if self.blocks[cut].start < start {
            cut = self.blocks.split(*void, start);
            self.void[zone].insert(&self.blocks[*void], *void);
        }
        *void = cut;
        if end < self.blocks[cut].end() {
            let rest = self.blocks.split(cut, end);
            self.void[zone].insert(&self.blocks[rest], rest);
            *void = rest;
        }
        cut
    }

    /// Joins the free blocks of a place, which is wholly backed now, into one.
    fn join_window(&mut self, place: &Place) -> BlockId {
        let mut whole = self.piece_at(place.first, place.start);
        while self.blocks[whole].end() < place.end {
            let next = self.blocks[whole].next.expect("a place is covered by blocks");
            self.remove_free(whole);
            self.remove_free(next);
            whole = self.blocks.join(whole, next);
            self.index_free(whole);
        }
        whole
    }

    // ---- address space -----------------------------------------------------------------------------

    /// Reserves a region of at least `slots`; returns the void that fills it.
    fn add_region(&mut self, zone: Zone, slots: u64) -> Result<BlockId, Refusal> {
        let least = slots * self.layout.slot_bytes;
        // Far more than the device has: address space is free, and voids should not be scarce.
        let total = self.device.properties().total_memory;
        let most = match zone {
            // Tables of the small zone are long.
            Zone::Small => 1 << 36,
            Zone::Large => 1 << 40,
        };
        let mut bytes = total.saturating_mul(8).clamp(1 << 36, most).max(least);
        bytes = bytes.checked_next_multiple_of(self.layout.slot_bytes).unwrap_or(least);
        let base = loop {
            match self.device.reserve(bytes) {
                Ok(base) => break base,
                Err(_) if bytes / 2 >= least => {
                    bytes = (bytes / 2).next_multiple_of(self.layout.slot_bytes);
                }
                Err(error) => return Err(error.into()),
            }
        };
        self.counters.calls.reserve.add(1);
        let units = bytes / self.layout.unit_bytes;
        let table = Arc::new(Table::new(bytes, self.layout.granule(zone)));
        self.views.publish(base, bytes, &table);
        let blocks = &mut self.blocks;
        let new = NewRegion { base, bytes, zone, source: Source::Reserved, table };
        let region =
            self.regions.add(new, |region| blocks.add(Block::whole(region, zone, units, State::Void)));
        let void = self.regions.get(region).head;
        self.void[zone as usize].insert(&self.blocks[void], void);
        Ok(void)
    }
}

/// A mapping that fails for lack of memory (the driver's own, for page tables) is a shortage too.
fn map_refusal(error: DeviceError) -> Refusal {
    match error {
        DeviceError::OutOfMemory { requested, .. } => {
            Refusal::Short { what: Shortage::Device, bytes: requested }
        }
        other => Refusal::Device(other),
    }
}
