//! What the handles of a pool share: the arena behind its lock, the counters beside it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::pressure::Reclaimers;
use super::registry::Registry;
use crate::arena::{Arena, BlockId, Pointer};
use crate::counters::Counters;
use crate::device::{DevicePtr, DeviceResult, Kind};
use crate::order::{AfterSync, Stream, Timelines};
use crate::record::{self, Introduction, Recording};
use crate::{Error, Result};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct PoolInner {
    pub(super) name: String,
    pub(super) timelines: Arc<Timelines>,
    pub(super) registry: Weak<Registry>,
    pub(super) counters: Arc<Counters>,
    pub(super) recording: Recording,
    pub(super) state: Mutex<State>,
    pub(super) release_threshold: AtomicU64,
    pub(super) reclaimers: Reclaimers,
    pub(super) largest_align: u64,
}

/// What the pool's lock guards.
#[derive(Debug)]
pub(super) struct State {
    pub(super) arena: Arena,
    pub(super) destroyed: bool,
}

impl PoolInner {
    #[inline]
    pub(crate) fn check_stream(&self, stream: &Stream) -> Result<()> {
        if Arc::ptr_eq(stream.timelines(), &self.timelines) {
            return Ok(());
        }
        Err(Error::WrongDevice { what: "stream", pool: self.name.clone() })
    }

    pub(crate) fn alloc(&self, bytes: u64, align: u64, stream: &Stream) -> Result<DevicePtr> {
        self.check_stream(stream)?;
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        if !align.is_power_of_two() || align > self.largest_align {
            return Err(Error::BadAlignment { align, largest: self.largest_align });
        }
        if bytes > LARGEST_REQUEST {
            return Err(Error::SizeOverflow { bytes, count: 1 });
        }
        let allocated = {
            let mut state = self.state.lock();
            if state.destroyed {
                return Err(Error::PoolDestroyed { pool: self.name.clone() });
            }
            state.arena.alloc(bytes, align, stream)
        };
        let ptr = match allocated {
            Ok(ptr) => ptr,
            Err(refusal) => self.alloc_under_pressure((bytes, align), stream, refusal)?,
        };
        self.recording.alloc(ptr, bytes, stream);
        Ok(ptr)
    }

    pub(crate) fn free(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        self.check_stream(stream)?;
        if ptr.is_null() {
            return Ok(());
        }
        let last_of_destroyed = {
            let mut state = self.state.lock();
            let Pointer::Live(id) = state.arena.look_up(ptr) else {
                let pointer = state.arena.look_up(ptr);
                drop(state);
                return Err(self.misuse(ptr, pointer));
            };
            self.recording.free(ptr, state.arena.requested(id), stream);
            state.arena.free(id, stream.fence());
            state.destroyed && self.counters.blocks.current() == 0
        };
        if last_of_destroyed {
            self.give_all_back_slow();
        }
        Ok(())
    }

    pub(crate) fn record_use(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        self.check_stream(stream)?;
        self.with_live(ptr, |arena, id| {
            arena.record_use(id, stream);
            self.recording.record_use(ptr, stream);
        })
    }

    pub(super) fn start_recording(&self, options: &record::Options) -> Result<()> {
        let device = self.timelines.device().as_ref();
        let device_key = match device.properties().kind {
            Kind::Cuda => device.properties().ordinal as u64,
            // Devices made of software are as many as there are objects, none of which lies so low.
            _ => std::ptr::from_ref(device).addr() as u64,
        };
        let introduction = Introduction { name: &self.name, device, device_key };
        self.recording.start(options, &introduction)?;
        let state = self.state.lock();
        self.recording.live(state.arena.live());
        Ok(())
    }

    pub(super) fn with_live<R>(
        &self,
        ptr: DevicePtr,
        look: impl FnOnce(&mut Arena, BlockId) -> R,
    ) -> Result<R> {
        let mut state = self.state.lock();
        match state.arena.look_up(ptr) {
            Pointer::Live(id) => Ok(look(&mut state.arena, id)),
            pointer => {
                drop(state);
                Err(self.misuse(ptr, pointer))
            }
        }
    }

    /// What is wrong with a pointer that is no live block of this pool. Called without the lock.
    #[cold]
    fn misuse(&self, ptr: DevicePtr, pointer: Pointer) -> Error {
        let pool = self.name.clone();
        match pointer {
            Pointer::Inside(start) => {
                Error::InteriorPointer { ptr, start, offset: ptr.raw() - start.raw(), pool }
            }
            Pointer::NotLive | Pointer::Live(_) => Error::DoubleFree { ptr, pool },
            Pointer::Foreign => match self.registry.upgrade().and_then(|all| all.owner_of(ptr)) {
                Some(owner) => Error::WrongPool { ptr, pool, owner: owner.name.clone() },
                None => Error::ForeignPointer { ptr, pool },
            },
        }
    }

    pub(super) fn knows(&self, ptr: DevicePtr) -> bool {
        self.state.lock().arena.look_up(ptr) != Pointer::Foreign
    }

    pub(super) fn holds_nothing(&self) -> bool {
        self.counters.reserved.current() == 0 && self.counters.blocks.current() == 0
    }

    pub(super) fn trim(&self, keep: u64) -> DeviceResult<u64> {
        let released = self.state.lock().arena.trim(keep)?;
        self.recording.trim(keep, released);
        Ok(released)
    }

    /// The last block of a destroyed pool is gone: gives back what can be given back without waiting. What
    /// pending work still uses goes when the host next synchronises, or with the context.
    #[cold]
    pub(super) fn give_all_back_slow(&self) {
        if let Err(error) = self.trim(0) {
            tracing::warn!(%error, pool = self.name, "a destroyed pool could not give back its memory");
        }
        if let Some(registry) = self.registry.upgrade() {
            registry.bury();
        }
    }

    /// The last handle of the pool is gone, or it was destroyed.
    pub(super) fn close(self: &Arc<Self>) -> Result<()> {
        self.recording.flush();
        let (blocks, bytes) = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.destroyed, true) {
                return Ok(());
            }
            let (blocks, bytes) = (self.counters.blocks.current(), self.counters.requested.current());
            if blocks == 0 {
                return Ok(state.arena.tear_down()?);
            }
            (blocks, bytes)
        };
        if let Some(registry) = self.registry.upgrade() {
            registry.outlive(self.clone());
        }
        Err(Error::LiveBlocks { pool: self.name.clone(), blocks, bytes })
    }
}

/// More than any device can address: sizes beyond it come from arithmetic that overflowed.
const LARGEST_REQUEST: u64 = 1 << 56;

impl AfterSync for PoolInner {
    fn after_sync(&self) {
        // Relaxed: a setting; it takes effect at the next synchronise.
        let threshold = self.release_threshold.load(Ordering::Relaxed);
        let destroyed = {
            let mut state = self.state.lock();
            let keep = if state.destroyed { 0 } else { threshold };
            if self.counters.reserved.current() > keep {
                match state.arena.trim(keep) {
                    Ok(0) => {}
                    Ok(released) => self.recording.trim(keep, released),
                    Err(error) => {
                        tracing::warn!(%error, pool = self.name, "the release threshold could not be applied");
                    }
                }
            }
            state.destroyed
        };
        if destroyed && let Some(registry) = self.registry.upgrade() {
            registry.bury();
        }
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        if let Err(error) = self.state.get_mut().arena.tear_down() {
            tracing::error!(%error, pool = self.name, "a pool could not give back all its memory");
        }
        if let Err(error) = self.recording.stop() {
            tracing::warn!(%error, pool = self.name, "the end of a recording is missing");
        }
    }
}
