//! What a register has of the machine: atomic words, a number of slots, and time. [Models](super::models) have others.

use std::time::{Duration, Instant};

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Processes that one budget can have.
pub(super) const SLOTS: usize = 1024;

/// A word that decides nothing between processes, and so is no part of the models.
pub(super) type PlainWord = std::sync::atomic::AtomicU64;

/// How long somebody has waited for the lock.
#[derive(Default)]
pub(super) struct Patience(Option<Instant>);

impl Patience {
    /// `None` before the first wait.
    pub(super) fn waited(&self) -> Option<Duration> {
        self.0.map(|began| began.elapsed())
    }

    pub(super) fn wait(&mut self) {
        self.0.get_or_insert_with(Instant::now);
        std::thread::sleep(Duration::from_micros(20));
    }
}
