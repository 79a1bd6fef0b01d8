//! Steps of SGD of a whole network in one kernel: `block.cu` and `steps.cu`.

use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg,
};

use super::driver::{at, function, launch, refused};
use crate::{Kind, Memory, Precision, Result, Tensor};

/// Threads of a block.
const THREADS: usize = 256;
/// Outputs of a layer that a cluster has.
const COLUMNS: usize = 56;
/// Images of a batch at most.
const ROWS: usize = 64;
/// Blocks of a cluster, which share the inputs of a layer: as many as every GPU with clusters has.
const SPLIT: usize = 8;
/// Hidden layers at most, and the head.
const MOST_LAYERS: usize = 8;
/// Inputs of a layer at most, as one thread of a block has so many of the head.
const WIDEST: usize = 4 * THREADS;
/// Bytes of shared memory that a block may have on GPUs with clusters.
const MOST_SHARED: usize = 227 << 10;

/// The names that the kernel's text expects to be defined.
pub(super) const DEFINES: [(&str, usize); 4] =
    [("THREADS", THREADS), ("COLUMNS", COLUMNS), ("SPLIT", SPLIT), ("MOST_LAYERS", MOST_LAYERS)];

/// As `steps.cu` has it.
#[repr(C)]
#[derive(Default)]
struct Parameters {
    weights: [u64; MOST_LAYERS],
    copies: [u64; MOST_LAYERS],
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
    part: [u32; 2],
    pitch: [u32; 2],
    factor: f32,
}

// SAFETY: it is what the kernel's parameter is: plain numbers.
unsafe impl DeviceRepr for Parameters {}

/// The kernels of a GPU with clusters.
#[derive(Debug)]
pub(super) struct StepKernels {
    images_by_parts: CudaFunction,
    steps: CudaFunction,
    precision: Precision,
    /// Clusters that run at once.
    clusters: usize,
}

/// How the numbers that a layer reads are cut into parts.
#[derive(Debug, Clone, Copy)]
struct Parts {
    /// Numbers of a part.
    each: usize,
    /// Floats of a part's rows, in shared memory and elsewhere.
    pitch: usize,
}

/// What is trained by a launch.
pub(super) struct Trained<'a> {
    /// Of the hidden layers, and then of the head.
    pub(super) weights: &'a [Tensor],
    /// The images of all steps as bytes, each with its label.
    pub(super) rows: &'a Tensor<u8>,
    /// Images of a step.
    pub(super) images: usize,
    pub(super) totals: &'a Tensor<f64>,
    pub(super) rate: f32,
}

