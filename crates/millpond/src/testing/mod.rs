//! Devices for tests, over any other device. Behind the feature `testing`.
//!
//! - [`checker`] finds where an allocator breaks the rules of stream order, loses memory or leaves some behind.
//! - [`capturing`] adds captures into graphs to devices without.
//! - [`recycling`] gives the handles of streams that are gone to new ones, as CUDA's driver does.
//! - [`trusted`] spares a test the `unsafe` of each call.

// They use `device/` only, and know nothing of pools.

pub mod capturing;
pub mod checker;
pub mod recycling;
pub mod trusted;
