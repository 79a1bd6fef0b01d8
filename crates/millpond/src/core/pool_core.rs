//! What the handles of a pool share: the threads' caches, the arenas behind their lock, the counters beside them.
//!
//! Here stand the state, the checks that every call begins with, and what empties the caches. What a request does is in
//! the files that use this one.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::arenas::{ArenaId, Arenas};
use super::callbacks::{Callbacks, Observer, Reclaimer};
use super::gate::{Awake, Gate};
use super::holds::Holds;
use super::last_restore::LastRestore;
use super::registry::Registry;
use super::routes::Routes;
use super::wrapping::Wrapping;
use crate::budgets::{Limits, Live};
use crate::cache::{Caches, Locked};
use crate::device::{Device, DeviceError, DevicePtr};
use crate::error::{Error, Result};
use crate::extents::{self, Arena, ExtentId, Pointer, Ranges};
use crate::figures::counters::Counters;
use crate::figures::stats::Stats;
use crate::order::{Fence, Reuse, Stream, Timelines};
use crate::policy::ledger::Ledger;
use crate::record::Recording;
use crate::system::host_memory::name_for_error;
use crate::system::lock::{Condvar, Mutex, MutexGuard};
use crate::system::process::OfProcess;

/// See the [module](self).
pub(crate) struct Core {
    pub(crate) name: String,
    /// Unlike any other pool's.
    pub(crate) number: u64,
    pub(crate) timelines: Arc<Timelines>,
    /// Whose memory the pool takes: that of the timelines, or another that its streams work on.
    pub(crate) device: Arc<dyn Device>,
    pub(crate) registry: Weak<Registry<dyn HasCore>>,
    /// Which pool of the context owns which addresses.
    pub(crate) ranges: Arc<Ranges>,
    /// A copy of the arena's, for readers without the lock.
    pub(crate) limits: Limits,
    pub(crate) counters: Arc<Counters>,
    /// The highest marks before the last [mark](Self::mark_high_water): of requested and allocated bytes, and of blocks.
    pub(crate) marks: [AtomicU64; 3],
    pub(crate) recording: Recording,
    pub(crate) caches: OfProcess<Caches>,
    pub(crate) routes: Routes,
    pub(crate) state: OfProcess<Mutex<PoolState>>,
    /// Told when a segment that was given back is settled.
    pub(crate) settled: Condvar,
    pub(crate) release_threshold: AtomicU64,
    pub(crate) reclaimers: Callbacks<Reclaimer>,
    pub(crate) observers: Callbacks<Observer>,
    pub(crate) reuse: Reuse,
    /// Closed while the pool sleeps.
    pub(crate) gate: Gate,
    pub(crate) last_restore: LastRestore,
    pub(crate) holds: Holds,
    /// What stands between the program and its blocks.
    pub(crate) wrapping: Option<Arc<dyn Wrapping<Self>>>,
    /// The pool that this one is a part of, under the same limits: pages may pass between both.
    pub(crate) part_of: Option<Weak<dyn HasCore>>,
    /// Set for ever under the lock. Who reads it without may be told too late.
    pub(crate) destroyed: AtomicBool,
    /// Whether memory goes back as soon as it is free.
    pub(crate) keeps_nothing: bool,
    /// Whether each block is zeros when it is allocated.
    pub(crate) zeroes: bool,
}

/// A pool: its core, and what stands beside it. Who knows neither the program's handles nor the features holds a pool by this.
pub(crate) trait HasCore: fmt::Debug + Send + Sync {
    fn core(&self) -> &Core;
}

impl Deref for dyn HasCore + '_ {
    type Target = Core;

    fn deref(&self) -> &Core {
        self.core()
    }
}

/// What the pool's lock guards. Whoever takes the lock writes to its cache line. So that line holds nothing that
/// threads read on the fast path. (Processors fetch lines in pairs.)
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct PoolState {
    pub(crate) arenas: Arenas,
    pub(crate) locked: Locked,
    pub(crate) ledger: Ledger,
    /// While the pool sleeps: nothing is allocated, moved or given back.
    pub(crate) is_asleep: bool,
}

