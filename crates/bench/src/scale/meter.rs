//! Watches calls.

use rustix::time::{ClockId, clock_gettime};

use crate::Result;

/// What calls took, by the CPU time of the thread: others share the machine.
#[derive(Debug, Default)]
pub struct Meter {
    ns: Vec<f64>,
    parts: u64,
}

impl Meter {
    /// Nanoseconds of each call that was watched.
    pub fn ns(&self) -> &[f64] {
        &self.ns
    }

    /// Parts of all calls that were watched: those whose cost should not depend on the size.
    pub fn parts(&self) -> u64 {
        self.parts
    }

    /// Watches a call of so many parts.
    pub(super) fn watch<T>(&mut self, parts: u64, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let began = now();
        let done = watched(call);
        self.ns.push(now() - began);
        self.parts += parts;
        done
    }

    /// Watches so many calls that are too short to be timed each.
    pub(super) fn watch_many<T>(&mut self, calls: u64, all: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = self.watch(calls, all)?;
        if let Some(last) = self.ns.last_mut() {
            *last /= calls as f64;
        }
        Ok(done)
    }
}

/// Valgrind counts the instructions of this function, and of what it calls.
#[inline(never)]
fn watched<T>(call: impl FnOnce() -> T) -> T {
    std::hint::black_box(call())
}

fn now() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}
