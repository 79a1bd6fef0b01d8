//! Who holds memory now: the call stack, tag and time of live blocks, sampled by bytes or all.
//!
//! Uses the clock, the labels, the encoder and the format of recordings. [`Recording`](super::Recording) calls it.
//!
//! **How one block passes through.** While a pool tracks, its fast path is closed, as for a recording. An allocation
//! asks [`gaps`] whether it is a sample. If so, its stack is taken, and [`samples`] keep it until it is freed. A free of a block
//! that is no sample reads one counter. [`live`] puts the samples beside what the pool says is live; [`leaks`] and [`dump`]
//! write it down.

mod dump;
mod gaps;
mod leaks;
mod live;
mod options;
mod samples;
mod tracker;

pub(crate) use dump::OfPool;
pub use live::{Holder, LiveBlock, StackFrame, Tracked, holders};
pub use options::Tracking;
pub(crate) use tracker::Tracker;
