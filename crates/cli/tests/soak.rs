//! `millpond soak` as a user calls it.

use crate::shared::{command, millpond, stderr, stdout};
use serde_json::Value;

#[test]
fn a_short_soak_finds_nothing_and_says_what_it_did() {
    let output = millpond(&["soak", "--operations", "3e5", "--seed", "3", "--json", "-"]);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    for zero in ["unordered", "overlapping", "lost_bytes", "hangs", "wrong"] {
        assert_eq!(report[zero], 0, "{report:#}");
    }
    for some in ["operations_per_s", "faults", "killed", "programs"] {
        assert!(report[some].as_u64().unwrap() > 0, "{some}: {report:#}");
    }
    assert!(report["operations"].as_u64().unwrap() >= 300_000, "{report:#}");
    assert_eq!((&report["seed"], &report["findings"]), (&3.into(), &Value::Array(Vec::new())));
}

#[test]
fn contents_are_checked_on_the_host_device() {
    let output = millpond(&["soak", "--device", "host", "--operations", "2e4", "--seed", "4"]);
    let said = stdout(&output);
    assert!(said.ends_with("unordered 0, overlapping 0, lost bytes 0, hangs 0, wrong 0\n"), "{said}");
}

#[test]
fn a_program_is_run_again_by_number_or_from_a_file() {
    assert_eq!(stdout(&millpond(&["soak", "--seed", "3", "--program", "2"])), "nothing found\n");
    let dir = tempfile::tempdir().unwrap();
    let program = r#"{"setup":{"device":"sim","capacity_pages":64,"virtual_memory":true,
        "pools":["Device","Pinned","Managed"],"streams":2,"reuse":[true,true,true],"page_sizes":[0,2],
        "release_threshold_pages":null,"hard_limit_pages":null,"budget_pages":null,"named_budget":null,
        "faults":0.0,"refuses":false,"seed":1},"lanes":[[{"Alloc":{"pool":0,"stream":1,"bytes":5}},"SyncDevice"]]}"#;
    std::fs::write(dir.path().join("found.json"), program).unwrap();
    let run = |file: &str| command().args(["soak", "--program", file]).current_dir(&dir).output().unwrap();
    assert_eq!(stdout(&run("found.json")), "nothing found\n");
    std::fs::write(dir.path().join("torn.json"), &program[..100]).unwrap();
    let said = stderr(&run("torn.json"));
    assert!(said.starts_with("millpond: torn.json: cannot read the program of a finding: EOF"), "{said}");
    let said = stderr(&run("/dev/zero"));
    assert!(
        said.contains("/dev/zero: cannot read the program of a finding: it has more than 256 MiB"),
        "{said}"
    );
}
