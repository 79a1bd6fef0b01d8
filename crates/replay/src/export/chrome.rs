//! Trace events as JSON, which Perfetto and Chrome open: what the job requested, what each allocator reserved, the job's
//! phases, and the lives of its blocks.

use std::collections::BTreeMap;
use std::io::Write;

use millpond::device::DevicePtr;
use serde_json::json;

use super::ExportError;
use super::lives::lives;
use super::trace_events::TraceEvents;
use crate::event::StackId;
use crate::replay::{Choose, FreeWhen, Program, ReplayError, Stage, UNLIMITED};
use crate::sites::tag;
use crate::trace::Trace;

/// Writes what a job requested over time, in all, by stream and by tag, with its phases; and replays it through each of
/// the allocators on the simulated device, and writes what that reserved. At the end come the blocks that weigh most.
///
/// A request without memory ends an allocator's line.
///
/// # Errors
/// [`ExportError`], where a replay fails or the file cannot be written.
pub fn chrome(
    trace: &Trace,
    free: FreeWhen,
    allocators: &[(&str, &Choose<'_>)],
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let program = Program::new(trace, free);
    let mut events = TraceEvents::begin(out)?;
    events.process(&trace.name)?;
    job(&mut events, trace, &program)?;
    for phase in &trace.phases {
        let dur = phase.to_us - phase.from_us;
        events.push(&json!({
            "name": phase.name, "ph": "X", "pid": events.pid(), "tid": 1, "ts": phase.from_us, "dur": dur
        }))?;
    }
    for (name, choose) in allocators {
        events.process(name)?;
        reserved(&mut events, trace, &program, choose)?;
    }
    lives(&mut events, trace, &program)?;
    events.end()
}

/// What the job requested: in all, by stream where it has several, and by tag where it has any.
fn job(events: &mut TraceEvents<'_>, trace: &Trace, program: &Program) -> Result<(), ExportError> {
    let stream = |block: u32| trace.blocks[block as usize].stream;
    let streams: Vec<_> = trace.streams.iter().map(|stream| format!("stream {stream}")).collect();
    let mut tags: BTreeMap<StackId, Option<String>> = BTreeMap::new();
    let (mut all, mut by_stream, mut by_tag) = (0, vec![0; streams.len()], BTreeMap::new());
    for (step, now) in program.steps.iter().zip(program.times(trace)) {
        let change = |bytes: &mut u64| {
            *bytes = if step.alloc { *bytes + step.size } else { *bytes - step.size };
            *bytes
        };
        events.counter("requested", now, change(&mut all))?;
        if streams.len() > 1 {
            let stream = usize::from(stream(step.block));
            events.counter(&streams[stream], now, change(&mut by_stream[stream]))?;
        }
        let stack = trace.blocks[step.block as usize].stack;
        let tag = tags.entry(stack).or_insert_with(|| tag(trace, stack));
        if let Some(tag) = tag {
            let bytes = change(by_tag.entry(tag.clone()).or_default());
            events.counter(&format!("tag {tag}"), now, bytes)?;
        }
    }
    Ok(())
}

fn reserved(
    events: &mut TraceEvents<'_>,
    trace: &Trace,
    program: &Program,
    choose: &Choose<'_>,
) -> Result<(), ExportError> {
    let stage = Stage::sim(program, UNLIMITED)?;
    let allocator = choose(stage.context()).map_err(ReplayError::from)?;
    let mut blocks = vec![DevicePtr::NULL; program.blocks];
    let mut last = None;
    for (step, now) in program.steps.iter().zip(program.times(trace)) {
        if stage.play(&*allocator, std::slice::from_ref(step), &mut blocks)?.oom.is_some() {
            break;
        }
        let reserved = allocator.usage().reserved.current;
        if last.replace(reserved) != Some(reserved) {
            events.counter("reserved", now, reserved)?;
        }
    }
    stage.clear(&*allocator, program, &mut blocks)?;
    Ok(())
}
