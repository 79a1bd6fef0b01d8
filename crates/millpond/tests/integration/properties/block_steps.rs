//! Steps on blocks: allocating, using, copying, freeing, and what must not be done with them.

use millpond::device::{DevicePtr, MemoryKind};
use millpond::{Advice, Buffer, Error, Place, Pool, Result, Stream, Workspace};

use super::checks::ensure;
use super::order::Work;
use super::program::{How, POOLS};
use super::world::{Block, Owner, StreamSlot, Verdict, World};
use crate::shared::Freeing;

impl World {
    pub(crate) fn alloc(&mut self, pool: usize, slot: usize, bytes: u64, how: How) -> Verdict {
        let pool = pool % POOLS;
        let how = if self.stream(slot).kind.may_be_kept() { how } else { without_owner(how) };
        let Some(stream) = self.allow("presenting a stream", self.present(slot))? else { return Ok(()) };
        let before = self.pools[pool].pool.stats();
        let made = allocate(&self.pools[pool].pool, bytes, how, &stream);
        if let Err(Error::OutOfMemory(report)) = made {
            self.check_out_of_memory(pool, bytes, &report)?;
            // Half of the time only, so that the pools also go on as they are.
            let retry = |pool: &Pool| allocate(pool, bytes, how, &stream).is_ok();
            return if bytes.is_multiple_of(2) {
                self.check_no_more_could_be_done(pool, retry)
            } else {
                Ok(())
            };
        }
        if self.pools[pool].destroyed {
            return match made {
                Err(Error::PoolDestroyed { .. }) => Ok(()),
                // A question about the stream may come first, and fail.
                other => match self.allow("an allocation", other)? {
                    None => Ok(()),
                    Some(_) => Err("a destroyed pool gave a block".to_owned()),
                },
            };
        }
        let Some((at, owner)) = self.allow("an allocation", made)? else { return Ok(()) };
        self.check_address(pool, at, bytes, how)?;
        self.check_hit(pool, &before)?;
        self.begin(pool, slot, (at, bytes), owner);
        Ok(())
    }

    /// Enters a block that was just allocated.
    fn begin(&mut self, pool: usize, slot: usize, (at, bytes): (DevicePtr, u64), owner: Owner) {
        let StreamSlot { handle, key, .. } = *self.stream(slot);
        let checked = self.checker.allocated(at, bytes, handle);
        let begun = self.order.submit(key);
        let (uses, recorded) = (Vec::new(), Vec::new());
        let pool = &mut self.pools[pool];
        pool.allocations += 1;
        let id = pool.id;
        let block = Block { at, bytes, pool: id, owner, checked, begun, uses, recorded, advised: false };
        self.blocks.push(block);
        let requested = self.requested_of(id);
        let slot = self.pool_slot(id).expect("it was just used");
        slot.requested_high = slot.requested_high.max(requested);
    }

    /// Copies a buffer to a new one on another stream. The pool orders the copy, and the old buffer's free.
    pub(crate) fn copy_buffer(&mut self, pool: usize, slot: usize, block: usize) -> Verdict {
        let buffers = |block: &Block| matches!(block.owner, Owner::Buffer(_));
        let buffers: Vec<_> = (0..self.blocks.len()).filter(|at| buffers(&self.blocks[*at])).collect();
        let Some(from) = block.checked_rem(buffers.len()).map(|at| buffers[at]) else { return Ok(()) };
        let before = self.blocks.len();
        self.alloc(pool, slot, self.blocks[from].bytes, How::Buffer)?;
        let Some(new) = self.blocks.get_mut(before) else { return Ok(()) };
        // On a foreign stream the new block is none.
        let Owner::Buffer(mut to) = std::mem::replace(&mut new.owner, Owner::Program) else { return Ok(()) };
        let Owner::Buffer(source) = &self.blocks[from].owner else { unreachable!("it was looked up") };
        let copied = to.copy_from(source);
        let copied = self.allow("copying a buffer", copied);
        self.blocks[before].owner = Owner::Buffer(to);
        if copied?.is_some() {
            self.note_copy(from, before, slot);
        }
        Ok(())
    }

    fn note_copy(&mut self, from: usize, to: usize, slot: usize) {
        let StreamSlot { handle, key, .. } = *self.stream(slot);
        let source = self.blocks[from].begun.key;
        if source != key {
            let event = self.order.snapshot(source);
            self.order.wait(key, &event);
            self.checker.use_recorded(self.blocks[from].checked, handle);
            self.blocks[from].recorded.push(key);
        }
        // The checker sees the copy itself.
        let work = self.order.submit(key);
        for block in [from, to] {
            let uses = &mut self.blocks[block].uses;
            uses.retain(|known| known.key != key);
            uses.push(work);
        }
    }

