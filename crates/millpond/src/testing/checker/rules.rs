//! The rules for blocks, and for the memory under them: what a test says of blocks is checked here.

use std::sync::Arc;

use smallvec::SmallVec;

use super::blocks::{Block, Freeing};
use super::clock::{StreamKey, Uses, Work};
use super::memory::{BlockId, Extents, Mapping, Past, What, Who};
use super::report::{Rule, Violation};
use super::state::State;
use crate::device::{DevicePtr, DeviceResult, PeerSet};

impl State {
    pub(super) fn block_name(&self, id: BlockId) -> String {
        let known = self.blocks.live.get(&id);
        known.map_or_else(|| format!("block #{}", id.0), |block| self.name_of(id, block))
    }

    fn name_of(&self, id: BlockId, block: &Block) -> String {
        self.name(block.who(id, None))
    }

    fn name(&self, who: Who) -> String {
        let Who { at, bytes, stream, what } = who;
        let stream = self.order.name(stream);
        match what {
            What::Block(id, freed) => {
                let freed = freed.map(|freed| format!(", freed on {}", self.order.name(freed)));
                let freed = freed.unwrap_or_default();
                format!("block #{} ({bytes} B at {at}, allocated on {stream}){freed}", id.0)
            }
            What::Work(call) => format!("{call} of {bytes} B at {at}, in no live block, on {stream}"),
        }
    }

    /// A block begins, as if by a kernel on its stream: from here on its bytes are its own.
    pub(super) fn begin(&mut self, at: DevicePtr, bytes: u64, stream: StreamKey) -> BlockId {
        self.blocks.made += 1;
        let id = BlockId(self.blocks.made);
        let who = Who { at, bytes, stream, what: What::Block(id, None) };
        if let Some(other) = self.blocks.overlapping(at, bytes) {
            let (name, other) = (self.name(who), self.block_name(other));
            self.report(Rule::Overlap, format!("{name} overlaps the addresses of live {other}"));
        }
        if let Some(advised) = self.advised.within(at, bytes) {
            let name = self.name(who);
            self.report(Rule::Advice, format!("{name} began with advice given at {advised}"));
        }
        let (work, extents) = self.touch(who);
        let mut uses = Uses::default();
        uses.add(work);
        for extent in &extents {
            self.memory.occupy(*extent, id);
        }
        let block = Block { at, bytes, stream, extents, uses, recorded: SmallVec::new() };
        self.blocks.live.insert(id, block);
        self.blocks.by_address.insert(at.raw(), id);
        id
    }

    /// Work of who is no live block yet, on bytes: nobody else's, and after everybody's before.
    fn touch(&mut self, who: Who) -> (Work, Extents) {
        let Who { at, bytes, stream, .. } = who;
        let work = self.order.submit(stream);
        let extents = match self.memory.resolve(at, bytes) {
            Ok(extents) => extents,
            Err(missing) => {
                let name = self.name(who);
                self.report(Rule::NotMapped, format!("{name} has no memory behind it: {missing}"));
                Extents::new()
            }
        };
        for extent in &extents {
            if let Some(other) = self.memory.occupant(*extent) {
                let (name, other) = (self.name(who), self.block_name(other));
                self.report(Rule::Overlap, format!("{name} shares physical bytes with live {other}"));
            }
            for past in self.memory.take_past(*extent) {
                if let Some(early) = past.uses.iter().find(|work| !self.order.is_before(*work, stream)) {
                    let why = self.order.explain(early, stream);
                    let (name, past) = (self.name(who), self.name(past.who));
                    self.report(Rule::Order, format!("{name} got bytes of {past} too early: {why}"));
                }
            }
            if let Some(mapping) = self.memory.mapping_mut(extent.mapping) {
                mapping.uses.add(work);
            }
        }
        (work, extents)
    }

    /// Work on a live block.
    pub(super) fn work_on(&mut self, id: BlockId, stream: StreamKey) {
        let work = self.order.submit(stream);
        let Some(block) = self.blocks.live.get_mut(&id) else {
            self.report(Rule::Program, format!("block #{} is used, but was freed", id.0));
            return;
        };
        for extent in &block.extents {
            if let Some(mapping) = self.memory.mapping_mut(extent.mapping) {
                mapping.uses.add(work);
            }
        }
        block.uses.add(work);
        self.check_in_place(id);
    }

