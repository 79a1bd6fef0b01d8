//! Atomics of the machine. Models have those of loom in their place.

pub(in crate::extents) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
