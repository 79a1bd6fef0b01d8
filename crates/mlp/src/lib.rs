//! The MLP trainer: a user of the pool's public interface only.
//!
//! It may use `millpond` and `millpond-baselines`' [`Allocator`](millpond_baselines::Allocator), nothing inside
//! them. Every weight, activation and gradient, the data set included, is a [`Tensor`] from the allocator under
//! test.

mod backend;
mod error;
mod memory;

pub use backend::{Activation, Backend, Batch, TOTAL_CORRECT, TOTAL_LOSS, TOTALS};
pub use error::{Error, Result};
pub use memory::{Memory, Tensor};
