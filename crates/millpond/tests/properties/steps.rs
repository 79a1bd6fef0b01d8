//! What each step of a program does. A step that makes no sense now does nothing.

use std::time::Duration;

use millpond::device::sim::Call;
use millpond::device::{Device, DeviceError, DevicePtr};
use millpond::{Buffer, Error, Pool, Result, Stream, Workspace};

use crate::options::GRANULARITY;
use crate::program::{How, Kind, POOLS, STREAMS, Step};
use crate::world::{Block, Owner, StreamSlot, Verdict, World};

/// Events that a program keeps at once.
const EVENTS: usize = 8;

impl World {
    pub(crate) fn step(&mut self, step: Step) -> Verdict {
        match step {
            Step::Alloc { pool, stream, bytes, how } => self.alloc(pool, stream, bytes, how),
            Step::Use { block, stream, micros, recorded } => self.use_block(block, stream, micros, recorded),
            Step::Free { block, stream, by_context } => self.free_step(block, stream, by_context),
            Step::Record { stream } => self.record(stream),
            Step::Wait { stream, event } => self.wait(stream, event),
            Step::WaitFor { stream, other } => self.wait_for(stream, other).map(drop),
            Step::QueryEvent { event } => self.query_event(event),
            Step::SyncEvent { event } => self.synchronize_event(event),
            Step::DropEvent { event } => {
                if let Some(event) = self.pick_event(event) {
                    self.events.swap_remove(event);
                }
                Ok(())
            }
            Step::SyncStream { stream } => self.synchronize_stream(stream),
            Step::SyncDevice => self.synchronize().map(drop),
            Step::Advance { micros } => {
                self.sim.advance_to(self.sim.now() + Duration::from_micros(micros));
                Ok(())
            }
            Step::NewStream { stream, kind } => self.new_stream(stream, kind),
            Step::Hold { stream } => self.hold(stream),
            Step::Release { stream } => {
                let hold = self.streams[stream % STREAMS].hold.take();
                hold.into_iter().for_each(|hold| self.sim.release(hold));
                Ok(())
            }
            Step::Trim { pool, pages } => self.trim(pool, pages * GRANULARITY),
            Step::SetThreshold { pool, pages } => {
                self.pools[pool % POOLS].pool.set_release_threshold(pages * GRANULARITY);
                Ok(())
            }
            Step::ResetHighWater { pool } => {
                let slot = &mut self.pools[pool % POOLS];
                slot.pool.reset_high_water();
                slot.requested_high = slot.pool.stats().requested.current;
                Ok(())
            }
            Step::DestroyPool { pool } => self.destroy_pool(pool),
            Step::NewPool { pool } => self.new_pool(pool),
            Step::Misuse { block, stream, offset } => self.misuse(block, stream, offset),
            Step::Fail { call, nth } => {
                self.plan_failure(Call::ALL[call % Call::ALL.len()], nth);
                Ok(())
            }
        }
    }

    // ---- blocks ----------------------------------------------------------------------------------

    fn alloc(&mut self, pool: usize, slot: usize, bytes: u64, how: How) -> Verdict {
        let pool = pool % POOLS;
        // A buffer keeps its stream, and a foreign stream may be destroyed under it.
        let how = if self.stream(slot).kind == Kind::Foreign { without_owner(how) } else { how };
        let Some(stream) = self.allow("presenting a stream", self.present(slot))? else { return Ok(()) };
        let made = allocate(&self.pools[pool].pool, bytes, how, &stream);
        if let Err(Error::OutOfMemory(report)) = made {
            return self.check_out_of_memory(pool, bytes, &report);
        }
        if self.pools[pool].destroyed {
            let refused = matches!(made, Err(Error::PoolDestroyed { .. }));
            return if refused { Ok(()) } else { Err("a destroyed pool did not say so".to_owned()) };
        }
        let Some((at, owner)) = self.allow("an allocation", made)? else { return Ok(()) };
        self.check_address(pool, at, bytes, how)?;
        let StreamSlot { handle, key, .. } = *self.stream(slot);
        let checked = self.checker.allocated(at, bytes, handle);
        let begun = self.order.submit(key);
        let (uses, recorded) = (Vec::new(), Vec::new());
        let pool = &mut self.pools[pool];
        pool.allocations += 1;
        let id = pool.id;
        self.blocks.push(Block { at, bytes, pool: id, owner, checked, begun, uses, recorded });
        let requested = self.requested_of(id);
        let slot = self.pool_slot(id).expect("it was just used");
        slot.requested_high = slot.requested_high.max(requested);
        Ok(())
    }

