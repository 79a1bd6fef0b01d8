//! Whether frees may take the fast path, which tells nobody of them.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What keeps it closed. A forked child of who has such things has no CUDA, and may find its parent's.
static REASONS: AtomicUsize = AtomicUsize::new(0);

/// Closes it until the same is [taken back](reopen).
pub(crate) fn close() {
    // Sequentially consistent, here and below: whoever closes it does so before what requests have to be told of.
    REASONS.fetch_add(1, Ordering::SeqCst);
}

pub(crate) fn reopen() {
    REASONS.fetch_sub(1, Ordering::SeqCst);
}

/// Whether it is open.
#[inline]
pub(crate) fn are_open() -> bool {
    REASONS.load(Ordering::SeqCst) == 0
}
