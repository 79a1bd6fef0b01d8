//! Checkpoints: a training that goes on from one gives the losses of one that was never stopped.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use millpond::device::DeviceName;
use millpond_baselines::{Allocator, MILLPOND, by_name};
use millpond_mlp::data::{Dataset, Split};
use millpond_mlp::{
    Epoch, Error, Hyper, Machine, Memory, Observer, Precision, Saving, Step, Steps, Task, Upload, train,
};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

const HYPER: Hyper = Hyper {
    num_layers: 2,
    feat_dim: 24,
    learning_rate: 0.1,
    momentum: 0.0,
    batch_size: 64,
    micro_batches: 1,
    epochs: 3,
    seed: 5,
};
/// Of an epoch of the data below; the last has 52 images.
const STEPS: usize = 8;

/// Stops after so many steps.
struct StopsAfter(usize);

impl Observer for StopsAfter {
    fn wants_loss(&mut self, _: Step) -> bool {
        self.0 = self.0.saturating_sub(1);
        false
    }
    fn loss(&mut self, _: Step, _: f64) {}
    fn epoch(&mut self, _: &Epoch) {}
    fn stops(&mut self) -> bool {
        self.0 == 0
    }
}

fn data() -> Dataset {
    let mut data = Dataset::bundled().unwrap();
    data.train.truncate(500);
    data.validation.truncate(200);
    data
}

/// Trains on a new device, as a new process does.
fn trained(data: &Dataset, saving: Option<&Saving>, steps: usize) -> Vec<Epoch> {
    trained_by(Steps::Eager, data, saving, steps)
}

fn trained_by(how: Steps, data: &Dataset, saving: Option<&Saving>, steps: usize) -> Vec<Epoch> {
    let (machine, _) = Machine::open(DeviceName::HOST.into()).unwrap();
    let allocator: Arc<dyn Allocator> = Arc::from(by_name(MILLPOND, machine.context()).unwrap());
    let memory = Memory::new(allocator, machine.context().create_stream().unwrap());
    let mut backend = machine.backend(memory, Precision::Float32).unwrap();
    let upload = Upload::new(machine.context()).unwrap();
    let task = Task { saving, steps: how, ..Task::new(data, &HYPER) };
    train(backend.as_mut(), &upload, task, &mut StopsAfter(steps)).unwrap()
}

fn bits(epochs: &[Epoch]) -> Vec<[u64; 3]> {
    let of = |epoch: &Epoch| [epoch.train_loss, epoch.val_loss, epoch.val_accuracy].map(f64::to_bits);
    epochs.iter().map(of).collect()
}

#[test]
fn losses_after_any_checkpoint_are_those_without_a_stop() {
    let data = data();
    let expected = bits(&trained(&data, None, usize::MAX));
    assert_eq!(expected.len(), HYPER.epochs);
    for stop in [1, 3, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS + 5, 3 * STEPS] {
        for every in [Some(1), Some(3), None] {
            let dir = tempfile::tempdir().unwrap();
            let saving = Saving::new(dir.path(), every).unwrap();
            trained(&data, Some(&saving), stop);
            let resumed = saving.resume(&HYPER, &data).unwrap();
            let (before, within) = ((stop - 1) / STEPS, (stop - 1) % STEPS + 1);
            let kept = before * STEPS + every.map_or(0, |every| within / every * every);
            let steps = resumed
                .resumed_from()
                .map_or(0, |from| from.epochs().len() * STEPS + from.images().div_ceil(HYPER.batch_size));
            assert_eq!(steps, kept, "{stop} {every:?}");
            assert_eq!(bits(&trained(&data, Some(&resumed), usize::MAX)), expected, "{stop} {every:?}");
            // A training that is done has nothing to do.
            let done = Saving::new(dir.path(), every).unwrap().resume(&HYPER, &data).unwrap();
            assert_eq!(done.resumed_from().unwrap().epochs().len(), HYPER.epochs);
            assert_eq!(bits(&trained(&data, Some(&done), usize::MAX)), expected);
        }
    }
}

#[test]
fn captured_steps_go_on_from_any_checkpoint() {
    let data = data();
    let expected = bits(&trained(&data, None, usize::MAX));
    assert_eq!(bits(&trained_by(Steps::Captured, &data, None, usize::MAX)), expected);
    for stop in [1, 3, STEPS - 1, STEPS, 2 * STEPS + 5] {
        for every in [1, 3] {
            let dir = tempfile::tempdir().unwrap();
            let saving = Saving::new(dir.path(), Some(every)).unwrap();
            trained_by(Steps::Captured, &data, Some(&saving), stop);
            let resumed = saving.resume(&HYPER, &data).unwrap();
            for how in [Steps::Captured, Steps::Eager] {
                assert_eq!(
                    bits(&trained_by(how, &data, Some(&resumed), usize::MAX)),
                    expected,
                    "{stop} {how:?}"
                );
            }
        }
    }
}

