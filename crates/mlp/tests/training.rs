//! Whole training runs on the host device.

use std::sync::Arc;

use millpond::Pool;
use millpond::device::DeviceName;
use millpond_baselines::{Allocator, MILLPOND, NAMES, by_name};
use millpond_mlp::data::Dataset;
use millpond_mlp::{
    Backend, Epoch, Hyper, Kind, Machine, Memory, Observer, Precision, Purpose, Step, Steps, Task, Training,
    Upload, train,
};

/// The model of the command's defaults.
const DEFAULTS: Hyper = Hyper {
    num_layers: 4,
    feat_dim: 784,
    learning_rate: 0.1,
    momentum: 0.0,
    batch_size: 64,
    micro_batches: 1,
    epochs: 10,
    seed: 1,
};

struct Unwatched;

impl Observer for Unwatched {
    fn wants_loss(&mut self, _: Step) -> bool {
        false
    }
    fn loss(&mut self, _: Step, _: f64) {}
    fn epoch(&mut self, _: &Epoch) {}
}

/// A pool knows captures, and others do not.
fn memory_of(machine: &Machine, allocator: &str) -> Memory {
    let stream = machine.context().create_stream().unwrap();
    match allocator {
        MILLPOND => Memory::of_pool(&Pool::builder(machine.context()).build().unwrap(), stream),
        other => Memory::new(Arc::from(by_name(other, machine.context()).unwrap()), stream),
    }
}

fn bits(epochs: &[Epoch]) -> Vec<[u64; 3]> {
    let of = |epoch: &Epoch| [epoch.train_loss, epoch.val_loss, epoch.val_accuracy].map(f64::to_bits);
    epochs.iter().map(of).collect()
}

#[test]
fn captured_steps_have_the_losses_of_eager_ones() {
    let mut data = Dataset::bundled().unwrap();
    data.train.truncate(500);
    data.validation.truncate(1100);
    for (momentum, micro_batches, batch_size) in [(0.0, 1, 16), (0.9, 1, 16), (0.0, 3, 64), (0.5, 2, 600)] {
        let hyper = Hyper { momentum, micro_batches, batch_size, feat_dim: 40, epochs: 3, ..DEFAULTS };
        let eager = bits(&run(MILLPOND, &hyper, &data));
        for name in NAMES {
            let (machine, _) = Machine::open(DeviceName::HOST.into()).unwrap();
            let memory = memory_of(&machine, name);
            let mut backend = machine.backend(memory.clone(), Precision::Float32).unwrap();
            let upload = Upload::new(machine.context()).unwrap();
            let task = Task { steps: Steps::Captured, ..Task::new(&data, &hyper) };
            let epochs = train(backend.as_mut(), &upload, task, &mut Unwatched).unwrap();
            assert_eq!(bits(&epochs), eager, "{name} {hyper:?}");
            assert_eq!(epochs[1..].iter().map(|epoch| epoch.device_calls).sum::<u64>(), 0, "{name}");
            memory.synchronize().unwrap();
            assert_eq!(memory.usage().requested.current, 0, "{name} has back what the graphs had");
            assert_eq!(upload.pinned().unwrap().stats().allocations, 0, "the data set is on the device");
        }
    }
}

/// Trains on the bundled digits with this allocator.
fn run(allocator: &str, hyper: &Hyper, data: &Dataset) -> Vec<Epoch> {
    let (machine, _) = Machine::open(DeviceName::HOST.into()).unwrap();
    let memory = memory_of(&machine, allocator);
    let mut backend = machine.backend(memory.clone(), Precision::Float32).unwrap();
    let upload = Upload::new(machine.context()).unwrap();
    let epochs = train(backend.as_mut(), &upload, Task::new(data, hyper), &mut Unwatched).unwrap();
    assert_eq!(memory.usage().requested.current, 0, "training leaves nothing behind");
    let pinned = upload.pinned().unwrap().stats();
    assert_eq!((pinned.allocations, pinned.requested.current), (3, 0), "and pins three batches at most");
    epochs
}

#[test]
fn the_defaults_recognise_93_percent_and_stop_calling_the_device() {
    let epochs = run("millpond", &DEFAULTS, &Dataset::bundled().unwrap());
    let last = epochs.last().unwrap();
    assert!(last.val_accuracy >= 0.93, "{last:?}");
    assert!(epochs[0].device_calls > 0);
    assert_eq!(epochs[1..].iter().map(|epoch| epoch.device_calls).sum::<u64>(), 0);
}

