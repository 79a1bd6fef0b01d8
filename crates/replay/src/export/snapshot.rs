//! A PyTorch memory snapshot, as `torch.cuda.memory._dump_snapshot` writes it.

use std::io::Write;

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

use super::{ExportError, held};
use crate::event::{REFUSED, StackId};
use crate::segments::{Segment, SegmentKind, SegmentOp, Segments};
use crate::trace::{Op, OpKind, RecordedOom, Trace};

/// Writes a trace as a snapshot: blocks and segments as the recorder placed them, with the blocks' stacks.
///
/// Where the recorder kept no segments (an RMM log), or not all, the stretches of addresses in which blocks ever
/// were stand for them, held all the time.
///
/// # Errors
/// [`ExportError`], where the file cannot be written.
pub fn snapshot(trace: &Trace, out: &mut dyn Write) -> Result<(), ExportError> {
    let held = held::segments(trace);
    let snapshot =
        Snapshot { segments: segments(trace, &held), device_traces: Devices(&Events { trace, held: &held }) };
    serde_pickle::to_writer(&mut &mut *out, &snapshot, serde_pickle::SerOptions::new())?;
    Ok(())
}

/// A number as JavaScript can add it. The crate would write a large `u64` with nine bytes, which memory_viz reads
/// as a BigInt; larger ones than an `i64` holds do not occur.
#[derive(Debug, Clone, Copy)]
struct Number(u64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(self.0 as i64)
    }
}

#[derive(Serialize)]
struct Snapshot<'a> {
    segments: Vec<SegmentOut>,
    device_traces: Devices<'a>,
}

#[derive(Serialize)]
struct SegmentOut {
    device: u32,
    address: Number,
    total_size: Number,
    allocated_size: Number,
    active_size: Number,
    requested_size: Number,
    stream: Number,
    segment_type: &'static str,
    segment_pool_id: (u32, u32),
    is_expandable: bool,
    frames: Vec<FrameOut>,
    blocks: Vec<BlockOut>,
}

#[derive(Serialize)]
struct BlockOut {
    address: Number,
    size: Number,
    requested_size: Number,
    state: &'static str,
    frames: Vec<FrameOut>,
}

#[derive(Serialize)]
struct FrameOut {
    filename: String,
    line: u32,
    name: String,
}

/// The list of events of each device; those before the trace's own are empty.
struct Devices<'a>(&'a Events<'a>);

/// The events of one device.
struct Events<'a> {
    trace: &'a Trace,
    held: &'a Segments,
}

#[derive(Serialize)]
struct EventOut {
    action: &'static str,
    addr: Number,
    size: Number,
    stream: Number,
    time_us: Number,
    frames: Vec<FrameOut>,
}

#[derive(Serialize)]
struct OomOut {
    action: &'static str,
    device_free: Number,
    size: Number,
    stream: Number,
    time_us: Number,
    frames: Vec<FrameOut>,
}

impl Serialize for Devices<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let device = self.0.trace.device;
        let mut list = to.serialize_seq(Some(device as usize + 1))?;
        for _ in 0..device {
            list.serialize_element::<[EventOut; 0]>(&[])?;
        }
        list.serialize_element(self.0)?;
        list.end()
    }
}

impl Serialize for Events<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { trace, held } = self;
        // A request that was refused has three ops, which its event stands for.
        let events = trace.ops.len() + held.ops.len() - 2 * trace.recorded_ooms.len();
        let mut list = to.serialize_seq(Some(events))?;
        let mut segments = held.ops.iter().peekable();
        let mut ooms = trace.recorded_ooms.iter().peekable();
        for at in 0..=trace.ops.len() {
            while let Some(op) = segments.next_if(|op| op.before_op <= at) {
                list.serialize_element(&segment_event(op))?;
            }
            while let Some(oom) = ooms.next_if(|oom| oom.before_op <= at) {
                list.serialize_element(&oom_event(trace, oom))?;
            }
            if let Some(op) = trace.ops.get(at).filter(|op| !trace.is_refused(op.block)) {
                list.serialize_element(&block_event(trace, op))?;
            }
        }
        list.end()
    }
}

