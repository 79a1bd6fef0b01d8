//! Everything that a simulated device knows, behind its one lock.

use std::collections::HashMap;
use std::thread::{self, ThreadId};

use slab::Slab;
use slotmap::{DefaultKey, KeyData, SlotMap};

use super::address_space::AddressSpace;
use super::call::{Call, PerCall};
use super::faults::Faults;
use super::managed::Managed;
use super::when::When;
use super::{CostTable, SimOptions, SimTime};
use crate::device::driver_pool::{CHUNK, DriverPoolModel};
use crate::device::inventory::{Inventory, Owner, invalid};
use crate::device::{
    AsyncUsage, DeviceError, DevicePtr, DeviceResult, EventHandle, MemoryKind, PeerId, PeerSet, Place,
    StreamHandle, StreamId,
};

/// Handles below this are the null stream and the default streams.
const FIRST_HANDLE: u64 = 16;

#[derive(Debug)]
pub(super) struct State {
    /// By their numbers in the group.
    gpus: Vec<Gpu>,
    /// The number of the one whose call is under way.
    pub(super) current: usize,
    pub(super) managed: Managed,
    pub(super) addresses: AddressSpace,
    /// What each event stands for.
    pub(super) events: SlotMap<DefaultKey, When>,
    /// Events that were opened by what another one exported.
    pub(super) other_names: HashMap<DefaultKey, DefaultKey>,
    pub(super) calls: PerCall<u64>,
    pub(super) spent: SimTime,
    pub(super) faults: Faults,
    pub(super) costs: CostTable,
    /// The virtual clock, in nanoseconds.
    pub(super) now: u64,
    streams: Slab<Stream>,
    next_stream: u64,
    /// One bit for each hold that is not released.
    holds: u64,
}

/// What each device of a group has for itself.
#[derive(Debug)]
struct Gpu {
    id: PeerId,
    inventory: Inventory,
    pinned: Inventory,
    of_managed: Inventory,
    driver_pool: DriverPoolModel<Fence>,
    /// Where the legacy default stream lies in the table.
    legacy: usize,
    /// The threads' default streams. They stay when the thread ends, so that its work is complete in time.
    per_thread: HashMap<ThreadId, usize>,
    /// When all work given so far is complete, that of destroyed streams too.
    all_work: When,
}

impl Gpu {
    fn new(id: PeerId, options: &SimOptions) -> Self {
        let inventory = |capacity| Inventory::new(options.granularity, capacity);
        let [mut pinned, mut of_managed] = [options.pinned_capacity, options.managed_capacity].map(inventory);
        // Such segments are for all devices.
        pinned.share_segments(PeerSet::ALL);
        of_managed.share_segments(PeerSet::ALL);
        Self {
            id,
            inventory: inventory(options.capacity),
            pinned,
            of_managed,
            driver_pool: DriverPoolModel::new(),
            legacy: 0,
            per_thread: HashMap::new(),
            all_work: When::default(),
        }
    }

    /// What the range is memory of, if the device may use it, or another one.
    fn check_access(
        &self,
        call: &'static str,
        at: DevicePtr,
        bytes: u64,
        peer: Option<PeerId>,
    ) -> DeviceResult<MemoryKind> {
        let of =
            |inventory: &Inventory, kind| inventory.check_access_by(call, at, bytes, peer).map(|()| kind);
        of(&self.inventory, MemoryKind::Device).or_else(|error| {
            of(&self.pinned, MemoryKind::Pinned)
                .or_else(|_| of(&self.of_managed, MemoryKind::Managed))
                .map_err(|_| error)
        })
    }
}

#[derive(Debug)]
struct Stream {
    id: StreamId,
    /// The number of its device.
    gpu: usize,
    busy_until: When,
    /// Made by `create_stream`, so it has a handle of its own.
    created: bool,
}

/// What a free block of the driver's pool waits for: its last stream, and when that is done with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fence {
    stream: StreamId,
    when: When,
}

