//! The CPU's memory: caches and DRAM.
//!
//! `bandwidth` has loops over working sets, by one core and by all; `reads` has strides and layouts; `latency` follows a
//! chain. All of it runs on pinned threads (`workers`), each with memory that it touched first: on machines with several
//! NUMA nodes that is memory of its own node.

mod bandwidth;
mod latency;
mod reads;
mod workers;

pub(crate) use self::bandwidth::measure as bandwidth;
pub(crate) use self::latency::measure as latency;
pub(crate) use self::reads::measure as reads;
pub(crate) use self::workers::Cores;
