//! What is mapped where, and who used which physical byte last.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::clock::{DeviceNumber, StreamKey, Uses};
use crate::device::{DevicePtr, MemoryKind, PageHandle, PeerSet};

/// Names a piece of physical memory (a page, a segment) for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PhysicalKey(u64);

/// A page of one kind of memory of a device: each kind has handles of its own.
pub(super) type PageKey = (DeviceNumber, MemoryKind, PageHandle);

/// A range of physical bytes, and the address of the mapping through which it was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) physical: PhysicalKey,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) mapping: u64,
}

/// The pieces of one range of addresses; nearly always one.
pub(super) type Extents = SmallVec<[Extent; 1]>;

/// Names one allocation for ever, however often its address is given out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub(super) u64);

/// What stays of a block when it is freed: whose work must come before the next user of its bytes.
#[derive(Debug)]
pub(super) struct Past {
    pub(super) who: Who,
    pub(super) uses: Uses,
}

/// Who had bytes. Words are made of it only where they are wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Who {
    pub(super) at: DevicePtr,
    pub(super) bytes: u64,
    pub(super) stream: StreamKey,
    pub(super) what: What,
}

/// See [`Who`].
#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    /// A block that was allocated on the stream, and where it was freed.
    Block(BlockId, Option<StreamKey>),
    /// Work of the allocator's own, on the stream.
    Work(&'static str),
}

#[derive(Debug)]
struct Range<T> {
    end: u64,
    of: T,
}

/// Ranges of one physical piece that do not overlap, by their first byte.
type Ranges<T> = BTreeMap<u64, Range<T>>;

#[derive(Debug)]
struct Physical {
    handle: Option<PageHandle>,
    bytes: u64,
    mappings: u32,
    /// Handles beside that one: pages that were imported.
    imported: u32,
    released: bool,
    stuck: bool,
    live: Ranges<BlockId>,
    past: Ranges<Arc<Past>>,
    /// Clear away what is complete once `past` is longer than this.
    prune_at: usize,
}

/// How an address came to have memory behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Page,
    Segment,
    /// From the driver's own stream-ordered pool.
    DriverPool,
}

#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) bytes: u64,
    pub(super) uses: Uses,
    pub(super) origin: Origin,
    physical: PhysicalKey,
    accessible: bool,
    /// Whose memory it is, and which other devices may use it.
    pub(super) device: DeviceNumber,
    peers: PeerSet,
    stuck: bool,
}

#[derive(Debug)]
struct Reservation {
    bytes: u64,
    stuck: bool,
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    reservations: BTreeMap<u64, Reservation>,
    pages: FxHashMap<PageKey, PhysicalKey>,
    physical: FxHashMap<PhysicalKey, Physical>,
    mappings: BTreeMap<u64, Mapping>,
    /// The other devices that may use a device's segments.
    segment_peers: FxHashMap<DeviceNumber, PeerSet>,
    next: u64,
    /// By what its descriptors have in common: the page that was exported.
    exported: FxHashMap<FileKey, PhysicalKey>,
}

/// A file, and a position in it.
pub(super) type FileKey = (u64, u64);

impl Memory {
    // ---- addresses -------------------------------------------------------------------------------

    pub(super) fn reserve(&mut self, at: DevicePtr, bytes: u64) {
        self.reservations.insert(at.raw(), Reservation { bytes, stuck: false });
    }

    pub(super) fn check_unreserve(&self, at: DevicePtr, bytes: u64) -> Result<(), String> {
        match self.reservations.get(&at.raw()) {
            Some(range) if range.bytes == bytes => {}
            _ => return Err(format!("no range of {bytes} bytes was reserved at {at}")),
        }
        match self.mappings.range(at.raw()..at.raw() + bytes).next() {
            Some((mapped, _)) => Err(format!("the range at {at} still has a mapping at {mapped:#x}")),
            None => Ok(()),
        }
    }

    pub(super) fn unreserve(&mut self, at: DevicePtr, done: bool) {
        if done {
            self.reservations.remove(&at.raw());
        } else if let Some(range) = self.reservations.get_mut(&at.raw()) {
            range.stuck = true;
        }
    }

    // ---- pages and segments ------------------------------------------------------------------------

    fn add_physical(&mut self, handle: Option<PageHandle>, bytes: u64) -> PhysicalKey {
        self.next += 1;
        let key = PhysicalKey(self.next);
        let physical = Physical {
            handle,
            bytes,
            mappings: 0,
            imported: 0,
            released: handle.is_none(),
            stuck: false,
            live: Ranges::new(),
            past: Ranges::new(),
            prune_at: 32,
        };
        self.physical.insert(key, physical);
        key
    }

