//! A shorter program that breaks the same rule (delta debugging; Zeller and Hildebrandt, 2002).

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::finding::Kind;
use crate::program::Program;
use crate::step::Step;

/// How long a program is shortened.
const TIME: Duration = Duration::from_secs(20);

/// Runs that say how often a program repeats its finding.
const RUNS: u32 = 10;

/// Tries of a program of several threads, which need not break a rule each time.
const TRIES: u32 = 4;

fn breaks(program: &Program, kind: Kind) -> bool {
    let tries = if program.threads.len() == 1 { 1 } else { TRIES };
    (0..tries).any(|_| program.run(&AtomicU64::new(0)).found.is_err_and(|found| found.kind == kind))
}

/// The shortest program found that breaks a rule of this kind, and in how many of ten runs it does.
pub(crate) fn shorten(mut program: Program, kind: Kind) -> (Program, u32) {
    // What is said of each of many panics helps nobody.
    let said = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let end = Instant::now() + TIME;
    if breaks(&program, kind) {
        for thread in 0..program.threads.len() {
            shorten_thread(&mut program, thread, kind, end);
        }
    }
    let repeats = (0..RUNS).filter(|_| breaks(&program, kind)).count() as u32;
    std::panic::set_hook(said);
    (program, repeats)
}

/// Leaves out what can be left out, first long parts, then short ones.
fn shorten_thread(program: &mut Program, thread: usize, kind: Kind, end: Instant) {
    let mut part = program.threads[thread].len();
    while part > 0 {
        let mut at = 0;
        while at < program.threads[thread].len() {
            if Instant::now() > end {
                return;
            }
            let steps = &program.threads[thread];
            let until = steps.len().min(at + part);
            let kept: Vec<Step> = [&steps[..at], &steps[until..]].concat();
            let whole = std::mem::replace(&mut program.threads[thread], kept);
            if !breaks(program, kind) {
                program.threads[thread] = whole;
                at += part;
            }
        }
        part /= 2;
    }
}
