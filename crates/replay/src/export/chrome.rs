//! Trace events as JSON, which Perfetto and Chrome open: what the job requested, what each allocator reserved, the job's
//! phases, when tags were evicted, and the lives of its blocks.

use std::collections::BTreeMap;
use std::io::Write;

use millpond::device::DevicePtr;
use millpond_baselines::MILLPOND;
use serde_json::json;

use super::ExportError;
use super::lives::lives;
use super::trace_events::TraceEvents;
use crate::event::StackId;
use crate::evictions::{AsItRan, tag_of};
use crate::replay::{Choose, FreeWhen, Program, ReplayError, Stage, UNLIMITED};
use crate::sites::tag;
use crate::trace::{RecordedMove, Trace};

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
    let ran = AsItRan::of(trace).map(|ran| ran.trace);
    // What was evicted is away for the job, and for Millpond.
    let as_it_ran = ran.as_ref().unwrap_or(trace);
    let program = Program::new(as_it_ran, free);
    let mut events = TraceEvents::begin(out)?;
    events.process(&trace.name)?;
    job(&mut events, as_it_ran, &program)?;
    evicted(&mut events, as_it_ran)?;
    for phase in &trace.phases {
        let dur = phase.to_us - phase.from_us;
        events.push(&json!({
            "name": phase.name, "ph": "X", "pid": events.pid(), "tid": 1, "ts": phase.from_us, "dur": dur
        }))?;
    }
    for (name, choose) in allocators {
        events.process(name)?;
        let trace = if *name == MILLPOND { as_it_ran } else { trace };
        reserved(&mut events, trace, &Program::new(trace, free), choose)?;
    }
    lives(&mut events, as_it_ran, &program)?;
    events.end()
}

/// When the memory of each tag was away: a slice, beside the phases.
fn evicted(events: &mut TraceEvents<'_>, trace: &Trace) -> Result<(), ExportError> {
    let mut since = vec![None; trace.moves.pools.len()];
    let mut away = |pool: usize, (from, bytes): (u64, u64), to: u64| {
        let name = format!("evicted: {}", tag_of(&trace.moves.pools[pool]));
        events.push(&json!({
            "name": name, "ph": "X", "pid": events.pid(), "tid": 2 + pool, "ts": from, "dur": to.saturating_sub(from),
            "args": { "bytes": bytes }
        }))
    };
    for RecordedMove { time_us, pool, leaves, bytes, .. } in trace.moves.all.iter().copied() {
        if leaves {
            since[pool] = Some((time_us, bytes));
        } else if let Some(left) = since[pool].take() {
            away(pool, left, time_us)?;
        }
    }
    let mut still = since.into_iter().enumerate().filter_map(|(pool, left)| Some((pool, left?)));
    still.try_for_each(|(pool, left)| away(pool, left, trace.wall_us))
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
