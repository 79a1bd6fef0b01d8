//! `millpond train --save`: a training that is killed goes on as if it had not been.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::shared::{command, millpond, read_json, stderr, stdout};

/// A model whose epochs take some milliseconds.
const SMALL: [&str; 8] = ["--device", "host", "--num-layers", "2", "--feat-dim", "32", "--batch-size", "100"];

fn train(dir: &Path, epochs: &str, args: &[&str]) -> Command {
    let mut command = command();
    command.args(["train", "--epochs", epochs, "--save", "kept", "--json", "run.json"]);
    command.args(SMALL).args(args).current_dir(dir);
    command
}

fn refused(output: &Output, status: i32, expected: &str) {
    let said = stderr(output);
    assert!(output.status.code() == Some(status) && said.contains(expected), "{said}");
}

/// What the losses of the run are; not its times.
fn losses(dir: &Path) -> Vec<Vec<u64>> {
    let run = read_json(&dir.join("run.json"));
    let of = |epoch: &Value| {
        let keys = ["train_loss", "val_loss", "val_accuracy"];
        keys.map(|key| epoch[key].as_f64().unwrap().to_bits()).to_vec()
    };
    run["epochs"].as_array().unwrap().iter().map(of).collect()
}

/// Numbers that look like random ones, the same in each run.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn a_training_that_is_killed_again_and_again_gives_the_same_losses() {
    let whole = tempfile::tempdir().unwrap();
    stdout(&train(whole.path(), "6", &[]).output().unwrap());
    let expected = losses(whole.path());
    assert_eq!(expected.len(), 6);
    let mut state = 7;
    for every in ["1", "7"] {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..6 {
            let mut child = train(dir.path(), "6", &["--save-every", every, "--resume"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(60 + random(&mut state) % 240));
            // SIGKILL. It may be done already.
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let said = stdout(&train(dir.path(), "6", &["--save-every", every, "--resume"]).output().unwrap());
        assert!(said.contains("kept/checkpoint.safetensors"), "{said}");
        assert_eq!(losses(dir.path()), expected, "{said}");
        let again = stdout(&train(dir.path(), "6", &["--resume"]).output().unwrap());
        assert!(again.contains("6 epochs and 0 images of the next are done"), "{again}");
        assert_eq!(losses(dir.path()), expected, "a training that is done stays done");
    }
}

#[test]
fn a_checkpoint_is_not_overwritten_by_another_training() {
    let dir = tempfile::tempdir().unwrap();
    stdout(&train(dir.path(), "1", &[]).output().unwrap());
    let file = dir.path().join("kept/checkpoint.safetensors");
    let before = std::fs::read(&file).unwrap();
    let again = train(dir.path(), "6", &[]).output().unwrap();
    refused(&again, 2, "kept/checkpoint.safetensors is there already: add --resume, or name another folder");
    let other = train(dir.path(), "6", &["--resume", "--seed", "2"]).output().unwrap();
    refused(&other, 1, "it is of a training with seed 1, not 2; name another folder, or leave --resume out");
    assert_eq!(std::fs::read(&file).unwrap(), before);
    let folder = std::fs::File::open(dir.path().join("kept")).unwrap();
    folder.lock().unwrap();
    let both = train(dir.path(), "6", &["--resume"]).output().unwrap();
    refused(&both, 1, "kept: cannot save to it: another training does; name another folder");
    drop(folder);
    std::fs::write(&file, "x").unwrap();
    refused(&train(dir.path(), "6", &["--resume"]).output().unwrap(), 1, "not a whole safetensors file");
}

#[test]
fn a_checkpoint_that_is_a_link_is_written_where_it_leads() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [link, file] = [dir.path().join("kept/checkpoint.safetensors"), disk.path().join("large")];
    std::fs::create_dir(dir.path().join("kept")).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    stdout(&train(dir.path(), "1", &[]).output().unwrap());
    let first = std::fs::read(&file).expect("the link led to nothing before");
    stdout(&train(dir.path(), "2", &["--resume"]).output().unwrap());
    assert!(link.is_symlink());
    assert_ne!(std::fs::read(&file).unwrap(), first);
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 1);
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_found_before_training() {
    let dir = tempfile::tempdir().unwrap();
    let part = "kept/checkpoint.safetensors.part";
    std::fs::create_dir_all(dir.path().join(part)).unwrap();
    let output = train(dir.path(), "1", &[]).output().unwrap();
    refused(&output, 1, &format!("{part} first, which is a folder: remove or rename that"));
    assert!(!dir.path().join("run.json").exists(), "no epoch was trained");
}

#[test]
fn flags_of_checkpoints_that_make_no_sense_are_refused() {
    for (args, expected) in [
        (&["--resume"][..], "--save <DIR> is missing"),
        (&["--save-every", "3"], "--save <DIR> is missing"),
        (&["--save", "x", "--save-every", "0"], "--save-every: 0 is outside 1 to 1,000,000"),
        (&["--save", "x", "--allocator", "all"], "--save keeps one training: name one allocator, not all"),
        (&["--save", "-"], "--save -: a checkpoint needs a folder"),
    ] {
        refused(&millpond(&[&["train"], args].concat()), 2, expected);
    }
}