impl PoolState {
    /// What the caches need to give up blocks: the lock's proof, and the arena that takes them back.
    pub(super) fn for_caches(&mut self) -> (&mut Locked, &mut Arena) {
        (&mut self.locked, &mut self.arenas.own)
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Core {
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

    /// The state; `None` in a forked child, where a thread that is gone may have the lock.
    pub(crate) fn lock_here(&self) -> Option<MutexGuard<'_, PoolState>> {
        self.is_here().then(|| self.state.lock())
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
    pub(crate) fn error_of(&self, error: DeviceError) -> Error {
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

    pub(crate) fn with_live<R>(
        &self,
        ptr: DevicePtr,
        look: impl FnOnce(&mut Arena, ExtentId) -> R,
    ) -> Result<R> {
        self.check_process()?;
        let start = self.start_of(ptr);
        let mut state = self.state.lock();
        match state.arenas.look_up(start) {
            (Pointer::Live(id), arena) => Ok(look(arena, id)),
            (pointer, _) => {
                drop(state);
                Err(self.misuse(ptr, pointer))
            }
        }
    }

    // ---- what stands between the program and its blocks ------------------------------------------

    /// Whether every request is to come by the slow functions.
    pub(crate) fn closes_fast_path(&self) -> bool {
        self.recording.is_on() || self.wrapping.is_some() || self.zeroes
    }

    /// See [`Wrapping::part_at`].
    pub(crate) fn part_at(&self, ptr: DevicePtr) -> Option<(DevicePtr, u64)> {
        self.wrapping.as_ref()?.part_at(ptr)
    }

    /// The first address of the block that the program knows by `ptr`.
    pub(crate) fn start_of(&self, ptr: DevicePtr) -> DevicePtr {
        self.part_at(ptr).map_or(ptr, |(start, _)| start)
    }

    /// Has what stands between give back blocks: see [`Wrapping::give_back`].
    pub(super) fn unwrap_blocks(&self, all: bool) -> bool {
        self.wrapping.as_ref().is_some_and(|wrapping| wrapping.give_back(self, all))
    }

    /// Has what stands between the program and its blocks look at all freed blocks that it keeps, before they lose their memory. The
    /// gate is closed.
    pub(crate) fn unwrap_before_leaving(&self) {
        if let Some(wrapping) = &self.wrapping {
            wrapping.give_back_before_leaving(self);
        }
    }

    // ---- whether it allocates --------------------------------------------------------------------

    /// Until this is dropped, the pool does not fall asleep. Who gives work on its memory to the device has one.
    pub(crate) fn stay_awake(&self) -> Result<Awake<'_>> {
        self.gate.enter().ok_or_else(|| self.error_asleep())
    }

    /// As [`stay_awake`](Self::stay_awake), for work on a live block that is given to this stream.
    pub(crate) fn stay_awake_for(&self, stream: &Stream) -> Result<Awake<'_>> {
        let awake = self.stay_awake()?;
        self.last_restore.order(&self.timelines, stream)?;
        Ok(awake)
    }

    /// Until this is dropped, the pool is neither put to sleep nor evicted: somebody uses its memory without asking it.
    pub(crate) fn keep_in_place(&self) -> Result<Arc<()>> {
        self.check_process()?;
        let _awake = self.stay_awake()?;
        Ok(self.gate.resident.clone())
    }

    #[cold]
    fn error_asleep(&self) -> Error {
        match self.gate.is_evicted() {
            true => Error::Evicted { pool: self.name_of() },
            false => Error::Asleep { pool: self.name_of() },
        }
    }

    /// Whether it allocates no more, for ever.
    pub(crate) fn is_destroyed(&self) -> bool {
        // Relaxed: who depends on what came before has the lock.
        self.destroyed.load(Ordering::Relaxed)
    }

    pub(crate) fn check_not_destroyed(&self) -> Result<()> {
        if self.is_destroyed() { Err(Error::PoolDestroyed { pool: self.name_of() }) } else { Ok(()) }
    }

    /// Refuses an allocation of a pool that was destroyed, or sleeps.
    #[inline]
    pub(crate) fn check_allocates(&self, state: &PoolState) -> Result<()> {
        self.check_not_destroyed()?;
        if state.is_asleep { Err(self.error_asleep()) } else { Ok(()) }
    }

    // ---- the threads' caches ---------------------------------------------------------------------

    /// Gives the arena what every thread caches; returns whether there was anything.
    pub(crate) fn empty_caches(&self, state: &mut PoolState) -> bool {
        self.collect_ended(state);
        let any = self.caches.holds_any();
        if any {
            let (locked, arena) = state.for_caches();
            self.caches.revoke(locked, arena, false);
        }
        any
    }

    /// Gives the arena what threads that ended cached.
    #[inline]
    pub(crate) fn collect_ended(&self, state: &mut PoolState) {
        if self.caches.any_ended() {
            let (locked, arena) = state.for_caches();
            self.caches.collect_ended(locked, arena);
        }
    }

    /// Empties the caches, and caches nothing until they are [resumed](Self::resume_caches).
    pub(crate) fn pause_caches(&self, state: &mut PoolState) {
        let (locked, arena) = state.for_caches();
        self.caches.pause(locked, arena);
    }

    /// Caches again, unless the pool sleeps, was destroyed, or requests have a route.
    pub(crate) fn resume_caches(&self, state: &mut PoolState) {
        if !state.is_asleep && !self.is_destroyed() && self.routes.is_empty() {
            self.caches.resume(&mut state.locked);
        }
    }

    /// Gives a live block to its arena. What else the pointer is, and nothing done, where it is none.
    pub(super) fn free_in_arena(
        &self,
        state: &mut PoolState,
        ptr: DevicePtr,
        fence: Fence,
    ) -> std::result::Result<(), Pointer> {
        let (requested, size) = state.arenas.free(ptr, fence)?;
        self.caches.count_free(&mut state.locked, requested, size);
        Ok(())
    }

    /// By the clock that the ledger goes by.
    pub(crate) fn now(&self) -> Duration {
        self.timelines.device().now()
    }

    pub(super) fn since(&self, began: Duration) -> Duration {
        self.now().saturating_sub(began)
    }

    // ---- figures ---------------------------------------------------------------------------------

    /// Whether nothing of the pool has to outlive its last handle. Of a pool that outlives it, the answer is never yes too early: no
    /// thread allocates any more, and the registry's lock orders this after what they allocated. Frees may be seen late.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.counters.reserved.current() == 0 && self.counted().blocks.current == 0
    }

