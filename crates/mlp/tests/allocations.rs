//! What a training asks of the pool on a GPU, on a simulated one: no device call after the first epoch, and no wait between
//! streams.

use std::sync::Arc;
use std::time::Duration;

use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Context, Pool, Stats, Stream};
use millpond_mlp::data::Dataset;
use millpond_mlp::{
    Activation, Backend, Batch, Epoch, Graph, Hyper, Memory, Observer, Result, Sgd, Source, Step, Steps,
    Task, Tensor, Training, Upload,
};
use parking_lot::Mutex;

/// A GPU's backend without the arithmetic: the same tensors in the same order, and kernels that take time.
#[derive(Debug)]
struct SimBackend {
    device: Arc<SimDevice>,
    memory: Memory,
    kernel: Duration,
    /// Kernels since a capture began.
    captured: Arc<Mutex<Option<u32>>>,
}

/// As many kernels, one after another.
#[derive(Debug)]
struct SimGraph {
    device: Arc<SimDevice>,
    stream: Stream,
    time: Duration,
}

impl Graph for SimGraph {
    fn replay(&self) -> Result<()> {
        Ok(self.device.launch(self.stream.handle(), self.time)?)
    }
}

impl SimBackend {
    fn launch(&self) -> Result<()> {
        if let Some(kernels) = &mut *self.captured.lock() {
            *kernels += 1;
            return Ok(());
        }
        Ok(self.device.launch(self.memory.stream().handle(), self.kernel)?)
    }

    fn made(&self, rows: usize, cols: usize) -> Result<Tensor> {
        let out = self.memory.uninit(rows, cols)?;
        self.launch()?;
        Ok(out)
    }
}

impl Backend for SimBackend {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn images(&mut self, batch: Batch<'_>) -> Result<Tensor> {
        self.made(batch.count, batch.pixels())
    }

    fn gather(&mut self, _: Source<'_>, _: &mut Tensor<u8>) -> Result<()> {
        self.launch()
    }

    fn begin_capture(&mut self) -> Result<()> {
        *self.captured.lock() = Some(0);
        Ok(())
    }

    fn end_capture(&mut self) -> Result<Box<dyn Graph>> {
        let time = self.kernel * self.captured.lock().take().unwrap();
        Ok(Box::new(SimGraph { device: self.device.clone(), stream: self.memory.stream().clone(), time }))
    }

    fn linear(&mut self, x: &Tensor, w: &Tensor, _: Activation) -> Result<Tensor> {
        self.made(x.rows(), w.cols())
    }

    fn cross_entropy(&mut self, logits: &Tensor, _: Batch<'_>, _: &mut Tensor<f64>) -> Result<Tensor> {
        self.made(logits.rows(), logits.cols())
    }

    fn score(&mut self, _: &Tensor, _: Batch<'_>, _: &mut Tensor<f64>) -> Result<()> {
        self.launch()
    }

