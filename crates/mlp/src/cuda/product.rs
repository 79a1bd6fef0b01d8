//! Products of few rows, with steps of SGD beside them: `product.cu`.

use millpond::device::StreamHandle;

use super::driver::{self, Argument, Function, Grid};
use crate::{Result, Tensor};

/// Threads of a block.
const THREADS: u32 = 256;
/// Rows of a block.
const ROWS: usize = 64;
/// Rows of a product for which it is done here.
const FEW_ROWS: usize = 128;
/// Columns of a block: in float32, and in TF32.
const COLUMNS: [usize; 2] = [64, 56];
/// Blocks of a cluster, which share the sums of a tile: as many as every GPU with clusters has.
const SPLIT: usize = 8;
/// A block's part of a sum arrives in so many stages, of so many times four numbers.
const STAGES: usize = 4;
const QUADS: usize = 8;
/// Rows and columns of a block of weights that one block of threads updates.
const SIDE: usize = 64;
/// Layers that are updated beside a product at most.
const MOST_DESCENTS: usize = 8;

/// The names that the kernels' text expects to be defined.
pub(super) const DEFINES: [(&str, usize); 7] = [
    ("COLUMNS", COLUMNS[0]),
    ("COLUMNS_TF32", COLUMNS[1]),
    ("SPLIT", SPLIT),
    ("STAGES", STAGES),
    ("QUADS", QUADS),
    ("SIDE", SIDE),
    ("MOST_DESCENTS", MOST_DESCENTS),
];

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
}

/// Steps of SGD that wait for a product to be beside.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// Of each layer `[images, inputs]`, `[images, outputs]` and the weights, `[inputs, outputs]`.
    pub(super) descents: Vec<[Tensor; 3]>,
    pub(super) rate: f32,
    /// The scores of [`head`](super::kernels::Kernels::head), and where they are added up.
    pub(super) scores: Option<(Tensor, Tensor<f64>)>,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Descent {
    w: u64,
    x: u64,
    dy: u64,
    inputs: u32,
    outputs: u32,
    first: u32,
}

#[repr(C)]
struct BesideParameters {
    descents: [Descent; MOST_DESCENTS],
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

    /// Whether no other layer can wait.
    pub(super) fn is_full(&self) -> bool {
        self.descents.len() == MOST_DESCENTS
    }

    /// Whether these weights are updated.
    pub(super) fn updates(&self, weights: &Tensor) -> bool {
        self.descents.iter().any(|[.., w]| w.ptr() == weights.ptr())
    }

    fn parameters(&self) -> BesideParameters {
        let mut descents = [Descent::default(); MOST_DESCENTS];
        let mut first = 0;
        for (to, of) in descents.iter_mut().zip(&self.descents) {
            let [x, dy, w] = of.each_ref().map(|of| of.ptr().raw());
            let (inputs, outputs) = of[2].shape();
            *to = Descent { w, x, dy, inputs: inputs as u32, outputs: outputs as u32, first };
            let across = if outputs.is_multiple_of(4) { outputs.div_ceil(SIDE) } else { 1 };
            first += (inputs.div_ceil(SIDE) * across) as u32;
        }
        let images = self.descents.first().map(|[x, ..]| x).or(self.scores.as_ref().map(|(of, _)| of));
        BesideParameters {
            descents,
            totals: self.scores.as_ref().map_or(0, |(_, totals)| totals.ptr().raw()),
            scores: self.scores.as_ref().map_or(0, |(scores, _)| scores.ptr().raw()),
            count: self.descents.len() as u32,
            blocks: first,
            images: images.map_or(0, |of| of.rows() as u32),
            factor: -self.rate,
        }
    }
}

/// The kernels of a GPU with clusters.
#[derive(Debug)]
pub(super) struct Products {
    /// With a right factor as it is stored, and transposed.
    functions: [Function; 2],
    tf32: bool,
}

/// Whether a product of this shape is done here: few rows, and sums that fit into shared memory.
pub(super) fn suits(rows: usize, inner: usize, cols: usize) -> bool {
    let fits = inner.is_multiple_of(4) && cols.is_multiple_of(4) && inner <= SPLIT * STAGES * QUADS * 4;
    rows <= FEW_ROWS && fits
}

/// Whether a layer's step of SGD is done here, for so many images and inputs.
pub(super) fn descends(images: usize, inputs: usize) -> bool {
    suits(images, inputs, 4)
}

impl Products {
    /// Of these kernels, as `product.cu` names them.
    pub(super) fn new(functions: [Function; 2], tf32: bool) -> Result<Self> {
        for (function, transposed) in functions.iter().zip([false, true]) {
            function.may_share(shared_bytes(tf32, transposed))?;
        }
        Ok(Self { functions, tf32 })
    }

    /// Queues a product, if there is one, and what is beside it. `is_early`: the kernel before is one of these or
    /// [`head`](super::kernels::Kernels::head), and does not write the right factor.
    ///
    /// # Safety
    /// The shapes are as [`FewRows`] and [`Beside`] say, and [`suits`] and [`descends`] have said yes. No layer that is updated
    /// takes part in the product.
    pub(super) unsafe fn launch(
        &self,
        stream: StreamHandle,
        product: Option<FewRows<'_>>,
        beside: &Beside,
        is_early: bool,
    ) -> Result<()> {
        let parameters = beside.parameters();
        let blocks = parameters.blocks as usize + usize::from(beside.scores.is_some());
        let (mut arguments, mut tiles, mut transposed) = ([Argument::Word(0); 10], 0, false);
        if let Some(FewRows { out, left, right, mask, relu }) = product {
            transposed = mask.is_some();
            let (rows, cols) = out.shape();
            tiles = cols.div_ceil(COLUMNS[usize::from(self.tf32)]) * rows.div_ceil(ROWS);
            let flags = usize::from(relu) | usize::from(is_early) << 1;
            let mask = mask.map_or(Argument::Word(0), Argument::from);
            let sizes = [rows, cols, left.cols(), flags, tiles].map(Argument::from);
            arguments[..4].copy_from_slice(&[out.into(), left.into(), right.into(), mask]);
            arguments[4..9].copy_from_slice(&sizes);
        }
        arguments[9] = Argument::of(&parameters);
        let grid = Grid {
            blocks: [SPLIT as u32, (tiles + blocks.div_ceil(SPLIT)) as u32, 1],
            threads: THREADS,
            shared: shared_bytes(self.tf32, transposed) as u32,
            overlaps: true,
        };
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.functions[usize::from(transposed)], grid, stream, &arguments) }
    }
}

/// Bytes of shared memory of a block.
fn shared_bytes(tf32: bool, transposed: bool) -> usize {
    let (columns, pitch) = (COLUMNS[usize::from(tf32)], STAGES * QUADS + 1);
    let right = if transposed { columns * pitch } else { STAGES * QUADS * columns };
    // Two blocks of rows, for a block of weights.
    let beside = 2 * SIDE * (SIDE + 8) * size_of::<f32>();
    (16 * (ROWS * pitch + right)).max(beside)
}
