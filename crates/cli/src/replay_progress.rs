//! What `millpond replay` is doing, on a terminal: one line of stderr, which is gone when it is done. Nothing in a pipe.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::screen::{is_quiet, say};

/// The line.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn new() -> Self {
        let bar = if is_quiet() { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        bar.set_style(
            ProgressStyle::with_template("{spinner} {wide_msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Self(bar)
    }

    /// Says what is being done to which trace.
    pub(crate) fn set(&self, trace: &str, doing: &str) {
        self.0.set_message(format!("{trace}: {doing}").replace(char::is_control, "?"));
    }

    /// Says something that stays.
    pub(crate) fn say(&self, line: &str) {
        self.0.suspend(|| say(line));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
