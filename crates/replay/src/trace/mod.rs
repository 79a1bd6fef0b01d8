//! A trace in memory: events with addresses resolved to dense block numbers, so that a replay hashes nothing.

mod builder;
mod moves;
mod phase;

use std::sync::Arc;

pub use builder::{MAX_DEVICES, TraceBuilder, TraceError};
pub use moves::{MovedPool, Moves, RecordedMove};
pub use phase::{MOST_PHASES_INSIDE, Phase};

use crate::event::{StackId, Stacks};
use crate::segments::Segments;

/// A block of memory that the traced program held at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Bytes requested.
    pub size: u64,
    /// Where the recorded allocator put it.
    pub address: u64,
    /// Who allocated it.
    pub stack: StackId,
    /// The stream it was allocated for, as an index into [`Trace::streams`].
    pub stream: u16,
}

/// What an [`Op`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// The block begins to live.
    Alloc,
    /// The program let go of the block.
    FreeRequested,
    /// The block became reusable.
    FreeCompleted,
}

/// One step in the life of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// Microseconds since the trace began.
    pub time_us: u64,
    /// The block, as an index into [`Trace::blocks`].
    pub block: u32,
    /// The stream, as an index into [`Trace::streams`].
    pub stream: u16,
    /// What happens.
    pub kind: OpKind,
}

/// A request that the recorded allocator could not serve. It is a request all the same: it has a block, which is allocated and
/// freed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedOom {
    /// How many ops of the trace came before it.
    pub before_op: usize,
    /// The block that was asked for, as an index into [`Trace::blocks`].
    pub block: u32,
    /// Bytes asked for.
    pub size: u64,
    /// Bytes that the device had free then.
    pub device_free: u64,
}

/// What one device's memory did, as recorded.
#[derive(Debug, Clone)]
pub struct Trace {
    /// The file's name, with the device's number where the file has several.
    pub name: String,
    /// The device's number in the file.
    pub device: u32,
    /// The streams, as the recorder named them.
    pub streams: Vec<u64>,
    /// Every block, in the order in which they were first seen.
    pub blocks: Vec<Block>,
    /// Blocks that were live before the recording began, by rising address.
    pub live_before: Vec<u32>,
    /// What happened to the blocks, in order.
    pub ops: Vec<Op>,
    /// Microseconds from the first event to the last.
    pub wall_us: u64,
    /// The most that the recorded allocator itself held at once, in bytes, where its segments were recorded.
    pub recorded_reserved: Option<u64>,
    /// What it held, where that was recorded.
    pub segments: Segments,
    /// Phases that the program named, by their begin.
    pub phases: Vec<Phase>,
    /// When memory of tags left and came back.
    pub moves: Moves,
    /// Requests that the recorded allocator could not serve.
    pub recorded_ooms: Vec<RecordedOom>,
    /// The call stacks that [`Block::stack`] names.
    pub stacks: Arc<Stacks>,
    /// Frees of addresses that were allocated anew without a free between: the recording lost events.
    pub lost_frees: u64,
    /// Whether it is a snapshot of PyTorch's, so that settings of its allocator are of use.
    pub is_pytorchs: bool,
    /// Whether it is a log of RMM's, so that RMM's own allocators are of interest.
    pub is_rmms: bool,
    /// The recorded allocator's settings, where the file has them.
    pub settings: String,
    /// What of the job's history is not in the file, and what to do about it: the job may need more than what is replayed.
    pub lacks: Option<String>,
    /// What the reader of the file has to say about it: that its end is missing, or events in it.
    pub remarks: Vec<String>,
}

impl Trace {
    /// Whether this block was asked for and refused.
    pub fn is_refused(&self, block: u32) -> bool {
        // Blocks are numbered in the order in which they come.
        self.recorded_ooms.binary_search_by_key(&block, |oom| oom.block).is_ok()
    }
}
