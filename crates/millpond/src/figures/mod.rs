//! `figures/`: what a pool counts, and how it is read.

pub(crate) mod counters;
pub(crate) mod stats;
pub(crate) mod tenant;
