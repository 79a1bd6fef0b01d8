//! What the memory of a machine does: copies, bandwidth, latency, and what the driver's calls cost.
//!
//! A user of the pool's public interface only. `millpond probe` prints what this crate measures.
//!
//! **How one figure comes about.** [`Probe::measure`] takes one [`Section`]. The section's file makes ready what it needs,
//! and hands closures to a `Run` (`run.rs`). A closure does the work once and returns its nanoseconds. The run repeats it
//! until its time is over, and keeps median, least and most as a [`Row`].
//!
//! **Whose clock.** Copies and calls are timed by the host: from the call until the stream is done, or the call returned.
//! Kernels are timed by two events around them.
//!
//! | file | measures |
//! | --- | --- |
//! | `copies` | copies between host and device, between devices, on the device |
//! | `calls` | what the device's calls cost |
//! | `pool` | what a pair of the pool costs |
//! | `cpu/` | bandwidth and latency of the CPU's memory |
//! | `gpu/` | the same of a GPU's, by kernels |

mod calls;
mod chain;
mod copies;
pub mod cost_table;
mod cpu;
mod effort;
mod error;
mod facts;
mod gpu;
mod measured;
mod owned;
mod pool;
mod probe;
pub mod report;
mod row;
mod run;
mod section;

pub use effort::Effort;
pub use error::{Error, Result};
pub use facts::{Fact, Facts};
pub use measured::Measured;
pub use probe::Probe;
pub use row::{Row, Unit};
pub use section::Section;
