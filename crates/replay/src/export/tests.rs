use super::*;
use crate::fixtures::{GNN, PIPELINE, named, recorded};
use crate::read::{self, Limits};
use crate::replay::{FreeWhen, Program};

#[test]
fn an_exported_snapshot_reads_back_as_the_same_trace() {
    let trace = recorded(PIPELINE);
    let mut file = Vec::new();
    snapshot(&trace, &mut file).unwrap();
    let again = read::read_from(&mut &file[..], &trace.name, Limits::default()).unwrap().remove(0);
    assert_eq!(again.ops, trace.ops);
    assert_eq!(again.segments, trace.segments);
    assert_eq!(again.recorded_reserved, trace.recorded_reserved);
    assert_eq!(again.streams, trace.streams);
    assert_eq!(again.live_before, trace.live_before);
    for (one, other) in again.blocks.iter().zip(&trace.blocks) {
        assert_eq!((one.size, one.address, one.stream), (other.size, other.address, other.stream));
        assert!(again.stacks.frames(one.stack).eq(trace.stacks.frames(other.stack)));
    }
}

/// As memory_viz does: rewinds a snapshot from its end. Every block must lie in a segment at all times, and the
/// blocks of a segment must fill it.
fn rewind(file: &[u8]) {
    // LONG1 with nine bytes: a BigInt there, which it cannot add to a number.
    assert!(!file.windows(2).any(|pair| pair == [0x8a, 9]));
    let snapshot: serde_json::Value = serde_pickle::from_slice(file, Default::default()).unwrap();
    let list = |value: &serde_json::Value, key: &str| value[key].as_array().unwrap().clone();
    let number = |value: &serde_json::Value, key: &str| value[key].as_u64().unwrap();
    let mut segments = std::collections::BTreeMap::new();
    let mut live = std::collections::BTreeMap::new();
    for segment in list(&snapshot, "segments") {
        let start = number(&segment, "address");
        let mut next = start;
        for block in list(&segment, "blocks") {
            assert_eq!(number(&block, "address"), next);
            next += number(&block, "size");
            if block["state"] != "inactive" {
                live.insert(number(&block, "address"), number(&block, "requested_size"));
            }
        }
        assert_eq!(next, start + number(&segment, "total_size"));
        segments.insert(start, next);
    }
    let events = snapshot["device_traces"].as_array().unwrap().last().unwrap().clone();
    for event in events.as_array().unwrap().iter().rev() {
        for (&block, &size) in &live {
            let (_, &end) = segments.range(..=block).next_back().expect("a block lies in a segment");
            assert!(block + size <= end, "at {event}");
        }
        if event["action"] == "oom" {
            continue;
        }
        let (address, size) = (number(event, "addr"), number(event, "size"));
        match event["action"].as_str().unwrap() {
            "free_completed" => assert_eq!(live.insert(address, size), None, "at {event}"),
            "free_requested" => assert!(live.contains_key(&address), "at {event}"),
            "alloc" => assert_eq!(live.remove(&address), Some(size), "at {event}"),
            "segment_free" => assert_eq!(segments.insert(address, address + size), None, "at {event}"),
            "segment_alloc" => assert_eq!(segments.remove(&address), Some(address + size), "at {event}"),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn memory_viz_finds_a_segment_for_each_recorded_block() {
    let mut file = Vec::new();
    snapshot(&recorded(PIPELINE), &mut file).unwrap();
    rewind(&file);
}

#[test]
fn a_log_without_segments_gets_some_that_hold_every_block() {
    let log = "Thread,Time,Action,Pointer,Size,Stream\n\
        1,11:31:52.1,free,0x7f0000000100,100,0\n\
        1,11:31:52.2,allocate,0x7f0000200000,1000,0\n\
        1,11:31:52.3,allocate failure,(nil),4096,0\n\
        1,11:31:52.4,allocate,0x7f1000000200,3000000,0x5\n\
        1,11:31:52.5,free,0x7f0000200000,1000,0\n";
    let trace = read::read_from(&mut log.as_bytes(), "log", Limits::default()).unwrap().remove(0);
    let mut file = Vec::new();
    snapshot(&trace, &mut file).unwrap();
    rewind(&file);
    let again = read::read_from(&mut &file[..], "log", Limits::default()).unwrap().remove(0);
    assert_eq!(again.recorded_ooms, trace.recorded_ooms);
    assert_eq!(again.segments.at_end.map(|held| held.len()), Some(2));
}

#[test]
fn counters_have_every_allocator_stream_and_phase() {
    let trace = recorded(PIPELINE);
    let mut file = Vec::new();
    let (caching, millpond) = (named("caching"), named("millpond"));
    chrome(&trace, FreeWhen::Completed, &[("caching", &caching), ("millpond", &millpond)], &mut file)
        .unwrap();
    let json: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let of = |pid: u64, name: &str| -> Vec<serde_json::Value> {
        events.iter().filter(|event| event["pid"] == pid && event["name"] == name).cloned().collect()
    };
    let peak =
        |pid, name: &str| of(pid, name).iter().filter_map(|event| event["args"]["bytes"].as_u64()).max();
    assert_eq!(peak(0, "requested"), Some(6_173_473_808));
    assert_eq!(peak(1, "reserved"), trace.recorded_reserved);
    assert!(peak(2, "reserved") >= peak(0, "requested"));
    assert_eq!(of(1, "process_name")[0]["args"]["name"], "caching");
    for stream in &trace.streams {
        let name = format!("stream {stream}");
        assert!(peak(0, &name) > Some(0), "{name}");
        assert!(peak(0, &name) <= peak(0, "requested"));
    }
    let times: Vec<_> = of(0, "requested").iter().filter_map(|event| event["ts"].as_u64()).collect();
    assert!(times.is_sorted());
    let phases: Vec<_> = events.iter().filter(|event| event["ph"] == "X" && event["pid"] == 0).collect();
    assert_eq!(phases.len(), trace.phases.len());
}

#[test]
fn an_arrow_goes_from_each_allocation_to_its_free() {
    let trace = recorded(GNN);
    let mut file = Vec::new();
    chrome(&trace, FreeWhen::Completed, &[], &mut file).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let events: Vec<_> =
        json["traceEvents"].as_array().unwrap().iter().filter(|event| event["pid"] == 1).collect();
    let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).copied().collect::<Vec<_>>();
    let by_id = |phase: &str| {
        let ids = of(phase).into_iter().map(|event| (event["id"].as_u64().unwrap(), event));
        ids.collect::<std::collections::BTreeMap<_, _>>()
    };
    let (begins, ends, from, to) = (by_id("b"), by_id("e"), by_id("s"), by_id("f"));
    assert_eq!((begins.len(), ends.len()), (trace.blocks.len(), trace.blocks.len()));
    assert!(!from.is_empty() && from.keys().eq(to.keys()), "those that were freed");
    let slices: std::collections::BTreeSet<_> =
        of("X").into_iter().map(|slice| (slice["tid"].as_u64(), slice["ts"].as_u64())).collect();
    for (id, arrow) in &from {
        let (end, begin) = (to[id], begins[id]);
        assert_eq!((&arrow["ts"], &end["ts"]), (&begin["ts"], &ends[id]["ts"]));
        assert!(arrow["ts"].as_u64() <= end["ts"].as_u64());
        for at in [*arrow, end] {
            assert!(slices.contains(&(at["tid"].as_u64(), at["ts"].as_u64())), "an end of it is in a slice");
        }
        let block = &trace.blocks[*id as usize];
        assert_eq!(begin["args"]["bytes"], block.size);
    }
    assert!(begins.values().any(|begin| begin["args"]["site"].as_str().unwrap().contains("gnn (t3.py:")));
}

#[test]
fn the_blocks_that_weigh_most_are_shown() {
    use crate::event::{Event, EventKind, StackId};
    let mut builder = crate::trace::TraceBuilder::default();
    let alloc = Event {
        kind: EventKind::Alloc,
        device: 0,
        stream: 0,
        time_us: 0,
        address: 64,
        size: 512,
        stack: StackId::NONE,
    };
    for block in 0..12_000 {
        // Every other block is there ten times as long.
        let (from, to) = (100 * block, 100 * block + if block % 2 == 0 { 50 } else { 5 });
        builder.push(Event { time_us: from, ..alloc }).unwrap();
        builder.push(Event { kind: EventKind::FreeCompleted, time_us: to, ..alloc }).unwrap();
    }
    let mut file = Vec::new();
    chrome(&builder.finish("t")[0], FreeWhen::Completed, &[], &mut file).unwrap();
    let text = String::from_utf8(file).unwrap();
    assert_eq!(text.matches(r#""ph":"b""#).count(), 10_000);
    assert!(text.contains("10000 of 12000 blocks, those that weigh most"));
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let shown = json["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "b");
    assert_eq!(shown.filter(|event| event["id"].as_u64().unwrap() % 2 == 0).count(), 6_000);
}

#[test]
fn counters_follow_the_tags_of_a_recording() {
    use crate::event::{Event, EventKind, Frame};
    let mut builder = crate::trace::TraceBuilder::default();
    let [inner, outer] = ["inner", "outer"].map(|text| builder.stacks.add_frame(Frame::of_tag(text)));
    let stack = builder.stacks.add_stack(&[inner, outer]);
    let event =
        Event { kind: EventKind::Alloc, device: 0, stream: 0, time_us: 0, address: 64, size: 512, stack };
    builder.push(event).unwrap();
    builder.push(Event { kind: EventKind::FreeCompleted, time_us: 5, ..event }).unwrap();
    let mut file = Vec::new();
    chrome(&builder.finish("t")[0], FreeWhen::Completed, &[], &mut file).unwrap();
    let text = String::from_utf8(file).unwrap();
    for (time, bytes) in [(0, 512), (5, 0)] {
        let counter = format!(
            r#"{{"name":"tag outer/inner","ph":"C","pid":0,"ts":{time},"args":{{"bytes":{bytes}}}}}"#
        );
        assert!(text.contains(&counter), "{text}");
    }
}

/// The fields of a protocol buffer's message: numbers, and bytes.
fn fields(mut message: &[u8]) -> Vec<(u64, u64, &[u8])> {
    fn varint(from: &mut &[u8]) -> u64 {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = from.split_first().unwrap();
            *from = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        number
    }
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let number = varint(&mut message);
        match key & 7 {
            0 => found.push((key >> 3, number, &[][..])),
            2 => {
                let (bytes, rest) = message.split_at(number as usize);
                found.push((key >> 3, number, bytes));
                message = rest;
            }
            kind => panic!("a field of kind {kind}"),
        }
    }
    found
}

#[test]
fn profiles_have_what_is_live_at_the_peak() {
    let trace = recorded(GNN);
    let program = Program::new(&trace, FreeWhen::Completed);
    let peak = program.peak_requested().0;

    let mut file = Vec::new();
    folded(&trace, &program, &mut file).unwrap();
    let text = String::from_utf8(file).unwrap();
    let sum = text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum::<u64>();
    assert_eq!(sum, peak);
    assert!(text.lines().any(|line| line.starts_with("<module> (t3.py:103);gnn (t3.py:67)")), "{text}");

    let mut file = Vec::new();
    pprof(&trace, &program, &mut file).unwrap();
    let mut profile = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&file[..]), &mut profile).unwrap();
    let all = fields(&profile);
    let of = |field: u64| all.iter().filter(move |(at, ..)| *at == field).map(|(_, _, bytes)| *bytes);
    let strings: Vec<_> = of(6).map(|text| std::str::from_utf8(text).unwrap()).collect();
    assert_eq!(strings[..5], ["", "inuse_objects", "count", "inuse_space", "bytes"]);
    assert!(strings.contains(&"gnn"), "{strings:?}");
    let locations = of(4).count() as u64;
    let mut sum = 0;
    for sample in of(2) {
        let packed = |field| {
            let (_, _, bytes) = fields(sample).into_iter().find(|(at, ..)| *at == field).unwrap();
            // As fields of one number each.
            let keyed: Vec<u8> = bytes
                .split_inclusive(|byte| *byte < 0x80)
                .flat_map(|number| [&[8][..], number].concat())
                .collect();
            fields(&keyed).into_iter().map(|(_, number, _)| number).collect::<Vec<_>>()
        };
        assert!(packed(1).iter().all(|location| (1..=locations).contains(location)));
        sum += packed(2)[1];
    }
    assert_eq!(sum, peak);
}

#[test]
fn a_flame_graph_is_as_wide_as_the_peak_and_has_no_markup_of_names() {
    let (mut trace, peak) = (recorded(GNN), 10_499_491_208);
    let program = Program::new(&trace, FreeWhen::Completed);
    let picture = flame::svg(&trace, &program).unwrap();
    let parts = |picture: &str| picture.matches("<svg ").count();
    assert!(picture.contains("width=\"100.0000%\""), "{picture}");
    assert!(picture.contains(&format!("<title>live at the peak: {}, 100.0 %", millpond::HumanBytes(peak))));
    assert!(parts(&picture) > 5 && picture.contains("&lt;module&gt; (t3.py:103)"), "{picture}");

    trace.stacks = Default::default();
    trace.blocks.iter_mut().for_each(|block| block.stack = crate::event::StackId::NONE);
    let picture = flame::svg(&trace, &program).unwrap();
    assert!(picture.contains("blocks of 1.00 GiB to 2.00 GiB"), "{picture}");
}
