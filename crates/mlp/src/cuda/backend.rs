//! The trainer's operations on an NVIDIA GPU.

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstream, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream};
use millpond::Stream;
use millpond::device::{self, DeviceError, DevicePtr};

use super::cublaslt::{Operands, Product};
use super::driver::refused;
use super::engine::Engine;
use super::kernels::MAX_LAYERS;
use super::steps::Trained;
use crate::backend::{Activation, Backend, Batch, Graph, Sgd, Source};
use crate::{CLASSES, Error, Kind, Memory, Precision, Result, TOTALS, Tensor};

/// An NVIDIA GPU that trains.
#[derive(Debug)]
pub struct CudaBackend {
    engine: &'static Engine,
    memory: Memory,
    /// The stream of the memory, which keeps it.
    stream: Arc<CudaStream>,
}

/// Captured work, and its stream. Whoever has it keeps its memory, and all other work on that is of the same stream.
struct StreamGraph(CudaGraph, #[allow(dead_code, reason = "the graph is launched on it")] Stream);

impl std::fmt::Debug for StreamGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamGraph")
    }
}

impl Graph for StreamGraph {
    fn replay(&self) -> Result<()> {
        self.0.launch().map_err(refused("cuGraphLaunch"))
    }
}

impl CudaBackend {
    /// Trains with this memory, which is that of a CUDA device. Loads cuBLASLt and NVRTC and compiles the
    /// kernels when the process makes its first one for the GPU.
    ///
    /// # Errors
    /// [`Error::Library`] where a library is missing, and [`DeviceError::Unsupported`] for another device.
    pub fn new(memory: Memory, precision: Precision) -> Result<Self> {
        let properties = memory.stream().device().properties();
        if properties.kind != device::Kind::Cuda {
            let device = properties.name.clone();
            return Err(DeviceError::Unsupported { device, what: "CUDA kernels" }.into());
        }
        let engine = Engine::shared(properties.ordinal, precision)?;
        let raw = memory.stream().handle().raw() as CUstream;
        // SAFETY: the stream is of the GPU's primary context, and lives as long as the memory does.
        let stream = unsafe { engine.context.wrap_borrowed_stream(raw) };
        Ok(Self { engine, memory, stream })
    }

    /// Queues `out = product`.
    ///
    /// # Safety
    /// The operands have the product's shapes.
    unsafe fn multiply(&self, product: Product, operands: Operands) -> Result<()> {
        // cudarc makes the context current for launches, but not for cuBLASLt.
        self.engine.enter()?;
        let plan = self.engine.plan(product)?;
        let scratch: Option<Tensor<u8>> = match plan.workspace {
            0 => None,
            bytes => Some(self.memory.uninit_for(Kind::Workspace, 1, bytes)?),
        };
        let at = scratch.as_ref().map_or(DevicePtr::NULL, Tensor::ptr);
        // SAFETY: the caller's promise, and scratch memory of the plan's size, which is freed behind this in the stream.
        unsafe { plan.run(operands, at, self.memory.stream().handle()) }
    }
}

fn operands(left: &Tensor, right: &Tensor, out: &Tensor) -> Operands {
    Operands { left: left.ptr(), right: right.ptr(), out: out.ptr(), added: None }
}

impl Backend for CudaBackend {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn images(&mut self, batch: Batch<'_>) -> Result<Tensor> {
        batch.check("images")?;
        let out = self.memory.uninit(batch.count, batch.pixels())?;
        // SAFETY: the shapes agree.
        unsafe { self.engine.kernels.images(&self.stream, &out, batch) }?;
        Ok(out)
    }

    fn gather(&mut self, source: Source<'_>, rows: &mut Tensor<u8>) -> Result<()> {
        check("gather", rows.shape(), (rows.rows(), source.data.cols()))?;
        check("gather", source.next.shape(), (1, 1))?;
        // SAFETY: the shapes agree.
        unsafe { self.engine.kernels.gather(&self.stream, source, rows) }
    }

