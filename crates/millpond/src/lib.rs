//! Millpond: a GPU memory pool.
#![warn(missing_docs)]

pub mod device;
