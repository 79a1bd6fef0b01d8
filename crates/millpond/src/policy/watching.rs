//! How much is shown of a pool, and how closely a guard watches one. No measurement chose these: docs/seeing.md and docs/guard.md
//! promise them.

/// Cells of a page map.
pub(crate) const CELLS: usize = 256;

/// Holders that are told of, and frames of each.
pub(crate) const MOST_HOLDERS: usize = 20;
pub(crate) const MOST_FRAMES: usize = 8;

/// Findings that are kept.
pub(crate) const MOST_FINDINGS: usize = 1000;

/// The most frees that a block waits for, where frees are delayed.
pub(crate) const LONGEST_DELAY: u64 = 16;
