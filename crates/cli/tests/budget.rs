//! `millpond budget` shows budgets and who shares them, sets limits before anybody comes, and removes what nobody has.

use std::process::Output;

use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Budget, Context, Pool};
use serde_json::Value;

use crate::shared::{command, failure, keys, millpond, stdout};

#[test]
fn the_processes_of_a_budget_are_shown_and_its_limit_is_changed() {
    let name = format!("command-{}", std::process::id());
    let budget = Budget::named(&name, 64 << 20).unwrap();
    budget.set_floor(8 << 20).unwrap();
    let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
    let (pool, stream) =
        (Pool::builder(&context).budget(&budget).build().unwrap(), context.create_stream().unwrap());
    let block = pool.alloc(40 << 20, &stream).unwrap();
    let text = stdout(&millpond(&["budget", &name]));
    assert!(text.starts_with(&format!("budget {name}: 40.00 MiB of 64.00 MiB held\n")), "{text}");
    let row = text.lines().last().unwrap();
    assert!(row.starts_with(&std::process::id().to_string()), "{text}");
    assert!(row.contains("40.00 MiB") && row.contains("8.00 MiB") && row.ends_with(" -"), "{text}");
    let json: Value =
        serde_json::from_str(&stdout(&millpond(&["budget", &name, "--limit", "1GiB", "--json"]))).unwrap();
    assert_eq!(keys(&json), ["held", "limit", "name", "path", "processes", "stays"]);
    assert_eq!((json["limit"].as_u64(), json["held"].as_u64()), (Some(1 << 30), Some(40 << 20)));
    assert_eq!(json["processes"].as_array().unwrap().len(), 1);
    assert_eq!(budget.limit(), 1 << 30);
    let path = budget.path().unwrap().to_owned();
    assert!(failure(&millpond(&["budget", &name, "--remove"])).contains("is in use"));
    // SAFETY: the block is this test's, without work.
    unsafe { pool.free(block, &stream) }.unwrap();
    drop((pool, budget));
    stdout(&millpond(&["budget", &name, "--remove"]));
    assert!(!path.exists());
}

/// The command with the budgets of a folder of its own, and its pools under one of them.
fn in_folder(folder: &tempfile::TempDir, args: &[&str]) -> Output {
    let mut command = command();
    command.args(args).env("MILLPOND_BUDGET_DIR", folder.path()).env("MILLPOND_BUDGET", "job1");
    command.output().unwrap()
}

#[test]
fn a_limit_is_set_before_anybody_comes_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| in_folder(&folder, args);
    assert!(failure(&run(&["budget", "job1"])).contains("there is no budget 'job1'"));
    // Root sees those of all folders.
    let own = |told: &Value| -> Vec<Value> {
        let is_own =
            |shared: &&Value| shared["path"].as_str().unwrap().starts_with(folder.path().to_str().unwrap());
        told.as_array().unwrap().iter().filter(is_own).cloned().collect()
    };
    let all = || own(&serde_json::from_str(&stdout(&run(&["budget", "--json"]))).unwrap());
    assert_eq!(all().len(), 0);
    stdout(&run(&["budget", "job1", "--limit", "40GiB"]));
    // A process that comes and goes.
    let code = "train --device host --num-layers 1 --feat-dim 8 --epochs 1";
    stdout(&run(&code.split(' ').collect::<Vec<_>>()));
    for _ in 0..2 {
        let all = all();
        assert_eq!((all.len(), all[0]["name"].as_str()), (1, Some("job1")));
        assert_eq!((all[0]["limit"].as_u64(), all[0]["stays"].as_bool()), (Some(40 << 30), Some(true)));
    }
    stdout(&run(&["budget", "job1", "--remove"]));
    assert!(failure(&run(&["budget", "job1", "--remove"])).contains("there is no budget"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn files_that_are_no_budgets_are_left_out_of_the_list() {
    let folder = tempfile::tempdir().unwrap();
    stdout(&in_folder(&folder, &["budget", "one", "--limit", "1GiB"]));
    std::fs::write(folder.path().join("two"), "text").unwrap();
    std::os::unix::fs::symlink(folder.path().join("one"), folder.path().join("three")).unwrap();
    let text = stdout(&in_folder(&folder, &["budget"]));
    assert!(text.contains("one") && !text.contains("two") && !text.contains("three"), "{text}");
    assert!(failure(&in_folder(&folder, &["budget", "two"])).contains("is no budget of this version"));
}