    /// What all threads counted. Where several count at once, a peak may be too high, but never too low. So where one
    /// figure never exceeds another, its peak is cut to the other's.
    pub(crate) fn counted(&self) -> Stats {
        let mut counted = self.caches.counted();
        // Pairs with the fence in `mark_high_water`: who sees marks that began again sees what they were.
        fence(Ordering::Acquire);
        let highs = [&mut counted.requested.high, &mut counted.allocated.high, &mut counted.blocks.high];
        highs
            .into_iter()
            .zip(&self.marks)
            .for_each(|(high, before)| *high = (*high).max(before.load(Ordering::Relaxed)));
        let held = self.counters.reserved.level().high;
        counted.allocated.high = counted.allocated.high.min(held.max(counted.allocated.current));
        counted.requested.high = counted.requested.high.min(counted.allocated.high);
        counted
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats { double_frees: self.caches.freed_twice(), ..self.counters.stats(self.counted()) }
    }

    pub(crate) fn reset_high_water(&self) {
        let Some(mut state) = self.lock_here() else { return };
        self.counters.reserved.reset_high();
        self.marks.iter().for_each(|before| before.store(0, Ordering::Relaxed));
        self.caches.reset_high_water(&mut state.locked);
    }

    /// Has [`peak_since_mark`](Self::peak_since_mark) start again. The pool's own marks stay.
    pub(crate) fn mark_high_water(&self) {
        let Some(mut state) = self.lock_here() else { return };
        let Stats { requested, allocated, blocks, .. } = self.caches.counted();
        for (before, level) in self.marks.iter().zip([requested, allocated, blocks]) {
            before.fetch_max(level.high, Ordering::Relaxed);
        }
        fence(Ordering::Release);
        self.caches.reset_high_water(&mut state.locked);
    }

