//! The compiled kernels, each with its launch.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg};

use super::driver::{at, function, launch, refused};
use super::nvrtc;
use super::steps::{self, StepKernels};
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
#[derive(Debug)]
pub(super) struct Kernels {
    images: CudaFunction,
    gather: CudaFunction,
    advance: CudaFunction,
    relu_gradient: CudaFunction,
    cross_entropy: CudaFunction,
    update: CudaFunction,
    /// None where the GPU has no clusters.
    pub(super) steps: Option<StepKernels>,
}

#[repr(C)]
struct Layers {
    weights: [u64; MAX_LAYERS],
    gradients: [u64; MAX_LAYERS],
    velocities: [u64; MAX_LAYERS],
    count: [usize; MAX_LAYERS],
}

// SAFETY: it is what the kernel's parameter is: plain numbers.
unsafe impl DeviceRepr for Layers {}

/// So many blocks in two directions, of so many threads.
fn grid(x: u32, y: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (x, y, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// As many blocks as cover `count` with `each` of them.
fn blocks(count: usize, each: usize) -> u32 {
    // A grid of 2³¹ − 1 blocks covers more than any GPU's memory.
    count.div_ceil(each).max(1) as u32
}

impl Kernels {
    /// Compiles and loads the kernels for a GPU, whose context is current.
    pub(super) fn load(context: &Arc<CudaContext>, precision: Precision) -> Result<Self> {
        let (major, minor) = context.compute_capability().map_err(refused("asking for the capability"))?;
        let image = nvrtc::compile(SOURCE, major * 10 + minor, &defines(precision))?;
        let module = context.load_module(image).map_err(refused("cuModuleLoadData"))?;
        let [images, gather, advance, relu_gradient, cross_entropy, update] =
            ["images", "gather", "advance", "relu_gradient", "cross_entropy", "update"]
                .map(|name| function(&module, name));
        let steps = (major >= 9).then(|| StepKernels::new(context, &module, precision)).transpose()?;
        Ok(Self {
            images: images?,
            gather: gather?,
            advance: advance?,
            relu_gradient: relu_gradient?,
            cross_entropy: cross_entropy?,
            update: update?,
            steps,
        })
    }

    /// `out[i, j] = rows[i, j] / 255`.
    ///
    /// # Safety
    /// The batch has as many rows as it says; `out` has as many, of as many columns as an image has pixels.
    pub(super) unsafe fn images(&self, stream: &CudaStream, out: &Tensor, batch: Batch<'_>) -> Result<()> {
        let arguments = [at(out), at(batch.rows), batch.pixels() as u64];
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { launch(stream, &self.images, grid(batch.count as u32, 1, THREADS), &arguments) }
    }

    /// Writes the next images of an order below one another, and moves on.
    ///
    /// # Safety
    /// `rows` has rows as long as those of the data.
    pub(super) unsafe fn gather(
        &self,
        stream: &CudaStream,
        Source { data, order, next }: Source<'_>,
        rows: &Tensor<u8>,
    ) -> Result<()> {
        let [row, count, images, by] =
            [data.cols(), order.len(), data.rows(), rows.rows()].map(|size| size as u64);
        let arguments = [at(rows), at(data), row, at(order), count, images, at(next)];
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { launch(stream, &self.gather, grid(by as u32, 1, THREADS), &arguments) }?;
        // SAFETY: as above.
        unsafe { launch(stream, &self.advance, grid(1, 1, 1), &[at(next), by]) }
    }

    /// `dx = sum(parts) ⊙ [x > 0]`, in the order of the parts.
    ///
    /// # Safety
    /// `dx`, `x` and each of the `parts.1` matrices of `parts.0` have the same shape, and a multiple of four
    /// elements if there are several.
    pub(super) unsafe fn relu_gradient(
        &self,
        stream: &CudaStream,
        dx: &Tensor,
        (parts, number): (&Tensor, usize),
        x: &Tensor,
    ) -> Result<()> {
        let arguments = [at(dx), at(parts), number as u64, at(x), dx.len() as u64];
        let grid = grid(blocks(dx.len(), 4 * THREADS as usize), 1, THREADS);
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { launch(stream, &self.relu_gradient, grid, &arguments) }
    }

    /// Adds the batch's loss and correct answers to `totals`, and writes the gradient where one is wanted.
    ///
    /// # Safety
    /// `logits`, `gradient` and the batch have `batch.count` rows, `totals` two numbers.
    pub(super) unsafe fn cross_entropy(
        &self,
        stream: &CudaStream,
        (logits, batch): (&Tensor, Batch<'_>),
        (gradient, totals): (Option<&Tensor>, &Tensor<f64>),
    ) -> Result<()> {
        let [pixels, count, classes, of] =
            [batch.pixels(), batch.count, logits.cols(), batch.of].map(|size| size as u64);
        let gradient = gradient.map_or(0, at);
        let arguments = [gradient, at(totals), at(logits), at(batch.rows), pixels, count, classes, of];
        let threads = (batch.count as u32).next_power_of_two().clamp(32, MAX_THREADS);
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { launch(stream, &self.cross_entropy, grid(1, 1, threads), &arguments) }
    }

    /// `weights −= rate · gradients` for each pair, at most [`MAX_LAYERS`] of them; with velocities, if there are any.
    ///
    /// # Safety
    /// Each pair has the same shape; and the same number of velocities, or none.
    pub(super) unsafe fn update(
        &self,
        stream: &CudaStream,
        (weights, gradients, velocities): (&[Tensor], &[Tensor], &[Tensor]),
        Sgd { rate, momentum }: Sgd,
    ) -> Result<()> {
        let of = |tensors: &[Tensor]| std::array::from_fn(|layer| tensors.get(layer).map_or(0, at));
        let layers = Layers {
            weights: of(weights),
            gradients: of(gradients),
            velocities: of(velocities),
            count: std::array::from_fn(|layer| weights.get(layer).map_or(0, Tensor::len)),
        };
        let largest = weights.iter().map(Tensor::len).max().unwrap_or(0);
        let covering = blocks(largest, UPDATED_PER_THREAD * THREADS as usize);
        let mut launch = stream.launch_builder(&self.update);
        launch.arg(&layers).arg(&rate).arg(&momentum);
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { launch.launch(grid(covering, weights.len() as u32, THREADS)) }
            .map_err(refused("cuLaunchKernel"))?;
        Ok(())
    }
}