    /// A kernel on a block. A recorded use of a stream that may go at any time covers only the work so far:
    /// it is recorded after the work, and again after each later one. Of other streams it covers all work
    /// until the free, so that it may come first.
    fn use_block(&mut self, block: usize, slot: usize, micros: u64, recorded: bool) -> Verdict {
        let Some(block) = self.pick_block(block) else { return Ok(()) };
        if !self.order_after(self.blocks[block].begun, slot)? {
            return Ok(());
        }
        let StreamSlot { key, kind, .. } = *self.stream(slot);
        let known = self.blocks[block].recorded.contains(&key);
        let recordable = self.pools.iter().any(|slot| slot.id == self.blocks[block].pool);
        let record_after = kind != Kind::Own && (known || (recorded && recordable));
        if record_after && !recordable {
            return Ok(());
        }
        let Some(stream) = self.allow("presenting a stream", self.present(slot))? else { return Ok(()) };
        if recorded && recordable && kind == Kind::Own {
            self.record_use(block, slot, &stream)?;
        }
        self.launch(block, slot, micros)?;
        if record_after {
            self.record_use(block, slot, &stream)?;
        }
        Ok(())
    }

    fn record_use(&mut self, block: usize, slot: usize, stream: &Stream) -> Verdict {
        let StreamSlot { handle, key, .. } = *self.stream(slot);
        let id = self.blocks[block].pool;
        let pool = &self.pools.iter().find(|slot| slot.id == id).expect("it was looked up before").pool;
        let block = &mut self.blocks[block];
        let recorded = match &block.owner {
            Owner::Buffer(buffer) => buffer.record_use(stream),
            _ => pool.record_use(block.at, stream),
        };
        // No failure of the device is the program's: where no event can be recorded the pool waits longer.
        recorded.map_err(|error| format!("record_use failed: {error}"))?;
        if !block.recorded.contains(&key) {
            block.recorded.push(key);
            self.checker.use_recorded(block.checked, handle);
        }
        Ok(())
    }

    fn free_step(&mut self, block: usize, slot: usize, by_context: bool) -> Verdict {
        let Some(block) = self.pick_block(block) else { return Ok(()) };
        if matches!(self.blocks[block].owner, Owner::Program) {
            if self.order_free(block, slot)? {
                self.free(block, slot, by_context)?;
            }
            return Ok(());
        }
        self.free_owner(block).map(drop)
    }

    /// Drops the block's owner, once its stream is ordered after the block's uses.
    pub(crate) fn free_owner(&mut self, block: usize) -> Verdict<bool> {
        let key = self.blocks[block].begun.key;
        let ready = match self.streams.iter().position(|slot| slot.key == key) {
            Some(slot) => self.order_free(block, slot)?,
            // The program has lost the stream: what others did must be complete.
            None => {
                let block = &self.blocks[block];
                let foreign =
                    |work: &crate::order::Work| work.key != key && !block.recorded.contains(&work.key);
                let open = block.uses.iter().any(|work| foreign(work) && !self.order.is_before(*work, key));
                !open || self.synchronize()?
            }
        };
        if ready {
            self.drop_owner(block);
        }
        Ok(ready)
    }

    fn pick_block(&self, block: usize) -> Option<usize> {
        block.checked_rem(self.blocks.len())
    }

    // ---- events and waiting ------------------------------------------------------------------------

    fn pick_event(&self, event: usize) -> Option<usize> {
        event.checked_rem(self.events.len())
    }

