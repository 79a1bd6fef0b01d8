//! What a device must be able to do to train an MLP: seven operations, asynchronous and in stream order.
//!
//! The training loop ([`train`](crate::train())) is written once, against this trait; `host/` and `cuda/`
//! implement it. The rules that hold for every implementation:
//!
//! - **Memory.** An operation takes its output, and whatever it needs in between, from
//!   [`memory`](Backend::memory), the allocator under test, and keeps nothing: the output belongs to the
//!   caller, and dropping a [`Tensor`] frees it in stream order. A backend that holds something for longer
//!   (a library's workspace) takes it from there too.
//! - **Order.** An operation returns once its work is queued; it never waits for the device. Its inputs may be
//!   dropped as soon as it returns. A backend may spread work over several streams, as long as the result is
//!   as if all of it ran on the stream of [`memory`](Backend::memory) in the order of the calls: it makes
//!   streams wait for each other, and [notes the use](Tensor::record_use) of a tensor on another stream.
//! - **Layout.** Matrices are row-major and dense, `float32`; a row is one image of the batch. Weights are
//!   `[inputs, outputs]`, so that a layer is `y = x · w`.
//! - **Determinism.** The same calls on the same data give the same bits, whatever the addresses are.
//! - **Shapes** are checked; a mismatch is an [`Error::Shape`](crate::Error::Shape) and queues nothing.

use crate::{Memory, Result, Tensor};

/// Which images make up a batch: `count` entries of `order` from `start` on, each the index of an image.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Indices of images, `[1, n]`, each below the number of images.
    pub order: &'a Tensor<u32>,
    /// The batch's first entry in `order`.
    pub start: usize,
    /// Images in the batch, at least 1; `start + count` is at most `n`.
    pub count: usize,
}

/// What is applied to the output of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Nothing: the head.
    None,
    /// `max(0, y)`: the hidden layers.
    Relu,
}

/// The place of the summed loss in a tensor of totals.
pub const TOTAL_LOSS: usize = 0;
/// The place of the number of correct answers in a tensor of totals.
pub const TOTAL_CORRECT: usize = 1;
/// Entries in a tensor of totals.
pub const TOTALS: usize = 2;

/// A device that trains. The rules that hold for every operation stand at the head of this file.
pub trait Backend: std::fmt::Debug {
    /// Where operations take their outputs from, and the stream they behave as if they ran on.
    fn memory(&self) -> &Memory;

    /// The batch's images as floats: `out[i, j] = images[order[start + i], j] / 255`.
    ///
    /// `images` is `[n, pixels]`, the output `[count, pixels]`.
    ///
    /// # Errors
    /// The allocator's and the device's own, here and below.
    fn gather(&mut self, images: &Tensor<u8>, batch: Batch<'_>) -> Result<Tensor>;

    /// A layer forward: `activation(x · w)`.
    ///
    /// `x` is `[batch, inputs]`, `w` `[inputs, outputs]`, the output `[batch, outputs]`.
    ///
    /// # Errors
    /// As above.
    fn linear(&mut self, x: &Tensor, w: &Tensor, activation: Activation) -> Result<Tensor>;

    /// Softmax cross-entropy forward and backward. Adds to `totals` (see [`score`](Self::score)), and returns
    /// the gradient of the batch's mean loss: `(softmax(logits) − onehot(label)) / count`.
    ///
    /// `logits` and the output are `[count, classes]`; `labels` is `[1, n]`, row `i` of the batch has the
    /// label `labels[order[start + i]]`.
    ///
    /// # Errors
    /// As above.
    fn cross_entropy(
        &mut self,
        logits: &Tensor,
        labels: &Tensor<u8>,
        batch: Batch<'_>,
        totals: &mut Tensor<f64>,
    ) -> Result<Tensor>;

    /// Softmax cross-entropy forward only. `totals` is `[1, TOTALS]` and stays on the device: the sum of the
    /// rows' losses is added to [`TOTAL_LOSS`], the number of rows whose largest logit (the first of equal
    /// ones) is at the label to [`TOTAL_CORRECT`].
    ///
    /// # Errors
    /// As above.
    fn score(
        &mut self,
        logits: &Tensor,
        labels: &Tensor<u8>,
        batch: Batch<'_>,
        totals: &mut Tensor<f64>,
    ) -> Result<()>;

    /// The gradient of a layer's input, back through the ReLU that made that input:
    /// `(dy · wᵀ) ⊙ [x > 0]`.
    ///
    /// `dy` is `[batch, outputs]`, `w` `[inputs, outputs]`, `x` (the layer's input, the output of the layer
    /// below) and the result `[batch, inputs]`.
    ///
    /// # Errors
    /// As above.
    fn input_gradient(&mut self, dy: &Tensor, w: &Tensor, x: &Tensor) -> Result<Tensor>;

    /// The gradient of a layer's weights: `xᵀ · dy`.
    ///
    /// `x` is `[batch, inputs]`, `dy` `[batch, outputs]`, the output `[inputs, outputs]`.
    ///
    /// # Errors
    /// As above.
    fn weight_gradient(&mut self, x: &Tensor, dy: &Tensor) -> Result<Tensor>;

    /// One step of SGD over all layers at once (one launch is enough): `w −= rate · gradient`, for each pair.
    ///
    /// `gradients[i]` has the shape of `weights[i]`.
    ///
    /// # Errors
    /// As above.
    fn update(&mut self, weights: &mut [Tensor], gradients: &[Tensor], rate: f32) -> Result<()>;
}
