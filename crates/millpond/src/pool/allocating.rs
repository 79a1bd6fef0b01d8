//! One allocation, as a ladder: rungs in the order of what they cost. Each gives a block, or leaves it to the next.
//!
//! 1. The top of a magazine: the fast path ([`Caches::alloc`](crate::cache::Caches::alloc)).
//! 2. Without the pool's lock: deeper in the thread's magazines, then the depot ([`PoolInner::alloc_unlocked`]).
//! 3. Under it: the [`RUNGS`].
//! 4. Memory is short: `pressure` makes room, step by step, and climbs the third part again.
//!
//! The request is checked between 2 and 3: what is wrong finds no magazine. Requests of a capture take another way at
//! 3, to memory of its own (`captured`).

use super::capture_memory::MemoryId;
use super::emptying_caches::take_back;
use super::impossible::OthersLive;
use super::inner::{PoolInner, PoolState};
use crate::cache::Found;
use crate::device::DevicePtr;
use crate::extents::{Allocation, Arena, MOST_UNITS, Refusal};
use crate::order::{Admission, Stream};
use crate::physical::Shortage;
use crate::policy::ledger::{Ledger, SlowPath};
use crate::policy::{Mechanism, without};
use crate::{Error, Result};

/// What a rung gives: an allocation, or why none can be had.
type Climb<T> = std::result::Result<T, Refusal>;

/// More than any device can address: sizes beyond it come from arithmetic that overflowed.
const LARGEST_REQUEST: u64 = 1 << 56;

/// A request under the pool's lock.
#[derive(Debug, Clone, Copy)]
struct LockedRequest<'a> {
    /// How long the block is to be.
    units: u64,
    align: u64,
    stream: &'a Stream,
    /// What is live in other pools, where a limit is near.
    others: Option<OthersLive>,
}

