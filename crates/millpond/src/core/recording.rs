//! A pool that is recorded: its fast path is closed, so that every request comes by the functions that note it.

use crate::core::{Core, PoolState};
use crate::error::Result;
use crate::record::{Introduction, LiveBlock, Moment, Options, Recording, Tracking};

/// Starts what notes blocks: no thread is on the fast path from then on, so that what is noted once is noted until its end.
fn start(core: &Core, start: impl FnOnce(&PoolState) -> Result<()>) -> Result<()> {
    core.check_process()?;
    // The first one takes 20 ms, and others may need the lock.
    Moment::now();
    let mut state = core.state.lock();
    core.caches.close_entries(&mut state.locked, true);
    let started = start(&state);
    core.caches.close_entries(&mut state.locked, core.closes_fast_path());
    started
}

/// Closes the fast path of a fresh pool, if a tool checks its blocks, or something stands between: it is to hear of each.
pub(crate) fn start_checking(core: &Core) -> Result<()> {
    if core.closes_fast_path() { start(core, |_| Ok(())) } else { Ok(()) }
}

pub(crate) fn start_recording(core: &Core, options: &Options) -> Result<()> {
    start(core, |state| {
        core.recording.start(options, &Introduction::of(&core.name, &*core.device))?;
        core.recording.live(core.as_the_program_knows(state).into_iter());
        Ok(())
    })
}

pub(crate) fn start_tracking(core: &Core, options: &Tracking) -> Result<()> {
    start(core, |_| {
        core.recording.start_tracking(options, &Introduction::of(&core.name, &*core.device));
        Ok(())
    })
}

/// Ends the recording, or the tracking.
pub(crate) fn stop<T>(core: &Core, stop: impl FnOnce(&Recording) -> T) -> Result<T> {
    core.check_process()?;
    let stopped = stop(&core.recording);
    core.caches.close_entries(&mut core.state.lock().locked, core.closes_fast_path());
    Ok(stopped)
}

pub(crate) fn live_blocks(core: &Core) -> Result<Vec<LiveBlock>> {
    core.check_process()?;
    Ok(core.recording.live_blocks(|| core.live()))
}