impl State {
    /// Devices with these names.
    pub(super) fn new(options: SimOptions, ids: &[PeerId]) -> Self {
        let mut state = Self {
            gpus: ids.iter().map(|id| Gpu::new(*id, &options)).collect(),
            current: 0,
            managed: Managed::default(),
            addresses: AddressSpace::new(options.granularity),
            events: SlotMap::new(),
            other_names: HashMap::new(),
            calls: PerCall::default(),
            spent: SimTime::default(),
            faults: Faults::new(),
            costs: options.costs,
            now: 0,
            streams: Slab::new(),
            next_stream: 1,
            holds: 0,
        };
        for current in 0..ids.len() {
            state.current = current;
            state.gpus[current].legacy = state.add_stream(false);
        }
        state
    }

    #[inline]
    fn gpu(&mut self) -> &mut Gpu {
        &mut self.gpus[self.current]
    }

    /// The records of one kind of memory.
    #[inline]
    pub(super) fn inventory(&mut self, kind: MemoryKind) -> &mut Inventory {
        let gpu = self.gpu();
        match kind {
            MemoryKind::Pinned => &mut gpu.pinned,
            MemoryKind::Device => &mut gpu.inventory,
            MemoryKind::Managed => &mut gpu.of_managed,
        }
    }

    /// What the driver's own pool holds.
    pub(super) fn async_usage(&mut self) -> AsyncUsage {
        self.gpu().driver_pool.usage()
    }

    /// What the device can have of managed memory.
    fn room_for_managed(&self) -> u64 {
        self.gpus[self.current].inventory.memory_info().free
    }

    /// Work on a stream meets a range: what of it is managed memory comes to the device first.
    pub(super) fn touch(
        &mut self,
        call: &'static str,
        at: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        if self.check_access(call, at, bytes)? == MemoryKind::Managed {
            // Refused first, so that nothing has moved then.
            self.busy_until(call, stream)?;
            let room = self.room_for_managed();
            let time = self.managed.touch(at, bytes, room, &self.costs);
            self.launch(call, stream, time)?;
        }
        Ok(())
    }

    /// The stream's time to move a range of managed memory.
    pub(super) fn move_to(&mut self, at: DevicePtr, bytes: u64, to: Place) -> u64 {
        let room = self.room_for_managed();
        self.managed.hints.set(at, bytes, |said| said.last_prefetch = Some(to));
        self.managed.prefetch(at, bytes, to, room, &self.costs)
    }

    /// What the range is memory of, if work may use it. It may be another device's.
    pub(super) fn check_access(
        &self,
        call: &'static str,
        at: DevicePtr,
        bytes: u64,
    ) -> DeviceResult<MemoryKind> {
        let own = &self.gpus[self.current];
        own.check_access(call, at, bytes, None).or_else(|error| {
            let others = self.gpus.iter().filter(|gpu| gpu.id != own.id);
            let mut found = others.filter_map(|gpu| gpu.check_access(call, at, bytes, Some(own.id)).ok());
            found.next().ok_or(error)
        })
    }

    /// What the range is memory of, if it is the device's with this name.
    pub(super) fn check_access_of(
        &self,
        peer: PeerId,
        call: &'static str,
        at: DevicePtr,
        bytes: u64,
    ) -> DeviceResult<MemoryKind> {
        match self.gpus.iter().find(|gpu| gpu.id == peer) {
            Some(gpu) => gpu.check_access(call, at, bytes, None),
            None => invalid(call, format!("{peer:?} is no device of the group")),
        }
    }

    /// How many devices of the group a set names, beside the one whose call is under way.
    pub(super) fn others_in(&self, peers: PeerSet) -> u64 {
        let is_other = |gpu: &&Gpu| gpu.id != self.gpus[self.current].id && peers.contains(gpu.id);
        self.gpus.iter().filter(is_other).count() as u64
    }

    /// Lets the host spend `cost` nanoseconds in `call`.
    pub(super) fn spend(&mut self, call: Call, cost: u64) {
        self.now = self.now.saturating_add(cost);
        self.spent.by_call[call] += cost;
    }

    // ---- streams ---------------------------------------------------------------------------------

