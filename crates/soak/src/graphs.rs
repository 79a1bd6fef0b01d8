//! Graphs of a thread: captured, launched, and dropped.

use millpond::device::{Device, DevicePtr};
use millpond::testing::capturing::Graph;
use millpond::{CapturePool, Stream};

use crate::finding::{Finding, Verdict};
use crate::stage::{EDGE, Stage};

/// A graph that fills blocks of its own memory.
#[derive(Debug)]
pub(crate) struct Captured {
    graph: Graph,
    _memory: CapturePool,
    pub(crate) pool: usize,
    /// All its launches go to this stream.
    pub(crate) stream: usize,
}

/// Tries of a free in a capture, of which one does not fail.
const TRIES: usize = 100;

/// Captures a graph on a stream: so many blocks are allocated, filled and freed, each before the next or all at the end.
pub(crate) fn capture(
    stage: &Stage,
    pool: usize,
    (number, stream): (usize, &Stream),
    blocks: u8,
    bytes: u64,
) -> Verdict<Option<Captured>> {
    let slot = stage.pools[pool].read();
    let memory = slot.pool.capture_pool();
    let Some(capturing) = stage.allow("beginning a capture", memory.begin(stream))? else { return Ok(None) };
    let handle = stream.handle();
    let Some(_) = stage.allow("begin_capture", stage.capturing.begin_capture(handle))? else {
        return Ok(None);
    };
    let mut live: Vec<DevicePtr> = Vec::new();
    for at in 0..blocks {
        let bytes = bytes >> (at % 3);
        let Some(at) = stage.allow("an allocation in a capture", slot.pool.alloc(bytes.max(1), stream))?
        else {
            break;
        };
        // SAFETY: the block is live, and used on this stream alone.
        unsafe { stage.capturing.memset(at, 1, bytes.clamp(1, EDGE), handle) }
            .map_err(|error| Finding::wrong(format!("a fill in a capture failed: {error}")))?;
        live.push(at);
        if live.len() > 2 {
            free(stage, &slot.pool, live.remove(0), stream)?;
        }
    }
    live.drain(..).try_for_each(|at| free(stage, &slot.pool, at, stream))?;
    let graph = stage.capturing.end_capture(handle);
    drop(capturing);
    let graph = graph.map_err(|error| Finding::wrong(format!("a capture was ended: {error}")))?;
    Ok(Some(Captured { graph, _memory: memory, pool, stream: number }))
}

fn free(stage: &Stage, pool: &millpond::Pool, at: DevicePtr, stream: &Stream) -> Verdict {
    for _ in 0..TRIES {
        // SAFETY: the block is the capture's, and its work is on this stream.
        if stage.allow("a free in a capture", unsafe { pool.free(at, stream) })?.is_some() {
            return Ok(());
        }
    }
    Err(Finding::wrong("a block could not be freed in a capture"))
}

impl Captured {
    /// Gives the graph's work to its stream. Where a call fails in the middle, the rest is left out.
    pub(crate) fn launch(&self, stage: &Stage, stream: &Stream) -> Verdict {
        // SAFETY: the graph's memory is kept, and graphs are launched on one stream alone.
        let launched = unsafe { stage.capturing.launch(&self.graph, stream.handle()) };
        stage.allow("a launch", launched).map(drop)
    }
}
