//! Training on a GPU: it computes what the host computes, and its gradients are those of its loss.
//!
//! On a machine with a GPU: `cargo test --release -p millpond-mlp --test integration cuda_training:: -- --ignored`, or
//! `scripts/gpu-test cuda_training`.

use std::sync::Arc;

use millpond::Pool;
use millpond::device::DeviceName;
use millpond_baselines::{MILLPOND, NAMES, by_name};
use millpond_mlp::cuda::CudaBackend;
use millpond_mlp::data::Dataset;
use millpond_mlp::ranks::Shard;
use millpond_mlp::{
    Backend, Batch, Epoch, Error, Hyper, Machine, Memory, Model, Observer, Precision, Sgd, Step, Steps,
    TOTAL_LOSS, TOTALS, Task, Upload, train,
};

const SMALL: Hyper = Hyper {
    num_layers: 3,
    feat_dim: 52,
    learning_rate: 0.1,
    momentum: 0.0,
    batch_size: 64,
    micro_batches: 1,
    epochs: 2,
    seed: 3,
};

struct Unwatched;

impl Observer for Unwatched {
    fn wants_loss(&mut self, _: Step) -> bool {
        false
    }
    fn loss(&mut self, _: Step, _: f64) {}
    fn epoch(&mut self, _: &Epoch) {}
}

fn gpu() -> Machine {
    Machine::open(DeviceName::cuda(0).into()).unwrap().0
}

/// A pool knows captures, and others do not.
fn memory_of(machine: &Machine, allocator: &str) -> Memory {
    let stream = machine.context().create_stream().unwrap();
    match allocator {
        MILLPOND => Memory::of_pool(&Pool::builder(machine.context()).build().unwrap(), stream),
        other => Memory::new(Arc::from(by_name(other, machine.context()).unwrap()), stream),
    }
}

fn cuda_backend(machine: &Machine, allocator: &str) -> CudaBackend {
    CudaBackend::new(memory_of(machine, allocator), Precision::Float32).unwrap()
}

fn trained(machine: &Machine, backend: &mut dyn Backend, data: &Dataset, hyper: &Hyper) -> Vec<Epoch> {
    trained_by(Steps::Eager, machine, backend, (data, hyper))
}

fn trained_by(
    steps: Steps,
    machine: &Machine,
    backend: &mut dyn Backend,
    (data, hyper): (&Dataset, &Hyper),
) -> Vec<Epoch> {
    let upload = Upload::new(machine.context()).unwrap();
    let task = Task { steps, ..Task::new(data, hyper) };
    let epochs = train(backend, &upload, task, &mut Unwatched).unwrap();
    let pinned = if steps == Steps::Eager { 3 } else { 0 };
    assert_eq!(upload.pinned().unwrap().stats().allocations, pinned, "batches pass through pinned memory");
    epochs
}

/// The bundled digits, so few that an epoch ends with a partial batch.
fn digits() -> Dataset {
    let mut data = Dataset::bundled().unwrap();
    data.train.truncate(500);
    data.validation.truncate(300);
    data
}

fn losses(epochs: &[Epoch]) -> Vec<(f64, f64, f64)> {
    epochs.iter().map(|epoch| (epoch.train_loss, epoch.val_loss, epoch.val_accuracy)).collect()
}

fn assert_close(found: f64, expected: f64, relative: f64, what: &str) {
    let error = (found - expected).abs() / expected.abs().max(1e-6);
    assert!(error <= relative, "{what}: found {found}, expected {expected}, relative error {error}");
}

