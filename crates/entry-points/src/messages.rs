//! What is said on the standard error. It is kept, too, for the report.

use std::io::Write;

use crate::report_due;
use millpond::bindings::{Mutex, PerProcess};

static SAID: PerProcess<Mutex<Vec<String>>> = PerProcess::new(Default::default);

/// Says something once.
#[cold]
pub(crate) fn say(text: &str) {
    let mut said = SAID.get().lock();
    if said.iter().any(|line| line == text) {
        return;
    }
    said.push(text.to_owned());
    report_due::set();
    // Where that is closed, there is nobody to be told.
    writeln!(std::io::stderr(), "millpond: {text}").ok();
}

/// All that was said.
pub(crate) fn all() -> Vec<String> {
    SAID.get().lock().clone()
}
