//! The compiled kernels, each with its launch.

use std::ffi::c_void;

use millpond::device::StreamHandle;

use super::driver::{self, Function, Grid};
use super::nvrtc;
use crate::{Batch, CLASSES, Result, Sgd, Source, Tensor};

/// The kernels' text.
pub(super) const SOURCE: &str = include_str!("kernels.cu");

/// Threads of a block of the kernels that cover a whole matrix.
const THREADS: u32 = 256;
/// Threads of a block at most: CUDA's limit.
const MAX_THREADS: u32 = 1024;
/// Layers that one launch of `update` covers: 32 × 32 bytes of parameters, of 4 KiB that a launch may have.
pub(super) const MAX_LAYERS: usize = 32;
/// Floats that a thread of `update` covers: enough loads in flight to fill the bus.
const UPDATED_PER_THREAD: usize = 16;

/// The names that the kernels' text expects to be defined.
pub(super) fn defines() -> Vec<String> {
    let defines = [("MAX_THREADS", MAX_THREADS as usize), ("MAX_LAYERS", MAX_LAYERS), ("CLASSES", CLASSES)];
    defines.map(|(name, value)| format!("{name}={value}")).to_vec()
}

/// The kernels, loaded on one GPU.
pub(super) struct Kernels {
    images: Function,
    gather: Function,
    advance: Function,
    head: Function,
    tally: Function,
    relu_gradient: Function,
    cross_entropy: Function,
    update: Function,
}

#[repr(C)]
struct Layers {
    weights: [u64; MAX_LAYERS],
    gradients: [u64; MAX_LAYERS],
    velocities: [u64; MAX_LAYERS],
    count: [usize; MAX_LAYERS],
}

/// The pointer to a launch parameter.
fn argument<T>(value: &mut T) -> *mut c_void {
    (&raw mut *value).cast()
}

/// As many blocks as cover `count` with `each` of them.
fn blocks(count: usize, each: usize) -> u32 {
    // A grid of 2³¹ − 1 blocks covers more than any GPU's memory.
    count.div_ceil(each).max(1) as u32
}

impl Kernels {
    /// Compiles and loads the kernels for the GPU whose context is current.
    pub(super) fn load(capability: (u32, u32)) -> Result<Self> {
        let number = (capability.0 * 10 + capability.1) as i32;
        let image = nvrtc::compile(SOURCE, number, &defines())?;
        let names = [
            c"images",
            c"gather",
            c"advance",
            c"head",
            c"tally",
            c"relu_gradient",
            c"cross_entropy",
            c"update",
        ];
        // SAFETY: NVRTC made the image.
        let [images, gather, advance, head, tally, relu_gradient, cross_entropy, update] =
            unsafe { driver::load(&image, names) }?;
        Ok(Self { images, gather, advance, head, tally, relu_gradient, cross_entropy, update })
    }

