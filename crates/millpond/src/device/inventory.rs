//! What the devices without a driver (`host` and `sim`) remember of their memory: reserved ranges, pages, mappings,
//! segments, and how many bytes are taken. They check every call against it.
//!
//! A wrong argument is a bug of the pool above. Each is refused with a sentence that says what was wrong. A refused
//! call changes nothing. A call costs what the range that it names has granules, and a search among the reserved
//! ranges, of which there are few.

use std::collections::BTreeMap;

use slab::Slab;
use slotmap::{DefaultKey, Key, KeyData, SlotMap};

use super::{DeviceError, DevicePtr, DeviceResult, MemoryInfo, PageHandle, PeerId, PeerSet};

/// What the size of a segment is rounded up to, in bytes; `cuMemAlloc` aligns to at least as much.
pub(super) const SEGMENT_ALIGNMENT: u64 = 512;

/// Pages, mappings and granules of a range that there is room for at first. To grow a table is to copy it to memory that
/// was never touched; room that is not used is address space only.
const FIRST_PAGES: usize = 1 << 12;
const FIRST_GRANULES: usize = 1 << 15;

/// The records of one device.
#[derive(Debug)]
pub(super) struct Inventory {
    granularity: u64,
    /// Its binary logarithm: every call asks in which granule an address lies.
    shift: u32,
    capacity: u64,
    /// Bytes in pages and segments.
    held: u64,
    /// Where the next page lies in physical memory. Never goes back: offsets of released pages stay holes.
    next_offset: u64,
    /// By address. A list, since there are few, and every call on a mapping asks for its own.
    reservations: Vec<Reservation>,
    pages: SlotMap<DefaultKey, Page>,
    mappings: Slab<Mapping>,
    segments: BTreeMap<u64, Segment>,
    /// The other devices that may use the segments.
    segment_peers: PeerSet,
}

#[derive(Debug)]
struct Page {
    bytes: u64,
    offset: u64,
    mappings: u32,
    /// Whether its memory is another process's, which counts it.
    imported: bool,
    /// The handle is gone; the page stays until its last mapping goes.
    released: bool,
}

/// A reserved range.
#[derive(Debug)]
struct Reservation {
    start: u64,
    bytes: u64,
    /// For each granule up to the last that was ever mapped: the key of its mapping + 1, or 0 for none.
    granules: Vec<u32>,
}

impl Reservation {
    #[cold]
    fn lengthen_slow(&mut self, granules: usize) {
        self.granules.resize(granules, 0);
    }
}

#[derive(Debug)]
struct Mapping {
    start: u64,
    bytes: u64,
    page: DefaultKey,
    accessible: bool,
    /// The other devices that may use it.
    peers: PeerSet,
}

impl Mapping {
    fn check_unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let whole = self.bytes;
        if whole != bytes {
            return invalid(
                "unmap",
                format!("the mapping at {at} has {whole} bytes and goes whole, not {bytes}"),
            );
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Segment {
    bytes: u64,
    owner: Owner,
}

/// Who asked for a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The program, by `alloc_segment`.
    Program,
    /// The model of the driver's own pool.
    DriverPool,
}

/// A piece of physical memory: bytes from `offset` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// A wrong argument of `call`.
pub(crate) fn invalid<T>(call: &'static str, what: impl Into<String>) -> DeviceResult<T> {
    Err(DeviceError::Invalid { call, what: what.into() })
}

impl Inventory {
    pub(super) fn new(granularity: u64, capacity: u64) -> Self {
        Self {
            granularity,
            shift: granularity.ilog2(),
            capacity,
            held: 0,
            next_offset: 0,
            reservations: Vec::new(),
            pages: SlotMap::with_capacity(FIRST_PAGES),
            mappings: Slab::with_capacity(FIRST_PAGES),
            segments: BTreeMap::new(),
            segment_peers: PeerSet::NONE,
        }
    }

    pub(super) fn memory_info(&self) -> MemoryInfo {
        MemoryInfo { free: self.capacity - self.held, total: self.capacity }
    }

    // ---- addresses -------------------------------------------------------------------------------

    /// Whether it is a multiple of the granularity, which is a power of two.
    fn is_aligned(&self, number: u64) -> bool {
        number & (self.granularity - 1) == 0
    }

