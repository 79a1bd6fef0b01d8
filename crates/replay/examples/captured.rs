//! What a captured step holds, beside the least that it could: `docs/lab/possible.md`.
//!
//! `cargo run --release -p millpond-replay --example captured -- FILE…` plays all but the last step of each recording as it is, and
//! the last one into the memory of a capture. A step ends with a phase whose name has *optimizer* in it, as `millpond predict
//! --record` writes it.

use std::error::Error;
use std::ops::Range;
use std::path::Path;

use millpond::device::DevicePtr;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Context, Pool};
use millpond_replay::possible::Possible;
use millpond_replay::read::{Limits, read};
use millpond_replay::replay::{FreeWhen, Program};
use millpond_replay::trace::Trace;

fn main() -> Result<(), Box<dyn Error>> {
    println!("{:32} {:>9} {:>9} {:>7}", "recording, MiB", "plan", "capture", "ratio");
    for file in std::env::args().skip(1) {
        for trace in read(Path::new(&file), Limits::default())? {
            let program = Program::new(&trace, FreeWhen::Completed);
            let Some(step) = last_step(&trace, &program) else {
                println!("{file}: it has no two steps of an optimizer");
                continue;
            };
            let plan = Possible::of(&blocks_of(&program, step.clone())).reserved;
            let held = captured(&program, step)?;
            let ratio = held as f64 / plan as f64;
            println!("{file:32} {:9} {:9} {ratio:7.3}", plan >> 20, held >> 20);
        }
    }
    Ok(())
}

/// From the end of the last optimizer's step but one to that of the last.
fn last_step(trace: &Trace, program: &Program) -> Option<Range<usize>> {
    let times: Vec<u64> = program.times(trace).collect();
    let optimizers = trace.phases.iter().filter(|phase| phase.name.to_lowercase().contains("optimizer"));
    let mut ends: Vec<usize> =
        optimizers.map(|phase| times.partition_point(|&time| time <= phase.to_us)).collect();
    ends.dedup();
    let [.., from, to] = ends[..] else { return None };
    Some(from..to)
}

/// The program of those blocks that are allocated in the step.
fn blocks_of(program: &Program, step: Range<usize>) -> Program {
    let mut inside = vec![false; program.blocks];
    let steps = &program.steps[step];
    steps.iter().filter(|step| step.alloc).for_each(|step| inside[step.block as usize] = true);
    let steps = steps.iter().filter(|step| inside[step.block as usize]).copied().collect();
    Program { steps, before: 0, ..program.clone() }
}

/// What the memory of a capture of the step holds.
fn captured(program: &Program, step: Range<usize>) -> Result<u64, Box<dyn Error>> {
    let sim = SimDevice::new(SimOptions::default().capacity(1 << 44))?;
    let context = Context::new(sim.clone());
    let pool = Pool::builder(&context).build()?;
    let streams: Vec<_> = (0..program.streams).map(|_| context.create_stream()).collect::<Result<_, _>>()?;
    let mut blocks = vec![DevicePtr::NULL; program.blocks];
    let mut play = |range: Range<usize>| -> millpond::Result<()> {
        for step in program.steps[range].iter().filter(|step| step.size > 0) {
            sim.advance_to_nanoseconds(step.time_us * 1000);
            let (stream, block) = (&streams[usize::from(step.stream)], &mut blocks[step.block as usize]);
            if step.alloc {
                *block = pool.alloc(step.size, stream)?;
            } else {
                // SAFETY: nobody else has the block, and there is no work.
                unsafe { pool.free(std::mem::take(block), stream) }?;
            }
        }
        Ok(())
    };
    play(0..step.start)?;
    let memory = pool.capture_pool();
    let capturing = memory.begin_where(|_| true)?;
    play(step)?;
    drop(capturing);
    Ok(memory.reserved())
}