    fn steps(
        &mut self,
        weights: &mut [Tensor],
        (batch, images): (Batch<'_>, usize),
        _: f32,
        _: &mut Tensor<f64>,
    ) -> Result<bool> {
        if images > 128 {
            return Ok(false);
        }
        let memory = &self.memory;
        let made = |w: &Tensor| memory.uninit(images, w.cols());
        let outputs: Vec<Tensor> = weights.iter().map(made).collect::<Result<_>>()?;
        let gradients: Vec<Tensor> = weights.iter().map(made).collect::<Result<_>>()?;
        for _ in 0..batch.count / images {
            self.launch()?;
        }
        drop((outputs, gradients));
        Ok(true)
    }

    fn input_gradient(&mut self, _: &Tensor, _: &Tensor, x: &Tensor) -> Result<Tensor> {
        // As many parts as a GPU cuts the sums into.
        let sums = self.made(7 * x.rows(), x.cols())?;
        let out = self.made(x.rows(), x.cols())?;
        drop(sums);
        Ok(out)
    }

    fn prefers_graphs(&self) -> bool {
        true
    }

    fn descend(&mut self, _: &Tensor, _: &Tensor, _: &mut Tensor, _: f32) -> Result<()> {
        self.launch()
    }

    fn weight_gradient(&mut self, x: &Tensor, dy: &Tensor, into: Option<Tensor>) -> Result<Tensor> {
        let out = into.map_or_else(|| self.memory.uninit(x.cols(), dy.cols()), Ok)?;
        self.launch()?;
        Ok(out)
    }

    fn update(&mut self, _: &mut [Tensor], _: &[Tensor], _: &mut [Tensor], _: Sgd) -> Result<()> {
        self.launch()
    }
}

/// Reads the loss so often.
struct Reads(usize);

impl Observer for Reads {
    fn wants_loss(&mut self, step: Step) -> bool {
        step.images.div_ceil(64).is_multiple_of(self.0)
    }
    fn loss(&mut self, _: Step, _: f64) {}
    fn epoch(&mut self, _: &Epoch) {}
}

const HYPER: Hyper = Hyper {
    num_layers: 4,
    feat_dim: 784,
    learning_rate: 0.1,
    momentum: 0.0,
    batch_size: 64,
    micro_batches: 1,
    epochs: 3,
    seed: 1,
};

/// The device calls of each epoch, and what the pool counts.
fn trained(hyper: &Hyper, kernel: Duration, reads: usize, steps: Steps) -> (Vec<u64>, Stats) {
    trained_in(hyper, kernel, reads, (steps, 1 << 30))
}

/// As above, on a device with so much memory.
fn trained_in(
    hyper: &Hyper,
    kernel: Duration,
    reads: usize,
    (steps, capacity): (Steps, u64),
) -> (Vec<u64>, Stats) {
    let device = SimDevice::new(SimOptions::default().capacity(capacity).pinned_capacity(0)).unwrap();
    let context = Context::new(device.clone());
    let pool = Pool::builder(&context).build().unwrap();
    let memory = Memory::of_pool(&pool, context.create_stream().unwrap());
    let mut backend = SimBackend { device, memory, kernel, captured: Arc::default() };
    let upload = Upload::new(&context).unwrap();
    let data = Dataset::bundled().unwrap();
    let mut training =
        Training::begin(&mut backend, &upload, Task { steps, ..Task::new(&data, hyper) }).unwrap();
    while training.epoch(&mut Reads(reads)).unwrap().is_some() {}
    let calls = training.epochs().iter().map(|epoch| epoch.device_calls).collect();
    (calls, pool.stats())
}

#[test]
fn eager_steps_need_no_later_device_call_and_no_wait() {
    // A device that is always done, one that just keeps up, and one that is far behind.
    for kernel in [1, 20, 200].map(Duration::from_micros) {
        for (momentum, batch_size) in [(0.0, 64), (0.9, 64), (0.0, 100), (0.0, 1000)] {
            for reads in [1, usize::MAX] {
                let hyper = Hyper { momentum, batch_size, ..HYPER };
                let (calls, stats) = trained(&hyper, kernel, reads, Steps::Eager);
                let what =
                    format!("{kernel:?}, momentum {momentum}, batches of {batch_size}, reads every {reads}");
                assert!(calls[0] > 0 && calls[1..].iter().all(|calls| *calls == 0), "{what}: {calls:?}");
                assert_eq!((stats.stream_waits, stats.retries), (0, 0), "{what}");
                let most = if batch_size == 1000 { 64 << 20 } else { 34 << 20 };
                assert!(stats.requested.high < most, "{what}: {}", stats.requested.high);
            }
        }
    }
}

#[test]
fn captured_steps_need_no_device_call_and_no_wait() {
    for kernel in [1, 20, 200].map(Duration::from_micros) {
        for (momentum, batch_size) in [(0.0, 64), (0.9, 64), (0.0, 100), (0.0, 1000)] {
            let hyper = Hyper { momentum, batch_size, ..HYPER };
            let (calls, stats) = trained(&hyper, kernel, 1, Steps::Captured);
            let what = format!("{kernel:?}, momentum {momentum}, batches of {batch_size}");
            assert!(calls[0] > 0 && calls[1..].iter().all(|calls| *calls == 0), "{what}: {calls:?}");
            assert_eq!((stats.stream_waits, stats.retries), (0, 0), "{what}");
        }
    }
}

#[test]
fn steps_are_eager_where_the_data_set_does_not_fit() {
    let requested = |momentum, steps, capacity| {
        let hyper = Hyper { momentum, ..HYPER };
        let (calls, stats) = trained_in(&hyper, Duration::from_micros(20), 1, (steps, capacity));
        assert_eq!(calls.len(), hyper.epochs);
        stats.requested.high
    };
    for (momentum, fits) in [(0.0, 22 << 20), (0.9, 38 << 20)] {
        let [eager, captured] =
            [Steps::Eager, Steps::Captured].map(|steps| requested(momentum, steps, 1 << 30));
        assert!(captured > fits, "{captured}");
        assert_eq!(requested(momentum, Steps::Auto, 1 << 30), captured);
        assert!(requested(momentum, Steps::Auto, fits) >= eager);
    }
}
