//! Steps on whole pools, and on graphs: what a program does seldom.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use millpond::{Buffer, Error, Keep, Received};

use crate::finding::{Finding, Verdict};
use crate::graphs::capture;
use crate::setup::{GRANULARITY, Memory, POOLS};
use crate::thread::{How, ProgramThread};

/// Graphs that a thread has at most.
const MOST_GRAPHS: usize = 4;

/// Tries of a pool to wake while other processes have the memory.
const TRIES: usize = 200;

/// Whether a pool is of memory that is mapped page by page, which can sleep and be shared.
fn is_mapped(thread: &ProgramThread<'_>, pool: usize) -> bool {
    let setup = &thread.stage.setup;
    setup.pools[pool] == Memory::Device && setup.virtual_memory
}

/// Each pool's first small and first large block, for whose records the host must not refuse memory.
pub(crate) fn warm_up(thread: &mut ProgramThread<'_>) -> Verdict {
    for (pool, bytes) in (0..POOLS).flat_map(|pool| [512, 2 * GRANULARITY].map(|bytes| (pool, bytes))) {
        thread.alloc(pool, 0, bytes, How::Plain)?;
    }
    Ok(())
}

pub(crate) fn trim(thread: &mut ProgramThread<'_>, pool: usize, pages: u8) -> Verdict {
    let trimmed =
        thread.call(|stage, _| stage.pools[pool].read().pool.trim_to(u64::from(pages) * GRANULARITY));
    thread.stage.allow("a trim", trimmed).map(drop)
}

pub(crate) fn reserve(
    thread: &mut ProgramThread<'_>,
    pool: usize,
    stream: usize,
    pages: u8,
) -> Verdict<bool> {
    if thread.asleep[pool] {
        return Ok(false);
    }
    let bytes = u64::from(pages) * GRANULARITY;
    let done = thread.call(|stage, streams| stage.pools[pool].read().pool.reserve(bytes, &streams[stream]));
    thread.stage.allow("a reserve", done)?;
    Ok(true)
}

