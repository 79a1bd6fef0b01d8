//! The training loop, the same on every device.
//!
//! It waits for the device to read the totals: once after an epoch's steps, once after its validation, and in between
//! when the observer asks for the loss. Else it is at most a few batches ahead of the device (`feed.rs`).

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Instant;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::checkpoint::{Begun, Saver, Saving};
use crate::data::{Dataset, Split};
use crate::feed::{Feed, Upload};
use crate::hyper::{Epoch, Hyper};
use crate::{Backend, Error, Model, Result, TOTAL_CORRECT, TOTAL_LOSS, TOTALS};

/// Images in a batch of the validation, which needs no gradients and so little memory for each.
const VALIDATION_BATCH: usize = 1000;

/// Random streams for the order of the epochs start here; those below are the layers'.
const FIRST_ORDER_STREAM: u64 = 1 << 32;

/// Where an epoch is.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// The epoch, counted from 1.
    pub epoch: usize,
    /// Images trained on so far in it.
    pub images: usize,
    /// Images in it.
    pub of: usize,
}

/// Who watches a training run.
pub trait Observer {
    /// Whether to read the loss back after this step, which waits for the device. Called after every step. An observer
    /// that may stop a training reads the loss now and then: steps are only queued, so a device may be far behind.
    fn wants_loss(&mut self, step: Step) -> bool;

    /// The mean loss of the epoch so far, after [`wants_loss`](Self::wants_loss) said so.
    fn loss(&mut self, step: Step, mean: f64);

    /// An epoch is over.
    fn epoch(&mut self, epoch: &Epoch);

    /// Whether to stop here, in the middle of an epoch. Called after every step and every batch of the validation.
    fn stops(&mut self) -> bool {
        false
    }
}

/// Trains with the memory of `backend` and batches that come by `upload`. Returns what each epoch gave. An epoch in which
/// the observer stopped the training is left out. With `saving`, it writes checkpoints, and goes on from one.
///
/// # Errors
/// The allocator's and the device's own, [`Error::Diverged`], and those of writing a checkpoint.
pub fn train(
    backend: &mut dyn Backend,
    upload: &Upload,
    data: &Dataset,
    hyper: &Hyper,
    saving: Option<&Saving>,
    observer: &mut dyn Observer,
) -> Result<Vec<Epoch>> {
    let memory = backend.memory().clone();
    let mut calls_before = memory.usage().calls.memory();
    let most = hyper.batch_size.min(data.train.len()).max(VALIDATION_BATCH.min(data.validation.len()));
    let mut feed = Feed::new(&memory, upload, most, data.train.row())?;
    let mut saver = Saver::new(saving, hyper, data);
    let &Hyper { num_layers, feat_dim, seed, .. } = hyper;
    let mut model = match saver.weights() {
        None => Model::new(&memory, data.pixels(), num_layers, feat_dim, seed)?,
        Some(weights) => Model::with_weights(&memory, data.pixels(), num_layers, feat_dim, weights)?,
    };
    memory.synchronize()?;

    for epoch in saver.epochs().len() + 1..=hyper.epochs {
        let (begin, begun) = (Instant::now(), saver.begun());
        let trained =
            train_epoch(backend, &mut model, (&mut feed, &data.train), hyper, epoch, &mut saver, observer)?;
        let Continue(train_loss) = trained else { break };
        let validated = validate(backend, &model, (&mut feed, &data.validation), observer)?;
        let Continue((val_loss, val_accuracy)) = validated else { break };
        memory.synchronize()?;
        let calls = memory.usage().calls.memory();
        let report = Epoch {
            epoch,
            train_loss,
            val_loss,
            val_accuracy,
            wall_ms: begun.wall_ms + milliseconds_since(begin),
            device_calls: calls - calls_before,
        };
        calls_before = calls;
        observer.epoch(&report);
        if !train_loss.is_finite() {
            return Err(Error::Diverged { epoch, loss: train_loss });
        }
        saver.epoch(&model, report)?;
    }
    Ok(saver.into_epochs())
}

fn milliseconds_since(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

fn go_on(observer: &mut dyn Observer) -> ControlFlow<()> {
    if observer.stops() { Break(()) } else { Continue(()) }
}

/// One pass over the training set, or the rest of it; the mean loss.
fn train_epoch(
    backend: &mut dyn Backend,
    model: &mut Model,
    (feed, data): (&mut Feed, &Split),
    hyper: &Hyper,
    epoch: usize,
    saver: &mut Saver<'_>,
    observer: &mut dyn Observer,
) -> Result<ControlFlow<(), f64>> {
    let (begin, begun) = (Instant::now(), saver.begun());
    let memory = backend.memory().clone();
    let order = shuffled(data.len(), hyper.seed, epoch);
    let mut totals = memory.upload(1, TOTALS, &begun.totals)?;
    let mut step = Step { epoch, images: begun.images, of: data.len() };
    let seen = feed.batches(data, &order[begun.images..], hyper.batch_size, |batch| {
        let gradients = model.gradients(backend, batch, &mut totals)?;
        model.update(backend, &gradients, hyper.learning_rate)?;
        drop(gradients);
        step.images += batch.count;
        if observer.wants_loss(step) {
            observer.loss(step, totals.to_vec()?[TOTAL_LOSS] / step.images as f64);
        }
        if saver.is_due(step.images.div_ceil(hyper.batch_size)) {
            let totals = [TOTAL_LOSS, TOTAL_CORRECT].map({
                let totals = totals.to_vec()?;
                move |at| totals[at]
            });
            let wall_ms = begun.wall_ms + milliseconds_since(begin);
            saver.step(model, Begun { images: step.images, totals, wall_ms })?;
        }
        Ok(go_on(observer))
    })?;
    if seen.is_break() {
        return Ok(Break(()));
    }
    Ok(Continue(totals.to_vec()?[TOTAL_LOSS] / data.len() as f64))
}

/// Mean loss and accuracy over the validation set.
fn validate(
    backend: &mut dyn Backend,
    model: &Model,
    (feed, data): (&mut Feed, &Split),
    observer: &mut dyn Observer,
) -> Result<ControlFlow<(), (f64, f64)>> {
    let memory = backend.memory().clone();
    let order: Vec<u32> = (0..data.len() as u32).collect();
    let mut totals = memory.zeroed::<f64>(1, TOTALS)?;
    let seen = feed.batches(data, &order, VALIDATION_BATCH, |batch| {
        let logits = model.infer(backend, batch)?;
        backend.score(&logits, batch, &mut totals)?;
        Ok(go_on(observer))
    })?;
    if seen.is_break() {
        return Ok(Break(()));
    }
    let totals = totals.to_vec()?;
    Ok(Continue((totals[TOTAL_LOSS] / data.len() as f64, totals[TOTAL_CORRECT] / data.len() as f64)))
}

/// The order of an epoch's images.
fn shuffled(count: usize, seed: u64, epoch: usize) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(FIRST_ORDER_STREAM + epoch as u64);
    let mut order: Vec<u32> = (0..count as u32).collect();
    order.shuffle(&mut rng);
    order
}