    pub(super) fn create_page(&mut self, page: PageKey, bytes: u64) {
        let key = self.add_physical(Some(page.2), bytes);
        self.pages.insert(page, key);
    }

    pub(super) fn export_page(&mut self, page: PageKey, to: FileKey) {
        if let Some(key) = self.pages.get(&page) {
            self.exported.insert(to, *key);
        }
    }

    /// A page that was exported here is the same piece of memory.
    pub(super) fn import_page(&mut self, page: PageKey, bytes: u64, from: FileKey) {
        let exported = self.exported.get(&from).and_then(|key| Some((*key, self.physical.get_mut(key)?)));
        match exported {
            Some((key, physical)) => {
                physical.imported += 1;
                self.pages.insert(page, key);
            }
            None => self.create_page(page, bytes),
        }
    }

    pub(super) fn check_page(&self, page: PageKey) -> Result<(), String> {
        match self.pages.contains_key(&page) {
            true => Ok(()),
            false => Err(format!("{:#x} is no page, or was released", page.2.raw())),
        }
    }

    pub(super) fn release_page(&mut self, page: PageKey, done: bool) {
        let Some(key) = self.pages.get(&page).copied() else { return };
        let physical = self.physical.get_mut(&key).expect("a page that has a handle is there");
        physical.stuck |= !done;
        match physical.imported.checked_sub(u32::from(done)) {
            Some(left) => physical.imported = left,
            None => physical.released = true,
        }
        if done {
            self.pages.remove(&page);
            self.drop_unused(key);
        }
    }

    fn drop_unused(&mut self, key: PhysicalKey) {
        if self.physical.get(&key).is_some_and(|physical| physical.released && physical.mappings == 0) {
            self.physical.remove(&key);
        }
    }

    pub(super) fn add_segment(
        &mut self,
        at: DevicePtr,
        bytes: u64,
        origin: Origin,
        (device, kind): (DeviceNumber, MemoryKind),
    ) {
        let key = self.add_physical(None, bytes);
        let peers = match kind {
            MemoryKind::Device if origin == Origin::DriverPool => PeerSet::NONE,
            MemoryKind::Device => self.segment_peers.get(&device).copied().unwrap_or_default(),
            MemoryKind::Pinned | MemoryKind::Managed => PeerSet::ALL,
        };
        self.add_mapping(at, bytes, key, origin, (device, peers));
    }

    /// Takes a segment out, while the device frees it.
    pub(super) fn take_segment(&mut self, at: DevicePtr, origin: Origin) -> Result<Mapping, String> {
        match self.mappings.get(&at.raw()) {
            Some(mapping) if mapping.origin == origin => {}
            _ => return Err(format!("no allocation of this kind starts at {at}")),
        }
        Ok(self.mappings.remove(&at.raw()).expect("it was just there"))
    }

    /// The device did not free it after all.
    pub(super) fn put_back(&mut self, at: DevicePtr, segment: Mapping) {
        self.mappings.insert(at.raw(), Mapping { stuck: true, ..segment });
    }

    /// The device freed the segment that was taken out.
    pub(super) fn forget(&mut self, segment: &Mapping) {
        self.physical.remove(&segment.physical);
    }

    // ---- mappings --------------------------------------------------------------------------------

    fn add_mapping(
        &mut self,
        at: DevicePtr,
        bytes: u64,
        physical: PhysicalKey,
        origin: Origin,
        (device, peers): (DeviceNumber, PeerSet),
    ) {
        let (uses, accessible, stuck) = (Uses::default(), origin != Origin::Page, false);
        let mapping = Mapping { bytes, uses, origin, physical, accessible, device, peers, stuck };
        self.mappings.insert(at.raw(), mapping);
        self.physical.get_mut(&physical).expect("mapped memory is there").mappings += 1;
    }

