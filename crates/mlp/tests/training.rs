//! Whole training runs on the host device.

use std::sync::Arc;

use millpond::device::DeviceName;
use millpond_baselines::{Allocator, MILLPOND, NAMES, by_name};
use millpond_mlp::data::Dataset;
use millpond_mlp::{Epoch, Hyper, Machine, Memory, Observer, Step, Task, Upload, train};

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

/// Trains on the bundled digits with this allocator.
fn run(allocator: &str, hyper: &Hyper, data: &Dataset) -> Vec<Epoch> {
    let (machine, _) = Machine::open(DeviceName::HOST.into()).unwrap();
    let allocator: Arc<dyn Allocator> = Arc::from(by_name(allocator, machine.context()).unwrap());
    let memory = Memory::new(allocator.clone(), machine.context().create_stream().unwrap());
    let mut backend = machine.backend(memory, false).unwrap();
    let upload = Upload::new(machine.context()).unwrap();
    let epochs = train(backend.as_mut(), &upload, Task::new(data, hyper), &mut Unwatched).unwrap();
    assert_eq!(allocator.usage().requested.current, 0, "training leaves nothing behind");
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
fn the_same_seed_gives_bit_equal_losses_with_every_allocator() {
    let mut data = Dataset::bundled().unwrap();
    // A partial batch at the end of the epoch included.
    data.train.truncate(500);
    data.validation.truncate(300);
    let hyper = Hyper { feat_dim: 96, epochs: 3, ..DEFAULTS };
    let bits = |epochs: &[Epoch]| -> Vec<_> {
        epochs
            .iter()
            .map(|e| (e.train_loss.to_bits(), e.val_loss.to_bits(), e.val_accuracy.to_bits()))
            .collect()
    };
    let first = bits(&run(MILLPOND, &hyper, &data));
    for name in &NAMES[1..] {
        assert_eq!(bits(&run(name, &hyper, &data)), first, "{name}");
    }
    let other = Hyper { seed: 2, ..hyper };
    assert_ne!(bits(&run(MILLPOND, &other, &data)), first, "another seed gives another run");
}
