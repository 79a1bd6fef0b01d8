//! `--top`: what the program's pools hold while it runs, on standard error.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use millpond::HumanBytes;
use millpond::live::{SeenProcess, processes};

use crate::live::PATIENCE;
use crate::terminal::is_quiet;

/// Between two looks, on a terminal, where each line takes the place of the last.
const EACH_SECOND: Duration = Duration::from_secs(1);

/// The same in a file.
const IN_A_FILE: Duration = Duration::from_secs(5);

/// What takes a terminal's line away.
const CLEAR: &str = "\r\x1b[2K";

/// Runs the program, and shows the figures as long as that takes.
pub(super) fn beside<R>(run: impl FnOnce() -> R) -> R {
    let (ends, ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || show(&ended));
        let result = run();
        drop(ends);
        result
    })
}

fn show(ended: &Receiver<()>) {
    let is_terminal = std::io::stderr().is_terminal();
    let every = if is_terminal { EACH_SECOND } else { IN_A_FILE };
    while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        // What cannot be looked at now may be later.
        let Ok(all) = processes(PATIENCE) else { continue };
        let own: Vec<_> = all.into_iter().filter(|process| descends(process.pid)).collect();
        if let Some(line) = line(&own).filter(|_| !is_quiet()) {
            let (before, after) = if is_terminal { (CLEAR, "") } else { ("", "\n") };
            write(&format!("{before}{line}{after}"));
        }
    }
    if is_terminal {
        write(CLEAR);
    }
}

fn write(text: &str) {
    let mut err = std::io::stderr().lock();
    // Where it is closed, nobody reads.
    err.write_all(text.as_bytes()).and_then(|()| err.flush()).ok();
}

/// What the pools of these processes hold; `None` where there is no pool.
fn line(own: &[SeenProcess]) -> Option<String> {
    let sum = |figure: fn(&millpond::Stats) -> u64| {
        HumanBytes(own.iter().flat_map(|process| &process.pools).map(|pool| figure(&pool.stats)).sum())
    };
    let processes = match own.iter().filter(|process| !process.pools.is_empty()).count() {
        0 => return None,
        1 => "1 process".to_owned(),
        several => format!("{several} processes"),
    };
    let (held, live) = (sum(|stats| stats.reserved.current), sum(|stats| stats.allocated.current));
    Some(format!("millpond: {held} held, {live} of it live, in {processes}"))
}

/// Whether this command started the process, or a process that it started did.
fn descends(pid: u32) -> bool {
    let own = std::process::id();
    let ancestors = std::iter::successors(parent(pid), |pid| parent(*pid));
    ancestors.take_while(|pid| *pid > 1).any(|pid| pid == own)
}

fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}
