//! Tests of the `millpond` command, as others run it.

mod bench;
mod budget;
mod checkpoints;
mod command;
mod environment;
mod interrupt;
mod manual;
mod metrics;
mod operate;
mod pages;
mod plan;
mod predict;
mod predict_ending;
mod probe;
mod ranks;
mod replay;
mod run;
mod seeing;
mod shared;
mod soak;
mod top;
mod usage;
