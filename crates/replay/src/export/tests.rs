use std::path::Path;

use super::*;
use crate::read::{self, Limits};
use crate::replay::FreeWhen;
use crate::trace::{Op, Trace};

fn recorded() -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pipeline_streams_stacks.pickle.gz");
    read::read(&path, Limits::default()).unwrap().remove(0)
}

#[test]
fn an_exported_snapshot_reads_back_as_the_same_trace() {
    let trace = recorded();
    let mut file = Vec::new();
    snapshot(&trace, &mut file).unwrap();
    let again = read::read_from(&mut &file[..], &trace.name, Limits::default()).unwrap().remove(0);
    // Times count from the first event, and what came before the first block is not exported.
    let begin = trace.ops[0].time_us;
    let moved = again.ops.iter().map(|op| Op { time_us: op.time_us + begin, ..*op });
    assert!(moved.eq(trace.ops.iter().copied()));
    assert_eq!(again.streams, trace.streams);
    assert_eq!(again.live_before, trace.live_before);
    for (one, other) in again.blocks.iter().zip(&trace.blocks) {
        assert_eq!((one.size, one.address, one.stream), (other.size, other.address, other.stream));
        assert!(again.stacks.frames(one.stack).eq(trace.stacks.frames(other.stack)));
    }
}

#[test]
fn counters_are_json_and_reach_the_peaks() {
    let trace = recorded();
    let mut file = Vec::new();
    let choose = |context: &millpond::Context| millpond_baselines::by_name("caching", context);
    chrome(&trace, FreeWhen::Completed, &choose, &mut file).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let peak = |what: &str| events.iter().filter_map(|event| event["args"][what].as_u64()).max();
    assert_eq!(peak("requested"), Some(6_173_473_808));
    assert_eq!(peak("reserved"), trace.recorded_reserved);
    let times: Vec<_> = events.iter().filter_map(|event| event["ts"].as_u64()).collect();
    assert!(times.is_sorted());
}
