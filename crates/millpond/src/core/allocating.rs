//! One allocation, as a ladder: rungs in the order of what they cost. Each gives a block, or leaves it to the next.
//!
//! 1. The top of a magazine: the fast path ([`Caches::alloc`](crate::cache::Caches::alloc)).
//! 2. Without the pool's lock: the thread's magazines again, then the depot ([`alloc_unlocked`]).
//! 3. Under it: the same once more, with the thread's cache open. Then the [`RUNGS`].
//! 4. Memory is short: `making_room` does what it can, step by step, and the third part is climbed again.
//!
//! Memory that is taken in [advance](reserve) climbs to the last of these.
//!
//! The request is checked between 2 and 3: what is wrong finds no magazine, and what exceeds a limit is refused. Requests
//! with a route climb the [`KEEPING`] rungs at 3, in an arena that keeps its pages.

use super::arenas::ArenaId;
use super::freeing::free;
use super::giving_back::unlock_logging;
use super::limits::limit_exceeded;
use super::making_room::{out_of_memory, under_pressure};
use super::pool_core::{Core, PoolState};
use crate::device::{ADDRESSES_END, DevicePtr, MemoryKind};
use crate::error::{Error, Result};
use crate::extents::{Allocation, Arena, Effort};
use crate::log::log;
use crate::order::{Admission, Fence, Stream};
use crate::physical::Refusal;
use crate::policy::growth::{self, Growth};
use crate::policy::ledger::CUT;
use crate::policy::size_classes::is_enough_to_round;

/// What a rung gives: an allocation, or why none can be had.
type Climb<T> = std::result::Result<T, Refusal>;

/// A request under the pool's lock.
#[derive(Debug, Clone, Copy)]
struct LockedRequest<'a> {
    /// How long the block is to be.
    units: u64,
    align: u64,
    stream: &'a Stream,
    /// The arena that keeps its pages, where the request has a route to one.
    to: Option<ArenaId>,
}

