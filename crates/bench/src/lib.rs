//! What a pair of allocate and free costs: millpond, the allocators that it is measured against, and mimalloc.
//!
//! A user of the pool's public interface only. `millpond bench` prints what this crate measures.
//!
//! **How one figure comes about.** [`Bench::run`] takes one suite and one allocator. It opens a device for it
//! (`target.rs`) and builds the allocator as a `Subject` (`subject/`), so that its calls are compiled into the loops that
//! measure them. A suite (`suites/`, one file each) runs its work on pinned threads (`cores.rs`), takes times with the
//! clock (`clock.rs`), whose own cost is measured and taken off, and makes one [`Row`] of each set of samples
//! (`samples.rs`).
//!
//! **What the figures are of.** Nanoseconds that the calling thread spends, wall clock. On the simulated device the
//! driver's calls cost next to nothing, so that the figures there are of an allocator's own work alone.

mod bench;
mod clock;
mod cores;
mod drift;
mod error;
mod machine;
mod opaque;
mod ratio;
mod repeat;
pub mod report;
mod row;
mod samples;
pub mod scale;
mod subject;
mod suite;
mod suites;
mod target;
mod work;

pub use bench::Bench;
pub use drift::Drift;
pub use error::{Error, Result};
pub use machine::Machine;
pub use ratio::{times, times_reference};
pub use repeat::repeat;
pub use row::Row;
pub use subject::{MIMALLOC, names};
pub use suite::Suite;
pub use target::Target;
