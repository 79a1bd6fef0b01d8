//! The MLP trainer: a user of the pool's public interface only.
//!
//! It may use `millpond` and `millpond-baselines`' [`Allocator`](millpond_baselines::Allocator), nothing inside
//! them. Every weight, activation and gradient, and each batch on the device, is a [`Tensor`] from the allocator under
//! test. Batches pass through pinned memory on their way ([`Upload`]), or steps are captured with the data set on the device.
//!
//! One step: [`train()`] asks the [`Model`] for the gradients of a batch that is on its way; the model asks the
//! [`Backend`] for one operation after another; each operation takes its output from [`Memory`], queues its work on the
//! stream and returns; each tensor frees itself in stream order when the model drops it.

pub mod backend;
mod buckets;
mod captured;
mod captured_blocks;
mod checkpoint;
mod config;
pub mod cuda;
pub mod data;
mod error;
mod feed;
mod graph_memory;
mod host;
mod hyper;
mod machine;
mod memory;
mod model;
mod optimizer;
mod rank_share;
pub mod ranks;
mod step_memory;
mod stop_votes;
mod totals;
mod train;
mod whole_file;

pub use backend::{
    Activation, Backend, Batch, Graph, Precision, Sgd, Source, TOTAL_CORRECT, TOTAL_LOSS, TOTALS,
};
pub use checkpoint::{Checkpoint, Saving};
pub use config::Config;
pub use error::{Error, Result};
pub use feed::Upload;
pub use host::HostBackend;
pub use hyper::{Epoch, Hyper};
pub use machine::Machine;
pub use memory::{Memory, Tensor};
pub use model::{CLASSES, Model};
pub use step_memory::{Kind, Purpose, StepMemory};
pub use train::{Observer, Step, Steps, Task, Training, order, train};
