//! The training loop, the same on every device.
//!
//! It waits for the device to read the totals: once after an epoch's steps, once after its validation, and in between
//! when the observer asks for the loss. Else it is at most a few batches ahead of the device (`feed.rs`).
//!
//! Where there are several ranks, each runs this loop, over its share of every batch. They add up what they count, and stop
//! after the same step.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Instant;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::captured::{Captured, Trainee};
use crate::checkpoint::{Begun, Saver, Saving};
use crate::data::Dataset;
use crate::feed::{Feed, Upload};
use crate::hyper::{Epoch, Hyper};
use crate::optimizer::Optimizer;
use crate::rank_share::Share;
use crate::ranks::Team;
use crate::stop_votes::StopVotes;
use crate::totals::Totals;
use crate::{Backend, Error, Model, Result, Sgd, TOTAL_CORRECT, TOTAL_LOSS};

/// Images in a batch of the validation, which needs no gradients and so little memory for each.
pub(crate) const VALIDATION_BATCH: usize = 1000;

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

    /// The mean loss of the epoch so far, over the images of this rank, after [`wants_loss`](Self::wants_loss) said so.
    fn loss(&mut self, step: Step, mean: f64);

    /// An epoch is over.
    fn epoch(&mut self, epoch: &Epoch);

    /// Whether to stop here, in the middle of an epoch. Called after every step and every batch of the validation.
    fn stops(&mut self) -> bool {
        false
    }
}

/// What is trained, and what becomes of it.
#[derive(Debug, Clone, Copy)]
pub struct Task<'a> {
    /// The images.
    pub data: &'a Dataset,
    /// The model, and how it is trained.
    pub hyper: &'a Hyper,
    /// Where checkpoints are written, and the one to go on from. With a team, rank 0 alone has it.
    pub saving: Option<&'a Saving>,
    /// This process among several. All of them have the same data and settings.
    pub team: Option<&'a Team>,
    /// How steps get to the device.
    pub steps: Steps,
}

/// How steps get to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Steps {
    /// As it is fastest on the device: captured on a GPU. Eager with a team, or where memory for the data set is missing.
    #[default]
    Auto,
    /// Each operation is launched when its turn comes.
    Eager,
    /// Captured once as graphs, and replayed. The data set is on the device. Not with a team.
    Captured,
}

impl<'a> Task<'a> {
    /// A training of this process alone, without checkpoints.
    pub fn new(data: &'a Dataset, hyper: &'a Hyper) -> Self {
        Self { data, hyper, saving: None, team: None, steps: Steps::Auto }
    }

    fn share(&self) -> Share {
        let (rank, ranks) = self.team.map_or((0, 1), |team| (team.rank(), team.size()));
        Share { rank, ranks, parts: self.hyper.micro_batches }
    }

    /// The error to end with, which other ranks are told.
    fn ended_by(&self, error: Error) -> Error {
        match self.team {
            Some(team) => team.ended_by(error),
            None => error,
        }
    }
}

/// Trains with the memory of `backend` and batches that come by `upload`. Returns what each epoch gave. An epoch in which
/// the observer stopped the training is left out.
///
/// # Errors
/// As for [`Training::epoch`].
pub fn train(
    backend: &mut dyn Backend,
    upload: &Upload,
    task: Task<'_>,
    observer: &mut dyn Observer,
) -> Result<Vec<Epoch>> {
    let mut training = Training::begin(backend, upload, task)?;
    while training.epoch(observer)?.is_some() {}
    Ok(training.saver.progress.epochs)
}

/// A training on its way, epoch by epoch: several may take turns.
pub struct Training<'a> {
    task: Task<'a>,
    share: Share,
    backend: &'a mut dyn Backend,
    optimizer: Optimizer<'a>,
    model: Model,
    way: Way,
    /// Of the training, and of the validation.
    totals: [Totals; 2],
    saver: Saver<'a>,
    asking: StopVotes,
    /// The order of the images in the next epoch, where the host had time for it.
    next_order: Option<(usize, Vec<u32>)>,
    /// Calls that moved device memory, before the next epoch.
    calls_before: u64,
}

