//! Ctrl-C, as a signal to a real process: what is done is kept.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use crate::shared::{command, read_json};

/// A model whose epochs take milliseconds.
const SMALL: [&str; 6] = ["--num-layers", "1", "--feat-dim", "16", "--batch-size", "500"];

/// Far more epochs than there is time for.
fn train(model: &[&str], args: &[&str]) -> Child {
    command()
        .args(["train", "--device", "host", "--epochs", "100000"])
        .args(model)
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn signal(child: &Child, name: &str) {
    let status = std::process::Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    assert!(status.unwrap().success());
}

/// Waits until something holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends the signal after the second epoch was printed, and returns all that was said.
fn stopped_by(name: &str, args: &[&str]) -> (Output, String) {
    let mut child = train(&SMALL, args);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut said = Vec::new();
    while !said.last().is_some_and(|line: &String| line.contains("  2/100000 ")) {
        said.push(lines.next().expect("the epochs are printed as they end"));
    }
    signal(&child, name);
    said.extend(lines);
    (child.wait_with_output().unwrap(), said.join("\n"))
}

#[test]
fn ctrl_c_keeps_results_account_and_recording() {
    for (name, status, named) in [("INT", 130, "Ctrl-C"), ("TERM", 143, "SIGTERM"), ("HUP", 129, "SIGHUP")] {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let [json, logs, record] =
            ["run.json", "logs", "run.mprec"].map(|name| at(name).display().to_string());
        let (output, said) = stopped_by(name, &["--json", &json, "--log-dir", &logs, "--record", &record]);
        let error = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!(output.status.code(), Some(status), "{error}");
        let expected = "epochs are done, and their results are written\n";
        assert!(
            error.starts_with(&format!("millpond: stopped by {named}: ")) && error.ends_with(expected),
            "{error}"
        );
        assert!(said.contains("what the pool did") && said.contains("millpond replay "), "{said}");
        let epochs = read_json(&at("run.json"))["epochs"].as_array().unwrap().len();
        assert!((2..100_000).contains(&epochs), "{epochs}");
        let csv = std::fs::read_to_string(at("logs/curves.csv")).unwrap();
        assert_eq!(csv.lines().count(), 1 + epochs);
        let svg = std::fs::read_to_string(at("logs/curves.svg")).unwrap();
        assert!(svg.trim_end().ends_with("</svg>"));
        assert!(error.contains(&format!(": {epochs} of 100,000 epochs")), "{error}");
        let replayed = crate::shared::millpond(&["replay", &record, "--allocator", "millpond"]);
        assert!(replayed.status.success(), "{replayed:?}");
    }
}

#[test]
fn results_are_on_the_disk_while_training_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let [json, svg] = ["run.json", "curves.svg"].map(|name| dir.path().join(name));
    let mut child = train(
        &SMALL,
        &["--json", json.to_str().unwrap(), "--log-dir", dir.path().to_str().unwrap(), "--quiet"],
    );
    let epochs = |path: &Path| read_json(path)["epochs"].as_array().unwrap().len();
    until("results are written", || json.exists() && epochs(&json) >= 2);
    // Killed like this, it can do nothing more.
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "quiet: {output:?}");
    assert!(epochs(&json) >= 2);
    assert!(std::fs::read_to_string(svg).unwrap().trim_end().ends_with("</svg>"));
}

#[test]
fn allocators_that_are_done_are_kept_in_the_list() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.json");
    let child = train(&SMALL, &["--allocator", "all", "--json", file.to_str().unwrap()]);
    until("results are written", || file.exists());
    signal(&child, "INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let json = read_json(&file);
    assert_eq!(json.as_array().unwrap().len(), 1, "{json}");
    assert_eq!(json[0]["allocator"], "millpond");
}

#[test]
fn before_the_first_epoch_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.json");
    // A step of this model takes long enough to be met.
    let mut child = train(&["--feat-dim", "2048", "--num-layers", "8"], &["--json", file.to_str().unwrap()]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.find(|line| line.as_ref().unwrap().contains("training loss")).unwrap().unwrap();
    signal(&child, "INT");
    lines.for_each(drop);
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{error}");
    assert_eq!(error, "millpond: stopped by Ctrl-C: 0 of 100,000 epochs are done\n");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn a_signal_ends_pytorch_which_trains_beside() {
    use std::os::unix::fs::PermissionsExt;
    let [tools, place] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    // It stands for Python with PyTorch, and hears no signal but the one that nobody refuses. Behind the epoch it says more than a pipe
    // holds: once that is written, the epoch was read.
    let stands_in = r#"#!/bin/sh
case "$2" in "import torch"*) echo 2.99; exit ;; esac
trap '' INT TERM
echo '{"epoch": 1, "train_loss": 0.5, "val_loss": 0.25, "val_accuracy": 0.75, "wall_ms": 1500.0, "device_calls": 0}'
head -c 200000 /dev/zero | tr '\0' '\n'
echo $$ > "$TMPDIR/trains"
while :; do sleep 0.05; done
"#;
    let python = tools.path().join("python3");
    std::fs::write(&python, stands_in).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", tools.path().display(), std::env::var("PATH").unwrap());
    let mut command = command();
    command.args(["train", "--device", "host", "--epochs", "2", "--compare", "pytorch"]).args(SMALL);
    command.env("PATH", path).env("TMPDIR", place.path());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let trains = place.path().join("trains");
    until("PyTorch trains", || std::fs::read_to_string(&trains).is_ok_and(|text| text.ends_with('\n')));
    signal(&child, "TERM");
    let output = child.wait_with_output().unwrap();
    let error = crate::shared::stderr(&output);
    assert_eq!(output.status.code(), Some(143), "{error}");
    assert!(error.ends_with("millpond: stopped by SIGTERM: 3 of 4 epochs are done\n"), "{error}");
    let process = std::fs::read_to_string(&trains).unwrap();
    assert!(!Path::new("/proc").join(process.trim()).exists());
    std::fs::remove_file(trains).unwrap();
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
}

#[test]
fn a_second_ctrl_c_ends_at_once() {
    // One step of this model takes many seconds, and it begins at once.
    let mut child = train(&["--feat-dim", "2048", "--num-layers", "6", "--batch-size", "8000"], &[]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.find(|line| line.as_ref().unwrap().contains("training loss")).unwrap().unwrap();
    signal(&child, "INT");
    std::thread::sleep(Duration::from_millis(100));
    signal(&child, "INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(output.stderr.is_empty(), "it did not end by itself, behind the step: {output:?}");
}