    fn record(&mut self, slot: usize) -> Verdict {
        let Some(stream) = self.allow("presenting a stream", self.present(slot))? else { return Ok(()) };
        if let Some(event) = self.allow("recording an event", stream.record())? {
            let clock = self.order.snapshot(self.stream(slot).key);
            self.events.truncate(EVENTS - 1);
            self.events.push((event, clock));
        }
        Ok(())
    }

    fn wait(&mut self, slot: usize, event: usize) -> Verdict {
        let Some(event) = self.pick_event(event) else { return Ok(()) };
        let Some(stream) = self.allow("presenting a stream", self.present(slot))? else { return Ok(()) };
        let (event, clock) = &self.events[event];
        if self.allow("waiting for an event", stream.wait(event))?.is_some() {
            let key = self.streams[slot % STREAMS].key;
            self.order.wait(key, clock);
        }
        Ok(())
    }

    fn query_event(&mut self, event: usize) -> Verdict {
        let Some(event) = self.pick_event(event) else { return Ok(()) };
        let (event, clock) = &self.events[event];
        if self.allow("querying an event", event.query())? == Some(true) {
            self.order.complete(clock);
        }
        Ok(())
    }

    fn synchronize_event(&mut self, event: usize) -> Verdict {
        let Some(event) = self.pick_event(event) else { return Ok(()) };
        let (event, clock) = &self.events[event];
        if self.allow("synchronising an event", event.synchronize())?.is_some() {
            self.order.complete(clock);
        }
        Ok(())
    }

    fn synchronize_stream(&mut self, slot: usize) -> Verdict {
        let Some(stream) = self.allow("presenting a stream", self.present(slot))? else { return Ok(()) };
        if self.allow("synchronising a stream", stream.synchronize())?.is_some() {
            let clock = self.order.snapshot(self.stream(slot).key);
            self.order.complete(&clock);
        }
        Ok(())
    }