/// A rung under the pool's lock.
type Rung = fn(&Core, &mut PoolState, &LockedRequest<'_>) -> Climb<Option<Allocation>>;

/// The rungs under the pool's lock. Nothing is mapped, moved or created before every cache was emptied, but in
/// throughput mode.
const RUNGS: [Rung; 3] = [
    // A free extent that fits.
    cut_ready,
    // Throughput mode: new pages, within the growth allowance.
    grow,
    // Every cache is emptied. Then any free extent, also after a wait; then pages: parked, remapped, new.
    empty_caches_and_map,
];

/// The rungs in an arena that keeps its pages: nothing is cached for it, and it takes nothing from others.
const KEEPING: [Rung; 1] = [map];

/// Allocates without a wish for the address. The fast path is one call, which takes no lock; a pool that is
/// recorded has it closed.
#[inline]
pub(crate) fn alloc(core: &Core, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
    match core.caches.alloc(bytes, stream) {
        Some(ptr) => Ok(ptr),
        None => alloc_slow(core, bytes, 1, stream),
    }
}

/// Allocates at a multiple of `align`, which may be what every block has.
#[inline]
pub(crate) fn alloc_aligned(core: &Core, bytes: u64, align: u64, stream: &Stream) -> Result<DevicePtr> {
    if align.is_power_of_two() && align <= core.caches.sizes().bytes(1) {
        return alloc(core, bytes, stream);
    }
    alloc_slow(core, bytes, align, stream)
}

/// Climbs the ladder from its second rung on.
#[cold]
pub(crate) fn alloc_slow(core: &Core, bytes: u64, align: u64, stream: &Stream) -> Result<DevicePtr> {
    core.check_process()?;
    let ptr = match &core.wrapping {
        Some(wrapping) => wrapping.alloc(core, bytes, align, stream)?,
        None => alloc_block(core, bytes, align, stream)?,
    };
    if ptr.is_null() {
        return Ok(ptr);
    }
    core.recording.alloc(ptr, bytes, stream);
    if core.zeroes
        && let Err(error) = zero(core, ptr, bytes, stream)
    {
        // SAFETY: nobody else knows the block.
        unsafe { free(core, ptr, stream) }?;
        return Err(error);
    }
    Ok(ptr)
}

/// Sets a new block to zero, in stream order.
pub(crate) fn zero(core: &Core, ptr: DevicePtr, bytes: u64, stream: &Stream) -> Result<()> {
    let handle = stream.handle_here()?;
    // Behind copies of the memory that are under way, as any write.
    let _awake = core.stay_awake_for(stream)?;
    // SAFETY: the block was allocated for work on this stream, and is as long.
    Ok(unsafe { core.device.memset(ptr, 0, bytes, handle) }?)
}

/// A block, of which nobody is told.
pub(crate) fn alloc_block(core: &Core, bytes: u64, align: u64, stream: &Stream) -> Result<DevicePtr> {
    // Caches promise no more than the minimum alignment, which is 1 here.
    let unlocked = if align == 1 { alloc_unlocked(core, bytes, stream) } else { None };
    if let Some(ptr) = unlocked {
        return Ok(ptr);
    }
    check_request(core, bytes, align, stream)?;
    if bytes == 0 {
        return Ok(DevicePtr::NULL);
    }
    let attempt = || try_alloc(core, (bytes, align), stream);
    match attempt()? {
        Ok(ptr) => Ok(ptr),
        Err(first) => under_pressure(core, (bytes, align), stream, first, attempt),
    }
}

pub(crate) fn check_request(core: &Core, bytes: u64, align: u64, stream: &Stream) -> Result<()> {
    core.check_stream(stream)?;
    let largest = core.device.properties().granularity;
    if bytes > 0 && (!align.is_power_of_two() || align > largest) {
        return Err(Error::BadAlignment { align, largest });
    }
    // Such sizes come from arithmetic that overflowed.
    if bytes > ADDRESSES_END {
        return Err(Error::SizeOverflow { bytes, count: 1 });
    }
    Ok(())
}

// ---- without the pool's lock -----------------------------------------------------------------

/// A block from the thread's magazines, where they have to be searched, or from the depot.
#[inline]
fn alloc_unlocked(core: &Core, bytes: u64, stream: &Stream) -> Option<DevicePtr> {
    let found = core.caches.alloc_searching(bytes, stream, None);
    found.or_else(|| alloc_of_other_stream(core, bytes, stream))
}

/// A block that another stream freed, once the stream is ordered after that one.
fn alloc_of_other_stream(core: &Core, bytes: u64, stream: &Stream) -> Option<DevicePtr> {
    let seen = core.caches.find_of_other_stream(bytes, stream)?;
    match core.timelines.admit(&Fence::at(seen.0, seen.1), stream.timeline(), core.reuse.get()) {
        Ok(Admission::Ready) => {}
        Ok(Admission::Waits) => core.counters.stream_waits.add(1),
        Ok(Admission::Refused) => return None,
        Err(error) => {
            log!(WARN, "a stream could not be ordered after another", error);
            return None;
        }
    }
    core.caches.alloc_searching(bytes, stream, Some(seen))
}

// ---- under the pool's lock -------------------------------------------------------------------

/// Refuses what exceeds a limit together with all that is live: no rung can satisfy it.
fn refuse_impossible(core: &Core, bytes: u64, stream: &Stream) -> Result<()> {
    let exceeded = || {
        let asked = (bytes, core.counters.reserved.current());
        limit_exceeded(&core.limits, core.caches.sizes(), asked, || core.count_live())
    };
    if exceeded().is_none() {
        return Ok(());
    }
    core.check_allocates(&core.state.lock())?;
    // What the program gave back, and something that stands between still has, counts as live.
    core.unwrap_blocks(true);
    exceeded().map_or(Ok(()), |what| Err(out_of_memory(core, bytes, what, stream)))
}

/// One climb under the lock.
fn try_alloc(core: &Core, (bytes, align): (u64, u64), stream: &Stream) -> Result<Climb<DevicePtr>> {
    let route = core.routes.of(stream);
    // A filter or a callback of the program may have forked.
    core.check_process()?;
    refuse_impossible(core, bytes, stream)?;
    let mut state = core.lock_noting_waits();
    core.check_allocates(&state)?;
    let to = route.filter(|to| state.arenas.named_mut(Some(*to)).is_some());
    let rungs: &[Rung] = if to.is_some() { &KEEPING } else { &RUNGS };
    // The least that it takes.
    let units = core.caches.sizes().units(bytes);
    // The second rung again, once the thread's cache is open.
    let (locked, arena) = state.for_caches();
    core.caches.give_up_kept(locked, bytes, arena);
    if to.is_none()
        && align == 1
        && core.caches.open(locked, bytes, stream, arena)
        && let Some(ptr) = core.caches.alloc_searching(bytes, stream, None)
    {
        return Ok(Ok(ptr));
    }
    let request = LockedRequest { units, align, stream, to };
    // Rounded whatever the alignment: a magazine of a class hands out any of its blocks, so that all of them must
    // have the class's length.
    let is_longer = to.is_none()
        && state.ledger.is_overdrawn()
        && is_enough_to_round(core.limits.room(u64::MAX), core.counters.reserved.current());
    let longer = if is_longer { core.caches.sizes().units_in_throughput_mode(bytes) } else { units };
    let mut found = climb(core, &mut state, &LockedRequest { units: longer, ..request }, rungs);
    // What a longer block has to spare is not worth an error.
    if longer > units && matches!(found, Err(Refusal::Short { .. })) {
        found = climb(core, &mut state, &request, rungs);
    }
    let given = found.map(|found| hand_out(core, &mut state, &found, bytes));
    unlock_logging(core, state);
    Ok(given)
}

fn climb(
    core: &Core,
    state: &mut PoolState,
    request: &LockedRequest<'_>,
    rungs: &[Rung],
) -> Climb<Allocation> {
    let mut found = rungs.iter().filter_map(|rung| rung(core, state, request).transpose());
    found.next().expect("the last rung gives a block or refuses")
}

fn cut_ready(core: &Core, state: &mut PoolState, request: &LockedRequest<'_>) -> Climb<Option<Allocation>> {
    let ready = state.arenas.own.alloc((request.units, request.align), request.stream, Effort::Ready)?;
    if ready.is_some() {
        core.note_slow_path(state, CUT);
    }
    Ok(ready)
}

/// Where that fails, what others have is asked for.
fn grow(core: &Core, state: &mut PoolState, request: &LockedRequest<'_>) -> Climb<Option<Allocation>> {
    let bytes = core.caches.sizes().bytes(request.units);
    let may_grow = state.ledger.is_overdrawn()
        && core.counters.reserved.current() + bytes
            <= core.counted().allocated.high + state.ledger.growth_allowance();
    if !may_grow {
        return Ok(None);
    }
    let size = (request.units, request.align);
    Ok(state.arenas.own.alloc(size, request.stream, Effort::Grow).unwrap_or(None))
}

/// Notes as slow-path time what memory would have saved: to grow is not.
fn empty_caches_and_map(
    core: &Core,
    state: &mut PoolState,
    request: &LockedRequest<'_>,
) -> Climb<Option<Allocation>> {
    let (began, moved) = (core.now(), core.counters.pages_moved());
    let revoked = core.empty_caches(state);
    let emptied = core.since(began);
    let is_bought = state.ledger.page_doublings(core.now()) == 0;
    let found = map(core, state, request);
    let is_saved = revoked || core.counters.pages_moved() > moved;
    let took = if is_bought { emptied } else { core.since(began) };
    core.note_slow_path(state, if is_saved { took.max(CUT) } else { CUT });
    found
}

/// Allocates by all steps of the arena. The ledger decides how long new pages are, and pays for them.
fn map(core: &Core, state: &mut PoolState, request: &LockedRequest<'_>) -> Climb<Option<Allocation>> {
    let PoolState { arenas, ledger, .. } = state;
    let LockedRequest { units, align, stream, to, .. } = *request;
    let Some(arena) = arenas.named_mut(to) else { return Ok(None) };
    let began = core.now();
    let doublings = ledger.page_doublings(began);
    let found = match grow_for_longer_blocks(core, arena, request, doublings) {
        Some(grown) => Ok(Some(grown)),
        None => arena.alloc((units, align), stream, Effort::Map(doublings)),
    };
    if !matches!(found, Ok(Some(Allocation { misses: 0, .. }))) {
        let took = core.since(began);
        ledger.pay_for_pages(took, core.counters.reserved.current());
        core.counters.note_device_time(took);
    }
    if let (Some(id), Err(_)) = (to, &found) {
        arenas.note_failed(id);
    }
    found
}

/// Where blocks grow, pages stay in free ranges while the pool may hold a little more. `None` where it may not, or cannot.
fn grow_for_longer_blocks(
    core: &Core,
    arena: &mut Arena,
    request: &LockedRequest<'_>,
    doublings: u32,
) -> Option<Allocation> {
    let LockedRequest { units, align, stream, to } = *request;
    let bytes = core.caches.sizes().bytes(units);
    let held = core.counters.reserved.current() + bytes;
    let grows = to.is_none()
        && arena.growth.is_usual()
        && held <= growth::may_hold(bytes, core.counted().allocated.high)
        && core.limits.have_room(bytes);
    let grown = grows.then(|| arena.alloc((units, align), stream, Effort::MapNew(doublings)).ok().flatten());
    if matches!(grown, Some(None)) {
        // The device is short of memory, say. If it is worse, what is tried next says so.
        arena.growth = Growth::default();
    }
    grown.flatten()
}

pub(crate) fn hand_out(core: &Core, state: &mut PoolState, found: &Allocation, bytes: u64) -> DevicePtr {
    // SAFETY: the block is allocated, and the arena is this pool's.
    let descriptor = unsafe { found.descriptor.get() };
    descriptor.make_live(found.ptr, bytes);
    core.caches.count_alloc(&mut state.locked, bytes, found.bytes);
    core.counters.misses.add(found.misses);
    found.ptr
}

// ---- in advance ------------------------------------------------------------------------------

/// See [`Pool::reserve`](crate::Pool::reserve).
pub(crate) fn reserve(core: &Core, bytes: u64, stream: &Stream) -> Result<()> {
    core.check_process()?;
    check_request(core, bytes, 1, stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let attempt = || try_reserve(core, bytes, stream);
    match attempt()? {
        Ok(()) => Ok(()),
        Err(first) => under_pressure(core, (bytes, 1), stream, first, attempt),
    }
}

/// Makes a free range of `bytes`, without a block of the program's.
fn try_reserve(core: &Core, bytes: u64, stream: &Stream) -> Result<std::result::Result<(), Refusal>> {
    refuse_impossible(core, bytes, stream)?;
    let mut state = core.state.lock();
    core.check_allocates(&state)?;
    core.empty_caches(&mut state);
    // A device takes a segment of pinned memory several times as fast as pages of it.
    let effort = match core.device.properties().memory {
        MemoryKind::Pinned => Effort::TakeSegment,
        MemoryKind::Device | MemoryKind::Managed => Effort::Map(state.ledger.page_doublings(core.now())),
    };
    let arena = &mut state.arenas.own;
    let found = arena.alloc((core.caches.sizes().units(bytes), 1), stream, effort);
    let made = found.map(|found| {
        // SAFETY: the block is allocated, and the arena is this pool's.
        let is_free =
            found.is_some_and(|found| arena.take_back(unsafe { found.descriptor.get() }, stream.fence()));
        debug_assert!(is_free, "it was just allocated, and nobody was told");
    });
    unlock_logging(core, state);
    Ok(made)
}

#[cfg(test)]
mod tests {
    use crate::fixtures::{Bench, MIB};

    #[test]
    fn to_grow_does_not_start_throughput_mode() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        // Far more device time than starts that mode.
        let blocks: Vec<_> = (0..1000).map(|_| pool.alloc(60 * MIB, &stream).unwrap()).collect();
        assert_eq!(pool.stats().blocks.current, blocks.len() as u64);
        assert!(!pool.inner().state.lock().ledger.is_overdrawn());
    }
}
