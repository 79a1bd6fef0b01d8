//! What a pool knows of its sleep, and how it falls asleep and wakes.

use super::asleep::{Asleep, Keep};
use super::copies;
use crate::budgets::Shortage;
use crate::core::giving_back::{collect_held, let_go_of_released, unlock_logging};
use crate::core::making_room::{make_room, out_of_memory_awaking, steps_of_others};
use crate::core::{Arenas, Core, PoolState};
use crate::device::{DeviceResult, MemoryKind, Properties};
use crate::error::{Error, Result};
use crate::extents::trim;
use crate::log::log;
use crate::order::OwnedEvent;
use crate::physical::Refusal;
use crate::physical::staging::PinnedMemory;
use crate::system::lock::{Mutex, MutexGuard};
use crate::system::process::OfProcess;

/// Why memory with these properties cannot sleep.
fn obstacle(properties: &Properties, is_of_others: bool) -> Option<&'static str> {
    match properties.memory {
        MemoryKind::Pinned => Some("its memory is the host's already"),
        MemoryKind::Managed => Some("managed memory cannot be mapped again at its addresses"),
        MemoryKind::Device if is_of_others => Some("its memory is another process's"),
        MemoryKind::Device if properties.virtual_memory => None,
        MemoryKind::Device => {
            Some("the device cannot map memory again at its addresses (virtual memory management)")
        }
    }
}

// ---- the state ---------------------------------------------------------------------------------------

/// What a pool knows of its sleep. Its lock is taken before the pool's, by one sleep or wake at a time: else the one that fails
/// could open the gate of another.
#[derive(Debug, Default)]
pub(crate) struct Sleep(OfProcess<Mutex<Sleeper>>);

#[derive(Debug, Default)]
struct Sleeper {
    /// Nothing while the pool is awake.
    asleep: Asleep,
    /// Kept from one sleep to the next.
    staging: PinnedMemory,
}

impl Sleep {
    /// See [`Pool::sleep`](crate::Pool::sleep).
    pub(crate) fn sleep(&self, core: &Core, keep: Keep) -> Result<u64> {
        core.check_process()?;
        if let Some(why) = obstacle(core.device.properties(), core.keeps_nothing) {
            return Err(Error::CannotSleep { pool: core.name_of(), why });
        }
        let mut sleeper = self.0.lock();
        // Then its memory is another pool's already.
        if core.gate.is_evicted() {
            return Ok(0);
        }
        core.gate.close();
        let slept = sleeper.sleep_behind_gate(core, keep);
        if !core.state.lock().is_asleep {
            core.gate.open();
        }
        slept
    }

    /// See [`Pool::wake`](crate::Pool::wake).
    pub(crate) fn wake(&self, core: &Core) -> Result<()> {
        core.check_process()?;
        let mut sleeper = self.0.lock();
        // Then its memory is another pool's already.
        if core.gate.is_evicted() {
            return Ok(());
        }
        let woken = sleeper.wake(core)?;
        drop(sleeper);
        woken.map_err(|what| out_of_memory_awaking(core, what))?;
        // What was put off.
        let_go_of_released(core);
        Ok(())
    }

    /// Until this is dropped, the pool neither falls asleep nor wakes.
    pub(crate) fn exclude(&self) -> Excluded<'_> {
        Excluded(self.0.lock())
    }

    /// See [`Pool::trim_staging`](crate::Pool::trim_staging).
    pub(crate) fn trim_staging(&self) -> DeviceResult<u64> {
        let mut sleeper = self.0.lock();
        if sleeper.asleep.pages.is_empty() { sleeper.staging.release() } else { Ok(0) }
    }
}

/// See [`Sleep::exclude`].
#[derive(Debug)]
#[must_use = "the pool may sleep once this is dropped"]
pub(crate) struct Excluded<'a>(#[expect(dead_code)] MutexGuard<'a, Sleeper>);

