//! How much is shown of a pool, and how closely a guard watches one. No measurement chose these: docs/seeing.md and docs/guard.md
//! promise them.

use std::time::Duration;

/// Cells of a page map.
pub(crate) const CELLS: usize = 256;

/// Holders that are told of, and frames of each.
pub(crate) const MOST_HOLDERS: usize = 20;
pub(crate) const MOST_FRAMES: usize = 8;

/// Bytes of a redzone, at most: a page may end before.
pub(crate) const REDZONE: u64 = 512;

/// Findings that are kept.
pub(crate) const MOST_FINDINGS: usize = 1000;

/// The most frees that a block waits for, where frees are delayed.
pub(crate) const LONGEST_DELAY: u64 = 16;

/// How long the file of a process that ran out of memory stays after its last error: whoever asks on the next morning finds it.
pub(crate) const ERRORS_STAY: Duration = Duration::from_secs(86_400);

/// Processes under a budget that an out-of-memory error names, those that hold most.
pub(crate) const MOST_TENANTS: usize = 5;

/// Such files in a folder, the pools that each tells of, and letters of an error.
pub(crate) const MOST_ERROR_FILES: usize = 1000;
pub(crate) const MOST_POOLS_WITH_ERRORS: usize = 16;
pub(crate) const LONGEST_ERROR: usize = 2000;

/// Bytes of a recording, unless it asks for another limit. A disk that is full harms more than a recording without its end.
pub(crate) const LARGEST_RECORDING: u64 = 10 << 30;

/// Files of a recording that rotates: two, so that at least half of the limit is there at any moment.
pub(crate) const PARTS: u64 = 2;
