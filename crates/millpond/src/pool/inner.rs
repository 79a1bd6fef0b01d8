//! What the handles of a pool share: the threads' caches, the arena behind its lock, the counters beside it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};

use crate::lock::{Mutex, RwLock};

use super::asleep::Asleep;
use super::callbacks::{Callbacks, Observer, Reclaimer};
use super::capture_memory::CaptureMemory;
use super::registry::{Registered, Registry};
use super::routes::Routes;
use super::shares::Shares;
use super::sleep_gate::SleepGate;
use super::staging::Staging;
use crate::cache::{Caches, Locked};
use crate::counters::{Counted, Counters};
use crate::device::{Device, DeviceError, DevicePtr};
use crate::extents::{Arena, ExtentId, PageMap, Pointer, Ranges};
use crate::host::name_for_error;
use crate::order::{Reuse, Stream, Timelines};
use crate::physical::Limits;
use crate::policy::ledger::Ledger;
use crate::process::OfProcess;
use crate::record::Recording;
use crate::stats::Stats;
use crate::{Error, Result};

/// See the [module](self).
pub(crate) struct PoolInner {
    pub(super) name: String,
    /// Unlike any other pool's.
    pub(super) number: u64,
    pub(super) timelines: Arc<Timelines>,
    /// Whose memory the pool takes: that of the timelines, or another that its streams work on.
    pub(super) device: Arc<dyn Device>,
    pub(super) registry: Weak<Registry<Self>>,
    /// Which pool of the context owns which addresses.
    pub(super) ranges: Arc<Ranges>,
    /// A copy of the arena's, for readers without the lock.
    pub(super) limits: Limits,
    pub(super) counters: Arc<Counters>,
    pub(super) recording: Recording,
    pub(crate) caches: OfProcess<Caches>,
    pub(super) page_map: Arc<PageMap>,
    pub(super) routes: Routes,
    pub(super) state: OfProcess<Mutex<PoolState>>,
    pub(super) release_threshold: AtomicU64,
    pub(super) reclaimers: Callbacks<Reclaimer>,
    pub(super) observers: Callbacks<Observer>,
    pub(super) largest_align: u64,
    pub(super) reuse: Reuse,
    /// Closed while the pool sleeps.
    pub(super) sleep_gate: SleepGate,
    /// Held by who puts the pool to sleep or wakes it.
    pub(super) sleep_turn: OfProcess<Mutex<()>>,
    /// What other processes may use.
    pub(super) shares: Shares,
    /// Whether its memory is other processes': it goes back as soon as it is free.
    pub(super) is_of_others: bool,
    /// Held for reading while a copy of the pool's memory is given to another device, and for writing while access is taken
    /// back.
    pub(super) peer_copies: OfProcess<RwLock<()>>,
    /// Whether a block that was freed twice at once was reported.
    pub(super) has_said_freed_twice: AtomicBool,
}

/// What the pool's lock guards. Whoever takes the lock writes to its cache line. So that line holds nothing that
/// threads read on the fast path. (Processors fetch lines in pairs.)
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct PoolState {
    pub(super) arena: Arena,
    pub(super) locked: Locked,
    pub(super) ledger: Ledger,
    pub(super) captured: CaptureMemory,
    pub(super) destroyed: bool,
    /// Set while the pool sleeps.
    pub(super) asleep: Option<Asleep>,
    pub(super) staging: Staging,
}

