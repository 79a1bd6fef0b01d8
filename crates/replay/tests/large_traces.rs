//! Four whole jobs of `data/traces`, through the allocators.

use std::path::Path;

use millpond::Context;
use millpond_replay::fit::Need;
use millpond_replay::replay::{FreeWhen, Outcome, Program, UNLIMITED, on_sim};
use millpond_replay::trace::Trace;

use crate::shared::only;

/// What one job really did, from the traces' own README: bytes.
struct Job {
    name: &'static str,
    requested: u64,
    /// What PyTorch 2.11 reserved: by default, and with expandable segments.
    native: u64,
    expandable: u64,
    /// What the pool may reserve over what is requested.
    most: f64,
}

const JOBS: [Job; 4] = [
    Job {
        name: "gpt_varlen",
        requested: 13_897_502_628,
        native: 16_332_619_776,
        expandable: 15_923_675_136,
        most: 1.02,
    },
    Job {
        name: "resnet_multiscale",
        requested: 11_785_934_864,
        native: 15_365_832_704,
        expandable: 11_966_349_312,
        most: 1.02,
    },
    Job {
        name: "gnn",
        requested: 29_997_844_744,
        native: 58_388_905_984,
        expandable: 31_706_841_088,
        most: 1.02,
    },
    Job {
        name: "pipeline_streams",
        requested: 9_417_808_404,
        native: 27_283_947_520,
        expandable: 14_319_353_856,
        most: 1.02,
    },
];

fn trace(job: &Job) -> Trace {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/traces");
    only(&folder.join(job.name).with_extension("pickle.zst"))
}

fn replayed(trace: &Trace, allocator: &str, capacity: u64) -> Outcome {
    let program = Program::new(trace, FreeWhen::Completed);
    let choose = |context: &Context| millpond_baselines::by_name(allocator, context);
    on_sim(trace, &program, &choose, capacity).unwrap()
}

#[test]
fn the_pool_meets_its_ratio_at_one_percent_and_20_ms_a_gib() {
    for job in &JOBS {
        let outcome = replayed(&trace(job), "millpond", UNLIMITED);
        assert_eq!(outcome.peak_requested, job.requested, "{}", job.name);
        assert_eq!(outcome.oom, None, "{}", job.name);
        assert!(outcome.ratio <= job.most, "{}: {:.4}", job.name, outcome.ratio);
        let gib = outcome.peak_requested as f64 / (1u64 << 30) as f64;
        let beyond = outcome.device_us.unwrap() - outcome.trace_wall_us as f64 / 100.0;
        assert!(beyond <= 20e3 * gib, "{}: {beyond} µs beyond 1 % of the time", job.name);
    }
}

#[test]
fn no_job_needs_more_than_with_expandable_segments() {
    for job in &JOBS {
        let trace = trace(job);
        for part in [1, 8] {
            let mut program = Program::new(&trace, FreeWhen::Completed);
            program.steps.truncate(program.steps.len() / part);
            let needs = |allocator: &str| {
                let choose = |context: &Context| millpond_baselines::by_name(allocator, context);
                let unlimited = on_sim(&trace, &program, &choose, UNLIMITED).unwrap();
                let need = Need::of(&program, &choose, &unlimited).unwrap().unwrap();
                need.bytes as f64 / unlimited.peak_requested as f64
            };
            let [own, expandable] = ["millpond", "expandable"].map(needs);
            assert!(own <= expandable.max(1.004), "{}, one part of {part}: {own} {expandable}", job.name);
        }
    }
}

#[test]
fn pytorchs_allocator_is_predicted_within_two_percent() {
    for job in &JOBS {
        let trace = trace(job);
        assert_eq!(trace.recorded_reserved, Some(job.native), "{}", job.name);
        for (allocator, really) in [("caching", job.native), ("expandable", job.expandable)] {
            let predicted = replayed(&trace, allocator, UNLIMITED).peak_reserved;
            let off = predicted as f64 / really as f64 - 1.0;
            assert!(off.abs() <= 0.02, "{} {allocator}: {predicted}, {:+.2} %", job.name, off * 100.0);
        }
    }
}

#[test]
fn no_allocator_holds_more_than_the_device_has() {
    for job in &JOBS {
        let trace = trace(job);
        for allocator in millpond_baselines::NAMES {
            // Short for most of them: they end without memory, or make do.
            let capacity = (job.requested / 100 * 102).next_multiple_of(2 << 20);
            let outcome = replayed(&trace, allocator, capacity);
            assert!(outcome.peak_reserved <= capacity, "{} {allocator}: {outcome:?}", job.name);
        }
    }
}