    fn add_stream(&mut self, created: bool) -> usize {
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        self.streams.insert(Stream { id, gpu: self.current, busy_until: When::default(), created })
    }

    pub(super) fn create_stream(&mut self) -> StreamHandle {
        let index = self.add_stream(true) as u64;
        // SAFETY: the number stands for the stream just made, until `destroy_stream`.
        unsafe { StreamHandle::from_raw(index + FIRST_HANDLE) }
    }

    pub(super) fn destroy_stream(&mut self, stream: StreamHandle) -> DeviceResult<()> {
        const CALL: &str = "destroy_stream";
        if stream.raw() < FIRST_HANDLE {
            return invalid(CALL, "a default stream cannot be destroyed");
        }
        let index = self.index(CALL, stream)?;
        self.streams.remove(index);
        Ok(())
    }

    fn index(&mut self, call: &'static str, stream: StreamHandle) -> DeviceResult<usize> {
        match stream.raw().checked_sub(FIRST_HANDLE) {
            Some(index)
                if self
                    .streams
                    .get(index as usize)
                    .is_some_and(|known| known.created && known.gpu == self.current) =>
            {
                Ok(index as usize)
            }
            None if stream == StreamHandle::PER_THREAD => Ok(self.per_thread_index()),
            None if stream.raw() <= StreamHandle::LEGACY.raw() => Ok(self.gpu().legacy),
            _ => invalid(call, format!("{:#x} is no stream, or was destroyed", stream.raw())),
        }
    }

    fn per_thread_index(&mut self) -> usize {
        let thread = thread::current().id();
        if let Some(&index) = self.gpu().per_thread.get(&thread) {
            return index;
        }
        let index = self.add_stream(false);
        self.gpu().per_thread.insert(thread, index);
        index
    }

    pub(super) fn stream_id(&mut self, call: &'static str, stream: StreamHandle) -> DeviceResult<StreamId> {
        let index = self.index(call, stream)?;
        Ok(self.streams[index].id)
    }

    /// When all work given to the stream so far is complete.
    pub(super) fn busy_until(&mut self, call: &'static str, stream: StreamHandle) -> DeviceResult<When> {
        let index = self.index(call, stream)?;
        Ok(self.streams[index].busy_until)
    }

    /// Gives the stream work of `duration` nanoseconds.
    pub(super) fn launch(
        &mut self,
        call: &'static str,
        stream: StreamHandle,
        duration: u64,
    ) -> DeviceResult<()> {
        let index = self.index(call, stream)?;
        let start = self.streams[index].busy_until.and(When::at(self.now));
        self.set_busy(index, start.then(duration));
        Ok(())
    }

    /// Makes later work on the stream wait until `when`.
    pub(super) fn wait_for(
        &mut self,
        call: &'static str,
        stream: StreamHandle,
        when: When,
    ) -> DeviceResult<()> {
        let index = self.index(call, stream)?;
        if !when.is_past(self.now) {
            self.set_busy(index, self.streams[index].busy_until.and(when));
        }
        Ok(())
    }

    fn set_busy(&mut self, index: usize, until: When) {
        let stream = &mut self.streams[index];
        stream.busy_until = until;
        let all_work = &mut self.gpus[stream.gpu].all_work;
        *all_work = all_work.and(until);
    }

    /// Lets the host wait until `when`.
    pub(super) fn host_waits(&mut self, call: &'static str, when: When) -> DeviceResult<()> {
        let Some(time) = when.time() else {
            return invalid(
                call,
                "this waits for a stream that is held, and would never end: release the hold first",
            );
        };
        self.spent.waited += time.saturating_sub(self.now);
        self.now = self.now.max(time);
        Ok(())
    }

    pub(super) fn host_waits_for_all(&mut self, call: &'static str) -> DeviceResult<()> {
        self.host_waits(call, self.gpus[self.current].all_work)
    }

    // ---- holds -----------------------------------------------------------------------------------

