use std::path::Path;

use super::*;
use crate::read;

fn trace(name: &str) -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    read::read(&path, read::Limits::default()).unwrap().remove(0)
}

#[test]
fn a_trace_is_replayed_through_every_allocator() {
    let trace = trace("gnn_stacks.pickle.gz");
    let program = Program::new(&trace, FreeWhen::Completed);
    for allocator in millpond_baselines::NAMES {
        let outcome = on_sim(&trace, &program, allocator, UNLIMITED).unwrap();
        assert_eq!(outcome.peak_requested, 10_499_491_208, "{allocator}");
        assert_eq!(outcome.oom, None, "{allocator}");
        assert_eq!(outcome.events, program.steps.len(), "{allocator}");
        assert!(outcome.peak_reserved >= outcome.peak_requested, "{allocator}");
    }
}

#[test]
fn a_block_that_other_streams_use_lives_until_its_free_is_complete() {
    let trace = trace("pipeline_streams_stacks.pickle.gz");
    let completed = Program::new(&trace, FreeWhen::Completed).peak_requested().0;
    let requested = Program::new(&trace, FreeWhen::Requested).peak_requested().0;
    assert_eq!(completed, 6_173_473_808);
    assert!(requested < completed);
}

#[test]
fn a_device_that_is_too_small_ends_the_replay_at_the_request_that_found_no_memory() {
    let trace = trace("gnn_stacks.pickle.gz");
    let program = Program::new(&trace, FreeWhen::Completed);
    for allocator in millpond_baselines::NAMES {
        let outcome = on_sim(&trace, &program, allocator, 4 << 30).unwrap();
        let oom = outcome.oom.unwrap_or_else(|| panic!("{allocator} fits"));
        assert_eq!(program.steps[oom.event].size, oom.bytes);
    }
}