/// How batches and steps get to the device.
enum Way {
    Eager(Feed),
    Captured(Captured),
}

impl Way {
    fn new(task: Task<'_>, upload: &Upload, trainee: Trainee<'_, '_>) -> Result<Self> {
        let (Task { data, hyper, steps, team, .. }, share) = (task, trainee.share);
        let memory = trainee.backend.memory().clone();
        let is_wanted = steps == Steps::Captured || steps == Steps::Auto && trainee.backend.prefers_graphs();
        if is_wanted && team.is_none() {
            match Captured::new(trainee, (data, hyper), upload, VALIDATION_BATCH) {
                Err(Error::Memory(millpond::Error::OutOfMemory(_))) if steps == Steps::Auto => {}
                captured => return captured.map(Self::Captured),
            }
        }
        let batch = hyper.batch_size.min(data.train.len());
        let most = batch.max(VALIDATION_BATCH.min(data.validation.len())).div_ceil(share.pieces());
        let feed = Feed::new(&memory, upload, most, data.train.row())?;
        // What the validation takes at most is asked for once before smaller tensors. Otherwise the first validation would take
        // pages from among them, and the second epoch would ask the device to have them back.
        let widest = hyper.feat_dim.max(data.pixels());
        drop([(); 2].map(|()| memory.uninit::<f32>(most, widest)));
        Ok(Self::Eager(feed))
    }
}

impl std::fmt::Debug for Training<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Training").field("task", &self.task).finish_non_exhaustive()
    }
}

impl<'a> Training<'a> {
    /// Places the weights, or those of the checkpoint to go on from.
    ///
    /// # Errors
    /// As for [`epoch`](Self::epoch).
    pub fn begin(backend: &'a mut dyn Backend, upload: &Upload, task: Task<'a>) -> Result<Self> {
        Self::placed(backend, upload, task).map_err(|error| task.ended_by(error))
    }

    fn placed(backend: &'a mut dyn Backend, upload: &Upload, task: Task<'a>) -> Result<Self> {
        let (Task { data, hyper, saving, team, .. }, share) = (task, task.share());
        let memory = backend.memory().clone();
        let calls_before = memory.usage().calls.memory();
        let batch = hyper.batch_size.min(data.train.len());
        if batch < share.pieces() {
            return Err(Error::Launcher {
                what: format!(
                    "a batch of {batch} cannot be cut into {} parts: raise --batch-size, or take fewer ranks or parts",
                    share.pieces()
                ),
            });
        }
        let saver = Saver::new(saving, team, hyper, data)?;
        let &Hyper { num_layers, feat_dim, seed, .. } = hyper;
        let mut model = match saver.weights() {
            None => Model::new(&memory, data.pixels(), num_layers, feat_dim, seed)?,
            Some(weights) => Model::with_weights(&memory, data.pixels(), num_layers, feat_dim, weights)?,
        };
        memory.synchronize()?;
        let sgd = Sgd { rate: hyper.learning_rate, momentum: hyper.momentum };
        let mut optimizer = Optimizer::new(backend, &mut model, sgd, team)?;
        optimizer.begin(backend, &model)?;
        if saver.is_resumed() {
            optimizer.resume(backend, &model, saver.velocities())?;
        }
        // Another training of these ranks may be next, by the same connections.
        memory.synchronize()?;
        let mut totals = [Totals::new(backend, share)?, Totals::new(backend, share)?];
        let trainee = Trainee {
            backend: &mut *backend,
            optimizer: &mut optimizer,
            model: &mut model,
            totals: &mut totals,
            share,
        };
        let way = Way::new(task, upload, trainee)?;
        let asking = StopVotes::new();
        Ok(Self {
            task,
            share,
            backend,
            optimizer,
            model,
            way,
            totals,
            saver,
            asking,
            next_order: None,
            calls_before,
        })
    }

