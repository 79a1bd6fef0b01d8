//! What is said of the memory of a program and its children.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use super::{built, ran, run};
use crate::shared::{stderr, stdout};

#[test]
fn what_the_pool_held_is_said_at_the_end() {
    if built().is_none() {
        return;
    }
    let output = ran(&["--", "./linked", "pairs"]);
    assert_eq!(stdout(&output), "");
    let said = stderr(&output);
    assert!(said.starts_with("millpond: linked (") && said.contains(", GPU 0: the pool held "), "{said}");
    assert!(said.contains("; 300 allocations, ") && said.lines().count() == 1, "{said}");
    assert_eq!(stderr(&ran(&["--quiet", "./linked", "pairs"])), "");
}

#[test]
fn children_are_said_one_by_one_and_in_all() {
    if built().is_none() {
        return;
    }
    let said = stderr(&ran(&["sh", "-c", "./linked pairs; ./linked leaves"]));
    assert!(said.contains("300 allocations") && said.contains("1 allocation, "), "{said}");
    assert!(said.contains("millpond: 2 processes in all: "), "{said}");
}

#[test]
fn a_watched_program_is_told_what_a_pool_would_have_held() {
    if built().is_none() {
        return;
    }
    let said = stderr(&ran(&["--watch", "./linked", "passes"]));
    assert!(said.contains("3 allocations, at most 5.00 MiB at once; a pool would have held "), "{said}");
    assert!(said.contains("the driver gave 5.00 MiB at most (5.00 MiB plain)"), "{said}");
}

#[test]
fn what_the_pools_hold_is_said_while_the_program_runs() {
    if built().is_none() {
        return;
    }
    let mut run = run(&["--top", "sh", "-c", "exec 3<&0; ./linked stays <&3 & ./linked stays; wait"]);
    let mut child = run.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.next().unwrap();
    assert!(
        first.starts_with("millpond: 1") && first.ends_with(" held, 10.00 MiB of it live, in 2 processes"),
        "{first}"
    );
    drop(child.stdin.take());
    assert!(lines.any(|line| line.contains("2 processes in all")));
    assert!(child.wait().unwrap().success());
}