/// Destroys a pool, and builds another in its place. The old one's last handle goes here, with whatever blocks are live.
pub(crate) fn replace(thread: &mut ProgramThread<'_>, pool: usize) -> Verdict<bool> {
    if thread.asleep[pool] || !drop_graphs_of(thread, pool)? {
        return Ok(false);
    }
    let Some(old) = thread.stage.allow("building a pool", thread.stage.replace_pool(pool))? else {
        return Ok(true);
    };
    // A pool whose last handle goes waits for its work. If that fails, its memory is lost, and the log says so.
    thread.stage.faults.undisturbed(|| {
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
    thread: &mut ProgramThread<'_>,
    pool: usize,
    stream: usize,
    blocks: u8,
    bytes: u64,
) -> Verdict<bool> {
    if thread.graphs.len() == MOST_GRAPHS || thread.asleep[pool] {
        return Ok(false);
    }
    let made = capture(thread.stage, pool, (stream, &thread.streams[stream]), blocks, bytes)?;
    thread.graphs.extend(made);
    Ok(true)
}

pub(crate) fn launch(thread: &mut ProgramThread<'_>, graph: u8) -> Verdict<bool> {
    let Some(at) = usize::from(graph).checked_rem(thread.graphs.len()) else { return Ok(false) };
    let graph = &thread.graphs[at];
    graph.launch(thread.stage, &thread.streams[graph.stream])?;
    Ok(true)
}

/// Drops a graph once its launches are complete. `false` where the host could not wait for them.
pub(crate) fn drop_graph(thread: &mut ProgramThread<'_>, graph: u8) -> Verdict<bool> {
    let Some(at) = usize::from(graph).checked_rem(thread.graphs.len()) else { return Ok(false) };
    let done = thread.streams[thread.graphs[at].stream].synchronize();
    let done = thread.stage.allow("synchronising a stream", done)?.is_some();
    if done {
        thread.order.complete(thread.graphs[at].stream);
        thread.graphs.swap_remove(at);
    }
    Ok(done)
}

fn drop_graphs_of(thread: &mut ProgramThread<'_>, pool: usize) -> Verdict<bool> {
    while let Some(at) = thread.graphs.iter().position(|graph| graph.pool == pool) {
        if !drop_graph(thread, at as u8)? {
            return Ok(false);
        }
    }
    Ok(true)
}

// ---- sleep ---------------------------------------------------------------------------------------

/// Puts a pool to sleep. For the checker its blocks end there, and others begin with the wake.
pub(crate) fn sleep(thread: &mut ProgramThread<'_>, pool: usize, keeps: bool) -> Verdict<bool> {
    if thread.asleep[pool]
        || !is_mapped(thread, pool)
        || !drop_graphs_of(thread, pool)?
        || !thread.synchronize_device()?
    {
        return Ok(false);
    }
    let id = thread.stage.pools[pool].read().id;
    for block in thread.blocks.iter_mut().filter(|block| block.pool == (pool, id)) {
        let _ended = thread.stage.checker.freed(block.checked, thread.streams[block.stream].handle());
        thread.order.submit(block.stream);
        block.value = if keeps { block.value } else { 0 };
    }
    let keep = if keeps { Keep::InPinnedMemory } else { Keep::Nothing };
    let slept = thread.call(|stage, _| stage.pools[pool].read().pool.sleep(keep));
    // A pool learns only later that nobody has what was shared any more.
    let slept = match slept {
        Err(Error::CannotSleep { .. }) if thread.has_shared => false,
        slept => thread.stage.allow("a sleep", slept)?.is_some(),
    };
    thread.asleep[pool] = true;
    begin_if_awake(thread, pool);
    if slept == thread.asleep[pool] || thread.asleep[pool] {
        return Ok(true);
    }
    Err(Finding::wrong("a pool was put to sleep, and is awake"))
}

pub(crate) fn wake(thread: &mut ProgramThread<'_>, pool: usize) -> Verdict<bool> {
    if !thread.asleep[pool] {
        return Ok(false);
    }
    let woken = thread.call(|stage, _| stage.pools[pool].read().pool.wake());
    thread.stage.allow("a wake", woken)?;
    begin_if_awake(thread, pool);
    Ok(true)
}

fn begin_if_awake(thread: &mut ProgramThread<'_>, pool: usize) {
    let slot = thread.stage.pools[pool].read();
    if slot.pool.is_asleep() {
        return;
    }
    thread.asleep[pool] = false;
    for block in thread.blocks.iter_mut().filter(|block| block.pool == (pool, slot.id)) {
        let handle = thread.streams[block.stream].handle();
        block.checked = thread.stage.checker.allocated(block.at, block.bytes, handle);
        block.begun = thread.order.submit(block.stream);
        block.uses[block.stream] = block.begun;
        block.recorded = 0;
    }
}

// ---- evict ---------------------------------------------------------------------------------------

/// Evicts a tag with a new block, uses as much memory of its pool on another stream, and restores the tag. Where that fails, the
/// tag stays evicted, and the block is freed there.
pub(crate) fn evict(
    thread: &mut ProgramThread<'_>,
    pool: usize,
    (stream, other): (usize, usize),
    bytes: u64,
) -> Verdict<bool> {
    if thread.asleep[pool] || !is_mapped(thread, pool) {
        return Ok(false);
    }
    let stage = thread.stage;
    let (stream, other) = (&thread.streams[stream], &thread.streams[other]);
    let slot = stage.pools[pool].read();
    let Some(tag) = stage.allow("a tag", slot.pool.tagged("soak"))? else { return Ok(true) };
    // One that could not be restored before.
    if stage.allow("a restore", tag.restore(stream))?.is_none() {
        return Ok(true);
    }
    let contents = vec![bytes as u8; bytes as usize];
    let made = Buffer::from_slice(&tag, &contents, stream);
    let Some(buffer) = stage.allow("a buffer", made)? else { return Ok(true) };
    match tag.evict(stream) {
        // A stream that ended, and could not be marked.
        Err(Error::CannotEvict { .. }) => return Ok(true),
        evicted => stage.allow("an eviction", evicted)?,
    };
    drop(stage.allow("a buffer", Buffer::<u8>::zeroed(&slot.pool, bytes as usize, other))?);
    match bytes % 3 {
        0 => stage.allow("a restore ahead", tag.restore_ahead())?,
        1 => stage.allow("a restore into free memory", tag.restore_free())?.map(drop),
        _ => None,
    };
    let restored = stage.allow("a restore", tag.restore(stream))?;
    if restored.is_some() == tag.is_evicted() {
        return Err(Finding::wrong("a tag was restored, and is evicted"));
    }
    if restored.is_some()
        && let Some(found) = stage.allow("a copy", buffer.to_vec())?
        && stage.keeps_bytes()
        && found != contents
    {
        return Err(Finding::wrong("bytes that were evicted came back otherwise"));
    }
    drop(buffer);
    tag.check().map_err(|why| Finding::wrong(format!("{}: {why}", tag.name())))?;
    Ok(true)
}

// ---- sharing -------------------------------------------------------------------------------------

/// Shares a new block, and opens it as another process would. A GPU's driver opens it in no process but another.
pub(crate) fn share(
    thread: &mut ProgramThread<'_>,
    pool: usize,
    (stream, other): (usize, usize),
    bytes: u64,
) -> Verdict<bool> {
    if thread.asleep[pool] || !is_mapped(thread, pool) {
        return Ok(false);
    }
    let stage = thread.stage;
    let (stream, other) = (&thread.streams[stream], &thread.streams[other]);
    // Kept, so that no other thread destroys the pool.
    let slot = stage.pools[pool].read();
    let made = Buffer::<u8>::new(&slot.pool, bytes as usize, stream);
    let Some(buffer) = stage.allow("a buffer", made)? else { return Ok(true) };
    let checked = stage.checker.allocated(buffer.ptr(), bytes, stream.handle());
    let pair = UnixStream::pair().map_err(|error| Finding::wrong(format!("no sockets: {error}")));
    let (from, to) = pair?;
    thread.has_shared = true;
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
pub(crate) fn finish(mut thread: ProgramThread<'_>) -> Verdict {
    thread.refuse = 0;
    while !thread.graphs.is_empty() {
        if !drop_graph(&mut thread, 0)? {
            return Err(Finding::wrong("a stream could not be synchronised at the end"));
        }
    }
    // Together they may hold more than there is. So what is awake goes before another wakes.
    for pool in 0..thread.asleep.len() {
        if thread.asleep[pool] {
            free_awake(&mut thread)?;
            wake_at_last(&mut thread, pool)?;
        }
    }
    thread.free_all()
}

/// Frees the blocks of pools that are awake, and gives their memory back.
fn free_awake(thread: &mut ProgramThread<'_>) -> Verdict {
    let blocks = std::mem::take(&mut thread.blocks);
    let (sleeping, awake) = blocks.into_iter().partition(|block| thread.sleeps(block));
    thread.blocks = awake;
    thread.free_all()?;
    thread.blocks = sleeping;
    thread.synchronize_device()?;
    for slot in &thread.stage.pools {
        thread.stage.allow("a trim", slot.read().pool.trim_to(0))?;
    }
    Ok(())
}

fn wake_at_last(thread: &mut ProgramThread<'_>, pool: usize) -> Verdict {
    // What other processes hold of a budget they give back when they are asked, or killed.
    let mut tries = if thread.stage.setup.has_named_budget() { TRIES } else { 1 };
    while thread.asleep[pool] && tries > 0 {
        tries -= 1;
        wake(thread, pool)?;
        if thread.asleep[pool] && tries > 0 {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    if thread.asleep[pool] {
        return Err(Finding::wrong(format!("pool {pool} could not wake at the end")));
    }
    Ok(())
}
