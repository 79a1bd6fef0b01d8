//! The lives of a job's blocks: a slice for each, by tag, and an arrow from its allocation to its free.

use std::cmp::Reverse;

use millpond::HumanBytes;
use rustc_hash::FxHashMap;
use serde_json::json;

use super::ExportError;
use super::trace_events::TraceEvents;
use crate::replay::Program;
use crate::sites::{joined, places, tag};
use crate::trace::Trace;

/// Blocks that are shown: six events each.
const MOST: usize = 10_000;

/// The tracks of the arrows' ends.
const ALLOCATIONS: u32 = 1;
const FREES: u32 = 2;

/// When a block was there, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Life {
    block: u32,
    from: u64,
    /// `None` where it is live at the end.
    to: Option<u64>,
}

/// Writes the blocks that held most bytes for the longest time, in the order of their allocations.
pub(super) fn lives(
    events: &mut TraceEvents<'_>,
    trace: &Trace,
    program: &Program,
) -> Result<(), ExportError> {
    let mut lives: Vec<Life> = Vec::new();
    let mut live: FxHashMap<u32, usize> = FxHashMap::default();
    for (step, now) in program.steps.iter().zip(program.times(trace)) {
        if step.alloc {
            live.insert(step.block, lives.len());
            lives.push(Life { block: step.block, from: now, to: None });
        } else if let Some(at) = live.remove(&step.block) {
            lives[at].to = Some(now);
        }
    }
    let end = |life: &Life| life.to.unwrap_or(trace.wall_us).max(life.from);
    let size = |life: &Life| trace.blocks[life.block as usize].size;
    let weight = |life: &Life| u128::from(size(life)) * u128::from(end(life) - life.from + 1);
    let all = lives.len();
    if all > MOST {
        lives.select_nth_unstable_by_key(MOST, |life| Reverse(weight(life)));
        lives.truncate(MOST);
        lives.sort_by_key(|life| (life.from, life.block));
    }
    events.process(&format!("{} of {all} blocks, those that weigh most", lives.len()))?;
    for (track, name) in [(ALLOCATIONS, "allocations"), (FREES, "frees")] {
        let args = json!({ "name": name });
        events.push(
            &json!({ "name": "thread_name", "ph": "M", "pid": events.pid(), "tid": track, "args": args }),
        )?;
    }
    let mut owners = FxHashMap::default();
    for life in &lives {
        let stack = trace.blocks[life.block as usize].stack;
        let (tag, site) = &*owners.entry(stack).or_insert_with(|| {
            let tag = tag(trace, stack).unwrap_or_else(|| "(no tag)".to_owned());
            (tag, joined(&places(trace, stack)))
        });
        write(events, (life, end(life)), size(life), (tag, site))?;
    }
    Ok(())
}

fn write(
    events: &mut TraceEvents<'_>,
    (life, end): (&Life, u64),
    size: u64,
    (tag, site): (&str, &str),
) -> Result<(), ExportError> {
    let (pid, id, from) = (events.pid(), life.block, life.from);
    let args = json!({ "bytes": size, "site": site });
    events.push(&json!({ "name": tag, "cat": "block", "ph": "b", "id": id, "pid": pid, "tid": ALLOCATIONS, "ts": from, "args": args }))?;
    events.push(&json!({ "name": tag, "cat": "block", "ph": "e", "id": id, "pid": pid, "tid": ALLOCATIONS, "ts": end }))?;
    let Some(to) = life.to else { return Ok(()) };
    // An arrow goes from slice to slice, and there is none without a length.
    for (phase, track, at) in [("s", ALLOCATIONS, from), ("f", FREES, to)] {
        let name = HumanBytes(size).to_string();
        events.push(
            &json!({ "name": name, "ph": "X", "pid": pid, "tid": track, "ts": at, "dur": 1, "args": args }),
        )?;
        events.push(&json!({ "name": "life", "cat": "life", "ph": phase, "bp": "e", "id": id, "pid": pid, "tid": track, "ts": at }))?;
    }
    Ok(())
}
