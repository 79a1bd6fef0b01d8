//! The trainer's operations on the CPU.

use std::sync::Arc;

use bytemuck::Pod;
use millpond::Stream;
use millpond::device::host::HostDevice;

use super::arithmetic::{self, Product};
use super::view::View;
use crate::backend::{Activation, Backend, Batch, Graph, Sgd, Source};
use crate::{Error, Memory, Result, TOTALS, Tensor};

/// The CPU as a device that trains.
#[derive(Debug)]
pub struct HostBackend {
    device: Arc<HostDevice>,
    memory: Memory,
    /// What was launched since a capture began.
    captured: Option<HostGraph>,
}

/// A closure that a stream runs, once or again and again.
type Kernel = Arc<dyn Fn() + Send + Sync>;

/// Closures to run again.
struct HostGraph {
    device: Arc<HostDevice>,
    stream: Stream,
    kernels: Vec<Kernel>,
}

impl std::fmt::Debug for HostGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostGraph").field("kernels", &self.kernels.len()).finish_non_exhaustive()
    }
}

impl Graph for HostGraph {
    fn replay(&self) -> Result<()> {
        let launch = |kernel: &Kernel| {
            let kernel = kernel.clone();
            self.device.launch(self.stream.handle(), move || kernel())
        };
        Ok(self.kernels.iter().try_for_each(launch)?)
    }
}

/// What every closure below relies on.
///
/// The stream runs closures in the order in which they were launched, and a tensor's block is freed on the same
/// stream after its last use was launched. So a view's block is live while the closure runs. All closures are on one
/// stream, and whatever else writes a batch is ordered with that stream, so nothing else touches the block then. An
/// operation's output is a block of its own, so it overlaps no input.
macro_rules! in_stream_order {
    ($view:ident) => {
        // SAFETY: see the comment at the macro: the block is live, and only this closure touches it now.
        unsafe { $view.get() }
    };
    (mut $view:ident) => {
        // SAFETY: as above, and the block is the operation's output or its to change.
        unsafe { $view.get_mut() }
    };
}

impl HostBackend {
    /// Trains with memory of this device.
    pub fn new(device: Arc<HostDevice>, memory: Memory) -> Self {
        Self { device, memory, captured: None }
    }

    fn launch(&mut self, work: impl Fn() + Send + Sync + 'static) -> Result<()> {
        if let Some(captured) = &mut self.captured {
            captured.kernels.push(Arc::new(work));
            return Ok(());
        }
        Ok(self.device.launch(self.memory.stream().handle(), work)?)
    }

    /// Launches work that writes or changes one tensor, and reads others.
    fn launch_on<T: Pod, R: Pod, const N: usize>(
        &mut self,
        out: &Tensor<T>,
        read: [&Tensor<R>; N],
        work: impl Fn(&mut [T], [&[R]; N]) + Send + Sync + 'static,
    ) -> Result<()> {
        let (out, read) = (View::of(out), read.map(View::of));
        self.launch(move || work(in_stream_order!(mut out), read.each_ref().map(|of| in_stream_order!(of))))
    }
}

impl Backend for HostBackend {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn images(&mut self, batch: Batch<'_>) -> Result<Tensor> {
        batch.check("images")?;
        let pixels = batch.pixels();
        let out = self.memory.uninit(batch.count, pixels)?;
        self.launch_on(&out, [batch.rows], move |to, [rows]| arithmetic::images(to, rows, pixels))?;
        Ok(out)
    }

    fn gather(&mut self, Source { data, order, next }: Source<'_>, rows: &mut Tensor<u8>) -> Result<()> {
        check_shape("gather", rows, (rows.rows(), data.cols()))?;
        let (row, to) = (data.cols(), View::of(rows));
        let (data, order, next) = (View::of(data), View::of(order), View::of(next));
        self.launch(move || {
            let (to, next) = (in_stream_order!(mut to), in_stream_order!(mut next));
            let (data, order) = (in_stream_order!(data), in_stream_order!(order));
            let images = order.iter().skip(next[0] as usize);
            for (to, &image) in to.chunks_exact_mut(row).zip(images) {
                to.copy_from_slice(&data[image as usize * row..][..row]);
            }
            next[0] += (to.len() / row) as u32;
        })
    }

    fn linear(&mut self, x: &Tensor, w: &Tensor, activation: Activation) -> Result<Tensor> {
        check("linear", x.cols(), w.rows(), w)?;
        let out = self.memory.uninit(x.rows(), w.cols())?;
        let product = Product::plain(x.shape(), w.shape());
        self.launch_on(&out, [x, w], move |to, [x, w]| match activation {
            Activation::None => product.run(to, (x, w), |_, _| {}),
            Activation::Relu => product.run(to, (x, w), |_, y| arithmetic::relu(y)),
        })?;
        Ok(out)
    }

    fn cross_entropy(
        &mut self,
        logits: &Tensor,
        batch: Batch<'_>,
        totals: &mut Tensor<f64>,
    ) -> Result<Tensor> {
        check_scored("cross_entropy", logits, batch, totals)?;
        let out = self.memory.uninit(logits.rows(), logits.cols())?;
        let (to, from, totals) = (View::of(&out), View::of(logits), View::of(totals));
        let (rows, pixels, classes, of) = (View::of(batch.rows), batch.pixels(), logits.cols(), batch.of);
        self.launch(move || {
            let (to, from, totals) =
                (in_stream_order!(mut to), in_stream_order!(from), in_stream_order!(mut totals));
            let rows = in_stream_order!(rows);
            arithmetic::score(from, labels(rows, pixels), classes, totals);
            arithmetic::cross_entropy_gradient(to, from, labels(rows, pixels), (classes, of));
        })?;
        Ok(out)
    }

