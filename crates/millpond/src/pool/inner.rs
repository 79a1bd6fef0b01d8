//! What the handles of a pool share: the threads' caches, the arena behind its lock, the counters beside it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::beyond_caches::take_back;
use super::captured::Captured;
use super::haste::{Haste, THROUGH_ARENA};
use super::pressure::{Callbacks, Observer, Reclaimer};
use super::registry::Registry;
use super::routes::Routes;
use crate::arena::{Arena, BlockId, Entry, MOST_UNITS, Out, Pointer, Refusal, Views};
use crate::cache::{Caches, Locked, ThreadEnd};
use crate::counters::{Counted, Counters};
use crate::device::{DevicePtr, DeviceResult, Kind};
use crate::order::{AfterSync, Fence, Reuse, Stream, Timelines};
use crate::pages::Shortage;
use crate::record::{self, Introduction, Moment, Recording};
use crate::stats::Stats;
use crate::{Error, Result};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct PoolInner {
    pub(super) name: String,
    pub(super) timelines: Arc<Timelines>,
    pub(super) registry: Weak<Registry>,
    pub(super) counters: Arc<Counters>,
    pub(super) recording: Recording,
    pub(crate) caches: Caches,
    pub(super) views: Arc<Views>,
    pub(super) routes: Routes,
    pub(super) state: Mutex<State>,
    pub(super) release_threshold: AtomicU64,
    pub(super) reclaimers: Callbacks<Reclaimer>,
    pub(super) observers: Callbacks<Observer>,
    pub(super) largest_align: u64,
    pub(super) reuse: Reuse,
}

