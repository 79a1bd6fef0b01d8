//! Tests of the trainer, through its public interface.

mod allocations;
mod checkpoints;
mod cuda_training;
mod data;
mod gradients;
mod ranks;
mod training;