    /// Whether `bytes` can be a range or a page of this device.
    pub(super) fn check_size(&self, call: &'static str, bytes: u64) -> DeviceResult<()> {
        if bytes == 0 || !self.is_aligned(bytes) {
            return invalid(
                call,
                format!("{bytes} bytes are not a positive multiple of the granularity, {}", self.granularity),
            );
        }
        Ok(())
    }

    pub(super) fn reserve(&mut self, at: DevicePtr, bytes: u64) {
        let place = self.reservations_up_to(at.raw());
        debug_assert!(self.reserved_at(at).is_none(), "{at} was reserved twice");
        let granules = Vec::with_capacity(FIRST_GRANULES.min((bytes >> self.shift) as usize));
        self.reservations.insert(place, Reservation { start: at.raw(), bytes, granules });
    }

    /// Whether [`unreserve`](Self::unreserve) would do it.
    pub(super) fn check_unreserve(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        const CALL: &str = "unreserve";
        let Some(reservation) = self.reserved_at(at).map(|place| &self.reservations[place]) else {
            return invalid(CALL, format!("no range was reserved at {at}"));
        };
        let reserved = reservation.bytes;
        if reserved != bytes {
            return invalid(CALL, format!("{reserved} bytes were reserved at {at}, not {bytes}"));
        }
        match reservation.granules.iter().find(|key| **key != 0) {
            Some(key) => {
                let mapped = self.mappings[*key as usize - 1].start;
                invalid(CALL, format!("a page is still mapped at {mapped:#x}"))
            }
            None => Ok(()),
        }
    }

    pub(super) fn unreserve(&mut self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.check_unreserve(at, bytes)?;
        if let Some(place) = self.reserved_at(at) {
            self.reservations.remove(place);
        }
        Ok(())
    }

    /// How many ranges start at or before an address.
    #[inline]
    fn reservations_up_to(&self, at: u64) -> usize {
        // From the end, one by one: there are few.
        self.reservations.iter().rposition(|reservation| reservation.start <= at).map_or(0, |last| last + 1)
    }

    /// Which range starts at an address.
    fn reserved_at(&self, at: DevicePtr) -> Option<usize> {
        self.reservations.binary_search_by_key(&at.raw(), |reservation| reservation.start).ok()
    }

    /// All reserved ranges, as address and bytes.
    pub(super) fn reservations(&self) -> impl Iterator<Item = (DevicePtr, u64)> {
        self.reservations.iter().map(|range| (DevicePtr::new(range.start), range.bytes))
    }

    // ---- pages -----------------------------------------------------------------------------------

    /// Creates a page, in physical memory that no page had before.
    pub(super) fn create_page(&mut self, bytes: u64) -> DeviceResult<(PageHandle, Extent)> {
        const CALL: &str = "create_page";
        self.check_size(CALL, bytes)?;
        // Offsets do not begin again: an early page may be live.
        let Some(next_offset) = self.next_offset.checked_add(bytes) else {
            return Err(DeviceError::OutOfMemory { call: CALL, requested: bytes });
        };
        self.take(CALL, bytes)?;
        let offset = std::mem::replace(&mut self.next_offset, next_offset);
        let key = self.pages.insert(Page { bytes, offset, mappings: 0, imported: false, released: false });
        // SAFETY: the number stands for the page just made, until `release_page`.
        let page = unsafe { PageHandle::from_raw(key.data().as_ffi()) };
        Ok((page, Extent { offset, bytes }))
    }

    /// A page whose memory is another process's.
    pub(super) fn import_page(&mut self, bytes: u64) -> DeviceResult<PageHandle> {
        self.check_size("import_page", bytes)?;
        let page = Page { bytes, offset: 0, mappings: 0, imported: true, released: false };
        // SAFETY: the number stands for the page just made, until `release_page`.
        Ok(unsafe { PageHandle::from_raw(self.pages.insert(page).data().as_ffi()) })
    }

    /// Where a page of this device's own lies in physical memory; `None` for one that was imported.
    pub(super) fn page_extent(&self, call: &'static str, page: PageHandle) -> DeviceResult<Option<Extent>> {
        let known = &self.pages[self.page_key(call, page)?];
        Ok((!known.imported).then_some(Extent { offset: known.offset, bytes: known.bytes }))
    }

