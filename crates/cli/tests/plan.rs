//! `millpond plan` as a user calls it.

use std::path::Path;
use std::process::Output;

use crate::shared::{command, read_json, stderr, stdout};

const TRACES: [&str; 2] = ["gnn_stacks.pickle.gz", "pipeline_streams_stacks.pickle.gz"];

fn plan(args: &[&str]) -> Output {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../replay/tests/data");
    let jobs = TRACES.map(|name| data.join(name));
    command().arg("plan").args(args).arg("--jobs").args(jobs).output().unwrap()
}

#[test]
fn jobs_whose_needs_fit_share_a_card_for_certain() {
    let json = tempfile::NamedTempFile::new().unwrap();
    let output = plan(&["--cards", "24GiB", "--json", json.path().to_str().unwrap()]);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.starts_with("gpu0, 24GiB: 2 jobs in a budget of 23.00 GiB\n"), "{text}");
    assert!(text.contains("Guaranteed: together they need "), "{text}");
    assert!(text.contains("\n  millpond run --pool --limit 23552MiB --budget gpu0 -- PROGRAM\n"), "{text}");
    let told = read_json(json.path());
    let card = &told["cards"][0];
    assert_eq!((card["guaranteed"].as_bool(), card["budget"].as_u64()), (Some(true), Some(23 << 30)));
    let needs: u64 = card["jobs"].as_array().unwrap().iter().map(|job| job["needs"].as_u64().unwrap()).sum();
    assert_eq!(card["needs"].as_u64(), Some(needs));
    assert!(told["left"].as_array().unwrap().is_empty());
}

#[test]
fn jobs_go_to_cards_of_their_own_where_they_must() {
    let text = stdout(&plan(&["--cards", "2x12GiB"]));
    for part in ["gpu0, 12GiB: 1 job in a budget of 11.50 GiB", "gpu1, 12GiB: 1 job", "pipeline_streams"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_job_without_a_card_is_an_error() {
    let output = plan(&["--cards", "8GiB"]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("no card has room for gnn_stacks.pickle.gz (needs "), "{said}");
    assert!(said.contains("add a card"), "{said}");
}

#[test]
fn a_job_that_no_device_has_room_for_needs_what_it_requests() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let rows =
        "Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00.000001,allocate,0x1000,140737488355328,0x0\n";
    std::fs::write(log.path(), rows).unwrap();
    let output = command().args(["plan", "--cards", "24GiB", "--jobs"]).arg(log.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("(needs 128.00 TiB)"), "{}", stderr(&output));
}

#[test]
fn cards_and_jobs_have_to_be_named() {
    let output = command().args(["plan", "--cards", "24GiB"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let output = plan(&["--cards", "24GiB,Voodoo"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("Voodoo"), "{}", stderr(&output));
}
