//! What a pool knows of its eviction, and the calls that change it.

use super::evicted::Evicted;
use super::evicting::{Refused, evict};
use super::restoring::cannot_wait;
use crate::budgets::Budget;
use crate::core::Core;
use crate::core::giving_back::{collect_held, let_go_of_released};
use crate::core::making_room::out_of_memory_awaking;
use crate::device::{DeviceResult, MemoryKind};
use crate::error::{Error, Result};
use crate::order::Stream;
use crate::sleep::Sleep;
use crate::system::lock::Mutex;
use crate::system::process::OfProcess;

/// See the [module](self). Its lock is taken before the pool's, and that before the one of the pool that it is a part of.
#[derive(Debug)]
pub(crate) struct Evict {
    evicted: OfProcess<Mutex<Evicted>>,
    /// What pinned memory a pool and its tags may hold.
    limit: Budget,
}

impl Evict {
    /// That of a pool with this limit, or of a part of one.
    pub(crate) fn new(limit: u64, whole: Option<&Self>) -> Self {
        let limit = whole.map_or_else(|| Budget::bytes(limit), |whole| whole.limit.clone());
        Self { evicted: OfProcess::default(), limit }
    }

    /// See [`Pool::evict`](crate::Pool::evict). `sleep` is the same pool's.
    pub(crate) fn evict(&self, core: &Core, sleep: &Sleep, stream: &Stream) -> Result<u64> {
        core.check_process()?;
        core.check_stream(stream)?;
        stream.check_not_captured("Pool::evict", "evict or restore memory")?;
        let mut evicted = self.evicted.lock();
        if core.gate.is_evicted() {
            evicted.leave_again(core)?;
            core.tell_held(false);
            return Ok(0);
        }
        let _excluded = sleep.exclude();
        // An error where it sleeps.
        drop(core.stay_awake()?);
        core.gate.note_evicted(true);
        core.gate.close();
        let done = self.evict_behind_gate(core, &mut evicted, stream);
        match done {
            Ok(bytes) => {
                core.recording.evicted(bytes, Some(stream));
                core.tell_held(false);
            }
            Err(_) => {
                evicted.end();
                core.gate.open();
                core.gate.note_evicted(false);
            }
        }
        done
    }

    /// See [`Pool::restore_ahead`](crate::Pool::restore_ahead).
    pub(crate) fn restore_ahead(&self, core: &Core) -> Result<()> {
        core.check_process()?;
        let mut evicted = self.evicted.lock();
        let back = if core.gate.is_evicted() { evicted.bring_back(core)? } else { Ok(()) };
        core.tell_held(true);
        drop(evicted);
        back.map_err(|what| out_of_memory_awaking(core, what))
    }

    /// See [`Pool::restore_free`](crate::Pool::restore_free).
    pub(crate) fn restore_free(&self, core: &Core) -> Result<u64> {
        core.check_process()?;
        let mut evicted = self.evicted.lock();
        let back = if core.gate.is_evicted() { evicted.bring_back_part(core)? } else { Ok(()) };
        core.tell_held(true);
        drop(evicted);
        back.map_err(|what| out_of_memory_awaking(core, what))?;
        Ok(if core.gate.is_evicted() { core.counters.asleep.current() } else { 0 })
    }

    /// See [`Pool::restore`](crate::Pool::restore).
    pub(crate) fn restore(&self, core: &Core, stream: &Stream) -> Result<()> {
        core.check_process()?;
        core.check_stream(stream)?;
        stream.check_not_captured("Pool::restore", "evict or restore memory")?;
        let mut evicted = self.evicted.lock();
        if !core.gate.is_evicted() {
            return Ok(());
        }
        if let Err(what) = evicted.bring_back(core)? {
            // Observers are told, which may call the pool.
            drop(evicted);
            return Err(out_of_memory_awaking(core, what));
        }
        let copies = evicted.copies();
        let waits = core.timelines.make_wait(&copies, stream.timeline());
        if waits != Ok(true) {
            evicted.leave_again(core)?;
            return Err(waits.err().unwrap_or_else(cannot_wait).into());
        }
        let mut state = core.state.lock();
        let bytes = evicted.bytes_back(&mut state.arenas);
        evicted.end();
        state.is_asleep = false;
        core.resume_caches(&mut state);
        core.last_restore.begin(copies);
        core.gate.open();
        core.gate.note_evicted(false);
        drop(state);
        core.tell_held(true);
        core.recording.restored(bytes, stream);
        drop(evicted);
        // What was put off.
        let_go_of_released(core);
        Ok(())
    }

    /// Gives the pinned memory back, unless it is needed.
    pub(crate) fn trim_staging(&self, core: &Core) -> DeviceResult<u64> {
        let mut evicted = self.evicted.lock();
        // Of a tag that came to its end, nothing comes back.
        let is_needed = core.gate.is_evicted() && core.gate.is_closed();
        if is_needed { Ok(0) } else { evicted.release(core, &self.limit) }
    }

    fn evict_behind_gate(&self, core: &Core, evicted: &mut Evicted, stream: &Stream) -> Result<u64> {
        let refuse = |why| Err(Error::CannotEvict { pool: core.name_of(), why });
        let properties = core.device.properties();
        if properties.memory != MemoryKind::Device || !properties.virtual_memory {
            return refuse("it has no memory that can be mapped elsewhere (virtual memory management)");
        }
        let Some(whole) = core.whole() else {
            return refuse("it is no part of another pool: put what is to be evicted in Pool::tagged");
        };
        if let Some(why) = core.gate.why_it_stays() {
            return refuse(why);
        }
        // Without the pool's lock: the device may be waiting for a function of the host that uses the pool.
        if !core.timelines.wait_for_other_threads()? {
            return refuse(
                "another thread uses its default stream, and a graph is being captured, which a wait for the device would end: end the \
                 capture first",
            );
        }
        core.unwrap_before_leaving();
        collect_held(core);
        let mut state = core.state.lock();
        core.check_not_destroyed()?;
        // Under the lock, under which blocks are shared.
        if core.holds.any() {
            return refuse("other processes may use blocks of it: wait until they have let go");
        }
        core.pause_caches(&mut state);
        match evict(evicted, core, (&whole, &self.limit), &mut state, stream) {
            Ok(bytes) => {
                state.is_asleep = true;
                Ok(bytes)
            }
            Err(refused) => {
                core.resume_caches(&mut state);
                match refused {
                    Refused::Because(why) => refuse(why),
                    Refused::Device(error) => Err(core.error_of(error)),
                }
            }
        }
    }
}

impl Drop for Evict {
    /// The pool and its other tags may have as much pinned memory.
    fn drop(&mut self) {
        if let Some(evicted) = OfProcess::here(&self.evicted) {
            evicted.lock().let_go(&self.limit);
        }
    }
}
