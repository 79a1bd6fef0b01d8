//! Every suite, on the simulated device, for a moment.

use std::time::Duration;

use millpond::device::{DeviceName, MemoryKind};
use millpond_bench::scale::Case;
use millpond_bench::{Bench, Error, MIMALLOC, Row, Suite, Target, names, repeat};

fn bench() -> Bench {
    let (target, _) = Target::find(DeviceName::SIM.into()).unwrap();
    Bench::new(target, Duration::from_millis(1))
}

fn check(row: &Row, suite: Suite, allocator: &str) {
    assert_eq!((row.suite, row.allocator), (suite.name(), allocator));
    assert_eq!(row.device, if allocator == MIMALLOC { "host" } else { "sim" });
    let rising = [row.min_ns, row.p50_ns, row.p99_ns, row.p999_ns];
    assert!(rising.is_sorted() && row.min_ns >= 0.0, "{row:?}");
    assert!(row.min_ns <= row.mean_ns && row.p999_ns > 0.0, "{row:?}");
    assert!(row.pairs_per_s > 0.0 && row.bytes >= 512 && row.threads >= 1, "{row:?}");
}

/// Each mode of the suite with its threads, once.
fn run(suite: Suite, allocator: &'static str) -> Vec<(String, usize)> {
    let rows = bench().run(suite, allocator).unwrap();
    rows.iter().for_each(|row| check(row, suite, allocator));
    rows.into_iter().map(|row| (row.mode, row.threads)).collect()
}

fn modes(suite: Suite, allocator: &'static str) -> Vec<String> {
    let mut modes: Vec<_> = run(suite, allocator).into_iter().map(|(mode, _)| mode).collect();
    modes.dedup();
    modes
}

#[test]
fn latency_measures_six_sizes_in_pairs_and_single_calls() {
    for allocator in names() {
        let modes = modes(Suite::Latency, allocator);
        assert_eq!(modes.len(), 18);
        assert!(modes.chunks(3).all(|of| of == ["pair", "alone", "alone-free"]), "{modes:?}");
    }
}

#[test]
fn throughput_and_mixed_are_one_figure_each() {
    for allocator in ["millpond", "binned", MIMALLOC] {
        assert_eq!(modes(Suite::Throughput, allocator), ["pair"]);
        assert_eq!(modes(Suite::Mixed, allocator), ["pair"]);
    }
}

#[test]
fn threads_go_to_sixteen_with_one_size_and_mixed() {
    let cases = run(Suite::Threads, "millpond");
    for threads in [1, 2, 4, 8, 16] {
        for mode in ["1MiB", "mixed"] {
            assert!(cases.contains(&(mode.to_owned(), threads)), "{mode} {threads}: {cases:?}");
        }
    }
}

#[test]
fn another_thread_frees_on_the_same_stream_and_its_own() {
    for allocator in ["millpond", "caching", MIMALLOC] {
        let cases = run(Suite::HandOver, allocator);
        assert_eq!(cases.len(), 8);
        assert!(cases.contains(&("same-stream".to_owned(), 2)), "{cases:?}");
        assert!(cases.contains(&("own-stream".to_owned(), 16)), "{cases:?}");
    }
}

#[test]
fn churn_has_three_ranges_of_sizes() {
    assert_eq!(modes(Suite::Churn, "millpond"), ["512B-64KiB", "512B-4MiB", "1MiB-64MiB"]);
}

#[test]
fn reuse_has_cold_and_warm_and_nothing_of_mimalloc() {
    for allocator in ["millpond", "stream-ordered"] {
        assert_eq!(modes(Suite::Reuse, allocator), ["cold", "warm"]);
    }
    assert!(modes(Suite::Reuse, MIMALLOC).is_empty());
}

#[test]
fn streams_have_a_row_for_each_policy_and_baseline() {
    let policies = ["default", "no-policy", "event-dependencies", "opportunistic", "internal-dependencies"];
    assert_eq!(modes(Suite::Streams, "millpond"), policies);
    assert_eq!(modes(Suite::Streams, "caching"), ["default"]);
    assert!(modes(Suite::Streams, MIMALLOC).is_empty());
}

#[test]
fn scale_has_a_row_for_each_case_of_the_pool_alone() {
    let modes = modes(Suite::Scale, "millpond");
    assert_eq!(modes.len(), Case::ALL.len());
    for (mode, case) in modes.iter().zip(Case::ALL) {
        assert!(mode.ends_with(&format!("(at most {:?})", case.most)), "{mode}");
    }
    assert!(run(Suite::Scale, "caching").is_empty());
}

#[test]
fn the_mark_is_mimallocs_pair_of_512_bytes() {
    let reference = bench().reference().unwrap();
    check(&reference, Suite::Latency, MIMALLOC);
    assert_eq!((reference.mode.as_str(), reference.bytes), ("pair", 512));
}

#[test]
fn a_row_in_json_has_the_promised_keys_in_order() {
    let text = serde_json::to_string(&bench().reference().unwrap()).unwrap();
    let keys: Vec<_> = text.split('"').filter(|part| text.contains(&format!("\"{part}\":"))).collect();
    let promised = [
        "suite",
        "mode",
        "allocator",
        "device",
        "bytes",
        "threads",
        "mean_ns",
        "min_ns",
        "p50_ns",
        "p99_ns",
        "p999_ns",
        "pairs_per_s",
        "memory",
    ];
    assert_eq!(keys, promised, "{text}");
}

#[test]
fn an_unknown_allocator_is_an_error_that_names_the_known() {
    let (target, _) = Target::find(DeviceName::SIM.into()).unwrap();
    let error = repeat(&target, "jemalloc", 512, 1).unwrap_err().to_string();
    assert!(error.contains("jemalloc") && error.contains("millpond"), "{error}");
}

/// The pool alone is of such memory; the others are of the device's.
#[test]
fn every_suite_but_scale_measures_pools_of_other_memory() {
    use MemoryKind::{Managed, Pinned};
    let (sim, host) = (DeviceName::SIM, DeviceName::HOST);
    for (name, memory, called) in [
        (sim, Pinned, "pinned"),
        (sim, Managed, "managed"),
        (host, Pinned, "pinned"),
        (host, Managed, "managed"),
    ] {
        let (target, _) = Target::find(name.into()).unwrap();
        let bench = Bench::new(target.with_memory(memory).unwrap(), Duration::from_millis(1));
        assert!(matches!(bench.run(Suite::Scale, "millpond"), Err(Error::SimulatedOnly)), "{name} {called}");
        for suite in Suite::ALL.into_iter().filter(|suite| *suite != Suite::Scale) {
            let rows = bench.run(suite, "millpond").unwrap();
            assert!(!rows.is_empty() && rows.iter().all(|row| row.memory == called), "{name}: {rows:?}");
        }
        assert_eq!(bench.reference().unwrap().memory, "host");
    }
}
