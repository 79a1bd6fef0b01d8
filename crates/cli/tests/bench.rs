//! `millpond bench` as a user calls it.

use std::process::{Command, Output};

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    let quick = ["bench", "--device", "sim", "--time", "1"];
    Command::new(env!("CARGO_BIN_EXE_millpond")).args(quick).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_run_says_where_and_when_and_holds_allocators_against_the_pool_and_malloc() {
    let output = bench(&["--suite", "throughput,reuse", "--allocator", "millpond,binned,mimalloc"]);
    let said = String::from_utf8_lossy(&output.stderr);
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
fn json_is_an_array_of_rows_with_the_mark_in_it_whatever_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bench.json");
    let path = file.to_str().unwrap();
    for (suite, rows) in [("throughput", 2), ("latency", 19)] {
        stdout(&bench(&["--suite", suite, "--allocator", "millpond", "--json", path]));
        let json: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let found = json.as_array().unwrap();
        assert_eq!(found.len(), rows, "{json:#}");
        assert!(found.iter().all(|row| row.as_object().unwrap().len() == 12), "{json:#}");
        let marks = found.iter().filter(|row| row["allocator"] == "mimalloc" && row["bytes"] == 512);
        assert_eq!(marks.count(), 1, "{json:#}");
    }
}

#[test]
fn json_goes_to_stdout_alone_where_it_is_named_by_a_dash() {
    let output = bench(&["--suite", "throughput", "--allocator", "millpond", "--json", "-"]);
    let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 2);
    assert!(String::from_utf8(output.stderr).unwrap().contains("mark: mimalloc"));
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
fn names_that_do_not_exist_are_answered_with_those_that_do() {
    for (flag, expected) in [("--suite", "hand-over"), ("--allocator", "stream-ordered")] {
        let output = bench(&[flag, "fast"]);
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("fast") && error.contains(expected), "{error}");
    }
}

#[test]
fn a_suite_that_is_for_none_of_the_allocators_says_so_instead_of_an_empty_table() {
    let output = bench(&["--suite", "reuse", "--allocator", "mimalloc"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("reuse: nothing measured; it is not for mimalloc"), "{said}");
    assert!(!stdout(&output).contains("p50"));
}
