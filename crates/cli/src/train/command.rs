//! The order of a training: settings, then one trial for each allocator, then what they did.

use std::path::PathBuf;
use std::sync::Arc;

use millpond::Budget;
use millpond::device::DeviceName;
use millpond_baselines::{Allocator, MILLPOND, NAMES};
use millpond_mlp::data::Dataset;
use millpond_mlp::ranks::{Ranks, Shard};
use millpond_mlp::{Config, Epoch, Hyper, Machine, Observer, Saving, Step, Steps};

use super::args::{Other, Sharded, TrainArgs};
use super::outcome::Outcome;
use super::progress::EpochProgress;
use super::pytorch;
use super::pytorch::{Compared, PyTorch};
use super::ranks;
use super::result_files::{Log, ResultFiles};
use super::trial::{Trial, TrialOptions};
use super::{step_picture, tables};
use crate::error::{Error, Result};
use crate::flags::{ALL, is_asked};
use crate::outputs::{Output, refuse_clashes, refuse_stdout};
use crate::terminal::{Interrupt, Signal, count, remark, say, thousands};

/// A run with its settings checked and its data read.
struct Trainings {
    wanted: TrialOptions,
    /// The allocators to train with.
    names: Vec<&'static str>,
    interrupt: Interrupt,
}

/// What there is so far, allocator by allocator, and where it is kept.
struct Trained {
    outcomes: Vec<Outcome>,
    results: ResultFiles,
}

/// Runs the command.
pub(crate) fn run(args: &TrainArgs) -> Result<()> {
    let Some(ranks) = ranks::meet()? else { return train(args, None) };
    ranks::ended(&ranks, train(args, Some(&ranks)))
}

/// Runs the command, as one of these ranks.
fn train(args: &TrainArgs, ranks: Option<&Arc<Ranks>>) -> Result<()> {
    let is_first = ranks.is_none_or(|ranks| ranks.place().rank == 0);
    let config = settings(args)?;
    let asked = std::slice::from_ref(&config.allocator);
    let names: Vec<_> = NAMES.into_iter().filter(|name| is_asked(asked, name)).collect();
    if args.record.is_some() && !names.contains(&MILLPOND) {
        return Err(Error::Usage(format!("--record is for the pool: add --allocator {MILLPOND} or {ALL}")));
    }
    if let Some(limit) = &args.limit {
        if names != [MILLPOND] {
            return Err(Error::Usage(format!("--limit is for the pool: train with --allocator {MILLPOND}")));
        }
        Budget::impose(limit)?;
    }
    let shard = shard(args, &config, ranks.is_some())?;
    if config.steps == Steps::Captured && ranks.is_some() {
        let why = "--steps captured is for a training of one process: leave it or the launcher out";
        return Err(Error::Usage(why.to_owned()));
    }
    refuse_to_write_over(args, &config)?;
    if args.save.is_some() && names.len() > 1 {
        return Err(Error::Usage(format!("--save keeps one training: name one allocator, not {ALL}")));
    }
    let data = match &config.data {
        Some(dir) => Dataset::from_dir(dir)?,
        None => Dataset::bundled()?,
    };
    let hyper = config.hyper();
    let pytorch = match args.compare {
        Some(Other::PyTorch) if ranks.is_some() || args.resume => {
            let why = "--compare is for a training of one process from its beginning: leave --resume and launchers out";
            return Err(Error::Usage(why.to_owned()));
        }
        Some(Other::PyTorch) => Some(PyTorch::find(&hyper, &data)?),
        None => None,
    };
    // Rank 0 alone writes.
    let record = args.record.clone().filter(|_| is_first);
    let [json, log_dir] = [&args.json, &config.log_dir].map(|path| path.as_deref().filter(|_| is_first));
    record.as_deref().map(Output::open).transpose()?;
    let results = ResultFiles::open(json, log_dir, names.len() > 1 || pytorch.is_some())?;
    let saving = if is_first { saving(args, &hyper, &data)? } else { None };
    let interrupt = Interrupt::watch();
    let (device, precision, steps, ranks) = (config.device, config.precision, config.steps, ranks.cloned());
    let is_watched = log_dir.is_some();
    let wanted =
        TrialOptions { device, hyper, precision, steps, data, record, saving, ranks, shard, is_watched };
    let run = Trainings { wanted, names, interrupt };
    let mut done = Trained { outcomes: Vec::new(), results };
    let ended = run.trials(&mut done).and_then(|stopped| match &pytorch {
        Some(pytorch) if stopped.is_none() => run.beside(pytorch, &mut done),
        _ => Ok(stopped),
    });
    done.outcomes.retain(|outcome| !outcome.epochs.is_empty());
    if !done.outcomes.is_empty() {
        done.results.finish(&done.outcomes)?;
    }
    match ended? {
        None => Ok(()),
        Some(signal) => Err(Error::Stopped { signal, kept: run.kept(&done) }),
    }
}