    /// A kernel on a block. A recorded use of a stream that may go at any time covers only the work so far:
    /// it is recorded after the work, and again after each later one. Of other streams it covers all work
    /// until the free, so that it may come first.
    pub(crate) fn use_block(&mut self, block: usize, slot: usize, micros: u64, recorded: bool) -> Verdict {
        let Some(block) = self.pick_block(block) else { return Ok(()) };
        if !self.order_after(self.blocks[block].begun, slot)? {
            return Ok(());
        }
        let StreamSlot { key, kind, .. } = *self.stream(slot);
        let known = self.blocks[block].recorded.contains(&key);
        let recordable = self.pools.iter().any(|slot| slot.id == self.blocks[block].pool);
        let record_after = !kind.covers_later_work() && (known || (recorded && recordable));
        if record_after && !recordable {
            return Ok(());
        }
        let Some(stream) = self.allow("presenting a stream", self.present(slot))? else { return Ok(()) };
        if recorded && recordable && kind.covers_later_work() {
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

    // ---- managed memory --------------------------------------------------------------------------

    /// Whether a refusal is the right one: the block is not of managed memory. What else came of it, otherwise.
    fn if_managed<T>(&self, block: usize, what: &str, result: Result<T>) -> Verdict<Option<T>> {
        let is_managed = self.options.memory_of(self.blocks[block].pool) == MemoryKind::Managed;
        match result {
            Err(Error::NotManaged { .. }) if !is_managed => Ok(None),
            other if is_managed => self.allow(what, other),
            _ => Err(format!("{what} of other memory was not refused")),
        }
    }

    /// The pool of a block, unless its last handle is gone.
    fn pool_of(&self, block: usize) -> Option<&Pool> {
        self.pools.iter().find(|slot| slot.id == self.blocks[block].pool).map(|slot| &slot.pool)
    }

    /// A prefetch needs no order before it. The pool orders the free behind it.
    pub(crate) fn prefetch(&mut self, block: usize, slot: usize, to_host: bool) -> Verdict {
        let Some(block) = self.pick_block(block) else { return Ok(()) };
        let Some(stream) = self.allow("presenting a stream", self.present(slot))? else { return Ok(()) };
        let to = if to_host { Place::Host } else { Place::Device };
        let at = self.blocks[block].at;
        let done = match (&self.blocks[block].owner, self.pool_of(block)) {
            (Owner::Buffer(buffer), _) => buffer.prefetch(to, &stream),
            (Owner::Program, Some(pool)) => pool.prefetch(at, to, &stream),
            _ => return Ok(()),
        };
        if self.if_managed(block, "a prefetch", done)?.is_none() {
            return Ok(());
        }
        let StreamSlot { handle, key, .. } = *self.stream(slot);
        let work = self.order.submit(key);
        let block = &mut self.blocks[block];
        block.uses.retain(|known| known.key != key);
        block.uses.push(work);
        let is_own = matches!(block.owner, Owner::Buffer(_)) && key == block.begun.key;
        if !is_own && !block.recorded.contains(&key) {
            block.recorded.push(key);
            self.checker.use_recorded(block.checked, handle);
        }
        Ok(())
    }

    /// Advice, and what is then said of the block. That of a buffer goes with it.
    pub(crate) fn advise(&mut self, block: usize, advice: usize) -> Verdict {
        let Some(block) = self.pick_block(block) else { return Ok(()) };
        let (is, place) = (advice & 1 != 0, if advice & 2 != 0 { Place::Host } else { Place::Device });
        let advice = match advice % 3 {
            0 => Advice::ReadMostly(is),
            1 => Advice::PreferredLocation(is.then_some(place)),
            _ => Advice::AccessedBy(place, is),
        };
        let at = self.blocks[block].at;
        let (done, said) = match (&self.blocks[block].owner, self.pool_of(block)) {
            (Owner::Buffer(buffer), _) => (buffer.advise(advice), buffer.residency()),
            (Owner::Program, Some(pool)) => (pool.advise(at, advice), pool.residency(at)),
            _ => return Ok(()),
        };
        let done = self.if_managed(block, "advice", done)?;
        let said = self.if_managed(block, "a question", said)?;
        // A page of the system, which the block may not have as a whole.
        let has_pages = self.blocks[block].bytes >= 2 * 4096;
        if let (Some(()), Some(said), true) = (done, said, has_pages) {
            let is_so = match advice {
                Advice::ReadMostly(is) => said.read_mostly == is,
                Advice::PreferredLocation(place) => said.preferred == place,
                _ => true,
            };
            ensure!(is_so, "after {advice:?}: {said:?}");
        }
        let block = &mut self.blocks[block];
        block.advised |= matches!(block.owner, Owner::Program);
        Ok(())
    }

    /// Takes back the advice that the program gave, as long as the pool has a handle. Else no other block gets the memory.
    pub(crate) fn take_back_advice(&mut self, block: usize) -> Verdict {
        if std::mem::take(&mut self.blocks[block].advised)
            && let Some(pool) = self.pool_of(block)
        {
            let done = pool.take_back_advice(self.blocks[block].at);
            self.if_managed(block, "taking advice back", done)?;
        }
        Ok(())
    }

    pub(crate) fn free_step(&mut self, block: usize, slot: usize, by_context: bool) -> Verdict {
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
                let foreign = |work: &Work| work.key != key && !block.recorded.contains(&work.key);
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

    /// Frees what is not to be freed: each is refused by name, and changes nothing.
    pub(crate) fn misuse(&mut self, block: usize, slot: usize, offset: u64) -> Verdict {
        let Some(block) = self.pick_block(block) else { return Ok(()) };
        let Some(stream) = self.allow("presenting a stream", self.present(slot))? else { return Ok(()) };
        let block = &self.blocks[block];
        let Some(owner) = self.pools.iter().find(|slot| slot.id == block.pool) else { return Ok(()) };
        let before = owner.pool.stats();
        if block.bytes > 1 {
            let inside = owner.pool.free_block(block.at.offset(1 + offset % (block.bytes - 1)), &stream);
            if !matches!(inside, Err(Error::InteriorPointer { start, .. }) if start == block.at) {
                return Err(format!("freeing inside a block gave {inside:?}"));
            }
        }
        let other = self.pools.iter().find(|slot| slot.id != block.pool);
        let wrong = other.map(|slot| slot.pool.free_block(block.at, &stream));
        if !matches!(wrong, None | Some(Err(Error::WrongPool { .. }))) {
            return Err(format!("freeing another pool's block gave {wrong:?}"));
        }
        let foreign = owner.pool.free_block(DevicePtr::new(4096), &stream);
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
