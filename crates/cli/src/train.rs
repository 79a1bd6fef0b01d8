//! `millpond train`: settings, then one trial for each allocator, then what they did.

use std::path::PathBuf;
use std::sync::Arc;

use millpond::Pool;
use millpond::device::DeviceChoice;
use millpond_baselines::{Allocator, MILLPOND, NAMES, by_name};
use millpond_mlp::data::Dataset;
use millpond_mlp::ranks::{Ranks, Shard};
use millpond_mlp::{Config, Epoch, Hyper, Machine, Memory, Observer, Saving, Step, Upload};

use crate::account::{self, Outcome};
use crate::args::{Sharded, TrainArgs};
use crate::choices::{ALL, is_asked};
use crate::error::{Error, Result};
use crate::interrupt::{Interrupt, Signal};
use crate::outputs::{Log, Output, refuse_clashes, refuse_stdout};
use crate::progress::Progress;
use crate::ranks::{self, RankMemory};
use crate::results::Results;
use crate::screen::{count, remark, say, thousands};

/// A run with its settings checked and its data read.
struct Run {
    device: DeviceChoice,
    hyper: Hyper,
    tf32: bool,
    data: Dataset,
    /// The allocators to train with.
    names: Vec<&'static str>,
    /// Where the pool is recorded to.
    record: Option<PathBuf>,
    saving: Option<Saving>,
    interrupt: Interrupt,
    /// Where a launcher has started several.
    ranks: Option<Arc<Ranks>>,
    shard: Shard,
}

/// What there is so far, allocator by allocator, and where it is kept.
struct Done {
    outcomes: Vec<Outcome>,
    results: Results,
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
    let shard = shard(args, &config, ranks.is_some())?;
    refuse_to_write_over(args, &config)?;
    if args.save.is_some() && names.len() > 1 {
        return Err(Error::Usage(format!("--save keeps one training: name one allocator, not {ALL}")));
    }
    let data = match &config.data {
        Some(dir) => Dataset::from_dir(dir)?,
        None => Dataset::bundled()?,
    };
    // Rank 0 alone writes.
    let record = args.record.clone().filter(|_| is_first);
    let [json, log_dir] = [&args.json, &config.log_dir].map(|path| path.as_deref().filter(|_| is_first));
    record.as_deref().map(Output::open).transpose()?;
    let results = Results::open(json, log_dir, names.len())?;
    let hyper = config.hyper();
    let saving = if is_first { saving(args, &hyper, &data)? } else { None };
    let interrupt = Interrupt::watch();
    let (device, tf32, ranks) = (config.device, config.tf32, ranks.cloned());
    let run = Run { device, hyper, tf32, data, names, record, saving, interrupt, ranks, shard };
    let mut done = Done { outcomes: Vec::new(), results };
    let ended = run.trials(&mut done);
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
    let [csv, svg] = Log::files(config.log_dir.as_deref());
    let saved = args.save.as_deref().map(Saving::file_in);
    let [json, record] = [&args.json, &args.record].map(Option::as_deref);
    let written = [json, record, csv.as_deref(), svg.as_deref(), saved.as_deref()];
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

impl Run {
    /// Trains with each allocator in turn, until a signal comes.
    fn trials(&self, done: &mut Done) -> Result<Option<Signal>> {
        let mut stopped = None;
        for &name in &self.names {
            let trial = self.trial(name, done);
            trial.map_err(|error| self.explained(name, error))?;
            stopped = self.signal()?;
            if stopped.is_some() {
                break;
            }
        }
        if self.compares() {
            say(&account::conclusion(&done.outcomes));
        }
        Ok(stopped)
    }

