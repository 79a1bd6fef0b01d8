//! What grows from step to step, in recordings of real jobs.

use std::path::Path;

use millpond_replay::event::StackId;
use millpond_replay::growth::Growth;
use millpond_replay::read::{Limits, read};
use millpond_replay::replay::{FreeWhen, Program};
use millpond_replay::steps::{StepBy, Steps};
use millpond_replay::trace::{Block, Op, OpKind, Trace};

/// Recordings whose optimizer's steps were noted.
const JOBS: [&str; 3] = ["gpt_varlen", "resnet_multiscale", "gnn"];

const MIB: u64 = 1 << 20;

fn job(name: &str) -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../data/traces/{name}.pickle.zst"));
    read(&path, Limits::default()).unwrap().remove(0)
}

fn growth(trace: &Trace) -> Growth {
    let program = Program::new(trace, FreeWhen::Completed);
    Growth::of(trace, &program, Steps::found(trace, &program))
}

/// Adds a block of 1 MiB to each step, which stays.
fn plant(trace: &mut Trace) {
    let steps = trace.phases.iter().filter(|phase| phase.name.ends_with(".step"));
    let begins: Vec<u64> = steps.map(|phase| phase.from_us).collect();
    for (number, time_us) in begins.into_iter().enumerate() {
        let (block, address) = (trace.blocks.len() as u32, (1 << 50) + number as u64 * MIB);
        trace.blocks.push(Block { size: MIB, address, stack: StackId::NONE, stream: 0 });
        let at = trace.ops.partition_point(|op| op.time_us < time_us);
        trace.ops.insert(at, Op { time_us, block, stream: 0, kind: OpKind::Alloc });
    }
}

#[test]
fn jobs_that_do_not_leak_are_told_so() {
    for name in JOBS {
        let growth = growth(&job(name));
        assert_eq!((growth.step_by, growth.grew), (StepBy::Phase, 0), "{name}: {growth:?}");
        assert!(growth.steps >= 39, "{name}: {}", growth.steps);
    }
}

#[test]
fn a_mebibyte_a_step_planted_among_gigabytes_is_the_first_row() {
    for name in JOBS {
        let mut trace = job(name);
        plant(&mut trace);
        let growth = growth(&trace);
        let first = growth.grown.first().unwrap_or_else(|| panic!("{name}: nothing"));
        assert_eq!(first.size, Some(MIB), "{name}: {growth:?}");
        // Other blocks of this size come and go.
        let off = first.bytes_a_step / MIB as f64 - 1.0;
        assert!(off.abs() < 0.05 && first.r2 > 0.99, "{name}: {first:?}");
    }
}