/// What is split over the ranks.
fn shard(args: &TrainArgs, config: &Config, has_ranks: bool) -> Result<Shard> {
    let Some(shard) = args.shard else { return Ok(Shard::Nothing) };
    if !has_ranks {
        return Err(Error::Usage(
            "--shard splits over several processes: start them with torchrun, mpirun or srun".to_owned(),
        ));
    }
    match shard {
        Sharded::Gradients if config.micro_batches > 1 => Err(Error::Usage(
            "--shard gradients sums each batch at once: leave --micro-batches out, or say --shard optimizer"
                .to_owned(),
        )),
        Sharded::Gradients => Ok(Shard::Gradients),
        Sharded::Optimizer => Ok(Shard::Optimizer),
    }
}

/// Where checkpoints go, and the one to go on from. One that is there is not overwritten by another training.
fn saving(args: &TrainArgs, hyper: &Hyper, data: &Dataset) -> Result<Option<Saving>> {
    let Some(dir) = &args.save else { return Ok(None) };
    let saving = Saving::new(dir, args.save_every)?;
    if args.resume {
        return Ok(Some(saving.resume(hyper, data)?));
    }
    if saving.file().exists() {
        let file = saving.file().display();
        return Err(Error::Usage(format!("{file} is there already: add --resume, or name another folder")));
    }
    Ok(Some(saving))
}

/// Refuses to write over the settings or the data, and to write two things to one file.
fn refuse_to_write_over(args: &TrainArgs, config: &Config) -> Result<()> {
    let data = config.data.iter().flat_map(|folder| Dataset::files(folder));
    let read: Vec<_> = args.config.iter().cloned().chain(data).collect();
    let read: Vec<_> = read.iter().map(PathBuf::as_path).collect();
    refuse_stdout("--record", args.record.as_deref(), "a recording needs a file")?;
    refuse_stdout("--log-dir", config.log_dir.as_deref(), "curves need a folder")?;
    refuse_stdout("--save", args.save.as_deref(), "a checkpoint needs a folder")?;
    let [csv, svg, memory] = Log::files(config.log_dir.as_deref());
    let saved = args.save.as_deref().map(Saving::file_in);
    let [json, record] = [&args.json, &args.record].map(Option::as_deref);
    let written = [json, record, csv.as_deref(), svg.as_deref(), memory.as_deref(), saved.as_deref()];
    refuse_clashes(&read, &written)
}

/// The settings of the file, with the flags laid over them.
fn settings(args: &TrainArgs) -> Result<Config> {
    let mut config = match &args.config {
        Some(file) => Config::read(file)?,
        None => Config::default(),
    };
    args.lay_over(&mut config);
    Ok(config)
}

impl Trainings {
    /// Trains with each allocator, epoch by epoch in turn, until a signal comes.
    fn trials(&self, done: &mut Trained) -> Result<Option<Signal>> {
        let mut trials = Vec::new();
        for &name in &self.names {
            let trial = Trial::open(&self.wanted, name).map_err(|error| self.explained(name, error))?;
            if trials.is_empty() {
                if let Some(why) = &trial.why_not_cuda {
                    remark(&on_the_cpu(why));
                }
                self.introduce(&trial.machine, name);
            }
            done.outcomes.push(trial.outcome(&self.wanted));
            trials.push(trial);
        }
        let stopped = self.turns(&mut trials, done)?;
        for (trial, outcome) in trials.iter().zip(&mut done.outcomes) {
            let counted = trial.end(&self.wanted, outcome);
            counted.map_err(|error| self.explained(trial.name, error))?;
            if !self.compares() {
                say(&trial.account(outcome));
            }
        }
        if self.compares() {
            say(&tables::comparison(&done.outcomes));
        }
        for trial in &trials {
            trial.stop_recording()?;
        }
        if let Some(step) = trials.first().and_then(Trial::step).filter(|step| !step.live.is_empty()) {
            done.results.step(|| step_picture::svg(&step))?;
        }
        Ok(stopped)
    }

    /// Trains the same with PyTorch, and shows both.
    fn beside(&self, pytorch: &PyTorch, done: &mut Trained) -> Result<Option<Signal>> {
        let TrialOptions { hyper, precision, data, .. } = &self.wanted;
        let device =
            done.outcomes.first().and_then(|outcome| outcome.device.parse().ok()).unwrap_or(DeviceName::HOST);
        say("");
        let compared = Compared { device, hyper, precision: *precision, data };
        let others = pytorch.train(&compared, || self.interrupt.signal().is_some())?;
        done.outcomes.extend(others);
        say(&pytorch::table(&done.outcomes));
        self.signal()
    }

    /// One epoch with each allocator after the other. Who begins changes, so that each follows every other.
    fn turns(&self, trials: &mut [Trial], done: &mut Trained) -> Result<Option<Signal>> {
        let mut progress = EpochProgress::new(self.wanted.hyper.epochs, self.names.len());
        let mut trainings = Vec::new();
        for trial in trials {
            let name = trial.name;
            let training = trial.begin(&self.wanted).map_err(|error| self.explained(name, error))?;
            trainings.push((name, training));
        }
        if !self.compares() {
            progress.say_titles();
        }
        let resumed =
            self.wanted.saving.as_ref().and_then(Saving::resumed_from).map_or(0, |from| from.epochs().len());
        for turn in resumed..self.wanted.hyper.epochs {
            for at in (0..trainings.len()).map(|place| (place + turn) % self.names.len()) {
                let (name, (training, allocator)) = &mut trainings[at];
                progress.turn(self.compares().then_some(*name));
                let mut watch =
                    TrainingWatch { run: self, allocator: &**allocator, done, at, progress: &mut progress };
                let ended = training.epoch(&mut watch);
                ended.map_err(|error| self.explained(name, error.into()))?;
                let stopped = self.signal()?;
                if stopped.is_some() {
                    return Ok(stopped);
                }
            }
        }
        self.signal()
    }

