//! `millpond bench` as a user calls it.

mod shared;

use std::process::Output;

use serde_json::Value;

use shared::{command, read_json, stderr, stdout};

fn bench(args: &[&str]) -> Output {
    let quick = ["bench", "--device", "sim", "--time", "1"];
    command().args(quick).args(args).output().unwrap()
}

#[test]
fn a_run_names_its_machine_and_compares_pool_and_malloc() {
    let output = bench(&["--suite", "throughput,reuse", "--allocator", "millpond,binned,mimalloc"]);
    let said = stderr(&output);
    assert_eq!(said.contains("built with debug assertions"), cfg!(debug_assertions), "{said}");
    let text = stdout(&output);
    for part in [
        "machine: ",
        "device: sim",
        "date: 20",
        "command: millpond bench --device sim --time 1 --suite throughput,reuse",
        "mark: mimalloc, 512 B, a pair in ",
        "x millpond",
        "x malloc 512 B",
        "pair, 1.00 MiB",
        "cold, 1.00 MiB",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let of = |name: &str| text.lines().filter(|line| line.starts_with(&format!("  {name} "))).count();
    assert_eq!((of("millpond"), of("binned"), of("mimalloc")), (3, 3, 1), "{text}");
    assert!(!text.contains("\nlatency"), "only what was asked for: {text}");
}

#[test]
fn json_is_an_array_of_rows_that_has_the_mark() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bench.json");
    let path = file.to_str().unwrap();
    for (suite, rows) in [("throughput", 2), ("latency", 19)] {
        stdout(&bench(&["--suite", suite, "--allocator", "millpond", "--json", path]));
        let json = read_json(&file);
        let found = json.as_array().unwrap();
        assert_eq!(found.len(), rows, "{json:#}");
        assert!(found.iter().all(|row| row.as_object().unwrap().len() == 12), "{json:#}");
        let marks = found.iter().filter(|row| row["allocator"] == "mimalloc" && row["bytes"] == 512);
        assert_eq!(marks.count(), 1, "{json:#}");
    }
}

#[test]
fn json_named_by_a_dash_is_alone_on_stdout() {
    let output = bench(&["--suite", "throughput", "--allocator", "millpond", "--json", "-"]);
    let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 2);
    assert!(stderr(&output).contains("mark: mimalloc"));
}

#[test]
fn a_report_is_one_page() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bench.html");
    let args = ["--suite", "churn", "--allocator", "millpond,binned", "--report", file.to_str().unwrap()];
    stdout(&bench(&args));
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert!(page.contains("id=\"churn-0\"") && page.contains("binned"));
}

#[test]
fn unknown_names_are_answered_with_the_known_ones() {
    for (flag, expected) in [("--suite", "hand-over"), ("--allocator", "stream-ordered")] {
        let output = bench(&[flag, "fast"]);
        assert_eq!(output.status.code(), Some(2));
        let error = stderr(&output);
        assert!(error.contains("fast") && error.contains(expected), "{error}");
    }
}

#[test]
fn a_suite_for_none_of_the_allocators_says_so() {
    let output = bench(&["--suite", "reuse", "--allocator", "mimalloc"]);
    let said = stderr(&output);
    assert!(said.contains("reuse: nothing measured; it is not for mimalloc"), "{said}");
    assert!(!stdout(&output).contains("p50"));
}