    pub(super) fn check_map(&self, at: DevicePtr, bytes: u64, page: PageKey) -> Result<(), String> {
        self.check_page(page)?;
        let whole = self.physical[&self.pages[&page]].bytes;
        if whole != bytes {
            return Err(format!("{bytes} bytes of a page of {whole}; pages are mapped whole"));
        }
        let end = at.raw().saturating_add(bytes);
        let range = self.reservations.range(..=at.raw()).next_back();
        if range.is_none_or(|(start, range)| end > start + range.bytes) {
            return Err(format!("{at} and {bytes} bytes on do not lie in a reserved range"));
        }
        match self.mappings.range(..end).next_back() {
            Some((start, mapping)) if start + mapping.bytes > at.raw() => {
                Err(format!("{at} and {bytes} bytes on overlap the mapping at {start:#x}"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn map(&mut self, at: DevicePtr, bytes: u64, page: PageKey) {
        if let Some(key) = self.pages.get(&page).copied() {
            // A new mapping has no peers, whatever the page had elsewhere.
            self.add_mapping(at, bytes, key, Origin::Page, (page.0, PeerSet::NONE));
        }
    }

    pub(super) fn check_set_access(&self, at: DevicePtr, bytes: u64) -> Result<(), String> {
        let end = at.raw().saturating_add(bytes);
        let mut next = at.raw();
        for (start, mapping) in self.mappings.range(at.raw()..end) {
            if *start != next {
                break;
            }
            next += mapping.bytes;
        }
        match next == end {
            true => Ok(()),
            false => Err(format!("{at} and {bytes} bytes on are not whole mappings: see {next:#x}")),
        }
    }

    pub(super) fn set_access(&mut self, at: DevicePtr, bytes: u64) {
        for (_, mapping) in self.mappings.range_mut(at.raw()..at.raw() + bytes) {
            mapping.accessible = true;
        }
    }

    // ---- other devices ---------------------------------------------------------------------------

    /// Notes that devices may use a mapping, or the segments of a device, or no longer.
    pub(super) fn set_peer_access(&mut self, at: DevicePtr, peers: PeerSet, allowed: bool) {
        let Some(mapping) = self.mappings.get_mut(&at.raw()) else { return };
        let change = |had: PeerSet| if allowed { had.with(peers) } else { had.without(peers) };
        if mapping.origin == Origin::Page {
            mapping.peers = change(mapping.peers);
        } else if allowed {
            let device = mapping.device;
            let of_device = self.segment_peers.entry(device).or_default();
            *of_device = change(*of_device);
            let segments = self.mappings.values_mut();
            let segments = segments.filter(|other| other.origin == Origin::Segment && other.device == device);
            segments.for_each(|segment| segment.peers = change(segment.peers));
        }
    }

    /// Where a device has no access to a part of a range: the mapping there, and whose it is.
    pub(super) fn without_access(
        &self,
        at: DevicePtr,
        bytes: u64,
        device: DeviceNumber,
    ) -> Option<(u64, DeviceNumber)> {
        let end = at.raw().saturating_add(bytes);
        let over =
            self.mappings.range(..end).rev().take_while(|(start, found)| *start + found.bytes > at.raw());
        let mut closed = over.filter(|(_, found)| {
            found.device != device && !found.peers.numbers().any(|number| number == device.0)
        });
        closed.next().map(|(start, found)| (*start, found.device))
    }

    pub(super) fn check_unmap(&self, at: DevicePtr, bytes: u64) -> Result<&Mapping, String> {
        match self.mappings.get(&at.raw()) {
            Some(mapping) if mapping.bytes == bytes && mapping.origin == Origin::Page => Ok(mapping),
            _ => Err(format!("no page of {bytes} bytes is mapped at {at}")),
        }
    }

    pub(super) fn unmap(&mut self, at: DevicePtr, done: bool) {
        if !done {
            if let Some(mapping) = self.mappings.get_mut(&at.raw()) {
                mapping.stuck = true;
            }
            return;
        }
        let Some(mapping) = self.mappings.remove(&at.raw()) else { return };
        if let Some(physical) = self.physical.get_mut(&mapping.physical) {
            physical.mappings -= 1;
        }
        self.drop_unused(mapping.physical);
    }

    pub(super) fn mapping_mut(&mut self, at: u64) -> Option<&mut Mapping> {
        self.mappings.get_mut(&at)
    }

    /// The physical bytes behind a range of addresses, or what is missing.
    pub(super) fn resolve(&self, at: DevicePtr, bytes: u64) -> Result<Extents, String> {
        let end = at.raw().saturating_add(bytes);
        let mut extents = Extents::new();
        let mut next = at.raw();
        while next < end {
            let Some((&start, mapping)) =
                self.mappings.range(..=next).next_back().filter(|(start, found)| *start + found.bytes > next)
            else {
                return Err(format!("nothing is mapped at {next:#x}"));
            };
            if !mapping.accessible {
                return Err(format!("the mapping at {start:#x} has no access"));
            }
            let until = end.min(start + mapping.bytes);
            extents.push(Extent {
                physical: mapping.physical,
                offset: next - start,
                bytes: until - next,
                mapping: start,
            });
            next = until;
        }
        Ok(extents)
    }

    // ---- who uses the bytes ------------------------------------------------------------------------

    /// Marks the bytes as a live block's.
    pub(super) fn occupy(&mut self, extent: Extent, block: BlockId) {
        if let Some(physical) = self.physical.get_mut(&extent.physical) {
            physical.live.insert(extent.offset, Range { end: extent.offset + extent.bytes, of: block });
        }
    }

    /// The bytes are no longer this block's.
    pub(super) fn vacate(&mut self, extent: Extent, block: BlockId) {
        if let Some(physical) = self.physical.get_mut(&extent.physical)
            && physical.live.get(&extent.offset).is_some_and(|range| range.of == block)
        {
            physical.live.remove(&extent.offset);
        }
    }

    /// A live block that has some of these bytes.
    pub(super) fn occupant(&self, extent: Extent) -> Option<BlockId> {
        let physical = self.physical.get(&extent.physical)?;
        let (_, range) = physical.live.range(..extent.offset + extent.bytes).next_back()?;
        (range.end > extent.offset).then_some(range.of)
    }

    /// Takes out what is remembered of these bytes' earlier blocks.
    pub(super) fn take_past(&mut self, extent: Extent) -> SmallVec<[Arc<Past>; 2]> {
        let Some(physical) = self.physical.get_mut(&extent.physical) else { return SmallVec::new() };
        carve(&mut physical.past, extent.offset, extent.offset + extent.bytes)
    }

    /// The last freed block that had some of these bytes, as far as it is remembered.
    pub(super) fn freed_block(&self, extent: Extent) -> Option<&Past> {
        let past = &self.physical.get(&extent.physical)?.past;
        let (_, range) = past.range(..extent.offset + extent.bytes).next_back()?;
        (range.end > extent.offset && matches!(range.of.who.what, What::Block(..))).then_some(&*range.of)
    }

    /// Remembers who had these bytes. `is_over` tells whose uses nobody needs to be ordered after any more.
    pub(super) fn remember(&mut self, extent: Extent, past: Arc<Past>, is_over: impl Fn(&Past) -> bool) {
        let Some(physical) = self.physical.get_mut(&extent.physical) else { return };
        let end = extent.offset + extent.bytes;
        carve(&mut physical.past, extent.offset, end);
        physical.past.insert(extent.offset, Range { end, of: past });
        if physical.past.len() > physical.prune_at {
            physical.past.retain(|_, range| !is_over(&range.of));
            physical.prune_at = 32.max(2 * physical.past.len());
        }
    }

    // ---- leaks -----------------------------------------------------------------------------------

    /// Everything that was not given back, though the device would have taken it, in words.
    pub(super) fn left(&self) -> Vec<String> {
        let stuck = |at: u64, bytes: u64| self.mappings.range(at..at + bytes).any(|(_, found)| found.stuck);
        let stuck_page = |key| self.mappings.values().any(|found| found.physical == key && found.stuck);
        let mappings = self.mappings.iter().filter(|(_, found)| !found.stuck).map(|(at, found)| {
            let what = if found.origin == Origin::Page { "mapping" } else { "segment" };
            format!("a {what} of {} bytes at {at:#x}", found.bytes)
        });
        let pages = self.physical.iter().filter(|(key, page)| !page.stuck && !stuck_page(**key));
        let pages = pages.filter_map(|(_, page)| {
            let handle = page.handle.filter(|_| !page.released)?;
            Some(format!("page {:#x} of {} bytes", handle.raw(), page.bytes))
        });
        let ranges = self.reservations.iter();
        let ranges = ranges.filter(|(at, range)| !range.stuck && !stuck(**at, range.bytes));
        let ranges = ranges.map(|(at, range)| format!("{} reserved bytes at {at:#x}", range.bytes));
        mappings.chain(pages).chain(ranges).collect()
    }
}

/// Cuts `from..to` out of the ranges, and returns what was there.
fn carve<T: Clone>(ranges: &mut Ranges<T>, from: u64, to: u64) -> SmallVec<[T; 2]> {
    let mut cut = SmallVec::new();
    while let Some((&start, range)) = ranges.range(..to).next_back().filter(|(_, range)| range.end > from) {
        let (end, of) = (range.end, range.of.clone());
        ranges.remove(&start);
        if end > to {
            ranges.insert(to, Range { end, of: of.clone() });
        }
        if start < from {
            ranges.insert(start, Range { end: from, of: of.clone() });
        }
        cut.push(of);
    }
    cut
}