    /// A live block keeps the bytes it began with.
    fn check_in_place(&mut self, id: BlockId) {
        let Some(block) = self.blocks.live.get(&id) else { return };
        match self.memory.resolve(block.at, block.bytes) {
            Err(missing) => {
                let name = self.name_of(id, block);
                self.report(Rule::NotMapped, format!("{name} lost its memory while live: {missing}"));
            }
            Ok(now) if now != block.extents => {
                let name = self.name_of(id, block);
                let was = &block.extents;
                self.report(Rule::Moved, format!("{name} lies on {now:?} now, and lay on {was:?}"));
            }
            Ok(_) => {}
        }
    }

    /// A device uses memory of another one only where it has access.
    fn check_access(&mut self, what: &str, at: DevicePtr, bytes: u64, stream: StreamKey) {
        let device = self.order.device_of(stream);
        if let Some((mapping, owner)) = self.memory.without_access(at, bytes, device) {
            let (device, owner) = (device.0, owner.0);
            let text = format!(
                "{what} of {bytes} bytes at {at} on {}: device {device} has no access to the mapping at {mapping:#x} of device {owner}",
                self.order.name(stream)
            );
            self.report(Rule::PeerAccess, text);
        }
    }

    /// Likewise in a kernel that uses a block.
    pub(super) fn check_block_access(&mut self, id: BlockId, stream: StreamKey) {
        if let Some(Block { at, bytes, .. }) = self.blocks.live.get(&id) {
            let (at, bytes) = (*at, *bytes);
            self.check_access("use", at, bytes, stream);
        }
    }

    /// Work of a device on a range of addresses, as [`copy_at`](Self::copy_at), which it has to have access to.
    pub(super) fn work_at(&mut self, call: &'static str, at: DevicePtr, bytes: u64, stream: StreamKey) {
        if bytes > 0 {
            self.check_access(call, at, bytes, stream);
        }
        self.copy_at(call, at, bytes, stream);
    }

    /// Work on a range of addresses: that of the live block it lies in, or of the allocator itself.
    pub(super) fn copy_at(&mut self, call: &'static str, at: DevicePtr, bytes: u64, stream: StreamKey) {
        if bytes == 0 {
            return;
        }
        if let Some(id) = self.blocks.overlapping(at, bytes) {
            let block = &self.blocks.live[&id];
            if at < block.at || at.raw() + bytes > block.at.raw() + block.bytes {
                let name = self.block_name(id);
                let text = format!("{call} of {bytes} bytes at {at} reaches beyond {name}");
                self.report(Rule::Program, text);
            }
            self.work_on(id, stream);
            return;
        }
        let who = Who { at, bytes, stream, what: What::Work(call) };
        let (work, extents) = self.touch(who);
        let mut uses = Uses::default();
        uses.add(work);
        self.leave_past(&extents, Past { who, uses });
    }

    /// A prefetch of memory, or advice on it: of one live block, as far as blocks were announced. It uses no bytes, so nothing
    /// has to come before it.
    pub(super) fn place(&mut self, call: &'static str, at: DevicePtr, bytes: u64, stream: Option<StreamKey>) {
        if bytes == 0 {
            return;
        }
        let what = format!("{call} of {bytes} bytes at {at}");
        let extents = match self.memory.resolve(at, bytes) {
            Ok(extents) => extents,
            Err(missing) => return self.report(Rule::NotMapped, format!("{what}: {missing}")),
        };
        match self.blocks.overlapping(at, bytes) {
            Some(id) => {
                if self.blocks.is_before(at, id) {
                    let name = self.block_name(id);
                    self.report(Rule::Program, format!("{what} reaches beyond a block, to {name}"));
                }
                stream.into_iter().for_each(|stream| self.work_on(id, stream));
            }
            None => {
                let freed = extents.iter().find_map(|extent| self.memory.freed_block(*extent));
                if let Some(name) = freed.map(|past| self.name(past.who)) {
                    self.report(Rule::Program, format!("{what} comes after the free of {name}"));
                }
            }
        }
    }

    pub(super) fn recorded(&mut self, id: BlockId, stream: StreamKey) {
        match self.blocks.live.get_mut(&id) {
            Some(block) => block.recorded.push(stream),
            None => self.report(Rule::Program, format!("block #{} has a use recorded, but was freed", id.0)),
        }
    }

