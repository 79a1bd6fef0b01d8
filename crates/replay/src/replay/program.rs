//! A trace as the replay loop wants it: only what will be done, in a dense vector.

use millpond::device::sim::CostTable;

use crate::trace::{Op, OpKind, Trace};

/// When a block that other streams used is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FreeWhen {
    /// When the recorded allocator found it reusable, as in the trace.
    #[default]
    Completed,
    /// When the program let go of it.
    Requested,
}

impl FreeWhen {
    /// The op that frees a block then.
    pub(crate) fn kind(self) -> OpKind {
        match self {
            Self::Completed => OpKind::FreeCompleted,
            Self::Requested => OpKind::FreeRequested,
        }
    }
}

/// One call of the allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Bytes requested.
    pub size: u64,
    /// When it was recorded, in microseconds from the trace's start. Where the trace has no times, steps are
    /// [`WITHOUT_TIMES_US`] apart.
    pub time_us: u64,
    /// The block's number.
    pub block: u32,
    /// The stream's number.
    pub stream: u16,
    /// Whether the block begins to live; else it is freed.
    pub alloc: bool,
}

/// Time from one step to the next where a trace does not say, in microseconds: about that of a framework's
/// operators.
pub const WITHOUT_TIMES_US: u64 = 10;

/// What a replay does.
#[derive(Debug, Clone)]
pub struct Program {
    /// Allocations of what was live before the recording began, then the recorded steps.
    pub steps: Vec<Step>,
    /// How many of the steps come from before the recording.
    pub before: usize,
    /// When blocks are freed.
    pub free: FreeWhen,
    /// Numbers of blocks go up to this.
    pub blocks: usize,
    /// Numbers of streams go up to this.
    pub streams: usize,
    /// What the calls of the simulated device cost.
    pub costs: CostTable,
}

impl Program {
    /// The steps of a trace.
    pub fn new(trace: &Trace, free: FreeWhen) -> Self {
        let step = |block: u32, stream, alloc, time_us| {
            let size = trace.blocks[block as usize].size;
            Step { size, time_us, block, stream, alloc }
        };
        let before = trace.live_before.iter();
        let before = before.map(|&block| step(block, trace.blocks[block as usize].stream, true, 0));
        let recorded = replayed(trace, free);
        let has_times = trace.wall_us > 0;
        let recorded = recorded.enumerate().map(|(at, op)| {
            let time_us = if has_times { op.time_us } else { at as u64 * WITHOUT_TIMES_US };
            step(op.block, op.stream, op.kind == OpKind::Alloc, time_us)
        });
        // A block whose free was recorded only in part is not freed twice: the builder saw to that.
        Self {
            steps: before.chain(recorded).collect(),
            before: trace.live_before.len(),
            free,
            blocks: trace.blocks.len(),
            streams: trace.streams.len(),
            costs: CostTable::h200(),
        }
    }

    /// The same as if no times had been recorded: for a program whose kernels did not run. How long its host took says nothing of
    /// the job, and differs each time.
    pub fn without_times(mut self) -> Self {
        for (step, at) in self.steps[self.before..].iter_mut().zip(0..) {
            step.time_us = at * WITHOUT_TIMES_US;
        }
        self
    }

    /// The same on a machine with other costs.
    pub fn at_costs(mut self, costs: CostTable) -> Self {
        self.costs = costs;
        self
    }

    /// When each step was recorded, in microseconds from the trace's start.
    pub fn times(&self, trace: &Trace) -> impl Iterator<Item = u64> {
        std::iter::repeat_n(0, self.before).chain(replayed(trace, self.free).map(|op| op.time_us))
    }

    /// The most bytes that are requested at once, and after which step.
    pub fn peak_requested(&self) -> (u64, usize) {
        let mut now = 0u64;
        let mut peak = (0, 0);
        for (at, step) in self.steps.iter().enumerate() {
            if step.alloc {
                now += step.size;
            } else {
                now -= step.size;
            }
            if now > peak.0 {
                peak = (now, at);
            }
        }
        peak
    }
}

/// The recorded ops that are steps of a replay.
fn replayed(trace: &Trace, free: FreeWhen) -> impl Iterator<Item = &Op> {
    let freeing = free.kind();
    trace.ops.iter().filter(move |op| op.kind == OpKind::Alloc || op.kind == freeing)
}
