//! What caches keep in the pool's lock.

/// Lies in the pool's lock: who has it holds the lock.
#[derive(Debug, Default)]
pub(crate) struct Locked {
    /// Whether nothing is cached.
    pub(super) is_paused: bool,
    /// Whether threads do not enter by lock entries, but by functions which note each request.
    pub(super) entries_are_closed: bool,
}
