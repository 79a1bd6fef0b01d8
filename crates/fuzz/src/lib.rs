//! Targets that fuzz Millpond's readers, and its pools: `tests/targets.rs`. `scripts/fuzz` runs them for long.
