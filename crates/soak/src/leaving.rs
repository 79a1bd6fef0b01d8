//! Steps by which the memory of pools goes and comes back: sleep and wake, evict and restore.
//!
//! For the checker, blocks end where their memory goes. Others begin where it comes back.

use millpond::testing::checker::Freeing;
use millpond::{Error, Keep};

use crate::finding::{Finding, Verdict};
use crate::pools::{allocates, drop_graphs_of, is_mapped};
use crate::setup::{POOLS, SLOTS};
use crate::thread::{Presence, ProgramThread};

// ---- sleep ---------------------------------------------------------------------------------------

/// A pool, and its tags that are here: what sleeps and wakes with it.
fn with_tags(thread: &ProgramThread<'_>, pool: usize, presence: Presence) -> Vec<usize> {
    let tags = (POOLS..SLOTS).filter(|tag| pool == 0 && thread.stage.is_part(*tag));
    [pool].into_iter().chain(tags).filter(|pool| thread.presence[*pool] == presence).collect()
}

/// Puts a pool to sleep.
pub(crate) fn sleep(thread: &mut ProgramThread<'_>, pool: usize, keeps: bool) -> Verdict<bool> {
    if !allocates(thread, pool) || !is_mapped(thread, pool) {
        return Ok(false);
    }
    let all = with_tags(thread, pool, Presence::Here);
    for pool in &all {
        if !drop_graphs_of(thread, *pool)? {
            return Ok(false);
        }
    }
    if !thread.synchronize_device()? {
        return Ok(false);
    }
    for pool in &all {
        for at in blocks_of(thread, *pool) {
            let stream = thread.blocks[at].stream;
            let _ended = end(thread, at, stream);
            let block = &mut thread.blocks[at];
            block.value = if keeps { block.value } else { 0 };
        }
    }
    let keep = if keeps { Keep::InPinnedMemory } else { Keep::Nothing };
    let slept = thread.call(|stage, _| stage.pools[pool].read().pool.sleep(keep));
    // A pool learns only later that nobody has what was shared any more.
    let slept = match slept {
        Err(Error::CannotSleep { .. }) if thread.has_shared => false,
        slept => thread.stage.allow("a sleep", slept)?.is_some(),
    };
    for pool in all {
        thread.presence[pool] = Presence::Asleep;
        begin_if_awake(thread, pool);
    }
    if slept && thread.presence[pool] == Presence::Here {
        return Err(Finding::wrong("a pool was put to sleep, and is awake"));
    }
    Ok(true)
}

pub(crate) fn wake(thread: &mut ProgramThread<'_>, pool: usize) -> Verdict<bool> {
    if thread.presence[pool] != Presence::Asleep {
        return Ok(false);
    }
    let all = with_tags(thread, pool, Presence::Asleep);
    let woken = thread.call(|stage, _| stage.pools[pool].read().pool.wake());
    thread.stage.allow("a wake", woken)?;
    all.into_iter().for_each(|pool| begin_if_awake(thread, pool));
    Ok(true)
}

fn begin_if_awake(thread: &mut ProgramThread<'_>, pool: usize) {
    if !thread.stage.pools[pool].read().pool.is_asleep() {
        thread.presence[pool] = Presence::Here;
        begin_all(thread, pool, None);
    }
}

// ---- evict ---------------------------------------------------------------------------------------

/// Evicts a tag; or has what came back of it leave again.
pub(crate) fn evict(thread: &mut ProgramThread<'_>, tag: usize, stream: usize) -> Verdict<bool> {
    let stage = thread.stage;
    if thread.presence[tag] == Presence::Evicted {
        let again = stage.pools[tag].read().pool.evict(&thread.streams[stream]);
        let bytes = stage.allow("an eviction of what is evicted", again)?;
        return if bytes.is_none_or(|bytes| bytes == 0) {
            Ok(true)
        } else {
            Err(Finding::wrong("it left twice"))
        };
    }
    if !allocates(thread, tag) || !is_mapped(thread, tag) || !drop_graphs_of(thread, tag)? {
        return Ok(false);
    }
    let blocks = blocks_of(thread, tag);
    for at in &blocks {
        if !hand_to_pool(thread, *at, stream)? {
            return Ok(true);
        }
    }
    let ended: Vec<(Freeing, u32)> = blocks.iter().map(|at| end(thread, *at, stream)).collect();
    let evicted = stage.pools[tag].read().pool.evict(&thread.streams[stream]);
    let evicted = match evicted {
        Err(Error::CannotEvict { .. }) if may_be_refused(thread, tag) => None,
        evicted => stage.allow("an eviction", evicted)?,
    };
    if evicted.is_some() != stage.pools[tag].read().pool.is_evicted() {
        return Err(Finding::wrong("a tag is not where its eviction said"));
    }
    if evicted.is_some() {
        thread.presence[tag] = Presence::Evicted;
        return Ok(true);
    }
    for (at, (freeing, tick)) in blocks.into_iter().zip(ended) {
        stage.checker.free_refused(freeing);
        let block = &mut thread.blocks[at];
        // The end that did not come counts as work.
        (block.is_away, block.uses[stream]) = (false, tick);
    }
    Ok(true)
}