    /// The epochs that are done, those of a checkpoint too.
    pub fn epochs(&self) -> &[Epoch] {
        &self.saver.progress.epochs
    }

    /// Trains and validates once more. `None` where all epochs are done, or the observer stopped this one.
    ///
    /// # Errors
    /// The allocator's and the device's own, [`Error::Diverged`], those of writing a checkpoint, and [`Error::RankLost`].
    pub fn epoch(&mut self, observer: &mut dyn Observer) -> Result<Option<Epoch>> {
        // Its memory is freed after the other ranks know of an error. The device may wait for them.
        self.next(observer).map_err(|error| self.task.ended_by(error))
    }

    fn next(&mut self, observer: &mut dyn Observer) -> Result<Option<Epoch>> {
        let epoch = self.saver.progress.epochs.len() + 1;
        if epoch > self.task.hyper.epochs {
            return Ok(None);
        }
        let (begin, begun) = (Instant::now(), self.saver.progress.begun);
        let Continue(train_loss) = self.train(epoch, observer)? else { return Ok(None) };
        let Continue((val_loss, val_accuracy)) = self.validate(observer)? else { return Ok(None) };
        let memory = self.backend.memory();
        memory.synchronize()?;
        self.task.team.map_or(Ok(()), Team::check)?;
        let calls = memory.usage().calls.memory();
        let report = Epoch {
            epoch,
            train_loss,
            val_loss,
            val_accuracy,
            wall_ms: begun.wall_ms + milliseconds_since(begin),
            device_calls: calls - self.calls_before,
        };
        self.calls_before = calls;
        observer.epoch(&report);
        if !train_loss.is_finite() {
            return Err(Error::Diverged { epoch, loss: train_loss });
        }
        let velocities =
            if self.saver.saves { self.optimizer.velocities(&*self.backend)? } else { Vec::new() };
        self.saver.epoch(&self.model, &velocities, report.clone())?;
        Ok(Some(report))
    }

    /// One pass over the training set, or the rest of it; the mean loss.
    fn train(&mut self, epoch: usize, observer: &mut dyn Observer) -> Result<ControlFlow<(), f64>> {
        let Self {
            task,
            share,
            backend,
            optimizer,
            model,
            way,
            totals: [totals, _],
            saver,
            asking,
            next_order,
            ..
        } = self;
        let (Task { data, hyper, team, .. }, share) = (*task, *share);
        let (began, begun) = (Instant::now(), saver.progress.begun);
        let data = &data.train;
        let order_of = |epoch| order(data.len(), hyper.seed, epoch);
        let order = next_order.take().filter(|(of, _)| *of == epoch).map(|(_, order)| order);
        let order = order.unwrap_or_else(|| order_of(epoch));
        // What an epoch counted before a checkpoint is rank 0's.
        let (before, mine) = if share.rank == 0 { (begun.totals, begun.images) } else { Default::default() };
        totals.begin(before)?;
        let step = Step { epoch, images: begun.images, of: data.len() };
        let due = saver.every.map(|steps| steps * hyper.batch_size);
        let mut pass = Pass { step, mine, begun, began, team, saver, asking, observer };
        let seen = match way {
            Way::Captured(captured) => {
                let seen = captured.train(&order, begun.images, due, |images| {
                    pass.mine += images;
                    pass.stepped(images, hyper.batch_size, (totals, optimizer, model, &**backend))
                });
                // While the device works.
                *next_order = (epoch < hyper.epochs).then(|| (epoch + 1, order_of(epoch + 1)));
                seen
            }
            Way::Eager(feed) => {
                let pieces = order[begun.images..].chunks(hyper.batch_size).flat_map(|batch| share.of(batch));
                feed.batches(data, pieces, |batch, piece| {
                    let kept = backend.memory().clone();
                    let is_kept = epoch == 1 && pass.step.images < 2 * hyper.batch_size;
                    let kept = kept.ledger().filter(|_| is_kept);
                    kept.inspect(|ledger| ledger.phase("forward", piece.is_first));
                    optimizer.add(*backend, model, (batch, piece), &mut totals.parts[piece.part])?;
                    pass.mine += batch.count;
                    if !piece.is_last {
                        return Ok(Continue(()));
                    }
                    kept.inspect(|ledger| ledger.phase("update", false));
                    optimizer.step(*backend, model)?;
                    kept.inspect(|ledger| ledger.ends());
                    pass.stepped(piece.of, hyper.batch_size, (totals, optimizer, model, &**backend))
                })
            }
        }?;
        if seen.is_break() {
            return Ok(Break(()));
        }
        Ok(Continue(totals.sum(team)?[TOTAL_LOSS] / data.len() as f64))
    }