    fn score(&mut self, logits: &Tensor, batch: Batch<'_>, totals: &mut Tensor<f64>) -> Result<()> {
        check_scored("score", logits, batch, totals)?;
        let (from, totals) = (View::of(logits), View::of(totals));
        let (rows, pixels, classes) = (View::of(batch.rows), batch.pixels(), logits.cols());
        self.launch(move || {
            let (from, totals) = (in_stream_order!(from), in_stream_order!(mut totals));
            arithmetic::score(from, labels(in_stream_order!(rows), pixels), classes, totals);
        })
    }

    fn input_gradient(&mut self, dy: &Tensor, w: &Tensor, x: &Tensor) -> Result<Tensor> {
        check("input_gradient", dy.cols(), w.cols(), w)?;
        check_shape("input_gradient", x, (dy.rows(), w.rows()))?;
        let out = self.memory.uninit(x.rows(), x.cols())?;
        let product = Product::right_transposed(dy.shape(), w.shape());
        self.launch_on(&out, [dy, w, x], move |to, [dy, w, x]| {
            product.run(to, (dy, w), |at, dx| arithmetic::mask_where_zero(dx, &x[at..]));
        })?;
        Ok(out)
    }

    fn weight_gradient(&mut self, x: &Tensor, dy: &Tensor, into: Option<Tensor>) -> Result<Tensor> {
        check_shape("weight_gradient", dy, (x.rows(), dy.cols()))?;
        let out = into.map_or_else(|| self.memory.uninit(x.cols(), dy.cols()), Ok)?;
        check_shape("weight_gradient", &out, (x.cols(), dy.cols()))?;
        let product = Product::left_transposed(x.shape(), dy.shape());
        self.launch_on(&out, [x, dy], move |to, [x, dy]| product.run(to, (x, dy), |_, _| {}))?;
        Ok(out)
    }

    fn descend(&mut self, x: &Tensor, dy: &Tensor, w: &mut Tensor, rate: f32) -> Result<()> {
        check_shape("descend", dy, (x.rows(), dy.cols()))?;
        check_shape("descend", w, (x.cols(), dy.cols()))?;
        let product = Product::left_transposed(x.shape(), dy.shape());
        self.launch_on(w, [x, dy], move |w, [x, dy]| product.add(w, (x, dy), -rate))
    }

    fn begin_capture(&mut self) -> Result<()> {
        let (device, stream) = (self.device.clone(), self.memory.stream().clone());
        self.captured = Some(HostGraph { device, stream, kernels: Vec::new() });
        Ok(())
    }

    fn end_capture(&mut self) -> Result<Box<dyn Graph>> {
        let ended = || Error::Library { library: "the CPU", what: "no capture is under way".to_owned() };
        Ok(Box::new(self.captured.take().ok_or_else(ended)?))
    }

    fn update(
        &mut self,
        weights: &mut [Tensor],
        gradients: &[Tensor],
        velocities: &mut [Tensor],
        Sgd { rate, momentum }: Sgd,
    ) -> Result<()> {
        let with_velocities = !velocities.is_empty();
        for found in [gradients.len(), if with_velocities { velocities.len() } else { weights.len() }] {
            if found != weights.len() {
                let (found, expected) = ((1, found), (1, weights.len()));
                return Err(Error::Shape { operation: "update", found, expected });
            }
        }
        for (layer, (w, gradient)) in weights.iter_mut().zip(gradients).enumerate() {
            check_shape("update", gradient, w.shape())?;
            let velocity = velocities.get(layer);
            velocity.map_or(Ok(()), |velocity| check_shape("update", velocity, w.shape()))?;
            let mut step = gradient;
            if let Some(velocity) = velocity {
                self.launch_on(velocity, [gradient], move |v, [gradient]| {
                    arithmetic::accelerate(v, gradient, momentum);
                })?;
                step = velocity;
            }
            self.launch_on(w, [step], move |w, [step]| arithmetic::descend(w, step, rate))?;
        }
        Ok(())
    }
}

/// The inner sizes of a product agree.
fn check(operation: &'static str, left: usize, right: usize, w: &Tensor) -> Result<()> {
    if left == right {
        return Ok(());
    }
    Err(Error::Shape { operation, found: w.shape(), expected: (left, w.cols()) })
}

fn check_shape<T: Pod>(operation: &'static str, tensor: &Tensor<T>, expected: (usize, usize)) -> Result<()> {
    if tensor.shape() == expected {
        return Ok(());
    }
    Err(Error::Shape { operation, found: tensor.shape(), expected })
}

/// The labels of a batch's rows, which stand behind the pixels.
fn labels(rows: &[u8], pixels: usize) -> impl Iterator<Item = usize> {
    rows.iter().skip(pixels).step_by(pixels + 1).map(|&label| usize::from(label))
}

fn check_scored(
    operation: &'static str,
    logits: &Tensor,
    batch: Batch<'_>,
    totals: &Tensor<f64>,
) -> Result<()> {
    batch.check(operation)?;
    check_shape(operation, logits, (batch.count, logits.cols()))?;
    if totals.len() == TOTALS {
        return Ok(());
    }
    Err(Error::Shape { operation, found: totals.shape(), expected: (1, TOTALS) })
}