    pub(super) fn hold(&mut self, stream: StreamHandle) -> DeviceResult<u64> {
        let index = self.index("hold", stream)?;
        let hold = 1_u64.checked_shl(self.holds.trailing_ones()).unwrap_or(0);
        if hold == 0 {
            return invalid("hold", "64 holds are in use, which is the most: release one first");
        }
        self.holds |= hold;
        let until = self.streams[index].busy_until.and(When::at(self.now)).held_by(hold);
        self.set_busy(index, until);
        Ok(hold)
    }

    pub(super) fn release_hold(&mut self, hold: u64) {
        self.holds &= !hold;
        let streams = self.streams.iter_mut().map(|(_, stream)| &mut stream.busy_until);
        for when in streams.chain(self.events.values_mut()) {
            when.release(hold, self.now);
        }
        for gpu in &mut self.gpus {
            let fences = gpu.driver_pool.fences_mut().map(|fence| &mut fence.when);
            fences.chain([&mut gpu.all_work]).for_each(|when| when.release(hold, self.now));
        }
    }

    // ---- events ----------------------------------------------------------------------------------

    pub(super) fn event(&mut self, call: &'static str, event: EventHandle) -> DeviceResult<&mut When> {
        let key = event_key(event);
        match self.events.get_mut(self.other_names.get(&key).copied().unwrap_or(key)) {
            Some(when) => Ok(when),
            None => invalid(call, format!("{:#x} is no event, or was destroyed", event.raw())),
        }
    }

    // ---- segments and the driver's pool ------------------------------------------------------------

    pub(super) fn alloc_segment(
        &mut self,
        kind: MemoryKind,
        call: &'static str,
        bytes: u64,
        owner: Owner,
    ) -> DeviceResult<(DevicePtr, u64)> {
        let rounded = self.inventory(kind).take_segment(call, bytes)?;
        let Some(at) = self.addresses.take(rounded) else {
            self.inventory(kind).give_back(rounded);
            return Err(DeviceError::OutOfMemory { call, requested: bytes });
        };
        self.inventory(kind).add_segment(at, rounded, owner);
        Ok((at, rounded))
    }

    /// A block of the driver's pool for `stream`, and whether the pool had to grow.
    pub(super) fn alloc_async(
        &mut self,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<(DevicePtr, bool)> {
        const CALL: &str = "alloc_async";
        let fence = self.fence(CALL, stream)?;
        let now = self.now;
        let passed = |other: &Fence| other.stream == fence.stream || other.when.is_past(now);
        let Some(block) = DriverPoolModel::<Fence>::block_size(bytes) else {
            return Err(DeviceError::OutOfMemory { call: CALL, requested: bytes });
        };
        if let Some(at) = self.gpu().driver_pool.alloc(block, passed) {
            return Ok((at, false));
        }
        let chunk = block.checked_next_multiple_of(CHUNK).unwrap_or(block);
        let (at, length) = match self.alloc_segment(MemoryKind::Device, CALL, chunk, Owner::DriverPool) {
            Err(DeviceError::OutOfMemory { .. }) => {
                self.alloc_segment(MemoryKind::Device, CALL, block, Owner::DriverPool)?
            }
            other => other?,
        };
        self.gpu().driver_pool.grow(at, length, fence);
        let at = self.gpu().driver_pool.alloc(block, passed);
        Ok((at.expect("the chunk just added is large enough, and its fence names this stream"), true))
    }

    pub(super) fn free_async(&mut self, at: DevicePtr, stream: StreamHandle) -> DeviceResult<()> {
        let fence = self.fence("free_async", stream)?;
        let now = self.now;
        self.gpu()
            .driver_pool
            .free(at, fence, |other| other.stream == fence.stream || other.when.is_past(now))
    }

    fn fence(&mut self, call: &'static str, stream: StreamHandle) -> DeviceResult<Fence> {
        let index = self.index(call, stream)?;
        let stream = &self.streams[index];
        Ok(Fence { stream: stream.id, when: stream.busy_until })
    }
}

pub(super) fn event_key(event: EventHandle) -> DefaultKey {
    DefaultKey::from(KeyData::from_ffi(event.raw()))
}