#[test]
fn a_backend_on_another_device_is_refused() {
    let (host, _) = Machine::open(DeviceName::HOST.into()).unwrap();
    let refused = CudaBackend::new(memory_of(&host, "driver"), Precision::Float32);
    assert!(matches!(refused, Err(Error::Device(_))), "{refused:?}");
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_gpu_computes_the_losses_of_the_host() {
    let data = digits();
    let (host, _) = Machine::open(DeviceName::HOST.into()).unwrap();
    let mut host_backend = host.backend(memory_of(&host, "driver"), Precision::Float32).unwrap();
    let expected = losses(&trained(&host, host_backend.as_mut(), &data, &SMALL));
    let machine = gpu();
    let mut backend = cuda_backend(&machine, MILLPOND);
    let found = losses(&trained(&machine, &mut backend, &data, &SMALL));
    for (found, expected) in found.iter().zip(&expected) {
        assert_close(found.0, expected.0, 1e-3, "training loss");
        assert_close(found.1, expected.1, 1e-3, "validation loss");
        assert!((found.2 - expected.2).abs() <= 0.01, "accuracy {} and {}", found.2, expected.2);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn losses_are_bit_equal_with_every_allocator() {
    let data = digits();
    let machine = gpu();
    let run = |allocator| {
        let mut backend = cuda_backend(&machine, allocator);
        losses(&trained(&machine, &mut backend, &data, &SMALL))
    };
    let first = run(MILLPOND);
    for name in NAMES {
        assert_eq!(run(name), first, "{name}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn captured_steps_have_the_losses_of_eager_ones_with_every_allocator() {
    let data = digits();
    let machine = gpu();
    for (momentum, micro_batches) in [(0.0, 1), (0.9, 1), (0.0, 3)] {
        let hyper = Hyper { momentum, micro_batches, learning_rate: 0.05, epochs: 3, ..SMALL };
        let run = |name, steps| {
            let mut backend = cuda_backend(&machine, name);
            let memory = backend.memory().clone();
            let epochs = trained_by(steps, &machine, &mut backend, (&data, &hyper));
            drop(backend);
            memory.synchronize().unwrap();
            assert_eq!(memory.usage().requested.current, 0, "{name} has back what the graphs had");
            losses(&epochs)
        };
        let eager = run(MILLPOND, Steps::Eager);
        for name in NAMES {
            assert_eq!(run(name, Steps::Captured), eager, "{name}, {hyper:?}");
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn steps_in_one_kernel_have_the_losses_of_eager_ones() {
    let data = digits();
    let machine = gpu();
    // A batch in which rows are left over, parts of sums that some blocks have none of, and the defaults.
    for (num_layers, feat_dim, batch_size) in [(3, 64, 64), (2, 208, 50), (4, 784, 64)] {
        let hyper = Hyper { num_layers, feat_dim, batch_size, learning_rate: 0.05, ..SMALL };
        for (precision, relative) in Precision::ALL.into_iter().zip([1e-3, 1e-2, 5e-2]) {
            let run = |name, steps| {
                let mut backend = machine.backend(memory_of(&machine, name), precision).unwrap();
                losses(&trained_by(steps, &machine, backend.as_mut(), (&data, &hyper)))
            };
            let (eager, captured) = (run(MILLPOND, Steps::Eager), run(MILLPOND, Steps::Captured));
            for (found, expected) in captured.iter().zip(&eager) {
                assert_close(
                    found.0,
                    expected.0,
                    relative,
                    &format!("training loss, {precision:?}, {hyper:?}"),
                );
                assert_close(
                    found.1,
                    expected.1,
                    relative,
                    &format!("validation loss, {precision:?}, {hyper:?}"),
                );
            }
            for name in NAMES {
                assert_eq!(run(name, Steps::Captured), captured, "{name}, {precision:?}, {hyper:?}");
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn batches_of_64_are_trained_in_one_kernel() {
    let machine = gpu();
    let mut backend = cuda_backend(&machine, MILLPOND);
    let memory = backend.memory().clone();
    let data = digits();
    let rows = memory.zeroed::<u8>(128, data.train.row()).unwrap();
    let batch = Batch { rows: &rows, count: 128, of: 64, images: None };
    let mut totals = memory.zeroed::<f64>(1, TOTALS).unwrap();
    let mut does = |layers, width, images| {
        let model = Model::new(&memory, data.pixels(), layers, width, 1).unwrap();
        let mut weights: Vec<_> = model.weights().iter().map(millpond_mlp::Tensor::share).collect();
        backend.steps(&mut weights, (batch, images), 0.1, &mut totals).unwrap()
    };
    let (has_clusters, too_wide, too_many) = (does(4, 784, 64), does(4, 800, 64), does(4, 784, 128));
    assert!(!too_wide && !too_many);
    println!("steps are{} in one kernel", if has_clusters { "" } else { " not" });
}

/// The loss of a batch, as the sum that the GPU adds up in double precision.
fn loss(backend: &mut dyn Backend, model: &Model, batch: Batch<'_>) -> f64 {
    let mut totals = backend.memory().clone().zeroed::<f64>(1, TOTALS).unwrap();
    let logits = model.infer(backend, batch).unwrap();
    backend.score(&logits, batch, &mut totals).unwrap();
    totals.to_vec().unwrap()[TOTAL_LOSS] / batch.count as f64
}

/// Moving the weights a little against their gradient lowers the loss by the gradient's squared length: the
/// derivative along the gradient, taken over all weights at once, so that float32 has digits enough.
fn check_gradients(backend: &mut dyn Backend) {
    let data = digits();
    let memory = backend.memory().clone();
    let mut rows = vec![0; 64 * data.train.row()];
    data.train.gather(&(429..493).rev().collect::<Vec<_>>(), &mut rows);
    let rows = memory.upload(64, data.train.row(), &rows).unwrap();
    let batch = Batch { rows: &rows, count: 61, of: 61, images: None };
    let mut model = Model::new(&memory, data.pixels(), 2, 36, 1).unwrap();
    let mut totals = memory.zeroed::<f64>(1, TOTALS).unwrap();
    let gradients = model.gradients(backend, batch, &mut totals).unwrap();
    let trained_loss = totals.to_vec().unwrap()[TOTAL_LOSS] / batch.count as f64;
    assert_close(loss(backend, &model, batch), trained_loss, 1e-6, "loss of the batch");

    let squared: f64 = gradients
        .iter()
        .flat_map(|gradient| gradient.to_vec().unwrap())
        .map(|value| f64::from(value) * f64::from(value))
        .sum();
    let step = 2e-3_f32;
    model.update(backend, &gradients, -step).unwrap();
    let above = loss(backend, &model, batch);
    model.update(backend, &gradients, 2.0 * step).unwrap();
    let below = loss(backend, &model, batch);
    assert_close((above - below) / f64::from(2.0 * step), squared, 5e-3, "slope along the gradient");
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_gradients_are_those_of_the_loss() {
    check_gradients(&mut cuda_backend(&gpu(), MILLPOND));
}

/// The same on the CPU, which also shows that the check itself is sound.
#[test]
fn the_hosts_gradients_are_those_of_the_loss() {
    let (host, _) = Machine::open(DeviceName::HOST.into()).unwrap();
    check_gradients(host.backend(memory_of(&host, "driver"), Precision::Float32).unwrap().as_mut());
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn tensors_of_the_wrong_shape_are_refused() {
    let mut backend = cuda_backend(&gpu(), "driver");
    let memory = backend.memory().clone();
    let (a, b) = (memory.zeroed(4, 6).unwrap(), memory.zeroed(5, 6).unwrap());
    let rows = memory.zeroed::<u8>(2, 6).unwrap();
    let batch = Batch { rows: &rows, count: 3, of: 3, images: None };
    assert!(matches!(backend.linear(&a, &b, millpond_mlp::Activation::None), Err(Error::Shape { .. })));
    assert!(matches!(backend.weight_gradient(&a, &b, None), Err(Error::Shape { .. })));
    assert!(matches!(backend.input_gradient(&a, &b, &b), Err(Error::Shape { .. })));
    assert!(matches!(backend.images(batch), Err(Error::Shape { .. })));
    let (mut weights, gradients) = (vec![a], vec![b]);
    assert!(matches!(
        backend.update(&mut weights, &gradients, &mut [], Sgd { rate: 0.1, momentum: 0.0 }),
        Err(Error::Shape { .. })
    ));
}

/// Trains by the code that several ranks run, with NCCL. `None` where NCCL is not installed.
fn trained_as_a_rank(data: &Dataset, hyper: &Hyper, shard: Shard) -> Option<Vec<Epoch>> {
    let machine = gpu();
    let memory = memory_of(&machine, MILLPOND);
    let mut backend = machine.backend(memory, Precision::Float32).unwrap();
    let upload = Upload::new(machine.context()).unwrap();
    let team = match machine.team_of_one(shard) {
        Ok(team) => team.bucket_bytes(8192),
        Err(Error::Library { library: "NCCL", what }) if what.contains("was not found") => {
            println!("left out: {what}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    Some(
        train(
            backend.as_mut(),
            &upload,
            Task { team: Some(&team), ..Task::new(data, hyper) },
            &mut Unwatched,
        )
        .unwrap(),
    )
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn one_rank_with_nccl_trains_as_without_ranks() {
    let data = digits();
    for momentum in [0.0, 0.9] {
        let hyper = Hyper { momentum, learning_rate: 0.05, ..SMALL };
        let machine = gpu();
        let mut backend = machine.backend(memory_of(&machine, MILLPOND), Precision::Float32).unwrap();
        let expected = losses(&trained(&machine, backend.as_mut(), &data, &hyper));
        for shard in [Shard::Nothing, Shard::Optimizer, Shard::Gradients] {
            let Some(epochs) = trained_as_a_rank(&data, &hyper, shard) else { return };
            for (found, expected) in losses(&epochs).iter().zip(&expected) {
                // Without momentum, a process alone rounds the update once less.
                let relative = if momentum > 0.0 { 0.0 } else { 1e-4 };
                assert_close(found.0, expected.0, relative, "training loss");
                assert_close(found.1, expected.1, relative, "validation loss");
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_batch_in_parts_has_the_losses_of_the_whole() {
    let data = digits();
    let machine = gpu();
    let of = |micro_batches| {
        let mut backend = machine.backend(memory_of(&machine, MILLPOND), Precision::Float32).unwrap();
        losses(&trained(&machine, backend.as_mut(), &data, &Hyper { micro_batches, ..SMALL }))
    };
    for (found, expected) in of(3).into_iter().zip(of(1)) {
        assert_close(found.0, expected.0, 1e-4, "training loss");
        assert_close(found.1, expected.1, 1e-4, "validation loss");
    }
}

mod two_gpus {
    use std::net::TcpListener;

    use millpond_mlp::ranks::{Place, Ranks};

    use super::*;

    /// A rank on a thread of its own, with the GPU of its number.
    fn rank(rank: usize, port: u16, shard: Shard) -> Option<Vec<Epoch>> {
        let ranks = Arc::new(Ranks::meet(Place::here(rank, 2, port), |loss, _| panic!("{loss:?}")).unwrap());
        let (machine, _) = Machine::open_on(DeviceName::cuda(0).into(), rank).unwrap();
        let mut backend = machine.backend(memory_of(&machine, MILLPOND), Precision::Float32).unwrap();
        let upload = Upload::new(machine.context()).unwrap();
        let team = match machine.team(&ranks, shard) {
            Ok(team) => team.bucket_bytes(8192),
            Err(error) => {
                println!("left out: {error}");
                return None;
            }
        };
        let epochs = train(
            backend.as_mut(),
            &upload,
            Task { team: Some(&team), ..Task::new(&digits(), &SMALL) },
            &mut Unwatched,
        );
        ranks.gather(&()).unwrap();
        ranks.leave(None);
        Some(epochs.unwrap())
    }

    #[test]
    #[ignore = "needs two CUDA GPUs"]
    fn losses_of_two_gpus_are_those_of_one() {
        let machine = gpu();
        let mut backend = machine.backend(memory_of(&machine, MILLPOND), Precision::Float32).unwrap();
        let expected = losses(&trained(&machine, backend.as_mut(), &digits(), &SMALL));
        for shard in [Shard::Nothing, Shard::Optimizer, Shard::Gradients] {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let other = std::thread::spawn(move || rank(1, port, shard));
            let (first, other) = (rank(0, port, shard), other.join().unwrap());
            let (Some(first), Some(other)) = (first, other) else { return };
            assert_eq!(losses(&first), losses(&other), "both ranks count the same");
            for (found, expected) in losses(&first).iter().zip(&expected) {
                assert_close(found.0, expected.0, 1e-5, "training loss");
                assert_close(found.1, expected.1, 1e-5, "validation loss");
            }
        }
    }
}
