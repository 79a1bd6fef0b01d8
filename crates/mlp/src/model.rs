//! The MLP: its weights, a forward pass, and one step of training.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{Activation, Backend, Batch, Kind, Memory, Result, Sgd, Tensor};

/// The classes that digits (and Fashion-MNIST's clothes) fall into.
pub const CLASSES: usize = 10;

/// Weights of the hidden layers and the head, without biases, each `[inputs, outputs]`.
#[derive(Debug)]
pub struct Model {
    weights: Vec<Tensor>,
}

impl Model {
    /// `hidden` layers of `width` over `inputs` pixels, and a head of [`CLASSES`]. Weights are uniform in
    /// ±1/√inputs of their layer; the same seed gives the same weights on every device.
    ///
    /// # Errors
    /// The allocator's and the device's own.
    pub fn new(memory: &Memory, inputs: usize, hidden: usize, width: usize, seed: u64) -> Result<Self> {
        let layers = Self::initial_weights(inputs, hidden, width, seed).enumerate();
        let weights = layers.map(|(layer, ([inputs, outputs], values))| {
            memory.next_is(Kind::Weights, layer + 1);
            memory.upload(inputs, outputs, &values)
        });
        Ok(Self { weights: weights.collect::<Result<_>>()? })
    }

    /// Inputs and outputs of each layer, and the weights that [`new`](Self::new) gives it.
    pub fn initial_weights(
        inputs: usize,
        hidden: usize,
        width: usize,
        seed: u64,
    ) -> impl Iterator<Item = ([usize; 2], Vec<f32>)> {
        let sizes = Self::sizes(inputs, hidden, width).into_iter().enumerate();
        sizes.map(move |(layer, size)| (size, initial_weights(seed, layer as u64, size)))
    }

    /// As [`new`](Self::new), with these weights of each layer.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) where a layer has another number of weights. The allocator's and the device's
    /// own.
    pub fn with_weights(
        memory: &Memory,
        inputs: usize,
        hidden: usize,
        width: usize,
        weights: &[Vec<f32>],
    ) -> Result<Self> {
        let sizes = Self::sizes(inputs, hidden, width).into_iter().zip(weights).enumerate();
        let weights = sizes.map(|(layer, ([inputs, outputs], values))| {
            memory.next_is(Kind::Weights, layer + 1);
            memory.upload(inputs, outputs, values)
        });
        Ok(Self { weights: weights.collect::<Result<_>>()? })
    }

    /// Inputs and outputs of each layer.
    pub(crate) fn sizes(inputs: usize, hidden: usize, width: usize) -> Vec<[usize; 2]> {
        let sizes: Vec<usize> =
            std::iter::once(inputs).chain(std::iter::repeat_n(width, hidden)).chain([CLASSES]).collect();
        sizes.array_windows().copied().collect()
    }

    /// The weights, from the first layer to the head.
    pub fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    /// Parameters in all.
    pub fn parameters(&self) -> usize {
        self.weights.iter().map(Tensor::len).sum()
    }

    /// The logits of a batch, `[count, CLASSES]`. Each layer's input is freed as soon as its output is on the way.
    ///
    /// # Errors
    /// The backend's own.
    pub fn infer(&self, backend: &mut dyn Backend, batch: Batch<'_>) -> Result<Tensor> {
        let mut x = images(backend, batch)?;
        for (layer, w) in self.weights.iter().enumerate() {
            x = backend.linear(&x, w, self.activation(layer))?;
        }
        Ok(x)
    }

    /// The gradients of the mean loss with respect to the weights, in their order; the loss itself is added to `totals`.
    ///
    /// # Errors
    /// The backend's own.
    pub fn gradients(
        &self,
        backend: &mut dyn Backend,
        batch: Batch<'_>,
        totals: &mut Tensor<f64>,
    ) -> Result<Vec<Tensor>> {
        let mut gradients = Vec::with_capacity(self.weights.len());
        self.backward(backend, batch, totals, &mut gradients)?;
        gradients.reverse();
        Ok(gradients)
    }

    /// Forward and backward. Hands the gradients out layer by layer, from the head down.
    pub(crate) fn backward(
        &self,
        backend: &mut dyn Backend,
        batch: Batch<'_>,
        totals: &mut Tensor<f64>,
        gradients: &mut dyn Gradients,
    ) -> Result<()> {
        let memory = backend.memory().clone();
        let (mut inputs, mut dy) = self.forward(backend, batch, totals)?;
        while let Some(x) = inputs.pop() {
            let layer = inputs.len();
            memory.next_is(Kind::Gradients, layer + 1);
            let into = gradients.place(backend, layer)?;
            let gradient = backend.weight_gradient(&x, &dy, into)?;
            gradients.ready(backend, gradient)?;
            if layer > 0 {
                memory.next_is(Kind::Gradients, layer);
                dy = backend.input_gradient(&dy, &self.weights[layer], &x)?;
            }
        }
        Ok(())
    }