    /// The signal that came, to this rank or to another.
    fn signal(&self) -> Result<Option<Signal>> {
        let here = self.interrupt.signal();
        let Some(ranks) = &self.ranks else { return Ok(here) };
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

    /// Trains with one allocator, on a device object of its own, so that nothing is left from the one before.
    fn trial(&self, name: &'static str, done: &mut Done) -> Result<()> {
        let local_rank = self.ranks.as_ref().map_or(0, |ranks| ranks.place().local_rank);
        let (machine, why_not_cuda) = Machine::open_on(self.device, local_rank)?;
        let is_first = done.outcomes.is_empty();
        if is_first {
            if let Some(why) = why_not_cuda {
                remark(&on_the_cpu(&why));
            }
            self.introduce(&machine, name);
        }
        // The pool tells more than the trait asks of everyone.
        let pool = (name == MILLPOND).then(|| self.pool(&machine)).transpose()?;
        let allocator: Arc<dyn Allocator> = match &pool {
            Some(pool) => Arc::new(pool.clone()),
            None => Arc::from(by_name(name, machine.context())?),
        };
        let memory = Memory::new(allocator.clone(), machine.context().create_stream()?);
        let mut backend = machine.backend(memory, self.tf32)?;
        let upload = Upload::new(machine.context())?;
        let team = self.ranks.as_ref().map(|ranks| machine.team(ranks, self.shard)).transpose()?;
        let progress = Progress::new(self.hyper.epochs, self.compares().then_some(name));
        if is_first && self.compares() {
            say(&account::titles());
        } else if is_first {
            progress.say_titles();
        }
        let mut outcome = Outcome::new(&machine.name().to_string(), name);
        if let Some(from) = self.saving.as_ref().and_then(Saving::resumed_from) {
            outcome.epochs = from.epochs().to_vec();
        }
        done.outcomes.push(outcome);
        let mut watch = Watch { run: self, allocator: &*allocator, done, progress };
        let trained = millpond_mlp::train(
            backend.as_mut(),
            &upload,
            &self.data,
            &self.hyper,
            self.saving.as_ref(),
            team.as_ref(),
            &mut watch,
        );
        drop(watch.progress);
        trained?;

        let usage = allocator.usage();
        let Some(outcome) = done.outcomes.last_mut() else { return Ok(()) };
        outcome.count(&usage);
        if let Some(ranks) = &self.ranks {
            outcome.ranks = ranks.gather(&RankMemory {
                rank: ranks.place().rank,
                host: ranks::host(),
                device: outcome.device.clone(),
                peak_reserved: outcome.peak_reserved,
                peak_requested: outcome.peak_requested,
            })?;
        }
        if self.compares() {
            say(&account::line(outcome));
        } else {
            let pinned = upload.pinned().map(Pool::stats);
            say(&match &pool {
                Some(pool) => account::of_pool(&pool.stats(), pinned.as_ref(), &outcome.epochs),
                None => account::of_baseline(name, &usage, pinned.as_ref()),
            });
            if self.ranks.is_some() {
                say(&account::of_ranks(&outcome.ranks));
            }
        }
        if let Some(recorded) = pool.as_ref().map(Pool::stop_recording).transpose()?.flatten() {
            let events = count(recorded.events, "event");
            say(&format!("recorded {events}: millpond replay {}", recorded.path.display()));
        }
        Ok(())
    }

    fn pool(&self, machine: &Machine) -> millpond::Result<Pool> {
        let builder = Pool::builder(machine.context()).name(MILLPOND);
        match &self.record {
            Some(path) => builder.record(path.as_path()).build(),
            None => builder.build(),
        }
    }

    fn introduce(&self, machine: &Machine, name: &str) {
        let Hyper { num_layers, feat_dim, learning_rate, batch_size, epochs, seed, .. } = self.hyper;
        say(&match (self.compares(), name) {
            (true, _) => "Trains the same neural network with each allocator in turn.".to_owned(),
            (_, MILLPOND) => "Trains a neural network. All of its memory comes from the pool.".to_owned(),
            _ => format!("Trains a neural network. All of its memory comes from the allocator {name}."),
        });
        say(&format!("device: {} ({})", machine.name(), machine.describe()));
        say(&format!(
            "data:   {}, {} to learn from, {} to check with",
            self.data.source,
            count(self.data.train.labels.len() as u64, "image"),
            thousands(self.data.validation.labels.len() as u64)
        ));
        say(&format!(
            "model:  {} of {feat_dim}, batches of {batch_size}, {}, rate {learning_rate}, seed {seed}\n",
            count(num_layers as u64, "hidden layer"),
            count(epochs as u64, "epoch"),
        ));
        if let Some(ranks) = &self.ranks {
            say(&format!(
                "ranks:  {}, each with its part of every batch; this is rank 0\n",
                ranks.place().world
            ));
        }
        if let Some(saving) = &self.saving {
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
    fn kept(&self, done: &Done) -> String {
        let epochs = |outcome: &Outcome| outcome.epochs.len();
        let whole: usize = done.outcomes.iter().map(epochs).sum();
        let all = self.hyper.epochs * self.names.len();
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
struct Watch<'a> {
    run: &'a Run,
    allocator: &'a dyn Allocator,
    done: &'a mut Done,
    progress: Progress,
}

impl Observer for Watch<'_> {
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
        let Done { outcomes, results } = &mut *self.done;
        if let Some(outcome) = outcomes.last_mut() {
            outcome.epochs.push(epoch.clone());
            outcome.count(&self.allocator.usage());
        }
        results.keep(outcomes);
    }

    fn stops(&mut self) -> bool {
        self.run.interrupt.signal().is_some()
    }
}
