//! The host's operations against finite differences of the same model in plain `f64`.

use std::sync::Arc;

use millpond::device::DeviceName;
use millpond_baselines::by_name;
use millpond_mlp::data::Split;
use millpond_mlp::{
    Activation, Backend, Batch, CLASSES, Error, Machine, Memory, Model, Precision, Sgd, TOTAL_CORRECT,
    TOTAL_LOSS, TOTALS, Tensor,
};

const IMAGES: usize = 7;
const INPUTS: usize = 12;
const WIDTH: usize = 9;
/// The batch leaves out the last of these.
const ORDER: [u32; 6] = [2, 5, 0, 3, 1, 4];
const COUNT: usize = 5;

/// A model and data that are the same in every test.
struct Bench {
    memory: Memory,
    backend: Box<dyn Backend>,
    model: Model,
    data: Split,
    rows: Tensor<u8>,
}

impl Bench {
    fn new() -> Self {
        let (machine, _) = Machine::open(DeviceName::HOST.into()).unwrap();
        let allocator = Arc::from(by_name("millpond", machine.context()).unwrap());
        let memory = Memory::new(allocator, machine.context().create_stream().unwrap());
        let backend = machine.backend(memory.clone(), Precision::Float32).unwrap();
        let model = Model::new(&memory, INPUTS, 2, WIDTH, 3).unwrap();
        let images = (0..IMAGES * INPUTS).map(|i| (i * 89 % 251) as u8).collect();
        let labels = (0..IMAGES).map(|i| (i * 3 % CLASSES) as u8).collect();
        let data = Split { images, labels };
        let mut rows = vec![0; ORDER.len() * data.row()];
        data.gather(&ORDER, &mut rows);
        let rows = memory.upload(ORDER.len(), data.row(), &rows).unwrap();
        Self { memory, backend, model, data, rows }
    }

    fn weights(&self) -> Vec<Vec<f64>> {
        let values = |w: &millpond_mlp::Tensor| w.to_vec().unwrap().into_iter().map(f64::from).collect();
        self.model.weights().iter().map(values).collect()
    }

    /// The batch's mean loss, and how many it gets right, computed without the trainer.
    fn reference(&self, weights: &[Vec<f64>]) -> (f64, usize) {
        let (mut loss, mut correct) = (0.0, 0);
        for &image in &ORDER[..COUNT] {
            let pixels = &self.data.images[image as usize * INPUTS..][..INPUTS];
            let mut x: Vec<f64> = pixels.iter().map(|&pixel| f64::from(pixel) / 255.0).collect();
            for (layer, w) in weights.iter().enumerate() {
                let outputs = w.len() / x.len();
                let product = |j| x.iter().enumerate().map(|(i, x)| x * w[i * outputs + j]).sum::<f64>();
                let y = (0..outputs).map(product);
                x = if layer + 1 < weights.len() { y.map(|y| y.max(0.0)).collect() } else { y.collect() };
            }
            let label = self.data.labels[image as usize] as usize;
            loss += x.iter().map(|logit| logit.exp()).sum::<f64>().ln() - x[label];
            correct += usize::from(x.iter().all(|&logit| logit <= x[label]));
        }
        (loss / COUNT as f64, correct)
    }
}

#[test]
fn gradients_agree_with_finite_differences_and_losses_with_the_reference() {
    let mut bench = Bench::new();
    let weights = bench.weights();
    let memory = bench.memory.clone();
    let mut totals = memory.zeroed::<f64>(1, TOTALS).unwrap();
    let batch = Batch { rows: &bench.rows, count: COUNT, of: COUNT, images: None };

    let backend = bench.backend.as_mut();
    let gradients = bench.model.gradients(backend, batch, &mut totals).unwrap();

    let (loss, correct) = bench.reference(&weights);
    let totals = totals.to_vec().unwrap();
    assert!((totals[TOTAL_LOSS] / COUNT as f64 - loss).abs() < 1e-5, "{totals:?}, {loss}");
    assert_eq!(totals[TOTAL_CORRECT], correct as f64);

    let step = 1e-6;
    for (layer, gradient) in gradients.iter().enumerate() {
        for (at, found) in gradient.to_vec().unwrap().into_iter().enumerate() {
            let moved = |by: f64| {
                let mut weights = weights.clone();
                weights[layer][at] += by;
                bench.reference(&weights).0
            };
            let expected = (moved(step) - moved(-step)) / (2.0 * step);
            assert!((f64::from(found) - expected).abs() < 1e-5, "layer {layer}, {at}: {found}, {expected}");
        }
    }
}