    /// Mean loss and accuracy over the validation set.
    fn validate(&mut self, observer: &mut dyn Observer) -> Result<ControlFlow<(), (f64, f64)>> {
        let Self { task, share, backend, model, way, totals: [_, totals], asking, .. } = self;
        let (Task { data: Dataset { validation: data, .. }, team, .. }, share) = (*task, *share);
        totals.begin(Default::default())?;
        let seen = match way {
            Way::Captured(captured) => {
                captured.validate()?;
                asking.go_on(|| observer.stops(), team)
            }
            Way::Eager(feed) => {
                let order: Vec<u32> = (0..data.len() as u32).collect();
                let pieces = order.chunks(VALIDATION_BATCH).flat_map(|batch| share.of(batch));
                feed.batches(data, pieces, |batch, piece| {
                    if batch.count > 0 {
                        let logits = model.infer(*backend, batch)?;
                        backend.score(&logits, batch, &mut totals.parts[piece.part])?;
                    }
                    if piece.is_last { asking.go_on(|| observer.stops(), team) } else { Ok(Continue(())) }
                })
            }
        }?;
        if seen.is_break() {
            return Ok(Break(()));
        }
        let totals = totals.sum(team)?;
        Ok(Continue((totals[TOTAL_LOSS] / data.len() as f64, totals[TOTAL_CORRECT] / data.len() as f64)))
    }
}

/// An epoch on its way.
struct Pass<'p, 'a> {
    step: Step,
    /// Images of this rank so far.
    mine: usize,
    /// What was done before a checkpoint.
    begun: Begun,
    began: Instant,
    team: Option<&'p Team>,
    saver: &'p mut Saver<'a>,
    asking: &'p mut StopVotes,
    observer: &'p mut dyn Observer,
}

impl Pass<'_, '_> {
    /// Goes on after steps of so many images in batches of `batch`, which are queued.
    fn stepped(
        &mut self,
        images: usize,
        batch: usize,
        (totals, optimizer, model, backend): (&Totals, &Optimizer<'_>, &Model, &dyn Backend),
    ) -> Result<ControlFlow<()>> {
        let Self { step, mine, begun, began, team, saver, asking, observer } = self;
        step.images += images;
        if observer.wants_loss(*step) {
            observer.loss(*step, totals.here()?[TOTAL_LOSS] / *mine as f64);
        }
        if saver.every.is_some_and(|every| step.images.div_ceil(batch).is_multiple_of(every)) {
            let (totals, wall_ms) = (totals.sum(*team)?, begun.wall_ms + milliseconds_since(*began));
            let begun = Begun { images: step.images, totals, wall_ms };
            saver.step(model, &optimizer.velocities(backend)?, begun)?;
        }
        asking.go_on(|| observer.stops(), *team)
    }
}

fn milliseconds_since(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

/// The order of the images in an epoch, counted from 1.
pub fn order(count: usize, seed: u64, epoch: usize) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(FIRST_ORDER_STREAM + epoch as u64);
    let mut order: Vec<u32> = (0..count as u32).collect();
    order.shuffle(&mut rng);
    order
}
