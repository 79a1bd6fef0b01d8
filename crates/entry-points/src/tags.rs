//! Tags: the parts of the GPUs' pools that a thread's allocations come from.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static TAG: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Whether any thread ever had a tag. While none had, nothing has to be asked.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Has the calling thread's allocations belong to a tag. Returns the one before.
pub(crate) fn set(tag: Option<Arc<str>>) -> Option<Arc<str>> {
    // Relaxed: a thread that has a tag sees its own write. Others free its blocks, and were given them by it.
    IS_USED.store(true, Ordering::Relaxed);
    TAG.try_with(|present| present.replace(tag)).ok().flatten()
}

#[inline]
pub(crate) fn are_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

/// The calling thread's tag; while the thread ends, it has none.
pub(crate) fn of_thread() -> Option<Arc<str>> {
    if are_used() { TAG.try_with(|tag| tag.borrow().clone()).ok().flatten() } else { None }
}
