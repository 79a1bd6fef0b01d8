//! `millpond probe` as a user calls it, on the CPU, and what `millpond replay` makes of its costs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::shared::{command, failure, keys, millpond, read_json, stderr, stdout};

const TRACE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../replay/tests/data/pipeline_streams_stacks.pickle.gz");

fn at(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}

/// The rows of a section.
fn of<'a>(json: &'a Value, section: &str) -> Vec<&'a Value> {
    json["rows"].as_array().unwrap().iter().filter(|row| row["section"] == section).collect()
}

fn check_json(json: &Value) {
    assert_eq!(keys(json), ["facts", "left_out", "machine", "rows"]);
    assert!(json["machine"]["device"].as_str().unwrap().starts_with("host"), "{json:#}");
    for row in json["rows"].as_array().unwrap() {
        assert_eq!(
            keys(row),
            ["bytes", "least", "median", "most", "peak", "samples", "section", "unit", "what"]
        );
        let [least, median, most] = ["least", "median", "most"].map(|key| row[key].as_f64().unwrap());
        assert!(0.0 <= least && least <= median && median <= most && most > 0.0, "{row:#}");
        assert!(row["samples"].as_u64().unwrap() >= 1, "{row:#}");
    }
    let units = [("cores", "GB/s"), ("reads", "GB/s"), ("latency", "ns"), ("pages", "µs"), ("calls", "ns")];
    for (section, unit) in units {
        let rows = of(json, section);
        assert!(!rows.is_empty() && rows.iter().all(|row| row["unit"] == unit), "{section}: {rows:#?}");
    }
    // By working set, from what a cache holds on.
    let sizes: Vec<_> = of(json, "latency").iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
    assert!(sizes[0] == 4096 && sizes.is_sorted() && sizes.len() >= 7, "{sizes:?}");
    for what in ["create", "map", "set access", "unmap", "release"] {
        assert!(of(json, "pages").iter().any(|row| row["what"] == what), "{what}");
        assert!(of(json, "pinned-pages").iter().any(|row| row["what"] == what), "{what}");
    }
    assert_eq!(of(json, "pool").len(), 6, "one size a row");
    for gpu in ["copies", "peers", "device", "managed"] {
        assert!(of(json, gpu).is_empty(), "{gpu} is of GPUs");
    }
}

#[test]
fn a_probe_of_the_cpu_is_told_written_and_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let [json, page, costs] = ["probe.json", "probe.html", "this.toml"].map(|name| at(dir.path(), name));
    let args = ["probe", "--device", "host", "--quick", "--json", &json, "--report", &page];
    let output = command().args(args).args(["--cost-table", &costs]).output().unwrap();
    let text = stdout(&output);
    assert_eq!(stderr(&output).contains("This is a debug build"), cfg!(debug_assertions));
    for part in [
        "machine: ",
        "device: host",
        "\nlatency: One read",
        "4.00 KiB",
        "\nstride 64 ",
        "\n2 of 8 fields, structure of arrays ",
        "\npages: Calls on one page",
        "set access",
        "\nmake a stream wait ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let tables = text.split_once("\ncores: ").unwrap().1;
    assert!(tables.lines().all(|line| line.chars().count() <= 80), "{text}");
    check_json(&read_json(Path::new(&json)));

    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert!(page.contains("id=\"latency\"") && page.contains("id=\"pages\""));

    let table = std::fs::read_to_string(&costs).unwrap();
    assert!(
        table.contains("\ncreate_page = [[") && table.contains("\n# pinned_bytes_per_us = 55000 #"),
        "{table}"
    );
    let device_time = |more: &[&str]| {
        let output =
            command().args(["replay", TRACE, "--allocator", "millpond", "--json", "-"]).args(more).output();
        let told: Value = serde_json::from_str(&stdout(&output.unwrap())).unwrap();
        told[0]["allocators"][0].clone()
    };
    let (here, built_in) = (device_time(&["--cost-table", &costs]), device_time(&[]));
    assert_eq!(here["allocator"], built_in["allocator"]);
    assert_ne!(here, built_in, "calls take another time");
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_probe_of_a_gpu_has_a_figure_of_everything() {
    let output = millpond(&["probe", "--device", "cuda", "--quick", "--json", "-"]);
    let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let sections =
        ["copies", "device", "reads", "latency", "managed", "pages", "pinned-pages", "segments", "calls"];
    for (section, least) in sections.into_iter().zip([28, 14, 12, 8, 4, 10, 10, 12, 15]) {
        assert!(of(&json, section).len() >= least, "{section}: {json:#}");
    }
    let left_out = json["left_out"].as_array().unwrap();
    assert!(left_out.iter().all(|what| what.as_str().unwrap().starts_with("peers")), "{left_out:?}");
    // A tenth of what is possible is far less than any GPU reads in a row.
    let in_a_row = of(&json, "reads")[0];
    assert!(in_a_row["median"].as_f64().unwrap() > in_a_row["peak"].as_f64().unwrap() / 10.0, "{in_a_row}");
}

#[test]
fn ctrl_c_keeps_what_was_measured() {
    let dir = tempfile::tempdir().unwrap();
    let json = at(dir.path(), "probe.json");
    let mut child = command()
        .args(["probe", "--device", "host", "--json", &json])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.starts_with("device: host")).unwrap();
    // Its first figure is there soon.
    std::thread::sleep(std::time::Duration::from_millis(300));
    Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap();
    lines.for_each(drop);
    let output = child.wait_with_output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(
        said.contains("millpond: stopped by Ctrl-C: ")
            && said.contains(" were measured, and they are written")
    );
    let json = read_json(Path::new(&json));
    assert!(of(&json, "pool").is_empty(), "{json:#}");
}

#[test]
fn a_gpu_that_is_not_there_is_one_line() {
    let said = failure(&millpond(&["probe", "--device", "cuda:999"]));
    assert!(said.starts_with("no CUDA driver found") || said.contains("GPU"), "{said}");
}

#[test]
fn costs_that_make_no_sense_are_named_with_their_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("costs.toml");
    for (text, expected) in [
        ("map = 800\nunmapp = 1\n", "line 2: unknown key `unmapp`, expected one of `memory_info`"),
        ("map = -800\n", "line 1: map: invalid value: integer `-800`, expected a whole number"),
        ("unmap = [[2097152, 1], [4096, 2]]\n", "line 1: unmap: 4096 bytes come after 2097152; sort"),
    ] {
        std::fs::write(&file, text).unwrap();
        let mut replay = command();
        let output = replay.args(["replay", TRACE, "--cost-table", "costs.toml"]).current_dir(&dir).output();
        let output = output.unwrap();
        let said = failure(&output);
        assert!(said.starts_with(&format!("costs.toml: cannot read the costs: {expected}")), "{said}");
        assert!(said.ends_with("; millpond probe --cost-table FILE writes one"), "{said}");
        assert_eq!(output.status.code(), Some(2), "{said}");
    }
    let output = millpond(&["replay", TRACE, "--cost-table", "no-such.toml"]);
    assert!(failure(&output).starts_with("no-such.toml: cannot read the costs: No such file"), "{output:?}");
    assert_eq!(output.status.code(), Some(1));
    let output = millpond(&["replay", TRACE, "--cost-table", "x.toml", "--device", "host"]);
    assert_eq!(failure(&output), "--cost-table is for --device sim; a real device has its own costs");
}