#[test]
fn a_watched_step_says_what_its_memory_is_for() {
    let mut data = Dataset::bundled().unwrap();
    data.train.truncate(200);
    data.validation.truncate(100);
    let (machine, _) = Machine::open(DeviceName::HOST.into()).unwrap();
    let step = |momentum| {
        let hyper = Hyper { momentum, num_layers: 2, feat_dim: 64, epochs: 2, ..DEFAULTS };
        let allocator: Arc<dyn Allocator> = Arc::from(by_name(MILLPOND, machine.context()).unwrap());
        let memory = Memory::new(allocator.clone(), machine.context().create_stream().unwrap()).watched();
        let mut backend = machine.backend(memory.clone(), Precision::Float32).unwrap();
        let upload = Upload::new(machine.context()).unwrap();
        train(backend.as_mut(), &upload, Task::new(&data, &hyper), &mut Unwatched).unwrap();
        (memory.step().unwrap(), allocator.usage().requested.high)
    };
    let bytes = |live: &[(Purpose, u64)], kind| -> u64 {
        live.iter().filter(|((of, _), _)| *of == kind).map(|(_, bytes)| bytes).sum()
    };
    let weights = 4 * (784 * 64 + 64 * 64 + 64 * 10);
    for momentum in [0.0, 0.5] {
        let (step, requested) = step(momentum);
        let phases: Vec<_> = step.phases.iter().map(|(_, name)| *name).collect();
        assert_eq!(phases, ["forward", "backward", "update"]);
        assert!(step.live.iter().all(|live| bytes(live, Kind::Weights) == weights));
        let (first, last) = (&step.live[0], step.live.last().unwrap());
        assert_eq!(first, last, "a step leaves nothing behind");
        let of_optimizer = if momentum > 0.0 { weights } else { 0 };
        assert_eq!(bytes(first, Kind::Optimizer), of_optimizer);
        let peak: u64 = step.peak().iter().map(|(_, bytes)| bytes).sum();
        assert!(bytes(first, Kind::Batch) < peak && peak <= requested, "{peak} {requested}");
        let gradients = step.live.iter().map(|live| bytes(live, Kind::Gradients)).max().unwrap();
        assert_eq!(gradients >= weights, momentum > 0.0, "only momentum needs them all at once: {gradients}");
    }
    let unwatched = Memory::new(
        Arc::from(by_name(MILLPOND, machine.context()).unwrap()),
        machine.context().create_stream().unwrap(),
    );
    assert_eq!(unwatched.step(), None);
}

#[test]
fn trainings_that_take_turns_give_the_losses_of_each_alone() {
    let mut data = Dataset::bundled().unwrap();
    data.train.truncate(300);
    data.validation.truncate(100);
    let hyper = Hyper { feat_dim: 48, epochs: 3, ..DEFAULTS };
    let alone = run(MILLPOND, &hyper, &data);
    let losses = |epochs: &[Epoch]| -> Vec<_> { epochs.iter().map(|e| (e.train_loss, e.val_loss)).collect() };
    let machines = [(); 2].map(|()| Machine::open(DeviceName::HOST.into()).unwrap().0);
    let uploads = [0, 1].map(|at: usize| Upload::new(machines[at].context()).unwrap());
    let mut backends = [0, 1].map(|at: usize| {
        let context = machines[at].context();
        let allocator = Arc::from(by_name(NAMES[at], context).unwrap());
        let memory = Memory::new(allocator, context.create_stream().unwrap());
        machines[at].backend(memory, Precision::Float32).unwrap()
    });
    let begin = |(backend, upload): (_, _)| {
        let backend: &mut Box<dyn Backend> = backend;
        Training::begin(&mut **backend, upload, Task::new(&data, &hyper)).unwrap()
    };
    let mut trainings: Vec<_> = backends.iter_mut().zip(&uploads).map(begin).collect();
    for _ in 0..hyper.epochs {
        trainings.iter_mut().for_each(|training| assert!(training.epoch(&mut Unwatched).unwrap().is_some()));
    }
    for training in &mut trainings {
        assert_eq!(training.epoch(&mut Unwatched).unwrap(), None, "all are done");
        assert_eq!(losses(training.epochs()), losses(&alone));
    }
}

#[test]
fn the_same_seed_gives_bit_equal_losses_with_every_allocator() {
    let mut data = Dataset::bundled().unwrap();
    // A partial batch at the end of the epoch included.
    data.train.truncate(500);
    data.validation.truncate(300);
    let hyper = Hyper { feat_dim: 96, epochs: 3, ..DEFAULTS };
    let first = bits(&run(MILLPOND, &hyper, &data));
    for name in &NAMES[1..] {
        assert_eq!(bits(&run(name, &hyper, &data)), first, "{name}");
    }
    let other = Hyper { seed: 2, ..hyper };
    assert_ne!(bits(&run(MILLPOND, &other, &data)), first, "another seed gives another run");
}