    fn linear(&mut self, x: &Tensor, w: &Tensor, activation: Activation) -> Result<Tensor> {
        check("linear", w.shape(), (x.cols(), w.cols()))?;
        let out = self.memory.uninit(x.rows(), w.cols())?;
        let relu = activation == Activation::Relu;
        let product = Product { relu, ..Product::of(x.rows(), x.cols(), w.cols()) };
        // SAFETY: the shapes agree.
        unsafe { self.multiply(product, operands(x, w, &out)) }?;
        Ok(out)
    }

    fn cross_entropy(
        &mut self,
        logits: &Tensor,
        batch: Batch<'_>,
        totals: &mut Tensor<f64>,
    ) -> Result<Tensor> {
        let gradient = self.memory.uninit(logits.rows(), logits.cols())?;
        self.totals("cross_entropy", (logits, batch), (Some(&gradient), totals))?;
        Ok(gradient)
    }

    fn score(&mut self, logits: &Tensor, batch: Batch<'_>, totals: &mut Tensor<f64>) -> Result<()> {
        self.totals("score", (logits, batch), (None, totals))
    }

    fn input_gradient(&mut self, dy: &Tensor, w: &Tensor, x: &Tensor) -> Result<Tensor> {
        check("input_gradient", w.shape(), (w.rows(), dy.cols()))?;
        check("input_gradient", x.shape(), (dy.rows(), w.rows()))?;
        let parts = parts_of(dy.cols(), x.len());
        let product = Product::of(dy.rows(), dy.cols(), w.rows());
        let product = Product { right_transposed: true, parts, ..product };
        let sums = self.memory.uninit_for(Kind::Workspace, parts * x.rows(), x.cols())?;
        // SAFETY: the shapes agree.
        unsafe { self.multiply(product, operands(dy, w, &sums)) }?;
        let out = self.memory.uninit(x.rows(), x.cols())?;
        let kernels = &self.engine.kernels;
        // SAFETY: the shapes agree.
        unsafe { kernels.relu_gradient(&self.stream, &out, (&sums, parts), x) }?;
        Ok(out)
    }

    fn weight_gradient(&mut self, x: &Tensor, dy: &Tensor, into: Option<Tensor>) -> Result<Tensor> {
        let shape = (x.cols(), dy.cols());
        check("weight_gradient", dy.shape(), (x.rows(), dy.cols()))?;
        check("weight_gradient", into.as_ref().map_or(shape, Tensor::shape), shape)?;
        let product = Product { left_transposed: true, ..Product::of(x.cols(), x.rows(), dy.cols()) };
        let out = into.map_or_else(|| self.memory.uninit(shape.0, shape.1), Ok)?;
        // SAFETY: the shapes agree.
        unsafe { self.multiply(product, operands(x, dy, &out)) }?;
        Ok(out)
    }

    fn descend(&mut self, x: &Tensor, dy: &Tensor, w: &mut Tensor, rate: f32) -> Result<()> {
        check("descend", dy.shape(), (x.rows(), dy.cols()))?;
        check("descend", w.shape(), (x.cols(), dy.cols()))?;
        let product = Product { left_transposed: true, ..Product::of(x.cols(), x.rows(), dy.cols()) };
        let operands = Operands { added: Some(-rate), ..operands(x, dy, w) };
        // SAFETY: the shapes agree.
        unsafe { self.multiply(product, operands) }
    }

