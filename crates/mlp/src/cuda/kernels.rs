//! The compiled kernels, each with its launch.

use std::ffi::c_void;

use millpond::device::StreamHandle;

use super::driver::{self, Function, Grid};
use super::nvrtc;
use crate::{Batch, CLASSES, Result, Sgd, Source, Tensor};

/// The kernels' text.
pub(super) const SOURCE: &str = concat!(include_str!("kernels.cu"), include_str!("product.cu"));

static PDL: std::sync::LazyLock<bool> =
    std::sync::LazyLock::new(|| std::env::var_os("MILLPOND_NOPDL").is_some());

/// Threads of a block of the kernels that cover a whole matrix.
const THREADS: u32 = 256;
/// Threads of a block at most: CUDA's limit.
const MAX_THREADS: u32 = 1024;
/// Layers that one launch of `update` covers: 32 × 32 bytes of parameters, of 4 KiB that a launch may have.
pub(super) const MAX_LAYERS: usize = 32;
/// Floats that a thread of `update` covers: enough loads in flight to fill the bus.
const UPDATED_PER_THREAD: usize = 16;

/// Rows of a block of `product`.
const ROWS: usize = 64;
/// Rows of a product for which [`Kernels::product`] is taken.
const FEW_ROWS: usize = 128;
/// Columns of a block of `product`: in float32, and in TF32.
const COLUMNS: [usize; 2] = [64, 56];
/// Blocks of a cluster, which share the sums of a tile: as many as every GPU with clusters has.
const SPLIT: usize = 8;
/// A block's part of a sum arrives in so many stages, of so many times four numbers.
const STAGES: usize = 4;
const QUADS: usize = 8;
/// Rows and columns of a block of weights that one block of threads updates.
const SIDE: usize = 64;
/// Layers that are updated beside a product at most.
pub(super) const MOST_DESCENTS: usize = 8;

/// The names that the kernels' text expects to be defined.
pub(super) fn defines() -> Vec<String> {
    let defines = [
        ("MAX_THREADS", MAX_THREADS as usize),
        ("MAX_LAYERS", MAX_LAYERS),
        ("CLASSES", CLASSES),
        ("COLUMNS", COLUMNS[0]),
        ("COLUMNS_TF32", COLUMNS[1]),
        ("SPLIT", SPLIT),
        ("STAGES", STAGES),
        ("QUADS", QUADS),
        ("SIDE", SIDE),
        ("MOST_DESCENTS", MOST_DESCENTS),
    ];
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
    /// With a right factor as it is stored, and transposed; none where the GPU has no clusters.
    products: Option<[Function; 2]>,
    tf32: bool,
}

#[repr(C)]
struct Layers {
    weights: [u64; MAX_LAYERS],
    gradients: [u64; MAX_LAYERS],
    velocities: [u64; MAX_LAYERS],
    count: [usize; MAX_LAYERS],
}

/// A product of few rows: `out = left · right`, or `left · rightᵀ` where `mask` is above 0; `max(0, …)` of it if `relu`.
#[derive(Debug, Clone, Copy)]
pub(super) struct FewRows<'a> {
    /// `[rows, cols]`.
    pub(super) out: &'a Tensor,
    /// `[rows, inner]`.
    pub(super) left: &'a Tensor,
    /// `[inner, cols]`, or with a mask its transpose.
    pub(super) right: &'a Tensor,
    /// As `out`.
    pub(super) mask: Option<&'a Tensor>,
    pub(super) relu: bool,
    /// Whether the kernel before does not write `right`, and is [`head`](Kernels::head) or a product itself.
    pub(super) is_early: bool,
}

/// Steps of SGD that wait for a product to be beside.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// Of each layer `[images, inputs]`, `[images, outputs]` and `[inputs, outputs]`, at most [`MOST_DESCENTS`].
    pub(super) descents: Vec<[Tensor; 3]>,
    pub(super) rate: f32,
    /// The scores of [`head`](Kernels::head), and where they are added up.
    pub(super) scores: Option<(Tensor, Tensor<f64>)>,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct DescentParameters {
    w: u64,
    x: u64,
    dy: u64,
    inputs: u32,
    outputs: u32,
    first: u32,
}

