//! `millpond bench` as a user calls it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::shared::{command, read_json, stderr, stdout};

fn bench(args: &[&str]) -> Output {
    let quick = ["bench", "--device", "sim", "--time", "1"];
    command().args(quick).args(args).output().unwrap()
}

#[test]
fn a_run_names_its_machine_and_compares_pool_and_malloc() {
    let output = bench(&["--suite", "throughput,reuse", "--allocator", "millpond,binned,mimalloc"]);
    let said = stderr(&output);
    assert_eq!(said.contains("This is a debug build"), cfg!(debug_assertions), "{said}");
    let text = stdout(&output);
    for part in [
        "machine: ",
        "device: sim",
        "date: 20",
        "command: millpond bench --device sim --time 1 --suite throughput,reuse",
        "reference: a pair of malloc and free (mimalloc, 512 B) takes ",
        "throughput: Ten thousand",
        "99.9 % below",
        "times as long as",
        "\nThe reference ",
        "pair, 1.00 MiB",
        "cold, 1.00 MiB",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let of = |name: &str| text.lines().filter(|line| line.starts_with(&format!("  {name} "))).count();
    assert_eq!((of("millpond"), of("binned"), of("mimalloc")), (3, 3, 1), "{text}");
    assert!(!text.contains("\nlatency"), "only what was asked for: {text}");
    let (before, tables) = text.split_once("throughput: ").unwrap();
    let summary: Vec<_> = before.lines().skip_while(|line| !line.starts_with("Summary: ")).collect();
    assert!(summary.len() <= 10 && summary.iter().any(|line| line.starts_with("reuse")), "{text}");
    assert!(text.contains("\ntime: about "), "{text}");
    assert!(tables.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn json_is_an_array_of_rows_that_has_the_mark() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bench.json");
    let path = file.to_str().unwrap();
    // Two rows each are the reference, before and after the suite.
    for (suite, rows) in [("throughput", 4), ("latency", 21)] {
        stdout(&bench(&["--suite", suite, "--allocator", "millpond", "--json", path]));
        let json = read_json(&file);
        let found = json.as_array().unwrap();
        assert_eq!(found.len(), rows, "{json:#}");
        assert!(found.iter().all(|row| row.as_object().unwrap().len() == 13), "{json:#}");
        let references =
            found.iter().filter(|row| row["allocator"] == "mimalloc" && row["suite"] == "latency");
        assert_eq!(references.count(), 1, "{json:#}");
        let reference = found.iter().filter(|row| row["suite"] == "reference");
        let when: Vec<_> = reference.map(|row| row["mode"].as_str().unwrap().to_owned()).collect();
        assert_eq!(when, ["before all".to_owned(), format!("after {suite}")]);
    }
}

#[test]
fn pinned_memory_is_measured_for_the_pool_and_said_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bench.json");
    let args = ["--suite", "throughput,reuse", "--memory", "pinned", "--json", file.to_str().unwrap()];
    let output = bench(&args);
    let (text, said) = (stdout(&output), stderr(&output));
    assert!(text.contains("device: sim (simulated), pinned host memory"), "{text}");
    assert!(said.contains("Left out, since they take device memory only: caching, expandable, "), "{said}");
    let rows = read_json(&file);
    let of = |row: &Value| (row["allocator"].as_str().unwrap().to_owned(), row["memory"].clone());
    for (allocator, memory) in rows.as_array().unwrap().iter().map(of) {
        assert_eq!(memory, if allocator == "millpond" { "pinned" } else { "host" }, "{allocator}");
    }
}

#[test]
fn json_named_by_a_dash_is_alone_on_stdout() {
    let output = bench(&["--suite", "throughput", "--allocator", "millpond", "--json", "-"]);
    let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 4);
    assert!(stderr(&output).contains("reference: a pair"));
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
fn quick_is_a_tenth_of_the_time_and_says_what_it_takes() {
    let quick = ["bench", "--device", "sim", "--suite", "throughput", "--allocator", "millpond", "--quick"];
    assert!(stdout(&command().args(quick).output().unwrap()).contains("\ntime: about 5 s\n"));
    let both = command().args(quick).args(["--time", "5"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2));
    assert!(stderr(&both).contains("--quick and --time exclude each other"), "{}", stderr(&both));
    let help = stdout(&command().args(["bench", "--help"]).output().unwrap());
    assert!(help.contains("everything, 3 minutes") && help.contains("everything, 30 seconds"), "{help}");
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
    assert!(!stdout(&output).contains("median"));
}

#[test]
fn quiet_writes_files_and_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bench.json");
    let args =
        ["--suite", "throughput", "--allocator", "millpond", "--quiet", "--json", file.to_str().unwrap()];
    let output = bench(&args);
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(read_json(&file).as_array().unwrap().len(), 4);
}

#[test]
fn ctrl_c_keeps_what_was_measured() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bench.json");
    let mut child = command()
        .args(["bench", "--device", "sim", "--suite", "throughput,latency", "--time", "20", "--json"])
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    // The first suite takes more than a second, by the time for each figure: then what comes next is said.
    lines.find(|line| line == "millpond: working: throughput, suite 2 of 2").unwrap();
    Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap();
    let said: Vec<_> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said:?}");
    assert!(said.iter().any(|line| line.contains("millpond: stopped by Ctrl-C: ")), "{said:?}");
    let json = read_json(&file);
    let of = |suite: &str| json.as_array().unwrap().iter().filter(|row| row["suite"] == suite).count();
    // Pairs, allocations and frees of six sizes.
    assert_eq!(of("latency"), 18 * millpond_bench::names().len(), "{json:#}");
}