    fn steps(
        &mut self,
        weights: &mut [Tensor],
        (batch, images): (Batch<'_>, usize),
        rate: f32,
        totals: &mut Tensor<f64>,
    ) -> Result<bool> {
        let Some(kernel) = &self.engine.kernels.steps else { return Ok(false) };
        if !kernel.suit(weights, images) {
            return Ok(false);
        }
        batch.check("steps")?;
        check("steps", batch.rows.shape(), (batch.count, batch.rows.cols()))?;
        check("steps", (batch.count % images, batch.pixels()), (0, weights[0].rows()))?;
        let (head, width) = (weights.len() - 1, weights[0].cols());
        for (layer, w) in weights.iter().enumerate().skip(1) {
            check("steps", w.shape(), (width, if layer == head { CLASSES } else { width }))?;
        }
        check("steps", totals.shape(), (1, TOTALS))?;
        let of = Trained { weights, rows: batch.rows, images, totals, rate };
        // SAFETY: the shapes agree, and `suit` has said yes.
        unsafe { kernel.launch(&self.stream, &self.memory, &of) }?;
        Ok(true)
    }

    fn prefers_graphs(&self) -> bool {
        true
    }

    fn begin_capture(&mut self) -> Result<()> {
        // Other calls of any thread are as before.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        self.stream.begin_capture(mode).map_err(refused("cuStreamBeginCapture"))
    }

    fn end_capture(&mut self) -> Result<Box<dyn Graph>> {
        let graph = self.stream.end_capture(CUgraphInstantiate_flags(0));
        let nothing =
            || Error::Library { library: "the CUDA driver", what: "nothing was captured".to_owned() };
        let graph = graph.map_err(refused("cuStreamEndCapture"))?.ok_or_else(nothing)?;
        graph.upload().map_err(refused("cuGraphUpload"))?;
        Ok(Box::new(StreamGraph(graph, self.memory.stream().clone())))
    }

    fn update(
        &mut self,
        weights: &mut [Tensor],
        gradients: &[Tensor],
        velocities: &mut [Tensor],
        sgd: Sgd,
    ) -> Result<()> {
        check("update", (1, gradients.len()), (1, weights.len()))?;
        if !velocities.is_empty() {
            check("update", (1, velocities.len()), (1, weights.len()))?;
        }
        for (layer, weight) in weights.iter().enumerate() {
            check("update", gradients[layer].shape(), weight.shape())?;
            let velocity = velocities.get(layer);
            check("update", velocity.map_or(weight.shape(), Tensor::shape), weight.shape())?;
        }
        let kernels = &self.engine.kernels;
        let mut velocities = velocities.chunks(MAX_LAYERS);
        for (weights, gradients) in weights.chunks(MAX_LAYERS).zip(gradients.chunks(MAX_LAYERS)) {
            let velocities = velocities.next().unwrap_or_default();
            // SAFETY: the shapes agree, and there are at most `MAX_LAYERS`.
            unsafe { kernels.update(&self.stream, (weights, gradients, velocities), sgd) }?;
        }
        Ok(())
    }
}

impl CudaBackend {
    /// Loss, correct answers, and the gradient where one is wanted.
    fn totals(
        &mut self,
        operation: &'static str,
        (logits, batch): (&Tensor, Batch<'_>),
        (gradient, totals): (Option<&Tensor>, &mut Tensor<f64>),
    ) -> Result<()> {
        batch.check(operation)?;
        check(operation, logits.shape(), (batch.count, logits.cols()))?;
        check(operation, totals.shape(), (1, TOTALS))?;
        let kernels = &self.engine.kernels;
        // SAFETY: the shapes agree.
        unsafe { kernels.cross_entropy(&self.stream, (logits, batch), (gradient, totals)) }
    }
}

/// Into how many parts to cut sums over `inner` for `count` results. The library seldom cuts products with a transposed right
/// factor, and few results of long sums leave most of a GPU idle: 64 × 784 over 784 took 33 µs whole on an H200 (ncu,
/// 2026-11-21). Parts of whole float4s, so that the loads stay wide. Many results are not cut: each part is written and read again.
fn parts_of(inner: usize, count: usize) -> usize {
    const SHORTEST: usize = 64;
    /// A tile of 64 × 64 for each multiprocessor of an H100.
    const MANY: usize = 132 * 64 * 64;
    let suits = |parts: &usize| inner.is_multiple_of(4 * parts) && inner / parts >= SHORTEST;
    let is_cut = count.is_multiple_of(4) && count < MANY;
    if is_cut { (2..=8).rev().find(suits).unwrap_or(1) } else { 1 }
}

fn check(operation: &'static str, found: (usize, usize), expected: (usize, usize)) -> Result<()> {
    if found == expected { Ok(()) } else { Err(Error::Shape { operation, found, expected }) }
}

#[cfg(test)]
mod tests {
    use super::parts_of;

    #[test]
    fn sums_are_cut_for_few_results_only() {
        assert_eq!(parts_of(784, 64 * 784), 7);
        assert_eq!(parts_of(8192, 64 * 784), 8);
        assert_eq!(parts_of(100, 64 * 784), 1, "too short");
        assert_eq!(parts_of(784, 4096 * 784), 1, "enough tiles");
    }
}
