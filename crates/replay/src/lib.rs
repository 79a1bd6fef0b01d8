//! Traces of GPU memory, replayed: what each allocator would have reserved, and on which card it would fit.
//!
//! Above `millpond` and `millpond-baselines`, below the command.
//!
//! **How one trace passes through.** `read/` turns a file into [`event`]s, whichever program recorded it;
//! [`trace`] resolves their addresses to dense numbers; [`replay`] puts them through an allocator of
//! [`choice`] on a device; [`fit`], [`deciding`], [`sites`], [`steps`], [`growth`], [`difference`], [`phases`],
//! [`holes`], [`verdict`] and [`report`] say what came of it, [`export`] lets other programs show it. [`out_of_memory`] says what
//! a request met that failed. [`offload`] says what a job would do whose memory is elsewhere at times. [`possible`] says how little a job could have been given, [`packing`] which jobs share a card, [`scaling`] what a job needs at another size. [`generate`] makes traces that nobody recorded.

pub mod choice;
pub mod cores;
pub mod deciding;
pub mod difference;
pub mod event;
pub mod evictions;
pub mod export;
pub mod fit;
#[cfg(test)]
mod fixtures;
pub mod generate;
pub mod growth;
pub mod holes;
pub mod moment;
pub mod offload;
pub mod out_of_memory;
mod owners;
pub mod packing;
pub mod phases;
mod pickle;
pub mod possible;
pub mod read;
pub mod replay;
pub mod report;
pub mod scaling;
pub mod segments;
pub mod sites;
pub mod steps;
pub mod trace;
pub mod verdict;

pub use pickle::{InputError, PickleError};
