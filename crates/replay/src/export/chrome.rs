//! Trace events as JSON, which Perfetto and Chrome open: counters of requested, allocated and reserved bytes.

use std::io::Write;

use millpond::device::DevicePtr;
use serde::Serialize;

use super::ExportError;
use crate::replay::{Choose, FreeWhen, Program, Stage, UNLIMITED};
use crate::trace::Trace;

/// Replays a trace through an allocator on the simulated device, and writes its counters over time.
///
/// Allocated is requested rounded up to 512 bytes a block. A request without memory ends the file.
///
/// # Errors
/// [`ExportError`], where the replay fails or the file cannot be written.
pub fn chrome(
    trace: &Trace,
    free: FreeWhen,
    choose: &Choose<'_>,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let program = Program::new(trace, free);
    let stage = Stage::sim(&program, UNLIMITED)?;
    let allocator = choose(stage.context()).map_err(crate::replay::ReplayError::from)?;
    let mut blocks = vec![DevicePtr::NULL; program.blocks];
    let mut last = Bytes::default();
    let mut allocated = 0;
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    write_event(out, &Name::process(trace, allocator.name()))?;
    for (step, time_us) in program.steps.iter().zip(program.times(trace)) {
        if stage.play(&*allocator, std::slice::from_ref(step), &mut blocks)?.oom.is_some() {
            break;
        }
        let rounded = step.size.next_multiple_of(512);
        allocated = if step.alloc { allocated + rounded } else { allocated - rounded };
        let usage = allocator.usage();
        let now = Bytes { requested: usage.requested.current, allocated, reserved: usage.reserved.current };
        if now != last {
            write!(out, ",")?;
            write_event(
                out,
                &Counter { name: "memory", ph: "C", pid: trace.device, ts: time_us, args: now },
            )?;
            last = now;
        }
    }
    write!(out, "]}}")?;
    stage.clear(&*allocator, &program, &mut blocks)?;
    Ok(())
}

#[derive(Serialize)]
struct Counter {
    name: &'static str,
    ph: &'static str,
    pid: u32,
    ts: u64,
    args: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
struct Bytes {
    requested: u64,
    allocated: u64,
    reserved: u64,
}

#[derive(Serialize)]
struct Name {
    name: &'static str,
    ph: &'static str,
    pid: u32,
    args: Named,
}

#[derive(Serialize)]
struct Named {
    name: String,
}

impl Name {
    fn process(trace: &Trace, allocator: &str) -> Self {
        let name = format!("{} with {allocator}", trace.name);
        Self { name: "process_name", ph: "M", pid: trace.device, args: Named { name } }
    }
}

fn write_event(out: &mut dyn Write, event: &impl Serialize) -> Result<(), ExportError> {
    serde_json::to_writer(out, event).map_err(std::io::Error::from)?;
    Ok(())
}
