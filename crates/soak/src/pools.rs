//! Steps on whole pools, and on graphs: what a program does seldom.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use millpond::{Buffer, Error, Keep, Received};

use crate::finding::{Finding, Verdict};
use crate::graphs::capture;
use crate::lane::{How, Lane};
use crate::setup::{GRANULARITY, Memory, POOLS};

/// Graphs that a lane has at most.
const MOST_GRAPHS: usize = 4;

/// Tries of a pool to wake while other processes have the memory.
const TRIES: usize = 200;

/// Whether a pool is of memory that is mapped page by page, which can sleep and be shared.
fn is_mapped(lane: &Lane<'_>, pool: usize) -> bool {
    let setup = &lane.stage.setup;
    setup.pools[pool] == Memory::Device && setup.virtual_memory
}

/// Each pool's first small and first large block, for whose records the host must not refuse memory.
pub(crate) fn warm_up(lane: &mut Lane<'_>) -> Verdict {
    for (pool, bytes) in (0..POOLS).flat_map(|pool| [512, 2 * GRANULARITY].map(|bytes| (pool, bytes))) {
        lane.alloc(pool, 0, bytes, How::Plain)?;
    }
    Ok(())
}

pub(crate) fn trim(lane: &mut Lane<'_>, pool: usize, pages: u8) -> Verdict {
    let trimmed = lane.call(|stage, _| stage.pools[pool].read().pool.trim_to(u64::from(pages) * GRANULARITY));
    lane.stage.allow("a trim", trimmed).map(drop)
}

pub(crate) fn reserve(lane: &mut Lane<'_>, pool: usize, stream: usize, pages: u8) -> Verdict<bool> {
    if lane.asleep[pool] {
        return Ok(false);
    }
    let bytes = u64::from(pages) * GRANULARITY;
    let done = lane.call(|stage, streams| stage.pools[pool].read().pool.reserve(bytes, &streams[stream]));
    lane.stage.allow("a reserve", done)?;
    Ok(true)
}

/// Destroys a pool, and builds another in its place. The old one's last handle goes here, with whatever blocks are live.
pub(crate) fn replace(lane: &mut Lane<'_>, pool: usize) -> Verdict<bool> {
    if lane.asleep[pool] || !drop_graphs_of(lane, pool)? {
        return Ok(false);
    }
    let Some(old) = lane.stage.allow("building a pool", lane.stage.replace_pool(pool))? else {
        return Ok(true);
    };
    // A pool whose last handle goes waits for its work. If that fails, its memory is lost, and the log says so.
    lane.stage.faults.undisturbed(|| {
        match old.destroy() {
            Ok(()) | Err(Error::LiveBlocks { .. } | Error::MemoryInUse { .. }) => {}
            Err(error) => return Err(Finding::wrong(format!("destroying a pool failed: {error}"))),
        }
        drop(old);
        Ok(true)
    })
}

// ---- graphs --------------------------------------------------------------------------------------

pub(crate) fn new_graph(
    lane: &mut Lane<'_>,
    pool: usize,
    stream: usize,
    blocks: u8,
    bytes: u64,
) -> Verdict<bool> {
    if lane.graphs.len() == MOST_GRAPHS || lane.asleep[pool] {
        return Ok(false);
    }
    let made = capture(lane.stage, pool, (stream, &lane.streams[stream]), blocks, bytes)?;
    lane.graphs.extend(made);
    Ok(true)
}

pub(crate) fn launch(lane: &mut Lane<'_>, graph: u8) -> Verdict<bool> {
    let Some(at) = usize::from(graph).checked_rem(lane.graphs.len()) else { return Ok(false) };
    let graph = &lane.graphs[at];
    graph.launch(lane.stage, &lane.streams[graph.stream])?;
    Ok(true)
}

/// Drops a graph once its launches are complete. `false` where the host could not wait for them.
pub(crate) fn drop_graph(lane: &mut Lane<'_>, graph: u8) -> Verdict<bool> {
    let Some(at) = usize::from(graph).checked_rem(lane.graphs.len()) else { return Ok(false) };
    let done = lane.streams[lane.graphs[at].stream].synchronize();
    let done = lane.stage.allow("synchronising a stream", done)?.is_some();
    if done {
        lane.order.complete(lane.graphs[at].stream);
        lane.graphs.swap_remove(at);
    }
    Ok(done)
}

fn drop_graphs_of(lane: &mut Lane<'_>, pool: usize) -> Verdict<bool> {
    while let Some(at) = lane.graphs.iter().position(|graph| graph.pool == pool) {
        if !drop_graph(lane, at as u8)? {
            return Ok(false);
        }
    }
    Ok(true)
}

// ---- sleep ---------------------------------------------------------------------------------------