/// The pool orders an eviction behind all work of all streams. What was done on streams that ended the program orders itself.
/// `false` where a call failed.
fn hand_to_pool(thread: &mut ProgramThread<'_>, at: usize, stream: usize) -> Verdict<bool> {
    for of in 0..thread.streams.len() {
        let block = &thread.blocks[at];
        let (tick, bit) = (block.uses[of], 1 << of);
        if tick == 0 || block.recorded & bit != 0 {
            continue;
        }
        if block.outlived & bit == 0 {
            thread.stage.checker.use_recorded(block.checked, thread.streams[of].handle());
        } else if !thread.order_after(of, tick, stream)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a tag need not leave: a stream ended and could not be marked, others may have its blocks, or its pool is not there.
fn may_be_refused(thread: &ProgramThread<'_>, tag: usize) -> bool {
    let stage = thread.stage;
    let whole_is_here = stage.is_part(tag) && thread.presence[0] == Presence::Here;
    stage.faults.count() > 0 || thread.has_shared || !whole_is_here
}

/// Brings a tag back, for work on the stream.
pub(crate) fn restore(thread: &mut ProgramThread<'_>, tag: usize, stream: usize) -> Verdict<bool> {
    if thread.presence[tag] != Presence::Evicted {
        return Ok(false);
    }
    let stage = thread.stage;
    let restored = stage.pools[tag].read().pool.restore(&thread.streams[stream]);
    let restored = stage.allow("a restore", restored)?.is_some();
    if restored == stage.pools[tag].read().pool.is_evicted() {
        return Err(Finding::wrong("a tag is not where its restore said"));
    }
    if restored {
        thread.presence[tag] = Presence::Here;
        begin_all(thread, tag, Some(stream));
    }
    Ok(true)
}

/// Begins to bring a tag back, as a whole or as far as memory is free.
pub(crate) fn restore_early(thread: &mut ProgramThread<'_>, tag: usize, is_whole: bool) -> Verdict<bool> {
    if thread.presence[tag] != Presence::Evicted {
        return Ok(false);
    }
    let tag = &thread.stage.pools[tag].read().pool;
    if is_whole {
        thread.stage.allow("a restore ahead", tag.restore_ahead())?;
    } else {
        thread.stage.allow("a restore into free memory", tag.restore_free())?;
    }
    if tag.is_evicted() { Ok(true) } else { Err(Finding::wrong("a restore that only begins has ended")) }
}

// ---- blocks --------------------------------------------------------------------------------------

/// The blocks of the pool in this place.
fn blocks_of(thread: &ProgramThread<'_>, pool: usize) -> Vec<usize> {
    let of = (pool, thread.stage.pools[pool].read().id);
    (0..thread.blocks.len()).filter(|at| thread.blocks[*at].pool == of).collect()
}

/// A block's memory goes: as by a piece of work, of this number.
fn end(thread: &mut ProgramThread<'_>, at: usize, stream: usize) -> (Freeing, u32) {
    let block = &mut thread.blocks[at];
    block.is_away = true;
    let ended = thread.stage.checker.freed(block.checked, thread.streams[stream].handle());
    (ended, thread.order.submit(stream))
}

/// A pool's memory is back for work on the stream, or for that on the stream of each block.
fn begin_all(thread: &mut ProgramThread<'_>, pool: usize, stream: Option<usize>) {
    for at in blocks_of(thread, pool) {
        let block = &mut thread.blocks[at];
        block.stream = stream.unwrap_or(block.stream);
        let handle = thread.streams[block.stream].handle();
        block.checked = thread.stage.checker.allocated(block.at, block.bytes, handle);
        block.begun = thread.order.submit(block.stream);
        block.uses[block.stream] = block.begun;
        (block.recorded, block.is_away) = (0, false);
        if stream.is_some() {
            (block.uses, block.outlived) = ([0; _], 0);
            block.uses[block.stream] = block.begun;
        }
    }
}
