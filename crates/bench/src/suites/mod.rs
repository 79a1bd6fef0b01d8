//! `suites/`: what is measured, one file each.
//!
//! Uses the clock, the cores and the allocators as [`Subject`]s. A suite gets a way to build an allocator on a fresh
//! device, and returns its rows. (`streams`, which asks for more of the pool than others have, builds its own.)

mod churn;
mod hand_over;
mod latency;
mod pair;
mod reuse;
mod run;
mod scale;
mod streams;
mod threads;
mod throughput;