#[repr(C)]
struct BesideParameters {
    descents: [DescentParameters; MOST_DESCENTS],
    totals: u64,
    scores: u64,
    count: u32,
    blocks: u32,
    images: u32,
    factor: f32,
}

impl Beside {
    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.descents.is_empty() && self.scores.is_none()
    }

    fn parameters(&self) -> BesideParameters {
        let mut descents = [DescentParameters::default(); MOST_DESCENTS];
        let mut first = 0;
        for (to, [x, dy, w]) in descents.iter_mut().zip(&self.descents) {
            let [x_at, dy_at, w_at] = [x, dy, w].map(|of| of.ptr().raw());
            let (inputs, outputs) = (w.rows() as u32, w.cols() as u32);
            *to = DescentParameters { w: w_at, x: x_at, dy: dy_at, inputs, outputs, first };
            let across = if outputs.is_multiple_of(4) { blocks(w.cols(), SIDE) } else { 1 };
            first += blocks(w.rows(), SIDE) * across;
        }
        let images = self.descents.first().map(|[x, ..]| x.rows());
        let images = images.or(self.scores.as_ref().map(|(scores, _)| scores.rows())).unwrap_or(0);
        BesideParameters {
            descents,
            totals: self.scores.as_ref().map_or(0, |(_, totals)| totals.ptr().raw()),
            scores: self.scores.as_ref().map_or(0, |(scores, _)| scores.ptr().raw()),
            count: self.descents.len() as u32,
            blocks: first,
            images: images as u32,
            factor: -self.rate,
        }
    }
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

/// Bytes of shared memory that a block of `product` needs.
fn shared_bytes(tf32: bool, transposed: bool) -> usize {
    let (columns, pitch) = (COLUMNS[usize::from(tf32)], STAGES * QUADS + 1);
    let right = if transposed { columns * pitch } else { STAGES * QUADS * columns };
    // Two blocks of rows, for a block of weights.
    let beside = 2 * SIDE * (SIDE + 8) * size_of::<f32>();
    (16 * (ROWS * pitch + right)).max(beside)
}

