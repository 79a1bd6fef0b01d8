//! Which trace is worked on, and how far: on a terminal one line of stderr, with a bar where it is known how much there is
//! to do. It is gone when that is done. In a pipe it is a line once something takes more than a second.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use millpond::bindings::is_unshown;

use crate::terminal::{ProgressLines, is_quiet};

/// The line.
#[derive(Debug)]
pub(crate) struct TraceProgress {
    bar: ProgressBar,
    sign: ProgressLines,
}

impl TraceProgress {
    pub(crate) fn new(trace: &str, doing: &str) -> Self {
        let bar = if is_quiet() { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        bar.set_style(
            ProgressStyle::with_template("{spinner} {wide_msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        let progress = Self { bar, sign: ProgressLines::new(&line(trace, doing)) };
        progress.set(trace, doing);
        progress
    }

    /// Says what is being done to which trace.
    pub(crate) fn set(&self, trace: &str, doing: &str) {
        let line = line(trace, doing);
        self.sign.set(&line);
        self.bar.set_message(line);
    }

    /// So much more is to be done.
    pub(crate) fn expect(&self, more: usize) {
        let before = self.bar.length().unwrap_or_default();
        self.bar.set_length(before + more as u64);
        let template = "{spinner} {bar:12} {pos}/{len}  {wide_msg}";
        self.bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
    }

    /// One of what was expected is done.
    pub(crate) fn done(&self) {
        self.bar.inc(1);
    }

    /// Lets something be said that stays.
    pub(crate) fn aside<R>(&self, say: impl FnOnce() -> R) -> R {
        self.bar.suspend(say)
    }
}

fn line(trace: &str, doing: &str) -> String {
    format!("{trace}: {doing}").replace(is_unshown, "?")
}

impl Drop for TraceProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