    /// `out[i, j] = rows[i, j] / 255`.
    ///
    /// # Safety
    /// The batch has as many rows as it says; `out` has as many, of as many columns as an image has pixels.
    pub(super) unsafe fn images(&self, stream: StreamHandle, out: &Tensor, batch: Batch<'_>) -> Result<()> {
        let (mut to, mut from) = (out.ptr().raw(), batch.rows.ptr().raw());
        let mut pixels = batch.pixels() as u32;
        let mut arguments = [argument(&mut to), argument(&mut from), argument(&mut pixels)];
        let grid = Grid { blocks: (batch.count as u32, 1), threads: THREADS };
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.images, grid, stream, &mut arguments) }
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
        let (mut to, mut from, mut row) = (rows.ptr().raw(), data.ptr().raw(), data.cols() as u32);
        let (mut at, mut count, mut images) = (order.ptr().raw(), order.len() as u32, data.rows() as u32);
        let (mut next, mut by) = (next.ptr().raw(), rows.rows() as u32);
        let mut arguments = [
            argument(&mut to),
            argument(&mut from),
            argument(&mut row),
            argument(&mut at),
            argument(&mut count),
            argument(&mut images),
            argument(&mut next),
        ];
        let grid = Grid { blocks: (by, 1), threads: THREADS };
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.gather, grid, stream, &mut arguments) }?;
        let one = Grid { blocks: (1, 1), threads: 1 };
        // SAFETY: as above.
        unsafe { driver::launch(self.advance, one, stream, &mut [argument(&mut next), argument(&mut by)]) }
    }

    /// The head and its gradients: `dy`, `dx`, and the loss and the hit of each image.
    ///
    /// # Safety
    /// `w` is `[inputs, CLASSES]`, `x` and `dx` `[count, inputs]`, `dy` `[count, CLASSES]`, `scores` `[count, 2]`.
    pub(super) unsafe fn head(
        &self,
        stream: StreamHandle,
        [dx, dy, scores]: [&Tensor; 3],
        [x, w]: [&Tensor; 2],
        batch: Batch<'_>,
    ) -> Result<()> {
        let [mut dx, mut dy, mut scores, mut at, mut w] = [dx, dy, scores, x, w].map(|of| of.ptr().raw());
        let (mut rows, mut pixels) = (batch.rows.ptr().raw(), batch.pixels() as u32);
        let (mut inputs, mut of) = (x.cols() as u32, batch.of as u32);
        let mut arguments = [
            argument(&mut dx),
            argument(&mut dy),
            argument(&mut scores),
            argument(&mut at),
            argument(&mut w),
            argument(&mut rows),
            argument(&mut pixels),
            argument(&mut inputs),
            argument(&mut of),
        ];
        let grid = Grid { blocks: (batch.count as u32, 1), threads: THREADS };
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.head, grid, stream, &mut arguments) }
    }

    /// Adds the scores of a batch to `totals`.
    ///
    /// # Safety
    /// `totals` has two numbers, `scores` two columns.
    pub(super) unsafe fn tally(
        &self,
        stream: StreamHandle,
        totals: &Tensor<f64>,
        scores: &Tensor,
    ) -> Result<()> {
        let (mut to, mut from, mut count) = (totals.ptr().raw(), scores.ptr().raw(), scores.rows() as u32);
        let mut arguments = [argument(&mut to), argument(&mut from), argument(&mut count)];
        let grid = Grid { blocks: (1, 1), threads: MAX_THREADS };
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.tally, grid, stream, &mut arguments) }
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
        let (mut to, mut from, mut at) = (dx.ptr().raw(), parts.0.ptr().raw(), x.ptr().raw());
        let (mut number, mut count) = (parts.1, dx.len());
        let mut arguments = [
            argument(&mut to),
            argument(&mut from),
            argument(&mut number),
            argument(&mut at),
            argument(&mut count),
        ];
        let grid = Grid { blocks: (blocks(count, 4 * THREADS as usize), 1), threads: THREADS };
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.relu_gradient, grid, stream, &mut arguments) }
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
        let mut gradient = gradient.map_or(0, |tensor| tensor.ptr().raw());
        let (mut totals, mut logits_at) = (totals.ptr().raw(), logits.ptr().raw());
        let (mut rows, mut pixels) = (batch.rows.ptr().raw(), batch.pixels() as u32);
        let (mut count, mut classes) = (batch.count as u32, logits.cols() as u32);
        let mut of = batch.of as u32;
        let mut arguments = [
            argument(&mut gradient),
            argument(&mut totals),
            argument(&mut logits_at),
            argument(&mut rows),
            argument(&mut pixels),
            argument(&mut count),
            argument(&mut classes),
            argument(&mut of),
        ];
        let grid = Grid { blocks: (1, 1), threads: count.next_power_of_two().clamp(32, MAX_THREADS) };
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.cross_entropy, grid, stream, &mut arguments) }
    }

    /// `weights −= rate · gradients` for each pair, at most [`MAX_LAYERS`] of them; with velocities, if there are any.
    ///
    /// # Safety
    /// Each pair has the same shape; and the same number of velocities, or none.
    pub(super) unsafe fn update(
        &self,
        stream: StreamHandle,
        (weights, gradients, velocities): (&[Tensor], &[Tensor], &[Tensor]),
        Sgd { mut rate, mut momentum }: Sgd,
    ) -> Result<()> {
        let mut layers = Layers { weights: [0; _], gradients: [0; _], velocities: [0; _], count: [0; _] };
        for (layer, (weight, gradient)) in weights.iter().zip(gradients).enumerate() {
            layers.weights[layer] = weight.ptr().raw();
            layers.gradients[layer] = gradient.ptr().raw();
            layers.velocities[layer] = velocities.get(layer).map_or(0, |velocity| velocity.ptr().raw());
            layers.count[layer] = weight.len();
        }
        let largest = weights.iter().map(Tensor::len).max().unwrap_or(0);
        let grid = Grid {
            blocks: (blocks(largest, UPDATED_PER_THREAD * THREADS as usize), weights.len() as u32),
            threads: THREADS,
        };
        let mut arguments = [argument(&mut layers), argument(&mut rate), argument(&mut momentum)];
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.update, grid, stream, &mut arguments) }
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kernels")
    }
}