    /// The most bytes in live blocks since the last [mark](Self::mark_high_water), or since the marks were reset.
    pub(crate) fn peak_since_mark(&self) -> u64 {
        self.caches.counted().allocated.high
    }

    /// Recounts every invariant, for tests; says what is wrong, if anything is.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        let mut state = self.state.lock();
        let PoolState { arenas, locked, .. } = &mut *state;
        // While no thread allocates or frees.
        self.caches.check(locked, |cached| {
            let counted = self.counted();
            let (mut held, mut blocks, mut live, mut requested, mut allocated) = (0, 0, 0, 0, 0);
            for (_, arena) in arenas.iter() {
                extents::check(arena)?;
                held += arena.held();
                blocks += arena.blocks();
                for (id, descriptor) in arena.iter_allocated().filter(|(_, descriptor)| descriptor.is_live())
                {
                    live += 1;
                    requested += arena.requested(id);
                    allocated += descriptor.bytes();
                }
            }
            let figures = [
                ("reserved bytes", held, self.counters.reserved.current()),
                ("live blocks", live, counted.blocks.current),
                ("requested bytes", requested, counted.requested.current),
                ("allocated bytes", allocated, counted.allocated.current),
                ("cached blocks", blocks - live, cached),
            ];
            match figures.into_iter().find(|(_, recount, counted)| recount != counted) {
                Some((what, recount, counted)) => {
                    Err(format!("{what}: recount {recount}, counted {counted}"))
                }
                None => Ok(()),
            }
        })
    }

    // ---- other pools -----------------------------------------------------------------------------

    /// The pool that this one is a part of, if it is still there and has the same memory.
    pub(crate) fn whole(&self) -> Option<Arc<dyn HasCore>> {
        let whole = self.part_of.as_ref()?.upgrade()?;
        Arc::ptr_eq(&whole.device, &self.device).then_some(whole)
    }

    /// Says in recordings what this pool and its whole hold: first the one that has less now, so that the sum is never too high.
    pub(crate) fn tell_held(&self, came_back: bool) {
        let whole = self.whole();
        let mut both = [Some(self), whole.as_deref().map(|whole| whole.core())];
        if came_back {
            both.reverse();
        }
        both.into_iter().flatten().for_each(|pool| pool.recording.tell_held());
    }

    /// The other pools of the context. No lock is held in between.
    pub(crate) fn others(&self) -> impl Iterator<Item = Arc<dyn HasCore>> {
        let (registry, mut next) = (self.registry.upgrade(), 0);
        let all = std::iter::from_fn(move || {
            let pool = registry.as_ref()?.first_from(next)?;
            next = pool.number + 1;
            Some(pool)
        });
        all.filter(|other| other.number != self.number)
    }

    /// What cannot move, here and in others: nothing, where a callback of the program may free it. Called without the lock: the last
    /// handle of another pool may be dropped here.
    #[cold]
    pub(super) fn count_live(&self) -> Live {
        if self.reclaimers.can_be_asked() {
            return Live::default();
        }
        let mut live = Live { own: self.counted().allocated.current, ..Live::default() };
        for other in self.others() {
            // Where that pool sleeps, its live blocks hold no memory.
            let bytes = other.counted().allocated.current.min(other.counters.reserved.current());
            let (own, others) = (&self.limits, &other.limits);
            live.on_device += if own.have_memory_of(others) { bytes } else { 0 };
            live.under_budget += if own.have_budget_of(others) { bytes } else { 0 };
            live.under_hard_limit += if own.hard_limit.is(&others.hard_limit) { bytes } else { 0 };
        }
        live
    }

    // ---- addresses -------------------------------------------------------------------------------

    /// What is wrong with a pointer that is no live block of this pool. Called without the lock.
    #[cold]
    pub(crate) fn misuse(&self, ptr: DevicePtr, pointer: Pointer) -> Error {
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
        let Some(state) = self.lock_here() else { return Vec::new() };
        let of_each = |(id, arena): (Option<ArenaId>, &Arena)| {
            // Without the host's memory for a list, there is none.
            let backed = arena.backed().unwrap_or_default();
            backed.into_iter().map(move |(start, bytes)| (start, bytes, id.map(|id| id.0)))
        };
        state.arenas.iter().flat_map(of_each).collect()
    }

    /// Every live block, as its start and the bytes asked for.
    pub(crate) fn live(&self) -> Vec<(DevicePtr, u64)> {
        self.lock_here().map_or(Vec::new(), |state| self.as_the_program_knows(&state))
    }

    /// The same, under the lock.
    pub(crate) fn as_the_program_knows(&self, state: &PoolState) -> Vec<(DevicePtr, u64)> {
        let live = state.arenas.iter().flat_map(|(_, arena)| arena.live()).collect();
        match &self.wrapping {
            Some(wrapping) => wrapping.parts(live),
            None => live,
        }
    }

    /// The memory of a capture in whose address space the pointer lies.
    pub(crate) fn memory_of(&self, ptr: DevicePtr) -> Option<u64> {
        self.ranges.owner_of(ptr).filter(|owner| owner.pool == self.number)?.memory
    }

    /// Bytes of the longest free block.
    #[cfg(test)]
    pub(crate) fn largest_free(&self) -> u64 {
        self.state.lock().arenas.own.largest_free()
    }
}

