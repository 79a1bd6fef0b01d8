//! `millpond train`: settings, then one trial for each allocator, then what they did.

use std::path::PathBuf;
use std::sync::Arc;

use millpond::Pool;
use millpond::device::DeviceChoice;
use millpond_baselines::{Allocator, MILLPOND, NAMES, Usage, by_name};
use millpond_mlp::data::Dataset;
use millpond_mlp::{Config, Epoch, Hyper, Machine, Memory};

use crate::account::{self, Outcome};
use crate::args::TrainArgs;
use crate::choices::{allocators, is_asked};
use crate::curves;
use crate::error::{Error, Result};
use crate::outputs::{Log, Output, refuse_clashes, refuse_stdout};
use crate::progress::Progress;
use crate::screen::{count, remark, say, thousands};

/// A run with its settings checked and its files open.
struct Run {
    device: DeviceChoice,
    hyper: Hyper,
    tf32: bool,
    data: Dataset,
    /// Where the pool is recorded to.
    record: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &TrainArgs) -> Result<()> {
    let (config, origin) = settings(args)?;
    let (device, hyper) = config.check(&origin)?;
    let names = chosen(&config, &origin)?;
    if args.record.is_some() && !names.contains(&MILLPOND) {
        return Err(Error::Usage(format!("--record records the pool: add --allocator {}", MILLPOND)));
    }
    refuse_to_write_over(args, &config)?;
    let log = config.log_dir.as_deref().map(Log::open).transpose()?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let data = match &config.data {
        Some(dir) => Dataset::from_dir(dir)?,
        None => Dataset::bundled()?,
    };
    let run = Run { device, hyper, tf32: config.tf32, data, record: args.record.clone() };

    let mut outcomes = Vec::new();
    for &name in &names {
        let outcome = run.trial(name, outcomes.is_empty());
        outcomes
            .push(outcome.map_err(|error| Error::Trial { allocator: name.to_owned(), error: error.into() })?);
    }
    if let [_, _, ..] = outcomes[..] {
        say(&format!("\n{}", account::comparison(&outcomes)));
    }
    if let Some(log) = log {
        say(&format!("\ncurves: {} and {}", log.csv.path().display(), log.svg.path().display()));
        log.csv.write(&curves::csv(&outcomes))?;
        let picture =
            curves::svg(&outcomes).map_err(|why| Error::Drawing { path: log.svg.path().to_owned(), why })?;
        log.svg.write(&picture)?;
    }
    match json {
        Some(file) => write_json(file, &outcomes),
        None => Ok(()),
    }
}

/// Refuses to write over the settings or the data, and to write two things to one file.
fn refuse_to_write_over(args: &TrainArgs, config: &Config) -> Result<()> {
    let data = config.data.iter().flat_map(|folder| Dataset::files(folder));
    let read: Vec<_> = args.config.iter().cloned().chain(data).collect();
    let read: Vec<_> = read.iter().map(PathBuf::as_path).collect();
    refuse_stdout("--record", args.record.as_deref(), "a recording needs a file")?;
    refuse_stdout("--log-dir", config.log_dir.as_deref(), "curves need a folder")?;
    let [csv, svg] = Log::files(config.log_dir.as_deref());
    let written = [args.json.as_deref(), args.record.as_deref(), csv.as_deref(), svg.as_deref()];
    refuse_clashes(&read, &written)
}

/// The settings, and where they came from.
fn settings(args: &TrainArgs) -> Result<(Config, String)> {
    let (mut config, origin) = match &args.config {
        Some(file) => (Config::read(file)?, format!("{} and flags", file.display())),
        None => (Config::default(), "flags".to_owned()),
    };
    args.lay_over(&mut config);
    Ok((config, origin))
}

/// The allocators to train with.
fn chosen(config: &Config, origin: &str) -> Result<Vec<&'static str>> {
    let asked = std::slice::from_ref(&config.allocator);
    let names: Vec<_> = NAMES.into_iter().filter(|name| is_asked(asked, name)).collect();
    if names.is_empty() {
        return Err(Error::Training(millpond_mlp::Error::Config {
            origin: origin.to_owned(),
            key: "allocator".to_owned(),
            found: format!("'{}'", config.allocator),
            expected: allocators().join(", "),
        }));
    }
    Ok(names)
}

impl Run {
    /// Trains with one allocator, on a device object of its own, so that nothing is left from the one before.
    fn trial(&self, name: &'static str, first: bool) -> Result<Outcome> {
        let (machine, why_not_cuda) = Machine::open(self.device)?;
        if first {
            if let Some(why) = why_not_cuda {
                remark(&format!("training on the CPU: {why}"));
            }
            self.introduce(&machine);
        }
        say(&format!("\nallocator: {name}"));
        // The pool tells more than the trait asks of everyone.
        let pool = (name == MILLPOND).then(|| self.pool(&machine)).transpose()?;
        let allocator: Arc<dyn Allocator> = match &pool {
            Some(pool) => Arc::new(pool.clone()),
            None => Arc::from(by_name(name, machine.context())?),
        };
        let memory = Memory::new(allocator.clone(), machine.context().create_stream()?);
        let mut backend = machine.backend(memory, self.tf32)?;
        let mut progress = Progress::new(self.hyper.epochs);
        let epochs = millpond_mlp::train(backend.as_mut(), &self.data, &self.hyper, &mut progress)?;
        drop(progress);

        let usage = allocator.usage();
        say(&match &pool {
            Some(pool) => account::of_pool(&pool.stats(), &epochs),
            None => account::of_baseline(&usage),
        });
        if let Some(recorded) = pool.as_ref().map(Pool::stop_recording).transpose()?.flatten() {
            let events = count(recorded.events, "event");
            say(&format!("recorded {events}: millpond replay {}", recorded.path.display()));
        }
        Ok(outcome(&machine, name, epochs, usage))
    }

    fn pool(&self, machine: &Machine) -> millpond::Result<Pool> {
        let builder = Pool::builder(machine.context()).name(MILLPOND);
        match &self.record {
            Some(path) => builder.record(path.as_path()).build(),
            None => builder.build(),
        }
    }

    fn introduce(&self, machine: &Machine) {
        let Hyper { num_layers, feat_dim, learning_rate, batch_size, epochs, seed } = self.hyper;
        say(&format!("device: {} ({})", machine.name(), machine.describe()));
        say(&format!(
            "data: {}, {} to train on and {} to validate with",
            self.data.source,
            count(self.data.train.labels.len() as u64, "image"),
            thousands(self.data.validation.labels.len() as u64)
        ));
        say(&format!(
            "model: hidden layers {num_layers} x {feat_dim}; learning rate {learning_rate}, batch {batch_size}, \
             epochs {epochs}, seed {seed}"
        ));
    }
}

fn outcome(machine: &Machine, name: &str, epochs: Vec<Epoch>, usage: Usage) -> Outcome {
    Outcome {
        device: machine.name().to_string(),
        allocator: name.to_owned(),
        epochs,
        peak_reserved: usage.reserved.high,
        peak_requested: usage.requested.high,
    }
}

/// One object for one allocator, a list for several.
fn write_json(file: Output, outcomes: &[Outcome]) -> Result<()> {
    let text = match outcomes {
        [one] => serde_json::to_string_pretty(one),
        several => serde_json::to_string_pretty(several),
    };
    match text {
        Ok(text) => file.write(&(text + "\n")),
        Err(error) => {
            Err(Error::Io { path: file.path().to_owned(), action: "write it", source: error.into() })
        }
    }
}