/// A rung under the pool's lock.
type Rung = fn(&PoolInner, &mut PoolState, &LockedRequest<'_>) -> Climb<Option<Allocation>>;

/// The rungs under the pool's lock. Nothing is mapped, moved or created before every cache was emptied, but in
/// throughput mode.
const RUNGS: [Rung; 6] = [
    // The depot, and a magazine with room for more.
    PoolInner::restock,
    // Long free pages become short ones, where that is due. Never gives a block.
    PoolInner::split_long_pages,
    // A free extent that fits. Not for a large request while large blocks are cached: those may fit better.
    PoolInner::cut_ready,
    // Nothing below can satisfy what exceeds a limit with all that is live. Never gives a block.
    PoolInner::refuse_impossible,
    // Throughput mode: new pages, within the growth allowance.
    PoolInner::grow,
    // Every cache is emptied. Then any free extent, also after a wait; then pages: parked, remapped, new.
    PoolInner::empty_caches_and_map,
];

impl PoolInner {
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

    /// Climbs the ladder from its second rung on.
    #[cold]
    pub(super) fn alloc_slow(&self, bytes: u64, align: u64, stream: &Stream) -> Result<DevicePtr> {
        self.check_process()?;
        // Caches promise no more than the minimum alignment, which is 1 here.
        let unlocked = if align == 1 { self.alloc_unlocked(bytes, stream) } else { None };
        self.report_freed_twice();
        let ptr = match unlocked {
            Some(ptr) => ptr,
            None => {
                self.check_request(bytes, align, stream)?;
                if bytes == 0 {
                    return Ok(DevicePtr::NULL);
                }
                match self.try_alloc((bytes, align), stream)? {
                    Ok(ptr) => ptr,
                    Err(refusal) => self.alloc_under_pressure((bytes, align), stream, refusal)?,
                }
            }
        };
        self.recording.alloc(ptr, bytes, stream);
        Ok(ptr)
    }

    pub(super) fn check_request(&self, bytes: u64, align: u64, stream: &Stream) -> Result<()> {
        self.check_stream(stream)?;
        if bytes > 0 && (!align.is_power_of_two() || align > self.largest_align) {
            return Err(Error::BadAlignment { align, largest: self.largest_align });
        }
        if bytes > LARGEST_REQUEST {
            return Err(Error::SizeOverflow { bytes, count: 1 });
        }
        Ok(())
    }

    // ---- without the pool's lock -----------------------------------------------------------------

    /// A block from the thread's magazines, where they have to be searched, or from the depot.
    #[inline]
    fn alloc_unlocked(&self, bytes: u64, stream: &Stream) -> Option<DevicePtr> {
        if !self.caches.has_lock_entries() {
            if !self.recording.is_on() {
                self.open_lock_entries();
            } else if let found @ Some(_) = self.caches.alloc_without_entry(bytes, stream) {
                return found;
            }
        }
        if !self.caches.may_have(bytes) && !self.caches.in_throughput_mode() {
            return None;
        }
        if self.caches.must_ask(bytes) {
            let asked = self.caches.alloc_asking(&mut self.lock_noting_waits().locked, bytes, stream);
            if asked.is_some() {
                return asked;
            }
        }
        let found = self.caches.alloc_searching(bytes, stream);
        let of_other = || {
            if self.caches.in_throughput_mode() { self.alloc_of_other_stream(bytes, stream) } else { None }
        };
        let Found { ptr, is_narrow } = found.or_else(of_other)?;
        // Later, if the lock is taken now.
        if is_narrow && let Some(mut state) = self.state.try_lock() {
            let units = self.caches.sizes().units_in_throughput_mode(bytes);
            self.caches.widen(&mut state.locked, units, stream);
        }
        Some(ptr)
    }

    /// A block that another stream freed, once the stream is ordered after that one.
    fn alloc_of_other_stream(&self, bytes: u64, stream: &Stream) -> Option<Found> {
        let seen = self.caches.find_of_other_stream(bytes, stream)?;
        match self.timelines.admit(&seen.fence(), stream.timeline(), self.reuse.get()) {
            Ok(Admission::Ready) => {}
            Ok(Admission::Waits) => self.counters.stream_waits_without_lock.add(1),
            Ok(Admission::Refused) => return None,
            Err(error) => {
                tracing::warn!(%error, "a stream could not be ordered after another");
                return None;
            }
        }
        self.caches.alloc_of_other_stream(bytes, stream, seen)
    }

    // ---- under the pool's lock -------------------------------------------------------------------

    /// One climb under the lock.
    pub(super) fn try_alloc(&self, (bytes, align): (u64, u64), stream: &Stream) -> Result<Climb<DevicePtr>> {
        let route = self.routes.of(stream);
        // A filter or a callback of the program may have forked.
        self.check_process()?;
        let others = self.others_live(bytes);
        let mut state = self.lock_noting_waits();
        self.check_allocates(&state)?;
        // The least that it takes.
        let units = self.caches.sizes().units(bytes);
        if others.is_some()
            && let Some(what) = self.what_forbids(units)
        {
            return Ok(Err(Refusal::Short { what, bytes }));
        }
        let request = LockedRequest { units, align, stream, others };
        let found = match route.and_then(|to| self.alloc_captured(&mut state, to, &request)) {
            Some(found) => found,
            // Rounded whatever the alignment: a magazine of a class hands out any of its blocks, so that all of them must
            // have the class's length.
            None if state.ledger.is_overdrawn() => {
                let longer = self.caches.sizes().units_in_throughput_mode(bytes);
                match self.climb(&mut state, &LockedRequest { units: longer, ..request }) {
                    // What a longer block has to spare is not worth an error.
                    Err(Refusal::Short { .. }) if longer > units => self.climb(&mut state, &request),
                    found => found,
                }
            }
            None => self.climb(&mut state, &request),
        };
        Ok(found.map(|found| self.hand_out(&mut state, &found, bytes)))
    }

    fn climb(&self, state: &mut PoolState, request: &LockedRequest<'_>) -> Climb<Allocation> {
        if request.units >= MOST_UNITS {
            return Err(self.shortage(Shortage::Device, request));
        }
        for rung in RUNGS {
            if let Some(found) = rung(self, state, request)? {
                return Ok(found);
            }
        }
        unreachable!("the last rung gives a block or refuses")
    }

    fn restock(&self, state: &mut PoolState, request: &LockedRequest<'_>) -> Climb<Option<Allocation>> {
        if request.align > 1 {
            return Ok(None);
        }
        let PoolState { arena, locked, .. } = state;
        Ok(self.caches.restock(locked, request.units, request.stream, |cached| take_back(arena, cached)))
    }

    #[inline]
    fn split_long_pages(
        &self,
        state: &mut PoolState,
        request: &LockedRequest<'_>,
    ) -> Climb<Option<Allocation>> {
        if state.arena.is_shortening_due()
            && state.arena.is_large(request.units)
            && !without(Mechanism::Splitting)
        {
            self.shorten(state);
        }
        Ok(None)
    }

    #[cold]
    pub(super) fn shorten(&self, state: &mut PoolState) {
        let device = self.timelines.device();
        let began = device.now();
        let PoolState { arena, ledger, .. } = &mut *state;
        if arena.shorten(ledger) {
            self.note_slow_path(state, SlowPath::Moved(device.now().saturating_sub(began)));
        }
    }

    fn cut_ready(&self, state: &mut PoolState, request: &LockedRequest<'_>) -> Climb<Option<Allocation>> {
        let caches_first = !without(Mechanism::CachesFirst)
            && state.arena.is_large(request.units)
            && self.caches.may_hold_large(&state.locked);
        if caches_first {
            return Ok(None);
        }
        let ready = state.arena.alloc_ready(request.units, request.align, request.stream)?;
        if ready.is_some() {
            self.note_slow_path(state, SlowPath::Cut);
        }
        Ok(ready)
    }

    #[inline]
    fn refuse_impossible(&self, _: &mut PoolState, request: &LockedRequest<'_>) -> Climb<Option<Allocation>> {
        match request.others.and_then(|others| self.what_forbids_with(request.units, others)) {
            Some(what) => Err(self.shortage(what, request)),
            None => Ok(None),
        }
    }

    /// Where that fails, what others have is asked for.
    fn grow(&self, state: &mut PoolState, request: &LockedRequest<'_>) -> Climb<Option<Allocation>> {
        let bytes = self.caches.sizes().bytes(request.units);
        let may_grow = state.ledger.is_overdrawn()
            && self.counters.reserved.current() + bytes
                <= self.counted().allocated.high + state.ledger.growth_allowance();
        if !may_grow {
            return Ok(None);
        }
        let grown = state.arena.alloc_growing(request.units, request.align, request.stream);
        if grown.is_ok() {
            self.adapt(state);
        }
        Ok(grown.ok())
    }

    /// Notes as slow-path time what memory would have saved: to grow is not.
    fn empty_caches_and_map(
        &self,
        state: &mut PoolState,
        request: &LockedRequest<'_>,
    ) -> Climb<Option<Allocation>> {
        let device = self.timelines.device();
        let (began, moved) = (device.now(), self.pages_moved());
        let revoked = self.empty_caches(state);
        let PoolState { arena, ledger, .. } = &mut *state;
        let found = self.alloc_mapping(arena, ledger, request);
        let took = device.now().saturating_sub(began);
        let slow = match (revoked, self.pages_moved() > moved) {
            (true, _) => SlowPath::Revoked(took),
            (false, true) => SlowPath::Moved(took),
            (false, false) => SlowPath::Cut,
        };
        self.note_slow_path(state, slow);
        let found = found?;
        self.adapt(state);
        Ok(Some(found))
    }

    /// Allocates from the memory of a capture; `None` where it is gone.
    fn alloc_captured(
        &self,
        state: &mut PoolState,
        to: MemoryId,
        request: &LockedRequest<'_>,
    ) -> Option<Climb<Allocation>> {
        let refused = self.refuse_impossible(state, request);
        let PoolState { captured, ledger, .. } = state;
        let arena = captured.get_mut(to)?;
        let found = refused.and_then(|_| self.alloc_mapping(arena, ledger, request));
        captured.note_loose_pages(to);
        Some(found)
    }

    /// Allocates a block of a capture's memory at an address, for work on `stream`. `false`, and nothing done, where that
    /// is not free.
    pub(super) fn alloc_captured_at(
        &self,
        to: MemoryId,
        (ptr, bytes): (DevicePtr, u64),
        stream: &Stream,
    ) -> Result<bool> {
        self.check_process()?;
        self.check_request(bytes, 1, stream)?;
        let units = self.caches.sizes().units(bytes);
        let mut state = self.state.lock();
        self.check_allocates(&state)?;
        let found = state.captured.get_mut(to).and_then(|arena| arena.alloc_at(ptr, units));
        let Some(found) = found else { return Ok(false) };
        self.hand_out(&mut state, &found, bytes);
        drop(state);
        self.recording.alloc(ptr, bytes, stream);
        Ok(true)
    }

    /// Allocates by all steps of an arena. The ledger decides how long new pages are, and pays for them.
    fn alloc_mapping(
        &self,
        arena: &mut Arena,
        ledger: &mut Ledger,
        request: &LockedRequest<'_>,
    ) -> Climb<Allocation> {
        let device = self.timelines.device();
        let began = device.now();
        let LockedRequest { units, align, stream, .. } = *request;
        let found = arena.alloc(units, align, stream, ledger.balance(began));
        if !matches!(found, Ok(Allocation { misses: 0, .. })) {
            ledger.pay_for_pages(device.now().saturating_sub(began));
        }
        found
    }

    pub(super) fn hand_out(&self, state: &mut PoolState, found: &Allocation, bytes: u64) -> DevicePtr {
        // SAFETY: the block is allocated, and the arena is this pool's.
        let descriptor = unsafe { found.descriptor.get() };
        self.caches.label(&mut state.locked, descriptor, found.bytes);
        descriptor.make_live(found.ptr, bytes);
        self.caches.count_alloc(&mut state.locked, bytes, found.bytes);
        self.counters.misses.add(found.misses);
        found.ptr
    }

    fn shortage(&self, what: Shortage, request: &LockedRequest<'_>) -> Refusal {
        Refusal::Short { what, bytes: self.caches.sizes().bytes(request.units) }
    }
}
