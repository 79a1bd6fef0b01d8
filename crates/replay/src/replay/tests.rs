use std::path::Path;

use super::*;
use crate::read;

fn trace(name: &str) -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    read::read(&path, read::Limits::default()).unwrap().remove(0)
}

fn named(name: &str) -> impl Fn(&Context) -> Result<Box<dyn Allocator>, ChoiceError> {
    move |context| millpond_baselines::by_name(name, context)
}

#[test]
fn a_trace_is_replayed_through_every_allocator() {
    let trace = trace("gnn_stacks.pickle.gz");
    let program = Program::new(&trace, FreeWhen::Completed);
    for allocator in millpond_baselines::NAMES {
        let outcome = on_sim(&trace, &program, &named(allocator), UNLIMITED).unwrap();
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
        let outcome = on_sim(&trace, &program, &named(allocator), 4 << 30).unwrap();
        let oom = outcome.oom.unwrap_or_else(|| panic!("{allocator} fits"));
        assert_eq!(program.steps[oom.event].size, oom.bytes);
    }
}

#[test]
fn the_smallest_capacity_fits_and_a_step_less_does_not() {
    let trace = trace("gnn_stacks.pickle.gz");
    let program = Program::new(&trace, FreeWhen::Completed);
    for allocator in ["millpond", "caching", "stream-ordered"] {
        let choose = named(allocator);
        let unlimited = on_sim(&trace, &program, &choose, UNLIMITED).unwrap();
        let smallest = crate::fit::smallest_capacity(&trace, &program, &choose, &unlimited).unwrap().unwrap();
        let outcome = |capacity| on_sim(&trace, &program, &choose, capacity).unwrap().oom;
        assert_eq!(outcome(smallest), None, "{allocator}");
        assert!(smallest >= unlimited.peak_requested);
        let step = (unlimited.peak_requested / 1000).next_multiple_of(2 << 20);
        assert!(outcome(smallest - step).is_some(), "{allocator}");
    }
}