impl StepKernels {
    /// Of these kernels, which `steps.cu` has.
    pub(super) fn new(
        context: &Arc<CudaContext>,
        module: &Arc<CudaModule>,
        precision: Precision,
    ) -> Result<Self> {
        let [images_by_parts, steps] = ["images_by_parts", "steps"].map(|name| function(module, name));
        let steps = steps?;
        steps
            .set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, MOST_SHARED as i32)
            .map_err(refused("cuFuncSetAttribute"))?;
        let clusters = steps.occupancy_max_active_clusters(grid(1, MOST_SHARED), &context.default_stream());
        let clusters = clusters.map_err(refused("cuOccupancyMaxActiveClusters"))? as usize;
        Ok(Self { images_by_parts: images_by_parts?, steps, precision, clusters })
    }

    fn parts(&self, inner: usize) -> Parts {
        // A product adds up so many numbers at once. What a warp reads at once is to be in different banks.
        let (unit, banks, in_order) = match self.precision {
            Precision::Float32 => (4, 32, 4),
            Precision::Tf32 => (8, 16, 8),
            Precision::Bfloat16 => (16, 16, 8),
        };
        let each = inner.div_ceil(SPLIT).next_multiple_of(unit);
        Parts { each, pitch: (each - in_order.min(each)).next_multiple_of(banks) + in_order }
    }

    /// Bytes of a number that layers read and write.
    fn number(&self) -> usize {
        if self.precision == Precision::Bfloat16 { 2 } else { size_of::<f32>() }
    }

    /// Bytes of shared memory: a left factor or sums, a right one, those of an update, sums of others, and the weights.
    fn shared_bytes(&self, weights: &[Tensor]) -> usize {
        let [first, others] = [weights[0].rows(), weights[0].cols()].map(|inner| self.parts(inner));
        let (each, pitch) = (first.each.max(others.each), first.pitch.max(others.pitch));
        let (sums, number, float) = (ROWS * COLUMNS, self.number(), size_of::<f32>());
        // Rounded weights lie beside the others, else there is room between rows.
        let of_weight = if number < float { COLUMNS * (float + number) } else { (COLUMNS + 4) * float };
        let counters = 32;
        let factors = (ROWS * pitch * number).max(2 * sums * float) + (COLUMNS + ROWS) * pitch * number;
        counters + factors + sums * (number + float) + (weights.len() - 1) * each * of_weight
    }

    /// Whether there are such steps for these weights and so many images: all blocks run at once, one of the clusters has no
    /// outputs of hidden layers, and the weights fit into shared memory.
    pub(super) fn suit(&self, weights: &[Tensor], images: usize) -> bool {
        let fits = |of: &Tensor| of.rows().is_multiple_of(16) && of.rows() <= WIDEST;
        images <= ROWS
            && (3..=MOST_LAYERS).contains(&weights.len())
            && weights.iter().all(fits)
            && weights[0].cols().div_ceil(COLUMNS) < self.clusters
            && self.shared_bytes(weights) <= MOST_SHARED
    }

    /// Queues a step for each so many images.
    ///
    /// # Safety
    /// [`suit`](Self::suit) has said yes. All hidden layers have equally many outputs, and `rows` a multiple of the images.
    pub(super) unsafe fn launch(&self, stream: &CudaStream, memory: &Memory, of: &Trained<'_>) -> Result<()> {
        let &Trained { weights, rows, images, totals, rate } = of;
        let (pixels, width, hidden) = (weights[0].rows(), weights[0].cols(), weights.len() - 1);
        let (steps, tiles) = (rows.rows() / images, width.div_ceil(COLUMNS));
        let [first, others] = [pixels, width].map(|inner| self.parts(inner));
        let number = self.number();
        let all = |count: usize, Parts { pitch, .. }| memory.uninit(count * SPLIT * ROWS, pitch * number);
        memory.next_is(Kind::Batch, 0);
        let mut inputs: Vec<Tensor<u8>> = vec![all(steps, first)?];
        let [mut gradients, mut copies]: [Vec<Tensor<u8>>; 2] = Default::default();
        for layer in 0..hidden {
            memory.next_is(Kind::Activations, layer + 1);
            inputs.push(all(1, others)?);
            memory.next_is(Kind::Gradients, layer + 1);
            gradients.push(memory.uninit(ROWS * number, SPLIT * others.pitch + tiles * COLUMNS)?);
            // The first layer's weights are read forward only.
            memory.next_is(Kind::Workspace, layer + 1);
            let copied = if layer > 0 { tiles * SPLIT * COLUMNS } else { 1 };
            copies.push(memory.uninit(copied, others.pitch * number)?);
        }
        memory.next_is(Kind::Gradients, hidden + 1);
        gradients.push(memory.uninit(images, weights[hidden].cols() * size_of::<f32>())?);
        let scores: Tensor = memory.uninit_for(Kind::Batch, images, 2)?;
        memory.next_is(Kind::Workspace, 0);
        let arrived: Tensor<u32> = memory.zeroed(self.clusters, 32)?;
        let parameters = Parameters {
            weights: addresses(weights),
            copies: addresses(&copies),
            inputs: addresses(&inputs),
            gradients: addresses(&gradients),
            rows: at(rows),
            scores: at(&scores),
            totals: at(totals),
            arrived: at(&arrived),
            hidden: hidden as u32,
            pixels: pixels as u32,
            width: width as u32,
            images: images as u32,
            steps: steps as u32,
            part: [first.each as u32, others.each as u32],
            pitch: [first.pitch as u32, others.pitch as u32],
            factor: -rate,
        };
        let sizes = [pixels, images, first.each, first.pitch].map(|size| size as u64);
        let arguments = [&[at(&inputs[0]), at(rows)][..], &sizes].concat();
        let of_rows = LaunchConfig {
            grid_dim: (rows.rows() as u32, 1, 1),
            block_dim: (32 * SPLIT as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the types are the kernel's, and the ranges the caller's promise.
        unsafe { launch(stream, &self.images_by_parts, of_rows, &arguments) }?;
        let mut launch = stream.launch_builder(&self.steps);
        launch.arg(&parameters);
        // SAFETY: as above. The kernel's memory is freed after it, in the stream's order.
        unsafe { launch.launch_cooperative(grid(self.clusters, self.shared_bytes(weights))) }
            .map_err(refused("cuLaunchCooperativeKernel"))?;
        Ok(())
    }
}

/// So many clusters, whose blocks run at once.
fn grid(clusters: usize, shared: usize) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (SPLIT as u32, clusters as u32, 1),
        block_dim: (THREADS as u32, 1, 1),
        shared_mem_bytes: shared as u32,
    }
}

fn addresses<T: Pod>(of: &[Tensor<T>]) -> [u64; MOST_LAYERS] {
    std::array::from_fn(|layer| of.get(layer).map_or(0, at))
}
