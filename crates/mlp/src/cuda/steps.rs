//! Steps of SGD of a whole network in one kernel: `steps.cu`.

use millpond::device::StreamHandle;

use super::driver::{self, Argument, Function, Grid};
use crate::{Result, Tensor};

/// Threads of a block.
const THREADS: usize = 256;
/// Rows and columns of a product that a cluster has.
const ROWS: usize = 64;
const COLUMNS: usize = 56;
/// Blocks of a cluster, which share the sums of a tile: as many as every GPU with clusters has.
const SPLIT: usize = 8;
/// A block's part of a sum arrives in so many stages, of so many times four numbers.
const STAGES: usize = 4;
const QUADS: usize = 8;
/// Weights that a block updates at once: rows and columns.
const DOWN: usize = 112;
const ACROSS: usize = 48;
/// Images of a batch at most: beyond that, products by cuBLASLt are faster.
const MOST_IMAGES: usize = 128;
/// Layers at most, the head counted: their addresses travel as parameters of the launch.
const MOST_LAYERS: usize = 64;

/// The names that the kernel's text expects to be defined.
pub(super) const DEFINES: [(&str, usize); 9] = [
    ("THREADS", THREADS),
    ("COLUMNS", COLUMNS),
    ("SPLIT", SPLIT),
    ("STAGES", STAGES),
    ("QUADS", QUADS),
    ("DOWN", DOWN),
    ("ACROSS", ACROSS),
    ("MOST_LAYERS", MOST_LAYERS),
    ("SHARED_BYTES", shared_bytes()),
];

/// What is trained, and the memory that it takes.
#[derive(Debug)]
pub(super) struct Trained<'a> {
    /// Of the hidden layers, and then of the head.
    pub(super) weights: &'a [Tensor],
    /// What each layer reads. The first has the images of all steps.
    pub(super) inputs: &'a [Tensor],
    /// The gradient of what each layer writes.
    pub(super) gradients: &'a [Tensor],
    /// The images as bytes, each with its label.
    pub(super) rows: &'a Tensor<u8>,
    /// `[images, 2]`.
    pub(super) scores: &'a Tensor,
    pub(super) totals: &'a Tensor<f64>,
    /// One number, 0 before.
    pub(super) arrived: &'a Tensor<u32>,
}

/// As `steps.cu` has it.
#[repr(C)]
struct Parameters {
    weights: [u64; MOST_LAYERS],
    inputs: [u64; MOST_LAYERS],
    gradients: [u64; MOST_LAYERS],
    rows: u64,
    scores: u64,
    totals: u64,
    arrived: u64,
    hidden: u32,
    pixels: u32,
    width: u32,
    images: u32,
    steps: u32,
    factor: f32,
}

/// The kernel of a GPU with clusters.
#[derive(Debug)]
pub(super) struct Steps {
    function: Function,
    grid: Grid,
}

/// Whether there are such steps for these weights and so many images: few of them, and sums that fit into shared memory.
pub(super) fn suits(weights: &[Tensor], images: usize) -> bool {
    let (layers, longest) = (weights.len(), SPLIT * STAGES * QUADS * 4);
    let fits = |of: &Tensor| of.rows().is_multiple_of(4) && of.rows() <= longest;
    images <= MOST_IMAGES && (2..=MOST_LAYERS).contains(&layers) && weights.iter().all(fits)
}

/// The parameters' addresses.
fn addresses(of: &[Tensor]) -> [u64; MOST_LAYERS] {
    std::array::from_fn(|layer| of.get(layer).map_or(0, |of| of.ptr().raw()))
}

impl Steps {
    /// Of this kernel, which `steps.cu` has.
    pub(super) fn new(function: Function) -> Result<Self> {
        let shared = shared_bytes();
        function.may_share(shared)?;
        let cluster = Grid {
            blocks: [SPLIT as u32, 1, 1],
            threads: THREADS as u32,
            shared: shared as u32,
            at_once: true,
        };
        let clusters = function.clusters_at_once(cluster)?;
        Ok(Self { function, grid: Grid { blocks: [SPLIT as u32, clusters, 1], ..cluster } })
    }

    /// Queues so many steps, on batches that lie below one another.
    ///
    /// # Safety
    /// [`suits`] has said yes, and the shapes are as [`Trained`] and the layers say.
    pub(super) unsafe fn launch(
        &self,
        stream: StreamHandle,
        of: &Trained<'_>,
        (steps, images): (usize, usize),
        rate: f32,
    ) -> Result<()> {
        let parameters = Parameters {
            weights: addresses(of.weights),
            inputs: addresses(of.inputs),
            gradients: addresses(of.gradients),
            rows: of.rows.ptr().raw(),
            scores: of.scores.ptr().raw(),
            totals: of.totals.ptr().raw(),
            arrived: of.arrived.ptr().raw(),
            hidden: of.weights.len() as u32 - 1,
            pixels: of.weights[0].rows() as u32,
            width: of.weights[0].cols() as u32,
            images: images as u32,
            steps: steps as u32,
            factor: -rate,
        };
        // SAFETY: the type is the kernel's, and the ranges the caller's promise.
        unsafe { driver::launch(self.function, self.grid, stream, &[Argument::of(&parameters)]) }
    }
}

/// Bytes of shared memory of a block: the left factor of a product, two right ones, the two factors of an update, and sums.
const fn shared_bytes() -> usize {
    let long = STAGES * QUADS * 4;
    let right =
        if long * (COLUMNS + 4) > COLUMNS * (long + 8) { long * (COLUMNS + 4) } else { COLUMNS * (long + 8) };
    let sums = THREADS / 128 * ROWS * COLUMNS;
    4 * (ROWS * (long + 8) + 2 * right + ROWS * (DOWN + 4 + ACROSS + 4) + sums)
}