/// What the pool's lock guards. Apart from what threads read on the fast path: whoever takes the lock writes to its
/// cache line (processors fetch lines in pairs).
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct State {
    pub(super) arena: Arena,
    pub(super) locked: Locked,
    pub(super) haste: Haste,
    /// The memory of captures.
    pub(super) captured: Vec<Captured>,
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

    /// Allocates without a wish for the address. The fast path is one call, which takes no lock; a pool that is
    /// recorded has it closed.
    #[inline]
    pub(crate) fn alloc(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
        match self.caches.alloc(bytes, stream) {
            Some(ptr) => Ok(ptr),
            None => self.alloc_slow(bytes, 1, stream),
        }
    }

    /// Allocates at a multiple of `align`, which may be what every block has.
    #[inline]
    pub(crate) fn alloc_aligned(&self, bytes: u64, align: u64, stream: &Stream) -> Result<DevicePtr> {
        if align.is_power_of_two() && align <= self.caches.sizes().bytes(1) {
            return self.alloc(bytes, stream);
        }
        self.alloc_slow(bytes, align, stream)
    }

    /// Allocates under the lock: from the depot or the arena, with what all caches hold, and under pressure.
    #[cold]
    pub(super) fn alloc_slow(&self, bytes: u64, align: u64, stream: &Stream) -> Result<DevicePtr> {
        if !self.caches.has_doors() {
            if !self.recording.is_on() {
                self.open_doors();
            } else if align == 1
                && let Some(ptr) = self.caches.alloc_wide(bytes, stream)
            {
                self.recording.alloc(ptr, bytes, stream);
                return Ok(ptr);
            }
        }
        if align == 1
            && let Some(ptr) = self.alloc_unlocked(bytes, stream)
        {
            self.recording.alloc(ptr, bytes, stream);
            return Ok(ptr);
        }
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
        let ptr = match self.try_alloc((bytes, align), stream)? {
            Ok(ptr) => ptr,
            Err(refusal) => self.alloc_under_pressure((bytes, align), stream, refusal)?,
        };
        self.recording.alloc(ptr, bytes, stream);
        Ok(ptr)
    }

    /// One try to allocate, under the lock.
    pub(super) fn try_alloc(
        &self,
        (bytes, align): (u64, u64),
        stream: &Stream,
    ) -> Result<std::result::Result<DevicePtr, Refusal>> {
        let route = self.routes.of(stream);
        let mut state = self.lock_noting_waits();
        if state.destroyed {
            return Err(Error::PoolDestroyed { pool: self.name.clone() });
        }
        if let Some(captured) = route.and_then(|to| state.captured(to)) {
            return Ok(self.alloc_captured(&mut state, captured, (bytes, align), stream));
        }
        Ok(self.alloc_under_lock(&mut state, bytes, align, stream))
    }

    /// The steps of a slow allocation that need the lock, in the order of what they cost. Memory is mapped,
    /// stolen or created only after every cache was emptied, or in [haste](super::haste).
    fn alloc_under_lock(
        &self,
        state: &mut State,
        bytes: u64,
        align: u64,
        stream: &Stream,
    ) -> std::result::Result<DevicePtr, Refusal> {
        let sizes = self.caches.sizes();
        let mut out = None;
        let in_haste = state.haste.is_on();
        // Rounded whatever the alignment: a magazine of a class hands out any of its blocks, so that all of them
        // must have the class's length.
        let units = if in_haste { sizes.units_in_haste(bytes) } else { sizes.units(bytes) };
        if units >= MOST_UNITS {
            return Err(Refusal::Short { what: Shortage::Device, bytes });
        }
        // Caches promise no more than the minimum alignment, which is 1 here.
        if align == 1 {
            let State { arena, locked, .. } = &mut *state;
            out = self.caches.restock(locked, units, stream, |cached| take_back(arena, cached));
        }
        let out = match out {
            Some(out) => out,
            None => self.alloc_from_arena(state, units, align, stream)?,
        };
        // SAFETY: the block is out, and the arena is this pool's.
        let entry = unsafe { out.entry.get() };
        self.caches.label(&mut state.locked, entry);
        entry.make_live(out.ptr, bytes);
        self.caches.count_alloc(&mut state.locked, bytes, out.bytes);
        if !out.hit {
            self.counters.misses.add(1);
        }
        Ok(out.ptr)
    }

    /// A block that no magazine has.
    fn alloc_from_arena(
        &self,
        state: &mut State,
        units: u64,
        align: u64,
        stream: &Stream,
    ) -> std::result::Result<Out, Refusal> {
        self.gather_if_due(state, units, stream);
        if let Some(out) = state.arena.alloc_ready(units, align, stream) {
            self.note_waste(state, THROUGH_ARENA);
            return Ok(out);
        }
        if state.haste.is_on() && self.may_spare(state, units) {
            // Where that fails, what others have is asked for.
            if let Ok(out) = state.arena.alloc_growing(units, align, stream) {
                self.adapt(state);
                return Ok(out);
            }
        }
        let out = self.alloc_beyond_caches(state, units, align, stream)?;
        self.adapt(state);
        Ok(out)
    }

    /// Whether a pool in haste may hold so much more.
    fn may_spare(&self, state: &State, units: u64) -> bool {
        let bytes = self.caches.sizes().bytes(units);
        self.counters.reserved.current() + bytes <= self.counted().allocated.high + state.haste.spare()
    }

    /// Frees a block. The fast path is one call, which takes no lock.
    #[inline]
    pub(crate) fn free(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        if self.caches.free(ptr, stream) { Ok(()) } else { self.free_slow(ptr, stream) }
    }

    #[cold]
    fn free_slow(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        if self.recording.is_on() {
            self.free_recorded(ptr, stream)
        } else {
            self.free_unrecorded(ptr, stream)
        }
    }

    /// Frees, and notes it as of a time when nobody else could have the block yet. What is no live block is
    /// an error, and not noted.
    fn free_recorded(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        let before = Moment::now();
        if let Some(requested) = self.caches.free_wide(ptr, stream) {
            self.recording.free(ptr, requested, stream, before);
            return Ok(());
        }
        let requested = if ptr.is_null() { None } else { self.requested(ptr) };
        self.free_unrecorded(ptr, stream)?;
        if let Some(requested) = requested {
            self.recording.free(ptr, requested, stream, before);
        }
        Ok(())
    }

    /// Bytes asked for in the live block that starts at `ptr`; `None` where there is none. Takes the lock
    /// only where the entry of the block does not say.
    fn requested(&self, ptr: DevicePtr) -> Option<u64> {
        if let Some(entry) = self.views.find(ptr).filter(|entry| entry.is_plain(ptr)) {
            return Some(entry.requested());
        }
        let mut state = self.state.lock();
        match state.look_up(ptr) {
            Pointer::Live(id) => Some(state.arena_of(ptr).requested(id)),
            _ => None,
        }
    }

    /// Frees under the lock: what has no room in the thread's magazines, is used by other streams, or is no
    /// live block at all.
    fn free_unrecorded(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        if self.caches.free_wide(ptr, stream).is_some() {
            return Ok(());
        }
        self.check_stream(stream)?;
        if ptr.is_null() {
            return Ok(());
        }
        let last_of_destroyed = {
            let mut state = self.lock_noting_waits();
            let plain = self.views.find(ptr).filter(|entry| entry.is_plain(ptr));
            match plain.filter(|_| state.captured.is_empty() && !state.destroyed) {
                // Nearly always: what has no room in a magazine.
                Some(entry) => self.free_plain(&mut state, entry, stream),
                None => {
                    let pointer = state.look_up(ptr);
                    let Pointer::Live(id) = pointer else {
                        drop(state);
                        return Err(self.misuse(ptr, pointer));
                    };
                    self.free_under_lock(&mut state, ptr, id, stream);
                }
            }
            state.destroyed && self.counted().blocks.current == 0
        };
        if last_of_destroyed {
            self.give_all_back_slow();
        }
        Ok(())
    }

    fn free_under_lock(&self, state: &mut State, ptr: DevicePtr, id: BlockId, stream: &Stream) {
        if let Some(captured) = state.captured_at(ptr) {
            return self.free_captured(state, captured, id, stream);
        }
        let plain = self.views.find(ptr).filter(|entry| entry.is_plain(ptr));
        match plain.filter(|_| !state.destroyed) {
            Some(entry) => self.free_plain(state, entry, stream),
            None => {
                let State { arena, locked, .. } = state;
                let (requested, size) = (arena.requested(id), arena.bytes(id));
                arena.free(id, stream.fence());
                self.caches.count_free(locked, requested, size);
            }
        }
    }

    /// Frees a live block of the pool's own arena, of which no other stream's uses are recorded.
    fn free_plain(&self, state: &mut State, entry: &Entry, stream: &Stream) {
        let State { arena, locked, .. } = state;
        let each = |cached| take_back(arena, cached);
        if self.caches.put_slow(locked, entry, stream, &self.counters.high, each) {
            return;
        }
        let (requested, size) = (entry.requested(), entry.bytes());
        arena.free(entry.id(), stream.fence());
        self.caches.count_free(locked, requested, size);
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
        // The first one takes 20 ms, and others may need the lock.
        Moment::now();
        let mut state = self.state.lock();
        // No thread is on the fast path from here on, so that what is noted once is noted until its end.
        self.caches.set_doors(&mut state.locked, false);
        let started = self.recording.start(options, &introduction);
        if started.is_ok() {
            self.recording.live(state.arenas().flat_map(Arena::live));
        } else {
            self.caches.set_doors(&mut state.locked, true);
        }
        started
    }

    pub(super) fn stop_recording(&self) -> Result<Option<record::Status>> {
        let stopped = self.recording.stop();
        self.open_doors();
        stopped
    }

    /// Opens the fast path again, where recording has ended; another time where the lock is not free now.
    #[cold]
    fn open_doors(&self) {
        if let Some(mut state) = self.state.try_lock()
            && !self.recording.is_on()
        {
            self.caches.set_doors(&mut state.locked, true);
        }
    }

    pub(super) fn with_live<R>(
        &self,
        ptr: DevicePtr,
        look: impl FnOnce(&mut Arena, BlockId) -> R,
    ) -> Result<R> {
        let mut state = self.state.lock();
        match state.look_up(ptr) {
            Pointer::Live(id) => Ok(look(state.arena_of(ptr), id)),
            pointer => {
                drop(state);
                Err(self.misuse(ptr, pointer))
            }
        }
    }

    /// What all threads counted. No more was ever live at once than was held.
    pub(super) fn counted(&self) -> Counted {
        let mut counted = self.caches.counted(&self.counters.high);
        let held = self.counters.reserved.level().high;
        counted.allocated.high = counted.allocated.high.min(held.max(counted.allocated.current));
        counted.requested.high = counted.requested.high.min(counted.allocated.high);
        counted
    }

    pub(super) fn stats(&self) -> Stats {
        self.counters.stats(self.counted())
    }

    pub(super) fn reset_high_water(&self) {
        let mut state = self.state.lock();
        self.counters.reset_high_water();
        self.caches.fold(&mut state.locked, &self.counters.high);
        self.counters.high.reset();
    }

    /// Recounts everything; says what is wrong, if anything is.
    pub(super) fn check(&self) -> std::result::Result<(), String> {
        let mut state = self.state.lock();
        let elsewhere: u64 = state.captured.iter().map(|captured| captured.arena.held()).sum();
        state.arena.check(self.counters.reserved.current() - elsewhere)?;
        for captured in &state.captured {
            captured.arena.check(captured.arena.held())?;
        }
        let State { arena, locked, captured, .. } = &mut *state;
        let arenas = std::iter::once(&*arena).chain(captured.iter().map(|captured| &captured.arena));
        self.caches.check(locked, |cached| self.check_counts(arenas, cached))
    }

    /// Recounts the blocks that are out, of which `cached` are in caches, while no thread allocates or frees.
    fn check_counts<'a>(
        &self,
        arenas: impl Iterator<Item = &'a Arena>,
        cached: u64,
    ) -> std::result::Result<(), String> {
        let (mut live, mut requested, mut allocated, mut others) = (0, 0, 0, 0);
        for (arena, (id, entry)) in arenas.flat_map(|arena| arena.iter_out().map(move |out| (arena, out))) {
            if entry.is_live() {
                live += 1;
                requested += arena.requested(id);
                allocated += entry.bytes();
            } else {
                others += 1;
            }
        }
        let counted = self.counted();
        let ensure = |what: &str, recount: u64, counted: u64| {
            if recount == counted {
                Ok(())
            } else {
                Err(format!("{what}: recount {recount}, counted {counted}"))
            }
        };
        ensure("live blocks", live, counted.blocks.current)?;
        ensure("requested bytes", requested, counted.requested.current)?;
        ensure("allocated bytes", allocated, counted.allocated.current)?;
        ensure("cached blocks", others, cached)
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
        self.state.lock().look_up(ptr) != Pointer::Foreign
    }

    pub(super) fn holds_nothing(&self) -> bool {
        self.counters.reserved.current() == 0 && self.counted().blocks.current == 0
    }

    pub(super) fn trim(&self, keep: u64) -> DeviceResult<u64> {
        let mut state = self.state.lock();
        self.trim_under_lock(&mut state, keep)
    }

    fn trim_under_lock(&self, state: &mut State, keep: u64) -> DeviceResult<u64> {
        state.trim_released();
        if self.counters.reserved.current() <= keep {
            return Ok(0);
        }
        self.empty_caches(state);
        let released = state.arena.trim(keep)?;
        self.recording.trim(keep, released);
        Ok(released)
    }

    /// The work that must be complete before everything that is not live can be given back.
    pub(super) fn fence_of_all_free(&self) -> Fence {
        let mut state = self.state.lock();
        self.empty_caches(&mut state);
        let mut fence = state.arena.fence_of_all_free();
        state.released().for_each(|captured| fence.join(&captured.arena.fence_of_all_free()));
        fence
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
            let State { arena, locked, .. } = &mut *state;
            self.caches.shut(locked, &self.counters.high, |cached| take_back(arena, cached));
            let counted = self.counted();
            let (blocks, bytes) = (counted.blocks.current, counted.requested.current);
            if blocks == 0 {
                return Ok(state.arena.tear_down()?);
            }
            (blocks, bytes)
        };
        if let Some(registry) = self.registry.upgrade() {
            registry.outlive(self.clone());
            // The last block may have been freed before the registry knew of the pool.
            registry.bury();
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
            if let Err(error) = self.trim_under_lock(&mut state, keep) {
                tracing::warn!(%error, pool = self.name, "the release threshold could not be applied");
            }
            state.destroyed
        };
        if destroyed && let Some(registry) = self.registry.upgrade() {
            registry.bury();
        }
    }
}

impl ThreadEnd for PoolInner {
    fn thread_ended(&self, index: usize) {
        let mut state = self.state.lock();
        let State { arena, locked, .. } = &mut *state;
        self.caches.end_thread(locked, index, &self.counters.high, |cached| take_back(arena, cached));
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        let State { arena, locked, captured, .. } = self.state.get_mut();
        self.caches.revoke(locked, &self.counters.high, |cached| take_back(arena, cached));
        // Nobody holds a claim on it, nor the pool.
        captured.iter_mut().for_each(|captured| captured.tear_down(&self.name));
        if let Err(error) = self.state.get_mut().arena.tear_down() {
            tracing::error!(%error, pool = self.name, "a pool could not give back all its memory");
        }
        if let Err(error) = self.recording.stop() {
            tracing::warn!(%error, pool = self.name, "the end of a recording is missing");
        }
    }
}
