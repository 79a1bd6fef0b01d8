//! A tag is evicted: its bytes are copied, and its pages pass to the pool that it is a part of.

use std::ops::Range;
use std::sync::Arc;

use super::evicted::{Evicted, Passed, pending_work};
use crate::budgets::Budget;
use crate::core::{Arenas, Core, PoolState};
use crate::device::{DeviceError, DeviceResult};
use crate::order::Stream;
use crate::physical::{Handover, passing};
use crate::sleep::{Asleep, Keep, copies};

/// Why a tag is not evicted.
#[derive(Debug)]
pub(super) enum Refused {
    /// What stands in the way, and what to do about it.
    Because(&'static str),
    Device(DeviceError),
}

impl From<DeviceError> for Refused {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// Pages that pass behind one copy.
type Batch = (Range<usize>, Arc<Handover>);

/// Copies the live bytes of a tag behind all work so far, and has its pages pass to `whole`. Returns the bytes that passed. The work on
/// `stream` counts, too, where only who presents that can mark it. After a refusal all is as before. Who calls this has closed the
/// gate, waited for other threads' streams, and paused the caches.
pub(super) fn evict(
    evicted: &mut Evicted,
    core: &Core,
    (whole, limit): (&Core, &Budget),
    state: &mut PoolState,
    stream: &Stream,
) -> Result<u64, Refused> {
    // What the tag caches may be in use by any stream.
    let no_memory = DeviceError::HostMemory { what: "a list of streams", bytes: 0 };
    let Some(mut before) = pending_work(&core.timelines)? else { return Err(no_memory.into()) };
    // Of a foreign stream, only who presents it can mark its last work.
    if !before.try_join(&stream.fence()) {
        return Err(no_memory.into());
    }
    evicted.away = list(&mut state.arenas)?;
    let bytes = evicted.away.bytes();
    if !evicted.make_room(core, limit, bytes)? {
        return Err(Refused::Because(
            "its bytes exceed the limit of pinned memory: raise PoolBuilder::pinned_limit, or trim_staging",
        ));
    }
    let streams = evicted.streams(core)?;
    let out = streams.out.clone();
    // Behind the copies of the last restore, too.
    before.join(&streams.back.fence());
    if !core.timelines.make_wait(&before, out.timeline())? {
        return Err(Refused::Because(
            "a stream cannot be waited for: end captures, or synchronise the device, first",
        ));
    }
    let copied = copy_out(evicted, core, &out);
    let passed = copied.and_then(|batches| pass(evicted, whole, &mut state.arenas, &batches));
    // Copies may be under way. Whoever gets their pages comes behind them. To wait for them under the pool's lock could hang: they may
    // come behind a function of the host that uses the pool.
    if passed.is_err() {
        // Nor does anybody write what they read: the gate opens again.
        core.last_restore.begin(evicted.copies());
        if !state.arenas.record_use_of_all(&out) {
            evicted.wait(core)?;
        }
    }
    passed
}

/// Gives the copies to the device. Returns the batches of pages.
fn copy_out(evicted: &Evicted, core: &Core, out: &Stream) -> Result<Vec<Batch>, Refused> {
    let device = core.timelines.device();
    let (mut batches, mut next) = (Vec::new(), 0);
    while next < evicted.away.pages.len() {
        let batch = evicted.away.batch_from(next);
        next = batch.end;
        for piece in evicted.away.pieces_of(batch.clone()) {
            // SAFETY: the pages are mapped, and stay so until the copy is complete. Nobody gives work on them to the device
            // while the gate is closed. The pinned memory is ours, and what was copied before from or to it comes before.
            unsafe { copies::copy((device.as_ref(), out.handle()), &evicted.staging, piece, false) }?;
        }
        let handover = Handover::behind(out.fence());
        // A mark closes the batch, so that each has a fence of its own.
        if !out.timeline().close(out.tick(), true)? {
            return Err(Refused::Because("a stream for copies is being captured: end the capture first"));
        }
        batches.push((batch, handover));
    }
    Ok(batches)
}

/// Has all pages pass, or none. Returns their bytes.
fn pass(evicted: &mut Evicted, whole: &Core, arenas: &mut Arenas, batches: &[Batch]) -> Result<u64, Refused> {
    let mut state = whole.state.lock();
    if whole.is_destroyed() || state.is_asleep {
        return Err(Refused::Because("its pool sleeps or was destroyed: wake that first"));
    }
    let there = &mut state.arenas.own.pages;
    passing::make_room(there, evicted.away.pages.len())?;
    evicted.passed.clear();
    let no_memory = DeviceError::HostMemory { what: "a list of pages", bytes: 0 };
    evicted.passed.try_reserve_exact(evicted.away.pages.len()).map_err(|_| no_memory)?;
    let mut bytes = 0;
    // The page that is parked last is taken first: it is to be one that was copied first.
    for (batch, handover) in batches.iter().rev() {
        for page in evicted.away.pages[batch.clone()].iter().rev() {
            let (page, of) = (&page.page.home, page.of);
            let arena = arenas.named_mut(of).expect("an arena stays while its pool has the lock");
            // SAFETY: it lies there, and the copy came behind all work. None is given while the gate is closed.
            let passing = unsafe { passing::pass_on(&mut arena.pages, page.id, page.at, handover) };
            evicted.passed.push(Passed { there: passing::receive(there, passing), is_intact: true });
            bytes += page.bytes;
        }
    }
    evicted.passed.reverse();
    // What the tag holds, and uses nowhere, does not come back.
    bytes += arenas.iter_mut().map(|(_, arena)| passing::pass_parked(&mut arena.pages, there)).sum::<u64>();
    Ok(bytes)
}

/// The pages of a tag that can leave, with their live bytes: those that are mapped where they are used, and nowhere else.
fn list(arenas: &mut Arenas) -> DeviceResult<Asleep> {
    let mut away = Asleep::default();
    for (id, arena) in arenas.iter_mut() {
        away.add(arena, id, Keep::InPinnedMemory, |arena, page| arena.pages.get(page.home.id).may_pass())?;
    }
    Ok(away)
}
