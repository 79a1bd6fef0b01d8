//! Limits and budgets.

use super::{built, ran, run};
use crate::shared::{stderr, stdout};

#[test]
fn a_limit_alone_leaves_memory_to_the_driver() {
    if built().is_none() {
        return;
    }
    let said = stderr(&ran(&["--limit", "100MiB", "./linked", "limited"]));
    assert!(said.contains("the driver gave 100.00 MiB at most") && !said.contains("the pool"), "{said}");
    assert!(said.contains("the limit refused 2 allocations"), "{said}");
    let said = stderr(&ran(&["--pool", "--limit", "100MiB", "./linked", "limited"]));
    assert!(said.contains("the pool held 100.00 MiB at most"), "{said}");
}

#[test]
fn a_limit_holds_for_a_run_within_the_run() {
    if built().is_none() {
        return;
    }
    let inner = |more: &[&'static str]| {
        let command = [env!("CARGO_BIN_EXE_millpond"), "run"];
        ran(&[&["--limit", "100MiB"], &command[..], more, &["./linked", "limited"]].concat())
    };
    for more in [&[][..], &["--limit", "10GiB"], &["--pool", "--limit", "10GiB"]] {
        let said = stderr(&inner(more));
        assert!(said.contains("100.00 MiB at most"), "{more:?}: {said}");
        assert_eq!(said.contains("is tighter, and holds: 100.00 MiB"), !more.is_empty(), "{said}");
    }
    let refused = inner(&["--watch"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("leave --watch out"), "{}", stderr(&refused));
}

#[test]
fn a_limit_counts_what_cuda_itself_takes_where_it_is_asked_to() {
    if built().is_none() {
        return;
    }
    let counted = |more: &[&str]| {
        let mut run = run(&[&["--limit", "100MiB"], more, &["./linked", "told"]].concat());
        // Of 30 MiB for a context, in a container.
        run.env("STANDIN_CONTEXT", "31457280").env("STANDIN_NVML", "container").output().unwrap()
    };
    assert_eq!(stdout(&counted(&[])), "100\n");
    let output = counted(&["--count-overhead"]);
    assert_eq!(stdout(&output), "70\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("CUDA's context took 30.00 MiB"), "{}", stderr(&output));
    let refused = counted(&["--pool", "--budget", "a", "--count-overhead"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
}

#[test]
fn processes_share_a_named_limit() {
    if built().is_none() {
        return;
    }
    let name = format!("run-test-{}", std::process::id());
    let both = "./linked leaves & ./linked leaves & wait";
    let output = ran(&["--pool", "--limit", "100MiB", "--budget", &name, "sh", "-c", both]);
    let said = stderr(&output);
    assert!(output.status.success() && said.contains("2 processes in all"), "{said}");
    let budget = millpond::Budget::named(&name, 100 << 20).unwrap();
    let path = budget.path().unwrap().to_owned();
    assert_eq!(budget.held(), 0, "what ended gives back what it held");
    let output = ran(&["--pool", "--limit", "100MiB", "--budget", &name, "./linked", "is killed"]);
    assert_eq!((output.status.code(), budget.held()), (Some(137), 0), "and so does what was killed");
    assert!(
        stderr(&output).contains("the pool held 6.00 MiB at most, for 5.00 MiB requested"),
        "{}",
        stderr(&output)
    );
    drop(budget);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn the_environment_limits_the_pools_of_a_program() {
    if built().is_none() {
        return;
    }
    // It holds 6 MiB, and is killed then.
    let ended = |limit: &str| run(&["./linked", "is killed"]).env("MILLPOND_LIMIT", limit).output().unwrap();
    assert_eq!(ended("64MiB").status.code(), Some(137));
    let refused = ended("4MiB");
    assert!(!refused.status.success() && refused.status.code() != Some(137), "{}", stderr(&refused));
}
