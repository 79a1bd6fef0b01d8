//! A pool that is recorded: its fast path is closed, so that every request comes by the functions that note it.

use super::inner::PoolInner;
#[cfg(feature = "record")]
use crate::{
    Result,
    device::{Kind, MemoryKind},
    extents::Arena,
    record::{Introduction, Moment, Options, Status},
};

#[cfg(feature = "record")]
impl PoolInner {
    pub(super) fn start_recording(&self, options: &Options) -> Result<()> {
        self.check_process()?;
        let device = self.device.as_ref();
        let device_key = match device.properties().kind {
            Kind::Cuda if device.properties().memory == MemoryKind::Device => {
                device.properties().ordinal as u64
            }
            // Devices made of software are as many as there are objects, and so is other memory. None lies so low.
            _ => std::ptr::from_ref(device).addr() as u64,
        };
        let introduction = Introduction { name: &self.name, device, device_key };
        // The first one takes 20 ms, and others may need the lock.
        Moment::now();
        let mut state = self.state.lock();
        // No thread is on the fast path from here on, so that what is noted once is noted until its end.
        self.caches.set_lock_entries(&mut state.locked, false);
        let started = self.recording.start(options, &introduction);
        if started.is_ok() {
            self.recording.live(state.arenas().flat_map(Arena::live));
        } else {
            self.caches.set_lock_entries(&mut state.locked, true);
        }
        started
    }

    pub(super) fn stop_recording(&self) -> Result<Option<Status>> {
        self.check_process()?;
        let stopped = self.recording.stop();
        self.open_lock_entries();
        stopped
    }
}

impl PoolInner {
    /// Opens the fast path again, where recording has ended; another time where the lock is not free now.
    #[cold]
    pub(super) fn open_lock_entries(&self) {
        if let Some(mut state) = self.state.try_lock()
            && !self.recording.is_on()
        {
            self.caches.set_lock_entries(&mut state.locked, true);
        }
    }
}
