//! A PyTorch memory snapshot, as `torch.cuda.memory._dump_snapshot` writes it.

use std::io::Write;

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

use super::ExportError;
use crate::event::StackId;
use crate::trace::{Op, OpKind, Trace};

/// Writes a trace as a snapshot: the blocks as the recorder placed them, with their stacks.
///
/// What the recorded allocator took from the driver is not part of a [`Trace`], so the segments written are
/// one for each block that is live at the end.
///
/// # Errors
/// [`ExportError`], where the file cannot be written.
pub fn snapshot(trace: &Trace, out: &mut dyn Write) -> Result<(), ExportError> {
    let snapshot = Snapshot { segments: segments(trace), device_traces: Devices(trace) };
    serde_pickle::to_writer(&mut &mut *out, &snapshot, serde_pickle::SerOptions::new())?;
    Ok(())
}

#[derive(Serialize)]
struct Snapshot<'a> {
    segments: Vec<Segment>,
    device_traces: Devices<'a>,
}

#[derive(Serialize)]
struct Segment {
    device: u32,
    address: u64,
    total_size: u64,
    allocated_size: u64,
    active_size: u64,
    requested_size: u64,
    stream: u64,
    segment_type: &'static str,
    segment_pool_id: (u64, u64),
    is_expandable: bool,
    frames: Vec<FrameOut>,
    blocks: Vec<LiveBlock>,
}

#[derive(Serialize)]
struct LiveBlock {
    address: u64,
    size: u64,
    requested_size: u64,
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
struct Devices<'a>(&'a Trace);

/// The events of one device.
struct Events<'a>(&'a Trace);

#[derive(Serialize)]
struct EventOut {
    action: &'static str,
    addr: u64,
    size: u64,
    stream: u64,
    time_us: u64,
    frames: Vec<FrameOut>,
}

impl Serialize for Devices<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut list = to.serialize_seq(Some(self.0.device as usize + 1))?;
        for _ in 0..self.0.device {
            list.serialize_element::<[EventOut; 0]>(&[])?;
        }
        list.serialize_element(&Events(self.0))?;
        list.end()
    }
}

impl Serialize for Events<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut list = to.serialize_seq(Some(self.0.ops.len()))?;
        for op in &self.0.ops {
            list.serialize_element(&event(self.0, op))?;
        }
        list.end()
    }
}

fn event(trace: &Trace, op: &Op) -> EventOut {
    let block = &trace.blocks[op.block as usize];
    let (action, frames) = match op.kind {
        OpKind::Alloc => ("alloc", frames(trace, block.stack)),
        OpKind::FreeRequested => ("free_requested", Vec::new()),
        OpKind::FreeCompleted => ("free_completed", Vec::new()),
    };
    let stream = trace.streams[usize::from(op.stream)];
    EventOut { action, addr: block.address, size: block.size, stream, time_us: op.time_us, frames }
}

fn frames(trace: &Trace, stack: StackId) -> Vec<FrameOut> {
    let frame = |frame: &crate::event::Frame| FrameOut {
        filename: frame.file.clone(),
        line: frame.line,
        name: frame.name.clone(),
    };
    trace.stacks.frames(stack).map(frame).collect()
}

/// One segment for each block that is live at the end.
fn segments(trace: &Trace) -> Vec<Segment> {
    let mut freed = vec![None; trace.blocks.len()];
    for op in trace.ops.iter().filter(|op| op.kind != OpKind::Alloc) {
        freed[op.block as usize] = Some(op.kind);
    }
    let live = trace.blocks.iter().zip(freed).filter(|(_, freed)| *freed != Some(OpKind::FreeCompleted));
    live.map(|(block, freed)| {
        let size = block.size.next_multiple_of(512);
        let pending = freed.is_some();
        Segment {
            device: trace.device,
            address: block.address,
            total_size: size,
            allocated_size: if pending { 0 } else { size },
            active_size: size,
            requested_size: block.size,
            stream: trace.streams[usize::from(block.stream)],
            segment_type: "large",
            segment_pool_id: (0, 0),
            is_expandable: false,
            frames: Vec::new(),
            blocks: vec![LiveBlock {
                address: block.address,
                size,
                requested_size: block.size,
                state: if pending { "active_pending_free" } else { "active_allocated" },
                frames: frames(trace, block.stack),
            }],
        }
    })
    .collect()
}