    /// The bytes of a page.
    pub(super) fn page_bytes(&self, page: PageHandle) -> DeviceResult<u64> {
        Ok(self.pages[self.page_key("release_page", page)?].bytes)
    }

    /// Destroys a page; its memory if no mapping holds it any more, and it is this device's.
    pub(super) fn release_page(&mut self, page: PageHandle) -> DeviceResult<Option<Extent>> {
        let key = self.page_key("release_page", page)?;
        self.pages[key].released = true;
        Ok(self.drop_page_if_unused(key))
    }

    /// Maps a page; what it stands for in physical memory.
    pub(super) fn map(&mut self, at: DevicePtr, bytes: u64, page: PageHandle) -> DeviceResult<Extent> {
        const CALL: &str = "map";
        let key = self.page_key(CALL, page)?;
        if self.pages[key].bytes != bytes {
            let whole = self.pages[key].bytes;
            return invalid(
                CALL,
                format!("a page of {whole} bytes is mapped whole, not {bytes} bytes of it"),
            );
        }
        let place = self.check_vacant(CALL, at, bytes)?;
        let peers = PeerSet::NONE;
        let mapping =
            self.mappings.insert(Mapping { start: at.raw(), bytes, page: key, accessible: false, peers });
        let number = u32::try_from(mapping + 1).expect("fewer than 2^32 mappings");
        self.set_granules(place, at, bytes, number);
        let page = &mut self.pages[key];
        page.mappings += 1;
        Ok(Extent { offset: page.offset, bytes })
    }

    /// Whether [`set_access`](Self::set_access) would do it.
    pub(super) fn check_set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        const CALL: &str = "set_access";
        let end = end_of(CALL, at, bytes)?;
        let mut next = at.raw();
        while next < end
            && let Some((_, mapping)) = self.mapping_from(next)
        {
            next += self.mappings[mapping].bytes;
        }
        if next != end {
            return invalid(CALL, format!("{at} and {bytes} bytes on are not whole mappings: see {next:#x}"));
        }
        Ok(())
    }

    /// Makes mappings usable, and calls `each` with the size of every one of them.
    pub(super) fn set_access(
        &mut self,
        at: DevicePtr,
        bytes: u64,
        mut each: impl FnMut(u64),
    ) -> DeviceResult<()> {
        if let Some(mapping) = self.mapping_from(at.raw()).map(|(_, key)| &mut self.mappings[key])
            && mapping.bytes == bytes
        {
            // Nearly always.
            mapping.accessible = true;
            each(bytes);
            return Ok(());
        }
        self.check_set_access(at, bytes)?;
        let mut next = at.raw();
        while next < at.raw() + bytes
            && let Some((_, mapping)) = self.mapping_from(next)
        {
            let mapping = &mut self.mappings[mapping];
            mapping.accessible = true;
            each(mapping.bytes);
            next += mapping.bytes;
        }
        Ok(())
    }

