//! How a pool allocates: from the thread's magazines, without a lock; or step by step under it.

use super::emptying_caches::take_back;
use super::impossible::OthersLive;
use super::inner::{PoolInner, PoolState};
use super::throughput_mode::THROUGH_ARENA;
use crate::device::DevicePtr;
use crate::extents::{Allocation, MOST_UNITS, Refusal};
use crate::order::Stream;
use crate::physical::Shortage;
use crate::policy::{Mechanism, without};
use crate::{Error, Result};

/// More than any device can address: sizes beyond it come from arithmetic that overflowed.
const LARGEST_REQUEST: u64 = 1 << 56;

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

    /// Allocates under the lock: from the depot or the arena, with what all caches hold, and under pressure.
    #[cold]
    pub(super) fn alloc_slow(&self, bytes: u64, align: u64, stream: &Stream) -> Result<DevicePtr> {
        self.check_process()?;
        if !self.caches.has_lock_entries() {
            if !self.recording.is_on() {
                self.open_lock_entries();
            } else if align == 1
                && let Some(ptr) = self.caches.alloc_without_entry(bytes, stream)
            {
                self.recording.alloc(ptr, bytes, stream);
                return Ok(ptr);
            }
        }
        let searched = if align == 1 { self.alloc_searching_caches(bytes, stream) } else { None };
        self.report_freed_twice();
        if let Some(ptr) = searched {
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
        let ptr = match self.try_alloc((bytes, align), stream) {
            Ok(Ok(ptr)) => ptr,
            Ok(Err(refusal)) => self.alloc_under_pressure((bytes, align), stream, refusal)?,
            Err(error) => return Err(error),
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
        // A filter or a callback of the program may have forked.
        self.check_process()?;
        let others = self.others_live(bytes);
        let mut state = self.lock_noting_waits();
        if state.destroyed {
            return Err(Error::PoolDestroyed { pool: self.name_of() });
        }
        // The least that it takes.
        let units = self.caches.sizes().units(bytes);
        if others.is_some()
            && let Some(what) = self.what_forbids(units)
        {
            return Ok(Err(Refusal::Short { what, bytes }));
        }
        if let Some(captured) = route.and_then(|to| state.captured(to)) {
            if let Some(what) = others.and_then(|others| self.what_forbids_with(units, others)) {
                return Ok(Err(Refusal::Short { what, bytes }));
            }
            return Ok(self.alloc_captured(&mut state, captured, (bytes, align), stream));
        }
        Ok(self.alloc_under_lock(&mut state, others, (bytes, align), stream))
    }

    /// The steps of a slow allocation that need the lock, in the order of what they cost. Memory is mapped,
    /// stolen or created only after every cache was emptied, or in [throughput mode](super::throughput_mode).
    fn alloc_under_lock(
        &self,
        state: &mut PoolState,
        others: Option<OthersLive>,
        (bytes, align): (u64, u64),
        stream: &Stream,
    ) -> std::result::Result<DevicePtr, Refusal> {
        let sizes = self.caches.sizes();
        let mut out = None;
        // Rounded whatever the alignment: a magazine of a class hands out any of its blocks, so that all of them
        // must have the class's length.
        let units = if state.throughput_mode.is_on() {
            sizes.units_in_throughput_mode(bytes)
        } else {
            self.caches.units_slow(&mut state.locked, bytes, stream)
        };
        if units >= MOST_UNITS {
            return Err(Refusal::Short { what: Shortage::Device, bytes });
        }
        // Caches promise no more than the minimum alignment, which is 1 here.
        if align == 1 {
            let PoolState { arena, locked, .. } = &mut *state;
            out = self.caches.restock(locked, units, stream, |cached| take_back(arena, cached));
        }
        let out = match out {
            Some(out) => out,
            None => match self.alloc_from_arena(state, others, (units, align), stream) {
                Ok(out) => out,
                // The extra length of a growing request is not worth an error.
                Err(Refusal::Short { .. }) if units > sizes.units(bytes) => {
                    self.alloc_from_arena(state, others, (sizes.units(bytes), align), stream)?
                }
                Err(refusal) => return Err(refusal),
            },
        };
        // SAFETY: the block is out, and the arena is this pool's.
        let descriptor = unsafe { out.descriptor.get() };
        self.caches.label(&mut state.locked, descriptor, out.bytes);
        descriptor.make_live(out.ptr, bytes);
        self.caches.count_alloc(&mut state.locked, bytes, out.bytes);
        self.counters.misses.add(out.misses);
        Ok(out.ptr)
    }

    /// A block that no magazine has.
    fn alloc_from_arena(
        &self,
        state: &mut PoolState,
        others: Option<OthersLive>,
        (units, align): (u64, u64),
        stream: &Stream,
    ) -> std::result::Result<Allocation, Refusal> {
        self.shorten_if_due(state, units);
        // What threads cache may fit better, and joins its neighbours in the arena.
        let caches_first = !without(Mechanism::CachesFirst)
            && state.arena.is_large(units)
            && self.caches.may_hold_large(&state.locked);
        if !caches_first && let Some(out) = state.arena.alloc_ready(units, align, stream)? {
            self.note_slow_path_time(state, THROUGH_ARENA);
            return Ok(out);
        }
        if let Some(what) = others.and_then(|others| self.what_forbids_with(units, others)) {
            return Err(Refusal::Short { what, bytes: self.caches.sizes().bytes(units) });
        }
        if state.throughput_mode.is_on() && self.may_grow(state, units) {
            // Where that fails, what others have is asked for.
            if let Ok(out) = state.arena.alloc_growing(units, align, stream) {
                self.adapt(state);
                return Ok(out);
            }
        }
        let out = self.alloc_emptying_caches(state, units, align, stream)?;
        self.adapt(state);
        Ok(out)
    }

    /// Whether the growth allowance has room for so much.
    fn may_grow(&self, state: &PoolState, units: u64) -> bool {
        let bytes = self.caches.sizes().bytes(units);
        self.counters.reserved.current() + bytes
            <= self.counted().allocated.high + state.throughput_mode.growth_allowance()
    }
}
