//! `scale/`: what a call costs beside very many pages, streams, threads and blocks.
//!
//! Uses the pool's public interface, on a simulated device with more memory than any has. A [`Case`] builds what is beside the
//! call, and has a [`Meter`] watch the call: by the CPU time of the thread (`millpond bench --suite scale`), or by valgrind, which
//! counts the instructions of what the meter watches (`scripts/scale`).

mod case;
mod meter;
mod pages;
mod pools;
mod streams;
mod threads;

pub use case::{Case, Figure};
pub use meter::Meter;
