//! Whether the process's report is to be written: at first, when memory grows, when the limit refuses, when something is said.

use std::sync::atomic::{AtomicBool, Ordering};

static IS_DUE: AtomicBool = AtomicBool::new(true);

/// Has the report written after the next allocation.
#[inline]
pub(crate) fn set() {
    // Relaxed, here and below: it orders nothing. Whoever writes the report reads what is there then.
    IS_DUE.store(true, Ordering::Relaxed);
}

#[inline]
pub(crate) fn is_due() -> bool {
    IS_DUE.load(Ordering::Relaxed)
}

/// Before the report is written: what changes meanwhile makes another one due.
pub(crate) fn clear() {
    IS_DUE.store(false, Ordering::Relaxed);
}