/// Puts a pool to sleep. For the checker its blocks end there, and others begin with the wake.
pub(crate) fn sleep(lane: &mut Lane<'_>, pool: usize, keeps: bool) -> Verdict<bool> {
    if lane.asleep[pool]
        || !is_mapped(lane, pool)
        || !drop_graphs_of(lane, pool)?
        || !lane.synchronize_device()?
    {
        return Ok(false);
    }
    let id = lane.stage.pools[pool].read().id;
    for block in lane.blocks.iter_mut().filter(|block| block.pool == (pool, id)) {
        let _ended = lane.stage.checker.freed(block.checked, lane.streams[block.stream].handle());
        lane.order.submit(block.stream);
        block.value = if keeps { block.value } else { 0 };
    }
    let keep = if keeps { Keep::InPinnedMemory } else { Keep::Nothing };
    let slept = lane.call(|stage, _| stage.pools[pool].read().pool.sleep(keep));
    // A pool learns only later that nobody has what was shared any more.
    let slept = match slept {
        Err(Error::CannotSleep { .. }) if lane.has_shared => false,
        slept => lane.stage.allow("a sleep", slept)?.is_some(),
    };
    lane.asleep[pool] = true;
    begin_if_awake(lane, pool);
    if slept == lane.asleep[pool] || lane.asleep[pool] {
        return Ok(true);
    }
    Err(Finding::wrong("a pool was put to sleep, and is awake"))
}

pub(crate) fn wake(lane: &mut Lane<'_>, pool: usize) -> Verdict<bool> {
    if !lane.asleep[pool] {
        return Ok(false);
    }
    let woken = lane.call(|stage, _| stage.pools[pool].read().pool.wake());
    lane.stage.allow("a wake", woken)?;
    begin_if_awake(lane, pool);
    Ok(true)
}

fn begin_if_awake(lane: &mut Lane<'_>, pool: usize) {
    let slot = lane.stage.pools[pool].read();
    if slot.pool.is_asleep() {
        return;
    }
    lane.asleep[pool] = false;
    for block in lane.blocks.iter_mut().filter(|block| block.pool == (pool, slot.id)) {
        let handle = lane.streams[block.stream].handle();
        block.checked = lane.stage.checker.allocated(block.at, block.bytes, handle);
        block.begun = lane.order.submit(block.stream);
        block.uses[block.stream] = block.begun;
        block.recorded = 0;
    }
}

// ---- sharing -------------------------------------------------------------------------------------

/// Shares a new block, and opens it as another process would. A GPU's driver opens it in no process but another.
pub(crate) fn share(
    lane: &mut Lane<'_>,
    pool: usize,
    (stream, other): (usize, usize),
    bytes: u64,
) -> Verdict<bool> {
    if lane.asleep[pool] || !is_mapped(lane, pool) {
        return Ok(false);
    }
    let stage = lane.stage;
    let (stream, other) = (&lane.streams[stream], &lane.streams[other]);
    // Kept, so that no other lane destroys the pool.
    let slot = stage.pools[pool].read();
    let made = Buffer::<u8>::new(&slot.pool, bytes as usize, stream);
    let Some(buffer) = stage.allow("a buffer", made)? else { return Ok(true) };
    let checked = stage.checker.allocated(buffer.ptr(), bytes, stream.handle());
    let pair = UnixStream::pair().map_err(|error| Finding::wrong(format!("no sockets: {error}")));
    let (from, to) = pair?;
    lane.has_shared = true;
    if let Some(shared) = stage.allow("sharing", buffer.share())? {
        let sent = shared.send(&from).and_then(|()| Received::receive(&to));
        if let Some(received) = stage.allow("sending", sent)?
            && !stage.setup.is_gpu()
        {
            let opened = stage.context.open_shared::<u8>(received, other);
            drop(stage.allow("opening", opened)?);
        }
    }
    let _freed = stage.checker.freed(checked, stream.handle());
    drop(buffer);
    Ok(true)
}

// ---- the end -------------------------------------------------------------------------------------

/// Gives everything back, on a device that works.
pub(crate) fn finish(mut lane: Lane<'_>) -> Verdict {
    lane.refuse = 0;
    while !lane.graphs.is_empty() {
        if !drop_graph(&mut lane, 0)? {
            return Err(Finding::wrong("a stream could not be synchronised at the end"));
        }
    }
    // Together they may hold more than there is. So what is awake goes before another wakes.
    for pool in 0..lane.asleep.len() {
        if lane.asleep[pool] {
            free_awake(&mut lane)?;
            wake_at_last(&mut lane, pool)?;
        }
    }
    lane.free_all()
}

/// Frees the blocks of pools that are awake, and gives their memory back.
fn free_awake(lane: &mut Lane<'_>) -> Verdict {
    let blocks = std::mem::take(&mut lane.blocks);
    let (sleeping, awake) = blocks.into_iter().partition(|block| lane.sleeps(block));
    lane.blocks = awake;
    lane.free_all()?;
    lane.blocks = sleeping;
    lane.synchronize_device()?;
    for slot in &lane.stage.pools {
        lane.stage.allow("a trim", slot.read().pool.trim_to(0))?;
    }
    Ok(())
}

fn wake_at_last(lane: &mut Lane<'_>, pool: usize) -> Verdict {
    // What other processes hold of a budget they give back when they are asked, or killed.
    let mut tries = if lane.stage.setup.has_named_budget() { TRIES } else { 1 };
    while lane.asleep[pool] && tries > 0 {
        tries -= 1;
        wake(lane, pool)?;
        if lane.asleep[pool] && tries > 0 {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    if lane.asleep[pool] {
        return Err(Finding::wrong(format!("pool {pool} could not wake at the end")));
    }
    Ok(())
}
