//! What a training is of, and what comes of it.

use serde::{Deserialize, Serialize};

/// What is trained, and how.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Hyper {
    /// Hidden layers.
    pub num_layers: usize,
    /// Outputs of each hidden layer.
    pub feat_dim: usize,
    /// SGD's step.
    pub learning_rate: f32,
    /// What is left of a velocity after a step, 0 to below 1. With 0 there are no velocities.
    #[serde(default)]
    pub momentum: f32,
    /// Images in a step, on all ranks; the last step of an epoch takes what is left.
    pub batch_size: usize,
    /// Parts of a batch that a rank computes one after another.
    #[serde(default = "one")]
    pub micro_batches: usize,
    /// Passes over the training set.
    pub epochs: usize,
    /// Where the weights and the order of the images come from.
    pub seed: u64,
}

/// Of checkpoints that do not say it.
fn one() -> usize {
    1
}

/// What one epoch gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Counted from 1.
    pub epoch: usize,
    /// Mean loss over the images as they were trained on.
    pub train_loss: f64,
    /// Mean loss over the validation set after the epoch.
    pub val_loss: f64,
    /// Share of the validation set that was recognised, 0 to 1.
    pub val_accuracy: f64,
    /// Time of the epoch, validation included, in milliseconds.
    pub wall_ms: f64,
    /// Calls that moved device memory. The first epoch counts the placing of weights too.
    pub device_calls: u64,
}
