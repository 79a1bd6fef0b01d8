//! Steps on whole pools, and on graphs: what a program does seldom. `leaving.rs` has those by which their memory goes and comes.

use std::os::unix::net::UnixStream;

use millpond::{Buffer, Error, Received};

use crate::finding::{Finding, Verdict};
use crate::graphs::capture;
use crate::setup::{GRANULARITY, Memory, POOLS, SLOTS, whole_of};
use crate::thread::{How, Presence, ProgramThread};

/// Graphs that a thread has at most.
const MOST_GRAPHS: usize = 4;

/// Whether a pool is of memory that is mapped page by page, which can sleep and be shared.
pub(crate) fn is_mapped(thread: &ProgramThread<'_>, pool: usize) -> bool {
    let setup = &thread.stage.setup;
    setup.pools[whole_of(pool)] == Memory::Device && setup.virtual_memory
}

/// Whether a pool has its memory, and gives blocks.
pub(crate) fn allocates(thread: &ProgramThread<'_>, pool: usize) -> bool {
    thread.presence[pool] == Presence::Here && !thread.stage.pools[pool].read().is_destroyed
}

/// Each pool's first small and first large block, for whose records the host must not refuse memory.
pub(crate) fn warm_up(thread: &mut ProgramThread<'_>) -> Verdict {
    for (pool, bytes) in (0..SLOTS).flat_map(|pool| [512, 2 * GRANULARITY].map(|bytes| (pool, bytes))) {
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
    if thread.presence[pool] != Presence::Here {
        return Ok(false);
    }
    let bytes = u64::from(pages) * GRANULARITY;
    let done = thread.call(|stage, streams| {
        let slot = stage.pools[pool].read();
        (!slot.is_destroyed).then(|| slot.pool.reserve(bytes, &streams[stream]))
    });
    done.map_or(Ok(false), |done| thread.stage.allow("a reserve", done).map(|_| true))
}

/// Builds another pool in the place of one, whose last handle goes, with whatever blocks are live. Its tags stay in their
/// places, destroyed or not.
pub(crate) fn replace(thread: &mut ProgramThread<'_>, pool: usize) -> Verdict<bool> {
    if pool >= POOLS {
        return replace_tag(thread, pool);
    }
    if thread.presence[pool] == Presence::Asleep || !drop_graphs_of(thread, pool)? {
        return Ok(false);
    }
    let replaced = thread.stage.replace_pool(pool);
    let Some((old, is_destroyed)) = thread.stage.allow("building a pool", replaced)? else { return Ok(true) };
    // A pool whose last handle goes waits for its work. If that fails, its memory is lost, and the log says so.
    thread.stage.faults.undisturbed(|| {
        match if is_destroyed { old.destroy() } else { Ok(()) } {
            Ok(()) | Err(Error::LiveBlocks { .. } | Error::MemoryInUse { .. }) => {}
            Err(error) => return Err(Finding::wrong(format!("destroying a pool failed: {error}"))),
        }
        drop(old);
        Ok(true)
    })
}

/// Puts a tag of the present pool in the place of one whose pool is gone. Its memory may be away, and never comes back then.
fn replace_tag(thread: &mut ProgramThread<'_>, tag: usize) -> Verdict<bool> {
    if thread.presence[tag] == Presence::Asleep || !drop_graphs_of(thread, tag)? {
        return Ok(false);
    }
    let Some(old) = thread.stage.allow("a tag", thread.stage.replace_tag(tag))?.flatten() else {
        return Ok(false);
    };
    thread.stage.faults.undisturbed(|| drop(old));
    thread.presence[tag] = Presence::Here;
    Ok(true)
}

// ---- graphs --------------------------------------------------------------------------------------

pub(crate) fn new_graph(
    thread: &mut ProgramThread<'_>,
    pool: usize,
    stream: usize,
    blocks: u8,
    bytes: u64,
) -> Verdict<bool> {
    if thread.graphs.len() == MOST_GRAPHS || !allocates(thread, pool) {
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

pub(crate) fn drop_graphs_of(thread: &mut ProgramThread<'_>, pool: usize) -> Verdict<bool> {
    while let Some(at) = thread.graphs.iter().position(|graph| graph.pool == pool) {
        if !drop_graph(thread, at as u8)? {
            return Ok(false);
        }
    }
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
    if !allocates(thread, pool) || !is_mapped(thread, pool) {
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