#[test]
fn a_step_is_rate_times_gradient_and_lowers_the_loss() {
    let mut bench = Bench::new();
    let before = bench.weights();
    let memory = bench.memory.clone();
    let mut totals = memory.zeroed::<f64>(1, TOTALS).unwrap();
    let batch = Batch { rows: &bench.rows, count: COUNT, of: COUNT, images: None };

    let backend = bench.backend.as_mut();
    let gradients = bench.model.gradients(backend, batch, &mut totals).unwrap();
    bench.model.update(backend, &gradients, 0.5).unwrap();

    let after = bench.weights();
    for ((before, after), gradient) in before.iter().zip(&after).zip(&gradients) {
        for ((before, after), gradient) in before.iter().zip(after).zip(gradient.to_vec().unwrap()) {
            assert!((before - 0.5 * f64::from(gradient) - after).abs() < 1e-6);
        }
    }
    assert!(bench.reference(&after).0 < bench.reference(&before).0);
}

#[test]
fn a_descent_is_an_update_by_the_gradient() {
    let mut bench = Bench::new();
    let (memory, backend) = (bench.memory.clone(), bench.backend.as_mut());
    // More than one panel of rows, and a ragged edge.
    let (count, inputs, outputs) = (5, 150, 33);
    let values =
        |len: usize, by: usize| (0..len).map(|i| (i * by % 17) as f32 / 17.0 - 0.5).collect::<Vec<_>>();
    let x = memory.upload(count, inputs, &values(count * inputs, 5)).unwrap();
    let dy = memory.upload(count, outputs, &values(count * outputs, 7)).unwrap();
    let begin = values(inputs * outputs, 11);
    let [mut one, mut other] = [(); 2].map(|()| memory.upload(inputs, outputs, &begin).unwrap());

    backend.descend(&x, &dy, &mut one, 0.25).unwrap();
    let gradient = backend.weight_gradient(&x, &dy, None).unwrap();
    let sgd = Sgd { rate: 0.25, momentum: 0.0 };
    backend.update(std::slice::from_mut(&mut other), &[gradient], &mut [], sgd).unwrap();

    let [one, other] = [one, other].map(|of| of.to_vec().unwrap());
    let furthest = one.iter().zip(&other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
    assert!(furthest < 1e-6 && one != begin, "{furthest}");
}

#[test]
fn tensors_of_wrong_shapes_are_refused_before_queueing() {
    let mut bench = Bench::new();
    let memory = bench.memory.clone();
    let [a, b] = [(3, 4), (5, 6)].map(|(rows, cols)| memory.zeroed::<f32>(rows, cols).unwrap());
    let without_pixels = memory.zeroed::<u8>(COUNT, 1).unwrap();
    let mut totals = memory.zeroed::<f64>(1, TOTALS).unwrap();
    let batch = Batch { rows: &bench.rows, count: COUNT, of: COUNT, images: None };
    let past_the_end = Batch { count: ORDER.len() + 1, ..batch };
    let empty = Batch { count: 0, ..batch };

    let backend = bench.backend.as_mut();
    let requested = memory.usage().requested.current;
    let refused = [
        backend.linear(&a, &b, Activation::None).err(),
        backend.weight_gradient(&a, &b, None).err(),
        backend.input_gradient(&a, &b, &a).err(),
        backend.descend(&a, &a, &mut memory.zeroed(1, 1).unwrap(), 0.1).err(),
        backend.images(past_the_end).err(),
        backend.images(empty).err(),
        backend.images(Batch { rows: &without_pixels, count: COUNT, of: COUNT, images: None }).err(),
        backend.cross_entropy(&a, batch, &mut totals).err(),
        backend.score(&a, batch, &mut totals).err(),
        memory.upload(2, 2, &[0_u8; 3]).err(),
    ];
    for (at, error) in refused.into_iter().enumerate() {
        assert!(matches!(error, Some(Error::Shape { .. })), "{at}: {error:?}");
    }
    assert_eq!(memory.usage().requested.current, requested);
}
