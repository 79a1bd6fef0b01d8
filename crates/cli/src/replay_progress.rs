//! What `millpond replay` is doing: on a terminal one line of stderr, which is gone when it is done; in a pipe a line once
//! it takes more than a second.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::alive::SignOfLife;
use crate::screen::{is_quiet, say};

/// The line.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    sign: SignOfLife,
}

impl Progress {
    pub(crate) fn new(trace: &str, doing: &str) -> Self {
        let bar = if is_quiet() { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        bar.set_style(
            ProgressStyle::with_template("{spinner} {wide_msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        let progress = Self { bar, sign: SignOfLife::new(&line(trace, doing)) };
        progress.set(trace, doing);
        progress
    }

    /// Says what is being done to which trace.
    pub(crate) fn set(&self, trace: &str, doing: &str) {
        let line = line(trace, doing);
        self.sign.set(&line);
        self.bar.set_message(line);
    }

    /// Says something that stays.
    pub(crate) fn say(&self, line: &str) {
        self.bar.suspend(|| say(line));
    }
}

fn line(trace: &str, doing: &str) -> String {
    format!("{trace}: {doing}").replace(char::is_control, "?")
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
