//! The compiled kernels, each with its launch.

use millpond::device::StreamHandle;

use super::driver::{self, Argument, Function, Grid};
use super::nvrtc;
use super::steps::{self, Steps};
use crate::{Batch, CLASSES, Precision, Result, Sgd, Source, Tensor};

/// The kernels' text.
pub(super) const SOURCE: &str =
    concat!(include_str!("kernels.cu"), include_str!("block.cu"), include_str!("steps.cu"));

/// Threads of a block of the kernels that cover a whole matrix.
const THREADS: u32 = 256;
/// Threads of a block at most: CUDA's limit.
const MAX_THREADS: u32 = 1024;
/// Layers that one launch of `update` covers: 32 × 32 bytes of parameters, of 4 KiB that a launch may have.
pub(super) const MAX_LAYERS: usize = 32;
/// Floats that a thread of `update` covers: enough loads in flight to fill the bus.
const UPDATED_PER_THREAD: usize = 16;

/// The names that the kernels' text expects to be defined.
pub(super) fn defines(precision: Precision) -> Vec<String> {
    let own = [
        ("MAX_THREADS", MAX_THREADS as usize),
        ("MAX_LAYERS", MAX_LAYERS),
        ("CLASSES", CLASSES),
        ("PRECISION", precision as usize),
    ];
    own.iter().chain(&steps::DEFINES).map(|(name, value)| format!("{name}={value}")).collect()
}

/// The kernels, loaded on one GPU.
pub(super) struct Kernels {
    images: Function,
    gather: Function,
    advance: Function,
    relu_gradient: Function,
    cross_entropy: Function,
    update: Function,
    /// None where the GPU has no clusters.
    pub(super) steps: Option<Steps>,
}

#[repr(C)]
struct Layers {
    weights: [u64; MAX_LAYERS],
    gradients: [u64; MAX_LAYERS],
    velocities: [u64; MAX_LAYERS],
    count: [usize; MAX_LAYERS],
}

/// As many blocks as cover `count` with `each` of them.
fn blocks(count: usize, each: usize) -> u32 {
    // A grid of 2³¹ − 1 blocks covers more than any GPU's memory.
    count.div_ceil(each).max(1) as u32
}

impl Kernels {
    /// Compiles and loads the kernels for the GPU whose context is current.
    pub(super) fn load(capability: (u32, u32), precision: Precision) -> Result<Self> {
        let number = (capability.0 * 10 + capability.1) as i32;
        let image = nvrtc::compile(SOURCE, number, &defines(precision))?;
        let names = [
            c"images",
            c"gather",
            c"advance",
            c"relu_gradient",
            c"cross_entropy",
            c"update",
            c"images_by_parts",
            c"steps",
        ];
        // SAFETY: NVRTC made the image.
        let [images, gather, advance, relu_gradient, cross_entropy, update, steps @ ..] =
            unsafe { driver::load(&image, names) }?;
        let steps = (capability.0 >= 9).then(|| Steps::new(steps, precision)).transpose()?;
        Ok(Self { images, gather, advance, relu_gradient, cross_entropy, update, steps })
    }

    /// `out[i, j] = rows[i, j] / 255`.
    ///
    /// # Safety
    /// The batch has as many rows as it says; `out` has as many, of as many columns as an image has pixels.
    pub(super) unsafe fn images(&self, stream: StreamHandle, out: &Tensor, batch: Batch<'_>) -> Result<()> {
        let arguments = [out.into(), batch.rows.into(), batch.pixels().into()];
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.images, Grid::of(batch.count as u32, THREADS), stream, &arguments) }
    }

    /// Writes the next images of an order below one another, and moves on.
    ///
    /// # Safety
    /// `rows` has rows as long as those of the data.
    pub(super) unsafe fn gather(
        &self,
        stream: StreamHandle,
        Source { data, order, next }: Source<'_>,
        rows: &Tensor<u8>,
    ) -> Result<()> {
        let (count, images, by) = (order.len().into(), data.rows().into(), rows.rows());
        let arguments =
            [rows.into(), data.into(), data.cols().into(), order.into(), count, images, next.into()];
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.gather, Grid::of(by as u32, THREADS), stream, &arguments) }?;
        // SAFETY: as above.
        unsafe { driver::launch(self.advance, Grid::of(1, 1), stream, &[next.into(), by.into()]) }
    }

    /// `dx = sum(parts) ⊙ [x > 0]`, in the order of the parts.
    ///
    /// # Safety
    /// `dx`, `x` and each of the `parts.1` matrices of `parts.0` have the same shape, and a multiple of four
    /// elements if there are several.
    pub(super) unsafe fn relu_gradient(
        &self,
        stream: StreamHandle,
        dx: &Tensor,
        parts: (&Tensor, usize),
        x: &Tensor,
    ) -> Result<()> {
        let (parts, number) = parts;
        let arguments = [dx.into(), parts.into(), number.into(), x.into(), dx.len().into()];
        let grid = Grid::of(blocks(dx.len(), 4 * THREADS as usize), THREADS);
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.relu_gradient, grid, stream, &arguments) }
    }

    /// Adds the batch's loss and correct answers to `totals`, and writes the gradient where one is wanted.
    ///
    /// # Safety
    /// `logits`, `gradient` and the batch have `batch.count` rows, `totals` two numbers.
    pub(super) unsafe fn cross_entropy(
        &self,
        stream: StreamHandle,
        (logits, batch): (&Tensor, Batch<'_>),
        (gradient, totals): (Option<&Tensor>, &Tensor<f64>),
    ) -> Result<()> {
        let gradient = gradient.map_or(Argument::Word(0), Argument::from);
        let (pixels, count, classes) = (batch.pixels().into(), batch.count.into(), logits.cols().into());
        let rows = batch.rows.into();
        let arguments =
            [gradient, totals.into(), logits.into(), rows, pixels, count, classes, batch.of.into()];
        let grid = Grid::of(1, (batch.count as u32).next_power_of_two().clamp(32, MAX_THREADS));
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.cross_entropy, grid, stream, &arguments) }
    }

    /// `weights −= rate · gradients` for each pair, at most [`MAX_LAYERS`] of them; with velocities, if there are any.
    ///
    /// # Safety
    /// Each pair has the same shape; and the same number of velocities, or none.
    pub(super) unsafe fn update(
        &self,
        stream: StreamHandle,
        (weights, gradients, velocities): (&[Tensor], &[Tensor], &[Tensor]),
        Sgd { rate, momentum }: Sgd,
    ) -> Result<()> {
        let mut layers = Layers { weights: [0; _], gradients: [0; _], velocities: [0; _], count: [0; _] };
        for (layer, (weight, gradient)) in weights.iter().zip(gradients).enumerate() {
            layers.weights[layer] = weight.ptr().raw();
            layers.gradients[layer] = gradient.ptr().raw();
            layers.velocities[layer] = velocities.get(layer).map_or(0, |velocity| velocity.ptr().raw());
            layers.count[layer] = weight.len();
        }
        let largest = weights.iter().map(Tensor::len).max().unwrap_or(0);
        let covering = blocks(largest, UPDATED_PER_THREAD * THREADS as usize);
        let grid = Grid { blocks: [covering, weights.len() as u32, 1], ..Grid::of(0, THREADS) };
        let arguments = [Argument::of(&layers), rate.into(), momentum.into()];
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.update, grid, stream, &arguments) }
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kernels")
    }
}