/// As `torch.nn.Sequential` of linear layers and ReLUs computes it.
fn accuracy(file: &[u8], of: &Split) -> f64 {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let layers: Vec<Vec<f32>> = (0..=HYPER.num_layers)
        .map(|layer| {
            let tensor = tensors.tensor(&format!("{}.weight", 2 * layer)).unwrap();
            let outputs = if layer == HYPER.num_layers { 10 } else { HYPER.feat_dim };
            assert_eq!(tensor.shape()[0], outputs, "[outputs, inputs], as of nn.Linear");
            tensor.data().as_chunks().0.iter().copied().map(f32::from_le_bytes).collect()
        })
        .collect();
    let right = of.images.chunks(784).zip(&of.labels).filter(|(pixels, label)| {
        let mut x: Vec<f32> = pixels.iter().map(|pixel| f32::from(*pixel) / 255.0).collect();
        for (at, w) in layers.iter().enumerate() {
            let y = w.chunks(x.len()).map(|row| row.iter().zip(&x).map(|(w, x)| w * x).sum::<f32>());
            x = if at == HYPER.num_layers { y.collect() } else { y.map(|y| y.max(0.0)).collect() };
        }
        let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        x[usize::from(**label)] == largest
    });
    right.count() as f64 / of.len() as f64
}

#[test]
fn the_file_holds_the_weights_as_pytorch_has_them() {
    let (data, dir) = (data(), tempfile::tempdir().unwrap());
    let saving = Saving::new(dir.path(), None).unwrap();
    let last = trained(&data, Some(&saving), usize::MAX).pop().unwrap();
    let file = fs::read(saving.file()).unwrap();
    assert_eq!(accuracy(&file, &data.validation), last.val_accuracy);
    let (_, header) = SafeTensors::read_metadata(&file).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
}

fn refused(dir: &Path, hyper: &Hyper, data: &Dataset) -> String {
    let error = Saving::new(dir, None).unwrap().resume(hyper, data).unwrap_err();
    assert!(matches!(error, Error::Checkpoint { .. }), "{error:?}");
    error.to_string()
}

#[test]
fn what_is_no_checkpoint_of_this_training_is_refused() {
    let (data, dir) = (data(), tempfile::tempdir().unwrap());
    let saving = Saving::new(dir.path(), None).unwrap();
    let nothing = saving.clone().resume(&HYPER, &data).unwrap();
    assert!(nothing.resumed_from().is_none());
    trained(&data, Some(&saving), usize::MAX);
    let longer = Hyper { epochs: 9, ..HYPER };
    assert!(saving.clone().resume(&longer, &data).unwrap().resumed_from().is_some());
    let refused_as = |hyper, data: &Dataset, why| {
        let said = refused(dir.path(), hyper, data);
        let file = saving.file().display();
        assert!(said.starts_with(&format!("{file}: cannot go on from this checkpoint: {why}")), "{said}");
    };
    let other = Hyper { seed: 6, ..HYPER };
    refused_as(&other, &data, "it is of a training with seed 5, not 6");
    refused_as(&Hyper { feat_dim: 25, ..HYPER }, &data, "it is of a training with feat_dim 24, not 25");
    let mut other = data.clone();
    other.train.labels[7] ^= 1;
    refused_as(&HYPER, &other, "it is of a training with other data");
    let whole = fs::read(saving.file()).unwrap();
    fs::remove_file(saving.file()).unwrap();
    std::os::unix::fs::symlink("/dev/zero", saving.file()).unwrap();
    refused_as(&HYPER, &data, "it is no file");
    fs::remove_file(saving.file()).unwrap();
    for length in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(saving.file(), &whole[..length]).unwrap();
        refused_as(&HYPER, &data, "not a whole safetensors file");
    }
    let mut wrong = whole.clone();
    wrong[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(saving.file(), &wrong).unwrap();
    refused_as(&HYPER, &data, "not a whole safetensors file");
    let (_, header) = SafeTensors::read_metadata(&whole).unwrap();
    let mut described = header.metadata().clone().unwrap();
    let progress = described.get_mut("millpond").unwrap();
    *progress = progress.replace("\"num_layers\":", "\"num_layers\":99999999999");
    let none: [(&str, TensorView<'_>); 0] = [];
    fs::write(saving.file(), safetensors::serialize(none, Some(described)).unwrap()).unwrap();
    refused_as(&HYPER, &data, "it is of a training with num_layers 99999999999");
    let weights = safetensors::serialize::<&str, TensorView<'_>, _>([], None).unwrap();
    fs::write(saving.file(), weights).unwrap();
    refused_as(&HYPER, &data, "it has weights, but was not written by");
    // What a killed process left beside it does not matter.
    fs::write(saving.file(), &whole).unwrap();
    fs::write(saving.file().with_extension("part"), &whole[..9]).unwrap();
    assert!(saving.clone().resume(&HYPER, &data).unwrap().resumed_from().is_some());
}
