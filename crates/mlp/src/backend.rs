//! What a device must be able to do to train an MLP: a few operations, asynchronous and in stream order.
//!
//! The training loop ([`train`](crate::train())) is written once, against this trait; `host/` and `cuda/`
//! implement it. The rules that hold for every implementation:
//!
//! - **Memory.** An operation takes its output, and whatever it needs in between, from
//!   [`memory`](Backend::memory), the allocator under test, and keeps nothing: the output belongs to the
//!   caller, and dropping a [`Tensor`] frees it in stream order. A backend that holds something for longer
//!   (a library's workspace) takes it from there too.
//! - **Order.** An operation returns once its work is queued; it never waits for the device. Its inputs may be
//!   dropped as soon as it returns. All work runs on the stream of [`memory`](Backend::memory), in the order of the calls.
//! - **Layout.** Matrices are row-major and dense, `float32`; a row is one image of the batch. Weights are
//!   `[inputs, outputs]`, so that a layer is `y = x · w`.
//! - **Determinism.** The same calls on the same data give the same bits, whatever the addresses are.
//! - **Shapes** are checked; a mismatch is an [`Error::Shape`] and queues nothing.

use crate::{Error, Memory, Result, Tensor};

/// A batch of images on the device, as [`Split::gather`](crate::data::Split::gather) writes them.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// `[n, pixels + 1]`: in each row the pixels of an image, and then its label.
    pub rows: &'a Tensor<u8>,
    /// Images in the batch: the first rows, at least 1 and at most `n`.
    pub count: usize,
    /// Images that the mean of the loss is over, at least `count`. Other batches have the rest: of another rank, or of the
    /// same step later.
    pub of: usize,
    /// The images as [`images`](Backend::images) makes them, where they are there already.
    pub images: Option<&'a Tensor>,
}

/// A data set on the device, and the order to take it in.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// Each image with its label behind it, in a row.
    pub data: &'a Tensor<u8>,
    /// Numbers of images.
    pub order: &'a Tensor<u32>,
    /// One number: which place of the order is next.
    pub next: &'a Tensor<u32>,
}

/// Work that was captured, to be done again and again.
pub trait Graph: std::fmt::Debug {
    /// Queues the work on the stream that it was captured on.
    ///
    /// # Errors
    /// The device's own.
    fn replay(&self) -> Result<()>;
}

impl Batch<'_> {
    /// Pixels of an image.
    pub fn pixels(&self) -> usize {
        self.rows.cols().saturating_sub(1)
    }

    /// The batch has images, and not more than there are rows.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        if (1..=self.rows.rows()).contains(&self.count) && self.rows.cols() > 1 {
            return Ok(());
        }
        let found = (self.count, self.rows.cols());
        Err(Error::Shape { operation, found, expected: self.rows.shape() })
    }
}

/// How a GPU rounds the factors of products. Sums, and what is trained, are in float32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// Not at all.
    #[default]
    Float32,
    /// To 10 bits of mantissa.
    Tf32,
    /// To 7 bits of mantissa.
    Bfloat16,
}

impl Precision {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Float32, Self::Tf32, Self::Bfloat16];

    /// Its name, as settings have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Tf32 => "tf32",
            Self::Bfloat16 => "bfloat16",
        }
    }
}

/// What is applied to the output of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Nothing: the head.
    None,
    /// `max(0, y)`: the hidden layers.
    Relu,
}

/// How far a step of SGD goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// The learning rate.
    pub rate: f32,
    /// What is left of a velocity after a step.
    pub momentum: f32,
}

/// The place of the summed loss in a tensor of totals.
pub const TOTAL_LOSS: usize = 0;
/// The place of the number of correct answers in a tensor of totals.
pub const TOTAL_CORRECT: usize = 1;
/// Entries in a tensor of totals.
pub const TOTALS: usize = 2;

/// A device that trains. The rules that hold for every operation stand at the head of this file.
pub trait Backend: std::fmt::Debug {
    /// Where operations take their outputs from, and the stream that they run on.
    fn memory(&self) -> &Memory;