    fn hold(&mut self, slot: usize) -> Verdict {
        let slot = &mut self.streams[slot % STREAMS];
        if slot.hold.is_none() && self.stray_holds.len() < 50 {
            slot.hold = Some(self.sim.hold(slot.handle).map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    // ---- streams and pools -------------------------------------------------------------------------

    fn new_stream(&mut self, slot: usize, kind: Kind) -> Verdict {
        let slot = slot % STREAMS;
        let made = self.make_stream(kind);
        let Some(new) = self.allow("making a stream", made)? else { return Ok(()) };
        let old = std::mem::replace(&mut self.streams[slot], new);
        self.retire_stream(old);
        Ok(())
    }

    /// Destroys a stream, whatever runs on it.
    pub(crate) fn retire_stream(&mut self, slot: StreamSlot) {
        let StreamSlot { stream, handle, kind, hold, .. } = slot;
        self.stray_holds.extend(hold);
        drop(stream);
        if kind == Kind::Foreign {
            // SAFETY: the slot was the stream's only user.
            unsafe { self.checker.destroy_stream(handle) }.ok();
        }
    }

    fn trim(&mut self, pool: usize, keep: u64) -> Verdict {
        let pool = &self.pools[pool % POOLS].pool;
        let before = pool.reserved().current;
        let Some(released) = self.allow("a trim", pool.trim_to(keep))? else { return Ok(()) };
        let after = pool.reserved().current;
        if before - after != released {
            return Err(format!("a trim from {before} to {after} reserved bytes said {released}"));
        }
        Ok(())
    }

    fn destroy_pool(&mut self, pool: usize) -> Verdict {
        let pool = pool % POOLS;
        let live = self.blocks.iter().filter(|block| block.pool == self.pools[pool].id).count() as u64;
        let again = self.pools[pool].destroyed;
        match self.pools[pool].pool.destroy() {
            Err(Error::LiveBlocks { blocks, .. }) if blocks == live && live > 0 && !again => {}
            Err(Error::LiveBlocks { blocks, .. }) => {
                return Err(format!("a pool with {live} live blocks was destroyed with {blocks}"));
            }
            Ok(()) if live > 0 && !again => return Err("destroying a pool hid its live blocks".to_owned()),
            other => drop(self.allow("destroying a pool", other)?),
        }
        self.pools[pool].destroyed = true;
        Ok(())
    }

    fn new_pool(&mut self, pool: usize) -> Verdict {
        let made = self.make_pool();
        let Some(new) = self.allow("building a pool", made)? else { return Ok(()) };
        // The old one's last handle goes here, with whatever blocks are live. It waits for pending work; if
        // that fails its memory is lost, as the log says.
        self.release_holds();
        self.undisturbed(|world| world.pools[pool % POOLS] = new);
        Ok(())
    }

    fn plan_failure(&mut self, call: Call, nth: u64) {
        self.faulty = true;
        let error = match call {
            Call::CreatePage | Call::AllocSegment | Call::Reserve => {
                DeviceError::OutOfMemory { call: call.name(), requested: 0 }
            }
            _ => DeviceError::Driver {
                call: call.name(),
                code: 999,
                name: "PLANNED".to_owned(),
                text: "the program asked for it".to_owned(),
            },
        };
        self.sim.fail_next(call, nth, error);
    }

    // ---- misuse ----------------------------------------------------------------------------------

    /// Frees what is not to be freed: each is refused by name, and changes nothing.
    fn misuse(&mut self, block: usize, slot: usize, offset: u64) -> Verdict {
        let Some(block) = self.pick_block(block) else { return Ok(()) };
        let Some(stream) = self.allow("presenting a stream", self.present(slot))? else { return Ok(()) };
        let block = &self.blocks[block];
        let Some(owner) = self.pools.iter().find(|slot| slot.id == block.pool) else { return Ok(()) };
        let before = owner.pool.stats();
        if block.bytes > 1 {
            let inside = owner.pool.free(block.at.offset(1 + offset % (block.bytes - 1)), &stream);
            if !matches!(inside, Err(Error::InteriorPointer { start, .. }) if start == block.at) {
                return Err(format!("freeing inside a block gave {inside:?}"));
            }
        }
        let other = self.pools.iter().find(|slot| slot.id != block.pool);
        let wrong = other.map(|slot| slot.pool.free(block.at, &stream));
        if !matches!(wrong, None | Some(Err(Error::WrongPool { .. }))) {
            return Err(format!("freeing another pool's block gave {wrong:?}"));
        }
        let foreign = owner.pool.free(DevicePtr::new(4096), &stream);
        if !matches!(foreign, Err(Error::ForeignPointer { .. })) {
            return Err(format!("freeing a foreign pointer gave {foreign:?}"));
        }
        if owner.pool.stats() != before {
            return Err("a refused free changed the statistics".to_owned());
        }
        Ok(())
    }
}

fn without_owner(how: How) -> How {
    match how {
        How::Buffer | How::Workspace => How::Plain,
        How::ZeroedBuffer => How::Zeroed,
        other => other,
    }
}

fn allocate(pool: &Pool, bytes: u64, how: How, stream: &Stream) -> Result<(DevicePtr, Owner)> {
    let of_buffer = |buffer: Buffer<u8>| (buffer.ptr(), Owner::Buffer(buffer));
    match how {
        How::Plain => Ok((pool.alloc(bytes, stream)?, Owner::Program)),
        How::Zeroed => Ok((pool.alloc_zeroed(bytes, stream)?, Owner::Program)),
        How::Aligned(log) => Ok((pool.alloc_aligned(bytes, 1 << log, stream)?, Owner::Program)),
        How::Buffer => Buffer::new(pool, bytes as usize, stream).map(of_buffer),
        How::ZeroedBuffer => Buffer::zeroed(pool, bytes as usize, stream).map(of_buffer),
        How::Workspace => {
            let workspace = Workspace::new(pool, bytes, stream)?;
            let at = workspace.alloc::<u8>(1)?.ptr();
            Ok((at, Owner::Workspace(workspace)))
        }
    }
}
