//! One allocator's training: its device, its memory, and what is said of it at the end.

use std::path::PathBuf;
use std::sync::Arc;

use millpond::Pool;
use millpond::device::DeviceChoice;
use millpond_baselines::{Allocator, MILLPOND, by_name};
use millpond_mlp::data::Dataset;
use millpond_mlp::ranks::{Ranks, Shard, Team};
use millpond_mlp::{
    Backend, Error as TrainingError, Hyper, Machine, Memory, Precision, Saving, StepMemory, Steps, Task,
    Training, Upload,
};

use super::outcome::Outcome;
use super::ranks::{self, RankMemory};
use super::tables;
use crate::error::Result;
use crate::terminal::{count, say};

/// What is wanted of all trials of a command.
pub(super) struct TrialOptions {
    pub(super) device: DeviceChoice,
    pub(super) hyper: Hyper,
    pub(super) precision: Precision,
    pub(super) steps: Steps,
    pub(super) data: Dataset,
    /// Where the pool is recorded to.
    pub(super) record: Option<PathBuf>,
    pub(super) saving: Option<Saving>,
    /// Where a launcher has started several.
    pub(super) ranks: Option<Arc<Ranks>>,
    pub(super) shard: Shard,
    /// Whether the memory of a step is kept.
    pub(super) is_watched: bool,
}

/// An allocator with a device object of its own: the others' memory and streams are not seen there.
pub(super) struct Trial {
    pub(super) name: &'static str,
    pub(super) machine: Machine,
    /// Why the CPU trains, if nobody asked for it.
    pub(super) why_not_cuda: Option<TrainingError>,
    allocator: Arc<dyn Allocator>,
    memory: Memory,
    backend: Box<dyn Backend>,
    upload: Upload,
    team: Option<Team>,
    /// The pool tells more than the trait asks of everyone.
    pool: Option<Pool>,
}

impl Trial {
    pub(super) fn open(wanted: &TrialOptions, name: &'static str) -> Result<Self> {
        let local_rank = wanted.ranks.as_ref().map_or(0, |ranks| ranks.place().local_rank);
        let (machine, why_not_cuda) = Machine::open_on(wanted.device, local_rank)?;
        let pool = (name == MILLPOND).then(|| {
            let builder = Pool::builder(machine.context()).name(MILLPOND);
            match &wanted.record {
                Some(path) => builder.record(path.as_path()).build(),
                None => builder.build(),
            }
        });
        let pool = pool.transpose()?;
        let allocator: Arc<dyn Allocator> = match &pool {
            Some(pool) => Arc::new(pool.clone()),
            None => Arc::from(by_name(name, machine.context())?),
        };
        let stream = machine.context().create_stream()?;
        let memory = match &pool {
            Some(pool) => Memory::of_pool(pool, stream),
            None => Memory::new(allocator.clone(), stream),
        };
        let memory = if wanted.is_watched { memory.watched() } else { memory };
        let backend = machine.backend(memory.clone(), wanted.precision)?;
        let upload = Upload::new(machine.context())?;
        let team = wanted.ranks.as_ref().map(|ranks| machine.team(ranks, wanted.shard)).transpose()?;
        Ok(Self { name, machine, why_not_cuda, allocator, memory, backend, upload, team, pool })
    }

    /// What it gave so far: nothing, or what the checkpoint has.
    pub(super) fn outcome(&self, wanted: &TrialOptions) -> Outcome {
        let resumed = wanted.saving.as_ref().and_then(Saving::resumed_from);
        let epochs = resumed.map_or_else(Vec::new, |from| from.epochs().to_vec());
        Outcome { epochs, ..Outcome::new(&self.machine.name().to_string(), self.name) }
    }

    /// Begins to train. Returns what is asked for the memory that it takes.
    pub(super) fn begin<'a>(
        &'a mut self,
        wanted: &'a TrialOptions,
    ) -> Result<(Training<'a>, Arc<dyn Allocator>)> {
        let &TrialOptions { ref data, ref hyper, ref saving, steps, .. } = wanted;
        let task = Task { data, hyper, saving: saving.as_ref(), team: self.team.as_ref(), steps };
        Ok((Training::begin(self.backend.as_mut(), &self.upload, task)?, self.allocator.clone()))
    }

    /// Counts what it took.
    pub(super) fn end(&self, wanted: &TrialOptions, outcome: &mut Outcome) -> Result<()> {
        outcome.count(&self.allocator.usage());
        if let Some(ranks) = &wanted.ranks {
            outcome.ranks = ranks.gather(&RankMemory {
                rank: ranks.place().rank,
                host: ranks::host(),
                device: outcome.device.clone(),
                peak_reserved: outcome.peak_reserved,
                peak_requested: outcome.peak_requested,
            })?;
        }
        Ok(())
    }

    /// The account of one that is not compared.
    pub(super) fn account(&self, outcome: &Outcome) -> String {
        let pinned = self.upload.pinned().map(Pool::stats);
        let account = match &self.pool {
            Some(pool) => tables::of_pool(&pool.stats(), pinned.as_ref(), &outcome.epochs),
            None => tables::of_baseline(self.name, &self.allocator.usage(), pinned.as_ref()),
        };
        if outcome.ranks.is_empty() { account } else { account + "\n" + &tables::of_ranks(&outcome.ranks) }
    }

    /// What the memory of a step was for.
    pub(super) fn step(&self) -> Option<StepMemory> {
        self.memory.step()
    }

    pub(super) fn stop_recording(&self) -> Result<()> {
        if let Some(recorded) = self.pool.as_ref().map(Pool::stop_recording).transpose()?.flatten() {
            let events = count(recorded.events, "event");
            say(&format!("recorded {events}: millpond replay {}", recorded.path.display()));
        }
        Ok(())
    }
}