    /// The batch's images as floats: `out[i, j] = rows[i, j] / 255`. The output is `[count, pixels]`.
    ///
    /// # Errors
    /// The allocator's and the device's own, here and below.
    fn images(&mut self, batch: Batch<'_>) -> Result<Tensor>;

    /// Writes the next images of the order below one another, each with its label, and moves on by as many:
    /// `rows[i] = data[order[next + i]]`, and then `next += rows`. What the order does not have is left out.
    ///
    /// # Errors
    /// As above.
    fn gather(&mut self, source: Source<'_>, rows: &mut Tensor<u8>) -> Result<()>;

    /// A layer forward: `activation(x · w)`.
    ///
    /// `x` is `[batch, inputs]`, `w` `[inputs, outputs]`, the output `[batch, outputs]`.
    ///
    /// # Errors
    /// As above.
    fn linear(&mut self, x: &Tensor, w: &Tensor, activation: Activation) -> Result<Tensor>;

    /// Softmax cross-entropy forward and backward. Adds to `totals` (see [`score`](Self::score)), and returns
    /// the gradient of the mean loss: `(softmax(logits) − onehot(label)) / of`.
    ///
    /// `logits` and the output are `[count, classes]`. The labels are the batch's.
    ///
    /// # Errors
    /// As above.
    fn cross_entropy(
        &mut self,
        logits: &Tensor,
        batch: Batch<'_>,
        totals: &mut Tensor<f64>,
    ) -> Result<Tensor>;

    /// Softmax cross-entropy forward only. `totals` is `[1, TOTALS]` and stays on the device: the sum of the
    /// rows' losses is added to [`TOTAL_LOSS`], the number of rows whose largest logit (the first of equal
    /// ones) is at the label to [`TOTAL_CORRECT`].
    ///
    /// # Errors
    /// As above.
    fn score(&mut self, logits: &Tensor, batch: Batch<'_>, totals: &mut Tensor<f64>) -> Result<()>;

    /// The gradient of a layer's input, back through the ReLU that made that input:
    /// `(dy · wᵀ) ⊙ [x > 0]`.
    ///
    /// `dy` is `[batch, outputs]`, `w` `[inputs, outputs]`, `x` (the layer's input, the output of the layer
    /// below) and the result `[batch, inputs]`.
    ///
    /// # Errors
    /// As above.
    fn input_gradient(&mut self, dy: &Tensor, w: &Tensor, x: &Tensor) -> Result<Tensor>;

    /// The gradient of a layer's weights: `xᵀ · dy`. It is written to `into`, or to memory of its own.
    ///
    /// `x` is `[batch, inputs]`, `dy` `[batch, outputs]`, the output `[inputs, outputs]`.
    ///
    /// # Errors
    /// As above.
    fn weight_gradient(&mut self, x: &Tensor, dy: &Tensor, into: Option<Tensor>) -> Result<Tensor>;

    /// One step of SGD over all layers at once (one launch is enough): `w −= rate · gradient`, for each pair. With
    /// velocities, `v = momentum · v + gradient` and `w −= rate · v`, for each three.
    ///
    /// `gradients[i]` has the shape of `weights[i]`. So has `velocities[i]`, unless there are none.
    ///
    /// # Errors
    /// As above.
    fn update(
        &mut self,
        weights: &mut [Tensor],
        gradients: &[Tensor],
        velocities: &mut [Tensor],
        sgd: Sgd,
    ) -> Result<()>;

    /// One step of SGD of a layer, without a gradient in memory: `w −= rate · xᵀ · dy`. Differs from a gradient and an
    /// update by rounding.
    ///
    /// `x` is `[batch, inputs]`, `dy` `[batch, outputs]`, `w` `[inputs, outputs]`.
    ///
    /// # Errors
    /// As above.
    fn descend(&mut self, x: &Tensor, dy: &Tensor, w: &mut Tensor, rate: f32) -> Result<()>;

    /// Several steps of SGD at once, on batches of `images` that lie below one another in `batch`: each forward, backward, and
    /// `w −= rate · gradient`. Adds to `totals` (see [`score`](Self::score)). Returns whether the backend can do that for these
    /// shapes; otherwise nothing is queued. Differs from single operations by rounding.
    ///
    /// # Errors
    /// As above.
    fn steps(
        &mut self,
        _weights: &mut [Tensor],
        _batches: (Batch<'_>, usize),
        _rate: f32,
        _totals: &mut Tensor<f64>,
    ) -> Result<bool> {
        Ok(false)
    }

    /// Whether replaying steps is faster than launching their operations.
    fn prefers_graphs(&self) -> bool {
        false
    }

    /// From now on work is kept instead of done, until [`end_capture`](Self::end_capture).
    ///
    /// # Errors
    /// As above.
    fn begin_capture(&mut self) -> Result<()>;

    /// The work since [`begin_capture`](Self::begin_capture). The memory that it uses must stay as long as the graph. To be
    /// called after an error, too.
    ///
    /// # Errors
    /// As above.
    fn end_capture(&mut self) -> Result<Box<dyn Graph>>;

    /// Adds each gradient to its sum: to the last bit what a step of SGD at rate −1 does.
    ///
    /// # Errors
    /// As above.
    fn add(&mut self, sums: &mut [Tensor], gradients: &[Tensor]) -> Result<()> {
        self.update(sums, gradients, &mut [], Sgd { rate: -1.0, momentum: 0.0 })
    }
}