#[cfg(test)]
mod tests {
    use crate::error::Error;
    use crate::fixtures::{Bench, Freeing, MIB};

    /// A pool that holds a gigabyte, nothing of it live.
    fn bench() -> Bench {
        let bench = Bench::new(|pool| pool);
        let whole = bench.pool.alloc(1024 * MIB, &bench.stream).unwrap();
        bench.pool.free_block(whole, &bench.stream).unwrap();
        bench
    }

    /// Has as many small blocks cached.
    fn cache_small(Bench { pool, stream, .. }: &Bench, count: usize, bytes: u64) {
        let blocks: Vec<_> = (0..count).map(|_| pool.alloc(bytes, stream).unwrap()).collect();
        blocks.into_iter().for_each(|ptr| pool.free_block(ptr, stream).unwrap());
        assert!(pool.inner().caches.holds_any());
    }

    /// What is free is much longer.
    fn alloc_from_what_is_free(Bench { pool, stream, .. }: &Bench) {
        let misses = pool.stats().misses;
        _ = pool.alloc(3 * MIB, stream).unwrap();
        assert_eq!(pool.stats().misses, misses, "nothing was mapped");
    }

    #[test]
    fn a_free_extent_serves_without_emptying_caches_of_small_blocks() {
        let bench = bench();
        cache_small(&bench, 16, MIB / 2);
        alloc_from_what_is_free(&bench);
        assert!(bench.pool.inner().caches.holds_any());
        bench.pool.check().unwrap();
    }

    #[test]
    fn all_caches_are_emptied_before_anything_is_mapped() {
        let bench = bench();
        cache_small(&bench, 4, 4096);
        let misses = bench.pool.stats().misses;
        _ = bench.pool.alloc(2048 * MIB, &bench.stream).unwrap();
        assert!(bench.pool.stats().misses > misses && !bench.pool.inner().caches.holds_any());
        bench.pool.check().unwrap();
    }

    #[test]
    fn a_figure_that_is_wrong_is_told() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let block = pool.alloc(MIB, &stream).unwrap();
        pool.check().unwrap();
        let reserved = &pool.inner().counters.reserved;
        reserved.raise(1);
        let told = pool.check().unwrap_err();
        assert!(matches!(&told, Error::Broken { why, .. } if why.contains("reserved bytes")), "{told}");
        reserved.lower(1);
        pool.free_block(block, &stream).unwrap();
        pool.check().unwrap();
    }
}