impl Kernels {
    /// Compiles and loads the kernels for the GPU whose context is current.
    pub(super) fn load(capability: (u32, u32), tf32: bool) -> Result<Self> {
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
            if tf32 { c"product_tf32" } else { c"product" },
            if tf32 { c"product_tf32_transposed" } else { c"product_transposed" },
        ];
        // SAFETY: NVRTC made the image.
        let [images, gather, advance, head, tally, relu_gradient, cross_entropy, update, plain, transposed] =
            unsafe { driver::load(&image, names) }?;
        let products = (capability.0 >= 9).then_some([plain, transposed]);
        for (product, transposed) in products.iter().flatten().zip([false, true]) {
            product.may_share(shared_bytes(tf32, transposed))?;
        }
        Ok(Self {
            images,
            gather,
            advance,
            head,
            tally,
            relu_gradient,
            cross_entropy,
            update,
            products,
            tf32,
        })
    }

    /// Whether [`product`](Self::product) is for products of this shape: few rows, and sums that fit into shared memory.
    pub(super) fn multiply(&self, rows: usize, inner: usize, cols: usize) -> bool {
        let fits = inner.is_multiple_of(4) && cols.is_multiple_of(4) && inner <= SPLIT * STAGES * QUADS * 4;
        static LT: std::sync::LazyLock<bool> =
            std::sync::LazyLock::new(|| std::env::var_os("MILLPOND_LT").is_some());
        !*LT && self.products.is_some() && rows <= FEW_ROWS && fits
    }

    /// Whether steps of SGD go beside a product, where layers have so many inputs and a batch so many images.
    pub(super) fn descends(&self, images: usize, inputs: usize) -> bool {
        self.multiply(images, inputs, 4)
    }

    /// Whether the GPU can do [`product`](Self::product).
    pub(super) fn has_products(&self) -> bool {
        self.products.is_some()
    }

    /// A product, if there is one, and steps of SGD beside it.
    ///
    /// # Safety
    /// The shapes are as [`FewRows`] and [`Beside`] say, and [`multiply`](Self::multiply) has said yes to the product. No layer
    /// that is updated takes part in the product.
    pub(super) unsafe fn product(
        &self,
        stream: StreamHandle,
        product: Option<FewRows<'_>>,
        beside: &Beside,
    ) -> Result<()> {
        let Some(functions) = self.products else { return Ok(()) };
        let transposed = product.is_some_and(|product| product.mask.is_some());
        let columns = COLUMNS[usize::from(self.tf32)];
        let at = |of: Option<&Tensor>| of.map_or(0, |of| of.ptr().raw());
        let size = |of: Option<&Tensor>| of.map_or((0, 0), Tensor::shape);
        let (out, left) = (product.map(|of| of.out), product.map(|of| of.left));
        let (mut to, mut a, mut b) = (at(out), at(left), at(product.map(|of| of.right)));
        let mut mask = at(product.and_then(|of| of.mask));
        let ((rows, cols), (_, inner)) = (size(out), size(left));
        let tiles = cols.div_ceil(columns) * rows.div_ceil(ROWS);
        let [mut rows, mut cols, mut inner, mut tiles] = [rows, cols, inner, tiles].map(|of| of as u32);
        let flag = |of: bool, bit: u32| if of { bit } else { 0 };
        let mut flags = product.map_or(0, |of| flag(of.relu, 1) | flag(of.is_early, 2));
        let mut parameters = beside.parameters();
        let blocks = parameters.blocks + u32::from(beside.scores.is_some());
        let mut arguments = [
            argument(&mut to),
            argument(&mut a),
            argument(&mut b),
            argument(&mut mask),
            argument(&mut rows),
            argument(&mut cols),
            argument(&mut inner),
            argument(&mut flags),
            argument(&mut tiles),
            argument(&mut parameters),
        ];
        let grid = Grid {
            blocks: [SPLIT as u32, tiles + blocks.div_ceil(SPLIT as u32), 1],
            threads: THREADS,
            shared: shared_bytes(self.tf32, transposed) as u32,
            overlaps: !*PDL,
        };
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(functions[usize::from(transposed)], grid, stream, &mut arguments) }
    }

    /// `out[i, j] = rows[i, j] / 255`.
    ///
    /// # Safety
    /// The batch has as many rows as it says; `out` has as many, of as many columns as an image has pixels.
    pub(super) unsafe fn images(&self, stream: StreamHandle, out: &Tensor, batch: Batch<'_>) -> Result<()> {
        let (mut to, mut from) = (out.ptr().raw(), batch.rows.ptr().raw());
        let mut pixels = batch.pixels() as u32;
        let mut arguments = [argument(&mut to), argument(&mut from), argument(&mut pixels)];
        let grid = Grid::of(batch.count as u32, THREADS);
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
        let grid = Grid::of(by, THREADS);
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.gather, grid, stream, &mut arguments) }?;
        let one = Grid::of(1, 1);
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
        let overlaps = !*PDL && self.has_products();
        let grid = Grid { overlaps, ..Grid::of(batch.count as u32, THREADS) };
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
        let grid = Grid::of(1, MAX_THREADS);
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
        let grid = Grid::of(blocks(count, 4 * THREADS as usize), THREADS);
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
        let grid = Grid::of(1, count.next_power_of_two().clamp(32, MAX_THREADS));
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
        let covering = blocks(largest, UPDATED_PER_THREAD * THREADS as usize);
        let grid = Grid { blocks: [covering, weights.len() as u32, 1], ..Grid::of(0, THREADS) };
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
