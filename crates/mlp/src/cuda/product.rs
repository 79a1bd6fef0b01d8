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

/// As `product.cu` has it, like those below.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Product {
    out: u64,
    left: u64,
    right: u64,
    mask: u64,
    rows: u32,
    cols: u32,
    inner: u32,
    flags: u32,
    tiles: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Descent {
    w: u64,
    x: u64,
    dy: u64,
    inputs: u32,
    outputs: u32,
    first: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
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
            let (inputs_, outputs_) = (inputs as u32, outputs as u32);
            *to = Descent { w, x, dy, inputs: inputs_, outputs: outputs_, first };
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
        functions.iter().try_for_each(|function| function.may_share(shared_bytes(tf32)))?;
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
        (is_early, overlaps): (bool, bool),
    ) -> Result<()> {
        let parameters = beside.parameters();
        let mut of = Product::default();
        if let Some(FewRows { out, left, right, mask, relu }) = product {
            let (rows, cols) = out.shape();
            let tiles = cols.div_ceil(COLUMNS[usize::from(self.tf32)]) * rows.div_ceil(ROWS);
            of = Product {
                out: out.ptr().raw(),
                left: left.ptr().raw(),
                right: right.ptr().raw(),
                mask: mask.map_or(0, |mask| mask.ptr().raw()),
                rows: rows as u32,
                cols: cols as u32,
                inner: left.cols() as u32,
                flags: u32::from(relu) | u32::from(is_early) << 1,
                tiles: tiles as u32,
            };
        }
        let blocks = (parameters.blocks + u32::from(parameters.scores > 0)).div_ceil(SPLIT as u32);
        let grid = Grid {
            blocks: [SPLIT as u32, of.tiles + blocks, 1],
            threads: THREADS,
            shared: shared_bytes(self.tf32) as u32,
            overlaps,
        };
        let arguments = [Argument::of(&of), Argument::of(&parameters)];
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.functions[usize::from(of.mask > 0)], grid, stream, &arguments) }
    }
}

/// Bytes of shared memory of a block.
fn shared_bytes(tf32: bool) -> usize {
    let (columns, pitch) = (COLUMNS[usize::from(tf32)], STAGES * QUADS + 1);
    // Two blocks of rows, for a block of weights.
    let beside = 2 * SIDE * (SIDE + 8) * size_of::<f32>();
    (16 * (ROWS + columns) * pitch).max(beside)
}