impl Sleeper {
    fn sleep_behind_gate(&mut self, core: &Core, keep: Keep) -> Result<u64> {
        let refuse = |why| Err(Error::CannotSleep { pool: core.name_of(), why });
        if let Some(why) = core.gate.why_it_stays() {
            return refuse(why);
        }
        // Without the pool's lock: the device may be waiting for a function of the host that uses the pool.
        if !core.timelines.synchronize_device_unless_capturing()? {
            return refuse(
                "a graph is being captured, which a wait for the device would end: end the capture first",
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
        let before = core.counters.reserved.current();
        let slept = self.sleep_under_lock(core, &mut state, keep);
        // Free segments go, too.
        unlock_logging(core, state);
        slept.map_err(|error| core.error_of(error))?;
        Ok(before.saturating_sub(core.counters.reserved.current()))
    }

    fn sleep_under_lock(&mut self, core: &Core, state: &mut PoolState, keep: Keep) -> DeviceResult<()> {
        if !state.is_asleep {
            core.pause_caches(state);
            let prepared = self.prepare(core, &mut state.arenas, keep);
            self.asleep = prepared.inspect_err(|_| core.resume_caches(state))?;
        }
        state.is_asleep = true;
        let slept = self.copy_and_go(core, &mut state.arenas);
        if slept.is_ok() {
            return Ok(());
        }
        // Copies may be under way, and their pages may be used again.
        let waited = self.staging.wait();
        if self.asleep.kept < self.asleep.pages.len() {
            // Some bytes are in their pages only. So those that have gone come back.
            match self.wake_pages(core, &mut state.arenas) {
                Ok(()) => self.end(core, state),
                Err(refusal) => {
                    log!(
                        WARN,
                        "a sleep failed, and so did the wake after it",
                        refusal = format_args!("{refusal:?}"),
                        pool = core.name
                    )
                }
            }
        }
        waited.and(slept)
    }

    /// All pages are awake.
    fn end(&mut self, core: &Core, state: &mut PoolState) {
        self.asleep = Asleep::default();
        state.is_asleep = false;
        core.resume_caches(state);
        core.gate.open();
    }

    /// Gives back what is free, lists what will sleep, and takes pinned memory for what is to be kept.
    fn prepare(&mut self, core: &Core, arenas: &mut Arenas, keep: Keep) -> DeviceResult<Asleep> {
        arenas.trim();
        trim(&mut arenas.own, 0)?;
        let mut asleep = Asleep::default();
        for (id, arena) in arenas.iter_mut() {
            asleep.add(arena, id, keep, |_, _| true)?;
        }
        let lacking = asleep.bytes().saturating_sub(self.staging.bytes());
        if lacking > 0 {
            _ = self.staging.add(core.timelines.device().as_ref(), lacking)?;
        }
        Ok(asleep)
    }

    /// Copies what is to be kept of each page, and lets the page go once that is done. A page that cannot go is no reason to
    /// keep the others.
    fn copy_and_go(&mut self, core: &Core, arenas: &mut Arenas) -> DeviceResult<()> {
        let Self { asleep, staging } = self;
        let device = core.timelines.device();
        let stream = staging.stream(device)?;
        let (mut under_way, mut next) = (None::<(usize, OwnedEvent)>, asleep.kept);
        // Those that are kept, and could not go.
        let mut gone = asleep.go(0..next, arenas);
        while next < asleep.pages.len() || under_way.is_some() {
            let batch = asleep.batch_from(next);
            next = batch.end;
            // SAFETY: the pages are mapped, and nobody uses them while the gate is closed. Nobody else has the pinned memory.
            let copy = |piece| unsafe { copies::copy((device.as_ref(), stream), staging, piece, false) };
            asleep.pieces_of(batch.clone()).try_for_each(copy)?;
            let copied = if batch.is_empty() { None } else { Some((next, copies::mark(device, stream)?)) };
            // This batch is copied while the pages of the one before go.
            let Some((end, copied)) = std::mem::replace(&mut under_way, copied) else { continue };
            copied.synchronize()?;
            gone = gone.and(asleep.go(asleep.kept..end, arenas));
        }
        gone
    }

    // ---- wake --------------------------------------------------------------------------------------

    /// What is short where there is no memory. Others are asked for it first.
    fn wake(&mut self, core: &Core) -> Result<std::result::Result<(), Shortage>> {
        let mut attempt = || Ok(self.wake_under_lock(core, &mut core.state.lock()));
        match attempt()? {
            Ok(()) => Ok(Ok(())),
            Err(first) => make_room(core, core.counters.asleep.current(), steps_of_others(), first, attempt),
        }
    }

    fn wake_under_lock(&mut self, core: &Core, state: &mut PoolState) -> std::result::Result<(), Refusal> {
        if !state.is_asleep {
            // Also where the pool came to its end meanwhile, with nothing live in it.
            self.asleep = Asleep::default();
            return Ok(());
        }
        state.arenas.forget_gone();
        self.asleep.join(&mut state.arenas);
        self.wake_pages(core, &mut state.arenas)?;
        self.end(core, state);
        Ok(())
    }

    /// Wakes all pages that are kept. If that fails, they sleep again, as far as they can.
    fn wake_pages(&mut self, core: &Core, arenas: &mut Arenas) -> std::result::Result<(), Refusal> {
        let woken = self.bring_back(core, arenas);
        // Also after an error: copies may be under way.
        let copied = self.staging.wait();
        if woken.is_ok() && copied.is_ok() {
            return Ok(());
        }
        if copied.is_ok()
            && let Err(error) = self.asleep.go(0..self.asleep.kept, arenas)
        {
            log!(WARN, "a wake failed, and a page could not go again", error, pool = core.name);
        }
        woken.and(copied.map_err(Refusal::from))
    }

    /// Maps what is kept, and gives the copies to the device.
    fn bring_back(&mut self, core: &Core, arenas: &mut Arenas) -> std::result::Result<(), Refusal> {
        let Self { asleep, staging } = self;
        let device = core.timelines.device();
        let stream = staging.stream(device)?;
        for at in 0..asleep.kept {
            let page = &mut asleep.pages[at];
            let Some(arena) = arenas.named_mut(page.of) else { continue };
            if !page.page.wake(arena)? {
                continue;
            }
            // SAFETY: the page is mapped, and nobody uses it while the gate is closed. The pinned memory stays.
            let copy = |piece| unsafe { copies::copy((device.as_ref(), stream), staging, piece, true) };
            asleep.pieces_of(at..at + 1).try_for_each(copy)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::core::Gate;

    #[test]
    fn who_comes_while_a_sleep_begins_is_refused() {
        let gate = Gate::default();
        gate.close();
        assert!(gate.enter().is_none(), "the sleep looked for residents, or is about to");
        assert!(!gate.has_residents());
        gate.open();
        let entered = gate.enter();
        let resident = gate.resident.clone();
        drop(entered);
        gate.close();
        assert!(gate.has_residents());
        drop(resident);
        assert!(!gate.has_residents());
    }
}