impl fmt::Debug for PoolInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolInner").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PoolInner {
    /// Every slow path calls this before it locks, waits, or calls the device: an error in a forked child. There the fast
    /// path finds nothing (`cache/thread_index.rs`), so that all requests come here.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<()> {
        Ok(self.timelines.check_process()?)
    }

    /// Whether this process made the pool, and was not forked from the one that did.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.timelines.is_here()
    }

    /// Whose memory the pool takes.
    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// What every block's address is a multiple of, in bytes.
    pub(crate) fn min_alignment(&self) -> u64 {
        self.caches.sizes().bytes(1)
    }

    /// The pool's name, for an error; none where the host has no memory for it.
    pub(crate) fn name_of(&self) -> String {
        name_for_error(&self.name)
    }

    /// What is said where the host refused what a call needs.
    #[cold]
    pub(crate) fn no_host_memory(&self, what: &'static str, bytes: u64) -> Error {
        Error::HostMemory { what, bytes, pool: self.name_of() }
    }

    /// A device call's error, as this pool's.
    #[cold]
    pub(super) fn error_of(&self, error: DeviceError) -> Error {
        match error {
            DeviceError::HostMemory { what, bytes } => self.no_host_memory(what, bytes),
            error => error.into(),
        }
    }

    #[inline]
    pub(crate) fn check_stream(&self, stream: &Stream) -> Result<()> {
        if Arc::ptr_eq(stream.timelines(), &self.timelines) {
            return Ok(());
        }
        Err(Error::WrongDevice { what: "stream", pool: self.name_of() })
    }

    pub(super) fn with_live<R>(
        &self,
        ptr: DevicePtr,
        look: impl FnOnce(&mut Arena, ExtentId) -> R,
    ) -> Result<R> {
        self.check_process()?;
        let mut state = self.state.lock();
        match state.look_up(ptr) {
            Pointer::Live(id) => Ok(look(state.arena_of(ptr), id)),
            pointer => {
                drop(state);
                Err(self.misuse(ptr, pointer))
            }
        }
    }

    /// What all threads counted. Where several count at once, a peak may be too high, but never too low. So where one
    /// figure never exceeds another, its peak is cut to the other's.
    pub(super) fn counted(&self) -> Counted {
        let mut counted = self.caches.counted();
        let held = self.counters.reserved.level().high;
        counted.allocated.high = counted.allocated.high.min(held.max(counted.allocated.current));
        counted.requested.high = counted.requested.high.min(counted.allocated.high);
        counted
    }

    pub(super) fn stats(&self) -> Stats {
        self.collect_ended_if_free();
        Stats { double_frees: self.caches.freed_twice(), ..self.counters.stats(self.counted()) }
    }

    pub(super) fn reset_high_water(&self) {
        if !self.is_here() {
            return;
        }
        let mut state = self.state.lock();
        self.counters.reset_high_water();
        self.caches.reset_high_water(&mut state.locked);
    }

    /// What is wrong with a pointer that is no live block of this pool. Called without the lock.
    #[cold]
    pub(super) fn misuse(&self, ptr: DevicePtr, pointer: Pointer) -> Error {
        let pool = self.name_of();
        match pointer {
            Pointer::Inside(start) => {
                Error::InteriorPointer { ptr, start, offset: ptr.raw() - start.raw(), pool }
            }
            Pointer::NotLive | Pointer::Live(_) => Error::DoubleFree { ptr, pool },
            Pointer::Foreign => match self.registry.upgrade().and_then(|all| all.owner_of(ptr)) {
                Some(owner) => Error::WrongPool { ptr, pool, owner: owner.name_of() },
                None => Error::ForeignPointer { ptr, pool },
            },
        }
    }

    /// The ranges of addresses that pages back: first address, bytes, and the memory of a capture that they belong to.
    pub(crate) fn backed(&self) -> Vec<(DevicePtr, u64, Option<u64>)> {
        if self.is_here() { self.state.lock().backed() } else { Vec::new() }
    }

    /// The memory of a capture in whose address space the pointer lies.
    pub(crate) fn memory_of(&self, ptr: DevicePtr) -> Option<u64> {
        self.ranges.owner_of(ptr).filter(|owner| owner.pool == self.number)?.memory
    }

    /// Bytes of the longest free block.
    #[cfg(test)]
    pub(crate) fn largest_free(&self) -> u64 {
        self.state.lock().arena.largest_free()
    }
}

impl Registered for PoolInner {
    fn number(&self) -> u64 {
        self.number
    }

    fn holds_nothing(&self) -> bool {
        self.counters.reserved.current() == 0 && self.counted().blocks.current == 0
    }
}