fn block_event(trace: &Trace, op: &Op) -> EventOut {
    let block = &trace.blocks[op.block as usize];
    let (action, frames) = match op.kind {
        OpKind::Alloc => ("alloc", frames(trace, block.stack)),
        OpKind::FreeRequested => ("free_requested", Vec::new()),
        OpKind::FreeCompleted => ("free_completed", Vec::new()),
    };
    let stream = trace.streams[usize::from(op.stream)];
    let (addr, size) = (Number(block.address), Number(block.size));
    EventOut { action, addr, size, stream: Number(stream), time_us: Number(op.time_us), frames }
}

fn segment_event(op: &SegmentOp) -> EventOut {
    let action = match op.kind {
        SegmentKind::Alloc => "segment_alloc",
        SegmentKind::Free => "segment_free",
        SegmentKind::Map => "segment_map",
        SegmentKind::Unmap => "segment_unmap",
    };
    let Segment { address, bytes, stream } = op.segment;
    let (addr, size) = (Number(address), Number(bytes));
    EventOut { action, addr, size, stream: Number(stream), time_us: Number(op.time_us), frames: Vec::new() }
}

fn oom_event(trace: &Trace, oom: &RecordedOom) -> OomOut {
    let (device_free, size) = (Number(oom.device_free), Number(oom.size));
    let op = &trace.ops[oom.before_op];
    let stack = trace.blocks[oom.block as usize].stack;
    let frames = frames(trace, stack).into_iter().filter(|frame| frame.name != REFUSED).collect();
    let stream = Number(trace.streams[usize::from(op.stream)]);
    OomOut { action: "oom", device_free, size, stream, time_us: Number(op.time_us), frames }
}

fn frames(trace: &Trace, stack: StackId) -> Vec<FrameOut> {
    let frame = |frame: &crate::event::Frame| FrameOut {
        filename: frame.file.to_string(),
        line: frame.line,
        name: frame.name.to_string(),
    };
    trace.stacks.frames(stack).map(frame).collect()
}

/// The segments at the end, each filled with its blocks and with what is free between them.
fn segments(trace: &Trace, held: &Segments) -> Vec<SegmentOut> {
    let live = held::live_at_end(trace);
    let expandable = held.ops.iter().any(|op| op.kind == SegmentKind::Map);
    let segments = held.at_end.iter().flatten();
    segments
        .map(|segment| {
            let parts = held::parts(trace, segment, &live);
            let blocks: Vec<_> = parts.iter().map(|part| block(trace, part)).collect();
            let sum = |of: fn(&BlockOut) -> u64| Number(blocks.iter().map(of).sum());
            SegmentOut {
                device: trace.device,
                address: Number(segment.address),
                total_size: Number(segment.bytes),
                allocated_size: sum(|block| if block.state == ALLOCATED { block.size.0 } else { 0 }),
                active_size: sum(|block| if block.state == INACTIVE { 0 } else { block.size.0 }),
                requested_size: sum(|block| if block.state == INACTIVE { 0 } else { block.requested_size.0 }),
                stream: Number(segment.stream),
                // PyTorch's small segments have 2 MiB, and no large one has.
                segment_type: if segment.bytes == 2 << 20 { "small" } else { "large" },
                segment_pool_id: (0, 0),
                is_expandable: expandable,
                frames: Vec::new(),
                blocks,
            }
        })
        .collect()
}

const ALLOCATED: &str = "active_allocated";
const PENDING: &str = "active_pending_free";
const INACTIVE: &str = "inactive";

fn block(trace: &Trace, part: &held::SegmentPart) -> BlockOut {
    let held::SegmentPart { address, bytes, block } = *part;
    let (address, size) = (Number(address), Number(bytes));
    let Some((number, pending)) = block else {
        return BlockOut { address, size, requested_size: size, state: INACTIVE, frames: Vec::new() };
    };
    let block = &trace.blocks[number as usize];
    let state = if pending { PENDING } else { ALLOCATED };
    BlockOut { address, size, requested_size: Number(block.size), state, frames: frames(trace, block.stack) }
}