    /// A block ends, as if by a kernel on `stream`.
    pub(super) fn end(&mut self, id: BlockId, stream: StreamKey) -> Freeing {
        let work = self.order.submit(stream);
        self.check_in_place(id);
        let Some(mut block) = self.blocks.live.remove(&id) else {
            self.report(Rule::Program, format!("block #{} is freed twice", id.0));
            return Freeing(None);
        };
        let by_program = |work: &Work| !block.recorded.contains(&work.stream);
        let late = block.uses.iter().filter(by_program).find(|work| !self.order.is_before(*work, stream));
        if let Some(late) = late {
            let name = self.name_of(id, &block);
            let why = self.order.explain(late, stream);
            self.report(Rule::Program, format!("{name} is freed under work of the program: {why}"));
        }
        for extent in &block.extents {
            self.memory.vacate(*extent, id);
            if let Some(mapping) = self.memory.mapping_mut(extent.mapping) {
                mapping.uses.add(work);
            }
        }
        block.uses.add(work);
        self.blocks.by_address.remove(&block.at.raw());
        self.leave_past(&block.extents, Past { who: block.who(id, Some(stream)), uses: block.uses.clone() });
        Freeing(Some((id, block)))
    }

    fn leave_past(&mut self, extents: &Extents, mut past: Past) {
        past.uses.retain(|work| !self.order.is_known_complete(work));
        let past = Arc::new(past);
        for extent in extents {
            let order = &self.order;
            let is_over = |past: &Past| past.uses.iter().all(|work| order.is_known_complete(work));
            self.memory.remember(*extent, past.clone(), is_over);
        }
    }

    /// The free did not happen: the block is live as before.
    pub(super) fn undo_end(&mut self, freeing: Freeing) {
        let Some((id, block)) = freeing.0 else { return };
        for extent in &block.extents {
            self.memory.take_past(*extent);
            self.memory.occupy(*extent, id);
        }
        self.blocks.by_address.insert(block.at.raw(), id);
        self.blocks.live.insert(id, block);
    }

    /// A live block in a range that is about to lose its memory.
    pub(super) fn report_live_in(&mut self, call: &'static str, at: DevicePtr, bytes: u64) {
        if let Some(id) = self.blocks.overlapping(at, bytes) {
            let name = self.block_name(id);
            self.report(Rule::UnmapUnderBlock, format!("{call} of {bytes} bytes at {at} under live {name}"));
        }
    }

    /// A mapping may go only when all work through it is known to be complete, and no block lives in it.
    pub(super) fn check_unmap(&mut self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let pending = self.memory.check_unmap(at, bytes).map(|mapping| self.pending(mapping));
        if let Some(why) = self.require("unmap", pending)? {
            self.report(Rule::UnmapUnderWork, format!("unmap of {bytes} bytes at {at}: {why}"));
        }
        self.report_live_in("unmap", at, bytes);
        Ok(())
    }

    /// Access may be taken back only when all work of the other devices through the mapping is known to be complete.
    pub(super) fn check_take_back(&mut self, at: DevicePtr, peers: PeerSet) {
        let Some(mapping) = self.memory.mapping_mut(at.raw()) else { return };
        let owner = mapping.device;
        let pending: SmallVec<[Work; 4]> = mapping.uses.iter().collect();
        let of_peer = |work: &Work| {
            let device = self.order.device_of(work.stream);
            device != owner && peers.numbers().any(|number| number == device.0)
        };
        let late = pending.into_iter().filter(of_peer).find(|work| !self.order.is_known_complete(*work));
        if let Some(late) = late {
            let why = self.order.explain_pending(late);
            self.report(Rule::UnmapUnderWork, format!("access to the mapping at {at} is taken back: {why}"));
        }
    }

    fn pending(&self, mapping: &Mapping) -> Option<String> {
        let pending = mapping.uses.iter().find(|work| !self.order.is_known_complete(*work))?;
        Some(self.order.explain_pending(pending))
    }

    /// What was not given back.
    pub(super) fn leaks(&self) -> Vec<Violation> {
        let streams = self.order.streams_left().map(|stream| format!("stream {:#x}", stream.raw()));
        let events = self.order.events_left().map(|event| format!("event {:#x}", event.raw()));
        let blocks = self.blocks.live().map(|block| format!("{} is live", self.block_name(block)));
        let left = self.memory.left().into_iter().chain(streams).chain(events).chain(blocks);
        left.map(|text| Violation { rule: Rule::Leak, text }).collect()
    }
}