    /// Whether [`unmap`](Self::unmap) would do it.
    pub(super) fn check_unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.key_to_unmap(at, bytes).map(drop)
    }

    /// Which range the mapping lies in, and its key.
    fn key_to_unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<(usize, usize)> {
        let Some((place, key)) = self.mapping_from(at.raw()) else {
            return invalid("unmap", format!("no mapping starts at {at}"));
        };
        self.mappings[key].check_unmap(at, bytes)?;
        Ok((place, key))
    }

    /// Removes a mapping; the page's memory if it was the last of a released page.
    pub(super) fn unmap(&mut self, at: DevicePtr, bytes: u64) -> DeviceResult<Option<Extent>> {
        let (place, key) = self.key_to_unmap(at, bytes)?;
        let page = self.mappings.remove(key).page;
        self.set_granules(place, at, bytes, 0);
        self.pages[page].mappings -= 1;
        Ok(self.drop_page_if_unused(page))
    }

    /// Which reserved range an address lies in.
    #[inline]
    fn reservation_of(&self, at: u64) -> Option<usize> {
        let place = self.reservations_up_to(at).checked_sub(1)?;
        let reservation = &self.reservations[place];
        (at - reservation.start < reservation.bytes).then_some(place)
    }

    /// Which range the mapping over an address lies in, and its key.
    fn mapping_over(&self, at: u64) -> Option<(usize, usize)> {
        let place = self.reservation_of(at)?;
        let reservation = &self.reservations[place];
        let number = *reservation.granules.get(((at - reservation.start) >> self.shift) as usize)?;
        Some((place, (number as usize).checked_sub(1)?))
    }

    /// Likewise of the mapping that starts at an address.
    fn mapping_from(&self, at: u64) -> Option<(usize, usize)> {
        self.mapping_over(at).filter(|(_, key)| self.mappings[*key].start == at)
    }

    /// Notes what is mapped in a reserved range.
    fn set_granules(&mut self, place: usize, at: DevicePtr, bytes: u64, number: u32) {
        let reservation = &mut self.reservations[place];
        let first = ((at.raw() - reservation.start) >> self.shift) as usize;
        let end = first + (bytes >> self.shift) as usize;
        if reservation.granules.len() < end {
            reservation.lengthen_slow(end);
        }
        reservation.granules[first..end].iter_mut().for_each(|granule| *granule = number);
    }

    fn drop_page_if_unused(&mut self, key: DefaultKey) -> Option<Extent> {
        let page = &self.pages[key];
        if !page.released || page.mappings > 0 {
            return None;
        }
        let page = self.pages.remove(key).expect("it was just read");
        if page.imported {
            return None;
        }
        self.held -= page.bytes;
        Some(Extent { offset: page.offset, bytes: page.bytes })
    }

    fn page_key(&self, call: &'static str, page: PageHandle) -> DeviceResult<DefaultKey> {
        let key = DefaultKey::from(KeyData::from_ffi(page.raw()));
        match self.pages.get(key) {
            Some(known) if !known.released => Ok(key),
            _ => invalid(call, format!("{:#x} is no page, or was released", page.raw())),
        }
    }

    /// Which reserved range it lies in, if it is aligned and has nothing mapped.
    fn check_vacant(&self, call: &'static str, at: DevicePtr, bytes: u64) -> DeviceResult<usize> {
        let end = end_of(call, at, bytes)?;
        if !self.is_aligned(at.raw()) {
            return invalid(call, format!("{at} is not aligned to the granularity, {}", self.granularity));
        }
        let Some((place, reservation)) = self
            .reservation_of(at.raw())
            .map(|place| (place, &self.reservations[place]))
            .filter(|(_, range)| end <= range.start + range.bytes)
        else {
            return invalid(call, format!("{at} and {bytes} bytes on do not lie in one reserved range"));
        };
        let start = reservation.start;
        let (first, end) =
            ((at.raw() - start) >> self.shift, (end - start + self.granularity - 1) >> self.shift);
        let known = reservation.granules.len();
        let granules = &reservation.granules[known.min(first as usize)..known.min(end as usize)];
        match granules.iter().find(|key| **key != 0) {
            Some(key) => {
                let mapped = self.mappings[*key as usize - 1].start;
                invalid(call, format!("the range overlaps the mapping at {mapped:#x}"))
            }
            None => Ok(place),
        }
    }

    // ---- segments --------------------------------------------------------------------------------

    /// Takes capacity for a segment, and says how many bytes it will have. To be followed by
    /// [`add_segment`](Self::add_segment), or by [`give_back`](Self::give_back) where there is none after all.
    pub(super) fn take_segment(&mut self, call: &'static str, bytes: u64) -> DeviceResult<u64> {
        if bytes == 0 {
            return invalid(call, "0 bytes were asked for");
        }
        let Some(rounded) = bytes.checked_next_multiple_of(SEGMENT_ALIGNMENT) else {
            return Err(DeviceError::OutOfMemory { call, requested: bytes });
        };
        self.take(call, rounded)?;
        Ok(rounded)
    }

    pub(super) fn add_segment(&mut self, at: DevicePtr, bytes: u64, owner: Owner) {
        self.segments.insert(at.raw(), Segment { bytes, owner });
    }

    /// The bytes of the program's segment at `at`.
    pub(super) fn check_segment(&self, call: &'static str, at: DevicePtr) -> DeviceResult<u64> {
        match self.segments.get(&at.raw()) {
            Some(segment) if segment.owner == Owner::Program => Ok(segment.bytes),
            _ => invalid(call, format!("no segment starts at {at}")),
        }
    }

    pub(super) fn remove_segment(&mut self, call: &'static str, at: DevicePtr) -> DeviceResult<u64> {
        let bytes = self.check_segment(call, at)?;
        self.segments.remove(&at.raw());
        self.give_back(bytes);
        Ok(bytes)
    }

    /// All segments, as address and bytes.
    pub(super) fn segments(&self) -> impl Iterator<Item = (DevicePtr, u64)> {
        self.segments.iter().map(|(&at, segment)| (DevicePtr::new(at), segment.bytes))
    }

    // ---- capacity and access ---------------------------------------------------------------------

    fn take(&mut self, call: &'static str, bytes: u64) -> DeviceResult<()> {
        if bytes > self.capacity - self.held {
            return Err(DeviceError::OutOfMemory { call, requested: bytes });
        }
        self.held += bytes;
        Ok(())
    }

    pub(super) fn give_back(&mut self, bytes: u64) {
        self.held -= bytes;
    }

    /// Whether the device may read and write the whole range now.
    pub(super) fn check_access(&self, call: &'static str, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.check_access_by(call, at, bytes, None)
    }

    /// Likewise another device.
    pub(super) fn check_access_by(
        &self,
        call: &'static str,
        at: DevicePtr,
        bytes: u64,
        peer: Option<PeerId>,
    ) -> DeviceResult<()> {
        let end = end_of(call, at, bytes)?;
        let may_use = |peers: PeerSet| peer.is_none_or(|peer| peers.contains(peer));
        if may_use(self.segment_peers)
            && let Some((&start, segment)) = self.segments.range(..=at.raw()).next_back()
            && end <= start + segment.bytes
        {
            return Ok(());
        }
        let mut next = at.raw();
        while let Some(mapping) = self.mapping_over(next).map(|(_, key)| &self.mappings[key]) {
            if !mapping.accessible || !may_use(mapping.peers) {
                break;
            }
            next = mapping.start + mapping.bytes;
            if next >= end {
                return Ok(());
            }
        }
        invalid(call, format!("{at} and {bytes} bytes on are not mapped memory with access, nor a segment"))
    }

    // ---- other devices ---------------------------------------------------------------------------

    /// Lets other devices use all segments.
    pub(super) fn share_segments(&mut self, peers: PeerSet) {
        self.segment_peers = self.segment_peers.with(peers);
    }

    /// The other devices that may use the mapping that starts at an address.
    pub(super) fn peers_at(&self, at: DevicePtr) -> PeerSet {
        self.mapping_from(at.raw()).map_or(PeerSet::NONE, |(_, key)| self.mappings[key].peers)
    }

    /// Lets other devices use a mapping or the segments, or no longer. Segments stay within their reach.
    pub(super) fn set_peer_access(
        &mut self,
        at: DevicePtr,
        bytes: u64,
        peers: PeerSet,
        allowed: bool,
    ) -> DeviceResult<()> {
        const CALL: &str = "set_peer_access";
        self.check_access(CALL, at, bytes)?;
        match self.mapping_from(at.raw()).map(|(_, key)| &mut self.mappings[key]) {
            Some(mapping) if mapping.bytes != bytes => {
                let whole = mapping.bytes;
                return invalid(CALL, format!("the mapping at {at} has {whole} bytes, not {bytes}"));
            }
            Some(mapping) if allowed => mapping.peers = mapping.peers.with(peers),
            Some(mapping) => mapping.peers = mapping.peers.without(peers),
            None if allowed => self.share_segments(peers),
            None => {}
        }
        Ok(())
    }
}

fn end_of(call: &'static str, at: DevicePtr, bytes: u64) -> DeviceResult<u64> {
    match at.raw().checked_add(bytes) {
        Some(end) if bytes > 0 => Ok(end),
        _ => invalid(call, format!("{at} and {bytes} bytes on are no range of addresses")),
    }
}
