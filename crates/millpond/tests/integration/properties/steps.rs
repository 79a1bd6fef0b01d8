//! What each step of a program does; `block_steps.rs` has those on blocks. A step that makes no sense now does
//! nothing.

use std::time::Duration;

use millpond::Error;
use millpond::device::sim::Call;
use millpond::device::{Device, DeviceError};

use super::options::GRANULARITY;
use super::program::{Kind, POOLS, STREAMS, Step};
use super::world::{StreamSlot, Verdict, World};

/// Events that a program keeps at once.
const EVENTS: usize = 8;

/// Runs `act` on a thread of its own.
fn elsewhere<R: Send>(act: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|threads| threads.spawn(act).join().expect("millpond does not panic"))
}

impl World {
    pub(crate) fn step(&mut self, step: Step) -> Verdict {
        match step {
            Step::Alloc { pool, stream, bytes, how } => self.alloc(pool, stream, bytes, how),
            Step::Use { block, stream, micros, recorded } => self.use_block(block, stream, micros, recorded),
            Step::Free { block, stream, by_context } => self.free_step(block, stream, by_context),
            Step::CopyBuffer { pool, stream, block } => self.copy_buffer(pool, stream, block),
            Step::Prefetch { block, stream, to_host } => self.prefetch(block, stream, to_host),
            Step::Advise { block, advice } => self.advise(block, advice),
            Step::Record { stream } => self.record(stream),
            Step::Wait { stream, event } => self.wait(stream, event),
            Step::WaitFor { stream, other } => self.wait_for(stream, other).map(drop),
            Step::QueryEvent { event } => self.query_event(event),
            Step::SyncEvent { event } => self.synchronize_event(event),
            Step::DropEvent { event } => {
                if let Some(event) = self.pick_event(event) {
                    _ = self.events.swap_remove(event);
                }
                Ok(())
            }
            Step::SyncStream { stream } => self.synchronize_stream(stream),
            Step::SyncElsewhere { stream } => self.synchronize_elsewhere(stream),
            Step::SyncDevice => self.synchronize().map(drop),
            Step::Advance { micros } => {
                self.sim.advance_to(self.sim.now() + Duration::from_micros(micros));
                Ok(())
            }
            Step::NewStream { stream, kind } => self.new_stream(stream, kind),
            Step::Register { stream } => self.register_step(stream),
            Step::Hold { stream } => self.hold(stream),
            Step::Release { stream } => {
                let hold = self.streams[stream % STREAMS].hold.take();
                hold.into_iter().for_each(|hold| self.sim.release(hold));
                Ok(())
            }
            Step::Trim { pool, pages } => self.trim(pool, pages * GRANULARITY),
            Step::Reserve { pool, stream, bytes } => self.reserve(pool, stream, bytes),
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

    /// On another thread a stream is the same, unless it is the program's default stream: then the other can learn nothing
    /// of it.
    fn synchronize_elsewhere(&mut self, slot: usize) -> Verdict {
        let Some(stream) = self.allow("presenting a stream", self.present(slot))? else { return Ok(()) };
        let (idle, waited) = elsewhere(|| (stream.is_idle(), stream.synchronize()));
        let StreamSlot { key, kind, .. } = *self.stream(slot);
        if kind == Kind::PerThread {
            let refused = |error: &Error| matches!(error, Error::Device(DeviceError::Invalid { .. }));
            return match (idle, waited) {
                (Err(idle), Err(waited)) if refused(&idle) && refused(&waited) => Ok(()),
                other => Err(format!("another thread's default stream was waited for: {other:?}")),
            };
        }
        let idle = self.allow("asking a stream elsewhere", idle)?;
        let waited = self.allow("synchronising a stream elsewhere", waited)?;
        if idle == Some(true) || waited.is_some() {
            let clock = self.order.snapshot(key);
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

    fn register_step(&mut self, slot: usize) -> Verdict {
        let slot = slot % STREAMS;
        let kind = match self.streams[slot].kind {
            Kind::Foreign => {
                let registered = self.register(&self.streams[slot].stream);
                let Some(registered) = self.allow("registering a stream", registered)? else { return Ok(()) };
                self.streams[slot].registration = Some(registered);
                Kind::Registered
            }
            Kind::Registered => {
                self.streams[slot].registration = None;
                Kind::Foreign
            }
            other => other,
        };
        self.streams[slot].kind = kind;
        Ok(())
    }

    /// Destroys a stream, whatever runs on it.
    pub(crate) fn retire_stream(&mut self, slot: StreamSlot) {
        let StreamSlot { stream, registration, kind, hold, .. } = slot;
        self.stray_holds.extend(hold);
        let handle = stream.handle();
        drop((stream, registration));
        if !kind.may_be_kept() {
            // SAFETY: the slot was the stream's only user.
            unsafe { self.device.destroy_stream(handle) }.ok();
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

    fn reserve(&mut self, pool: usize, slot: usize, bytes: u64) -> Verdict {
        let pool = pool % POOLS;
        let Some(stream) = self.allow("presenting a stream", self.present(slot))? else { return Ok(()) };
        let slot = &mut self.pools[pool];
        let before = slot.pool.stats();
        let done = slot.pool.reserve(bytes, &stream);
        if slot.pool.stats().allocations > before.allocations {
            // Memory was short, and a block was allocated and freed.
            slot.allocations += 1;
            slot.requested_high = slot.requested_high.max(before.requested.current + bytes);
        }
        match done {
            Err(Error::PoolDestroyed { .. }) if slot.destroyed => Ok(()),
            Err(Error::OutOfMemory(report)) => self.check_out_of_memory(pool, bytes, &report),
            done => {
                let done = self.allow("a reserve", done)?.is_some();
                let reserved = self.pools[pool].pool.reserved().current;
                if done && reserved < bytes {
                    return Err(format!("{reserved} bytes are reserved, of {bytes}"));
                }
                Ok(())
            }
        }
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
            // Where the event failed that would have told.
            Err(Error::MemoryInUse { .. }) if self.faulty => {}
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
}