    /// Forward, backward and one step of SGD, without gradients of weights in memory.
    pub(crate) fn train(
        &mut self,
        backend: &mut dyn Backend,
        batch: Batch<'_>,
        totals: &mut Tensor<f64>,
        rate: f32,
    ) -> Result<()> {
        let memory = backend.memory().clone();
        let (mut inputs, mut dy) = self.forward(backend, batch, totals)?;
        while let Some(x) = inputs.pop() {
            let layer = inputs.len();
            memory.next_is(Kind::Gradients, layer);
            // By the weights as they were in the forward pass.
            let w = &mut self.weights[layer];
            let below = if layer > 0 { Some(backend.input_gradient(&dy, w, &x)?) } else { None };
            backend.descend(&x, &dy, w, rate)?;
            dy = below.unwrap_or(dy);
        }
        Ok(())
    }

    /// Several steps of SGD at once, as [`Backend::steps`].
    pub(crate) fn steps(
        &mut self,
        backend: &mut dyn Backend,
        batches: (Batch<'_>, usize),
        rate: f32,
        totals: &mut Tensor<f64>,
    ) -> Result<bool> {
        backend.steps(&mut self.weights, batches, rate, totals)
    }

    /// What each layer reads, and the gradient of the logits.
    fn forward(
        &self,
        backend: &mut dyn Backend,
        batch: Batch<'_>,
        totals: &mut Tensor<f64>,
    ) -> Result<(Vec<Tensor>, Tensor)> {
        let memory = backend.memory().clone();
        memory.next_is(Kind::Activations, 0);
        // `inputs[layer]` is what the layer reads; each is kept until its layer's gradients are on the way.
        let mut inputs = vec![images(backend, batch)?];
        let head = self.weights.len() - 1;
        for layer in 0..head {
            memory.next_is(Kind::Activations, layer + 1);
            let y = backend.linear(&inputs[layer], &self.weights[layer], Activation::Relu)?;
            inputs.push(y);
        }
        memory.next_is(Kind::Activations, head + 1);
        let logits = backend.linear(&inputs[head], &self.weights[head], Activation::None)?;
        memory.ledger().inspect(|ledger| ledger.phase("backward", false));
        memory.next_is(Kind::Gradients, head + 1);
        let dy = backend.cross_entropy(&logits, batch, totals)?;
        Ok((inputs, dy))
    }

    /// Puts the weights of a layer elsewhere, where they are already.
    pub(crate) fn move_to(&mut self, layer: usize, weights: Tensor) {
        self.weights[layer] = weights;
    }

    /// One step of SGD.
    ///
    /// # Errors
    /// The backend's own.
    pub fn update(&mut self, backend: &mut dyn Backend, gradients: &[Tensor], rate: f32) -> Result<()> {
        self.descend(backend, gradients, &mut [], Sgd { rate, momentum: 0.0 })
    }

    /// As [`update`](Self::update), with velocities if there are any.
    pub(crate) fn descend(
        &mut self,
        backend: &mut dyn Backend,
        gradients: &[Tensor],
        velocities: &mut [Tensor],
        sgd: Sgd,
    ) -> Result<()> {
        backend.update(&mut self.weights, gradients, velocities, sgd)
    }

    fn activation(&self, layer: usize) -> Activation {
        if layer + 1 == self.weights.len() { Activation::None } else { Activation::Relu }
    }
}

/// The batch's images as floats.
fn images(backend: &mut dyn Backend, batch: Batch<'_>) -> Result<Tensor> {
    batch.images.map_or_else(|| backend.images(batch), |images| Ok(images.share()))
}

/// Where the gradients of the layers go, from the head down.
pub(crate) trait Gradients {
    /// Where that of this layer is to be written; `None` for memory of its own.
    fn place(&mut self, backend: &dyn Backend, layer: usize) -> Result<Option<Tensor>>;

    /// Takes that of the layer whose place was last asked for. It is on its way.
    fn ready(&mut self, backend: &dyn Backend, gradient: Tensor) -> Result<()>;
}

impl Gradients for Vec<Tensor> {
    fn place(&mut self, _: &dyn Backend, _: usize) -> Result<Option<Tensor>> {
        Ok(None)
    }

    fn ready(&mut self, _: &dyn Backend, gradient: Tensor) -> Result<()> {
        self.push(gradient);
        Ok(())
    }
}

/// Uniform in ±1/√inputs. Each layer has a stream of its own, so that its weights do not depend on the size of
/// the others.
fn initial_weights(seed: u64, layer: u64, [inputs, outputs]: [usize; 2]) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(layer);
    let bound = 1.0 / (inputs as f32).sqrt();
    (0..inputs * outputs).map(|_| rng.random_range(-bound..bound)).collect()
}