    /// The signal that came, to this rank or to another.
    fn signal(&self) -> Result<Option<Signal>> {
        let here = self.interrupt.signal();
        let Some(ranks) = &self.wanted.ranks else { return Ok(here) };
        let all = ranks.gather(&here.map(Signal::number))?;
        Ok(all.into_iter().flatten().max().map(Signal::of_number))
    }

    /// Which allocator it was, where there are several.
    fn explained(&self, name: &str, error: Error) -> Error {
        if self.compares() || name != MILLPOND {
            return Error::Trial { allocator: name.to_owned(), error: error.into() };
        }
        error
    }

    fn compares(&self) -> bool {
        self.names.len() > 1
    }

    fn introduce(&self, machine: &Machine, name: &str) {
        let Hyper { num_layers, feat_dim, learning_rate, batch_size, epochs, seed, .. } = self.wanted.hyper;
        say(&match (self.compares(), name) {
            (true, _) => {
                "Trains the same neural network with each allocator, epoch by epoch in turn.".to_owned()
            }
            (_, MILLPOND) => "Trains a neural network. All of its memory comes from the pool.".to_owned(),
            _ => format!("Trains a neural network. All of its memory comes from the allocator {name}."),
        });
        say(&format!("device: {} ({})", machine.name(), machine.describe()));
        say(&format!(
            "data:   {}, {} to learn from, {} to check with",
            self.wanted.data.source,
            count(self.wanted.data.train.labels.len() as u64, "image"),
            thousands(self.wanted.data.validation.labels.len() as u64)
        ));
        say(&format!(
            "model:  {} of {feat_dim}, batches of {batch_size}, {}, rate {learning_rate}, seed {seed}\n",
            count(num_layers as u64, "hidden layer"),
            count(epochs as u64, "epoch"),
        ));
        if let Some(ranks) = &self.wanted.ranks {
            say(&format!(
                "ranks:  {}, each with its part of every batch; this is rank 0\n",
                ranks.place().world
            ));
        }
        if let Some(saving) = &self.wanted.saving {
            say(&match saving.resumed_from() {
                None => format!("checkpoint: {}\n", saving.file().display()),
                Some(from) => format!(
                    "goes on from {}: {} and {} of the next are done\n",
                    saving.file().display(),
                    count(from.epochs().len() as u64, "epoch"),
                    count(from.images() as u64, "image")
                ),
            });
        }
    }

    /// What a run that was stopped has done, for people.
    fn kept(&self, done: &Trained) -> String {
        let epochs = |outcome: &Outcome| outcome.epochs.len();
        let whole: usize = done.outcomes.iter().map(epochs).sum();
        // PyTorch's come after those of the allocators.
        let all = self.wanted.hyper.epochs * self.names.len().max(done.outcomes.len());
        let written =
            if whole > 0 && done.results.are_asked() { ", and their results are written" } else { "" };
        format!("{} of {} are done{written}", thousands(whole as u64), count(all as u64, "epoch"))
    }
}

/// Why the CPU trains, for people who asked for nothing else.
fn on_the_cpu(why_not_cuda: &millpond_mlp::Error) -> String {
    match why_not_cuda {
        millpond_mlp::Error::Library { library, .. } => {
            format!("{library} is missing, so this trains on the CPU; `--device cuda` says what to install.")
        }
        _ => "No usable NVIDIA GPU, so this trains on the CPU; `millpond info` says why.".to_owned(),
    }
}

/// Watches a training: shows it, keeps what is done, and stops it when a signal came.
struct TrainingWatch<'a> {
    run: &'a Trainings,
    allocator: &'a dyn Allocator,
    done: &'a mut Trained,
    /// Which of the outcomes it is.
    at: usize,
    progress: &'a mut EpochProgress,
}

impl Observer for TrainingWatch<'_> {
    fn wants_loss(&mut self, step: Step) -> bool {
        self.progress.wants_loss(step)
    }

    fn loss(&mut self, step: Step, mean: f64) {
        self.progress.loss(step, mean);
    }

    fn epoch(&mut self, epoch: &Epoch) {
        self.progress.end_epoch();
        if !self.run.compares() {
            self.progress.epoch(epoch);
        }
        let Trained { outcomes, results } = &mut *self.done;
        outcomes[self.at].epochs.push(epoch.clone());
        outcomes[self.at].count(&self.allocator.usage());
        results.keep(outcomes);
    }

    fn stops(&mut self) -> bool {
        self.run.interrupt.signal().is_some()
    }
}
