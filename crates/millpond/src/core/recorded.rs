//! A pool that is recorded: its fast path is closed, so that every request comes by the functions that note it.

use super::pool_core::Core;
#[cfg(feature = "record")]
use crate::{
    Result,
    device::{Kind, MemoryKind},
    record::{Introduction, Moment, Options, Status},
};

#[cfg(feature = "record")]
pub(crate) fn start_recording(core: &Core, options: &Options) -> Result<()> {
    core.check_process()?;
    let device = core.device.as_ref();
    let device_key = match device.properties().kind {
        Kind::Cuda if device.properties().memory == MemoryKind::Device => device.properties().ordinal as u64,
        // Devices made of software are as many as there are objects, and so is other memory. None lies so low.
        _ => std::ptr::from_ref(device).addr() as u64,
    };
    let introduction = Introduction { name: &core.name, device, device_key };
    // The first one takes 20 ms, and others may need the lock.
    Moment::now();
    let mut state = core.state.lock();
    // No thread is on the fast path from here on, so that what is noted once is noted until its end.
    core.caches.set_lock_entries(&mut state.locked, false);
    let started = core.recording.start(options, &introduction);
    if started.is_ok() {
        core.recording.live(state.arenas.iter().flat_map(|(_, arena)| arena.live()));
    } else {
        core.caches.set_lock_entries(&mut state.locked, true);
    }
    started
}

#[cfg(feature = "record")]
pub(crate) fn stop_recording(core: &Core) -> Result<Option<Status>> {
    core.check_process()?;
    let stopped = core.recording.stop();
    open_lock_entries(core);
    stopped
}

/// Opens the fast path again, where recording has ended; another time where the lock is not free now.
#[cold]
pub(crate) fn open_lock_entries(core: &Core) {
    if let Some(mut state) = core.state.try_lock()
        && !core.recording.is_on()
    {
        core.caches.set_lock_entries(&mut state.locked, true);
    }
}
