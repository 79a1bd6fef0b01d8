//! The device and the pools that a program runs on.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{Device, DeviceName};
use millpond::{Budget, Context, Pool, Result, ReusePolicies};
use serde::{Deserialize, Serialize};

use crate::options::Options;

/// Pools that a program has at once.
pub(crate) const POOLS: usize = 3;

/// Tags that the first of them has: pools of their own, which leave and come back.
pub(crate) const TAGS: usize = 2;

/// Places of pools, and behind them of tags.
pub(crate) const SLOTS: usize = POOLS + TAGS;

/// The place of the pool that has the memory of this one.
pub(crate) fn whole_of(slot: usize) -> usize {
    if slot < POOLS { slot } else { 0 }
}

/// Bytes of the smallest page.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// What a pool is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Memory {
    Device,
    Pinned,
    Managed,
}

/// How a program is run, apart from its steps. Pages are of the granularity.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    /// `sim`, `host`, `cuda` or `cuda:N`.
    pub(crate) device: String,
    pub(crate) capacity_pages: u64,
    pub(crate) virtual_memory: bool,
    pub(crate) pools: [Memory; POOLS],
    /// Streams of each thread.
    pub(crate) streams: usize,
    /// Whether streams wait for each other, whether work that is seen complete is followed, whether pools make streams wait.
    pub(crate) reuse: [bool; 3],
    /// Powers of two: the smallest page over the granularity, and the largest over the smallest.
    pub(crate) page_sizes: [u32; 2],
    release_threshold_pages: Option<u64>,
    hard_limit_pages: Option<u64>,
    budget_pages: Option<u64>,
    /// A budget that other processes share, by its name.
    named_budget: Option<String>,
    /// The chance of each device call to fail.
    pub(crate) faults: f64,
    /// Whether the host refuses memory. Such programs leave out what docs/out-of-memory.md says may end the process: captures,
    /// sleeps, new streams and pools, segments, and fences of three streams.
    pub(crate) refuses: bool,
    pub(crate) seed: u64,
}

impl Setup {
    /// That of the program with this seed, whose pools several threads share or not.
    pub(crate) fn random(options: &Options, seed: u64, is_shared: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let one_in = |rng: &mut Rng, many: u32| rng.u32(..many) == 0;
        // Scarce memory takes the slow paths; most programs have enough, and take many fast ones.
        let is_scarce = one_in(&mut rng, 8);
        let capacity_pages = if is_scarce { rng.u64(8..64) } else { 1024 };
        let mut limit = |least: u64| {
            let pages = rng.u64(least..if is_scarce { 48 } else { 512 });
            one_in(&mut rng, 6).then_some(pages)
        };
        let (release_threshold_pages, hard_limit_pages, budget_pages) = (limit(0), limit(8), limit(8));
        let refuses = !is_shared && one_in(&mut rng, 6);
        let pools = [(); POOLS].map(|()| match rng.u32(..8) {
            0 => Memory::Pinned,
            // Of segments, each of which has records that the host must not refuse.
            1 if !refuses => Memory::Managed,
            _ => Memory::Device,
        });
        Self {
            device: options.device.to_string(),
            capacity_pages,
            virtual_memory: refuses || !one_in(&mut rng, 6),
            pools,
            streams: if refuses { options.streams.min(2) } else { options.streams },
            refuses,
            reuse: [(); 3].map(|()| !one_in(&mut rng, 4)),
            page_sizes: [u32::from(one_in(&mut rng, 6)), rng.u32(..6)],
            release_threshold_pages,
            hard_limit_pages,
            budget_pages,
            named_budget: options
                .tenant
                .as_ref()
                .filter(|_| one_in(&mut rng, 64))
                .map(|tenant| tenant.budget.clone()),
            faults: if one_in(&mut rng, 4) { 0.0 } else { options.faults * 4.0 / 3.0 },
            seed,
        }
    }

    /// That of a job that repeats itself: its blocks are of whole pages of pools that remap them.
    pub(crate) fn of_job(options: &Options, seed: u64) -> Self {
        let random = Self::random(options, seed, true);
        let pools =
            random.pools.map(|memory| if memory == Memory::Managed { Memory::Device } else { memory });
        Self {
            virtual_memory: true,
            pools,
            refuses: false,
            page_sizes: [0, random.page_sizes[1] / 2],
            ..random
        }
    }

    /// That of a program whose calls fail where its steps say so, on the simulated device.
    pub(crate) fn without_faults(seed: u64) -> Self {
        let options = Options {
            device: DeviceName::SIM,
            operations: 0,
            time: None,
            faults: 0.0,
            threads: 1,
            streams: 4,
            seed: 0,
            tenant: None,
        };
        Self { refuses: false, ..Self::random(&options, seed, true) }
    }

    /// Three pools of the device's memory, and enough of it.
    #[cfg(test)]
    pub(crate) fn roomy() -> Self {
        Self {
            capacity_pages: 1024,
            virtual_memory: true,
            pools: [Memory::Device; POOLS],
            reuse: [true; 3],
            page_sizes: [0, 4],
            release_threshold_pages: None,
            hard_limit_pages: None,
            budget_pages: None,
            ..Self::without_faults(0)
        }
    }

    pub(crate) fn is_gpu(&self) -> bool {
        self.device.parse().is_ok_and(|name: DeviceName| name.is_gpu())
    }

    /// The device, and the same as a simulated one.
    pub(crate) fn open(&self) -> Result<Opened> {
        let bytes = self.capacity_pages * GRANULARITY;
        let name: DeviceName = self.device.parse().unwrap_or(DeviceName::SIM);
        if name == DeviceName::SIM {
            let options = SimOptions::default()
                .capacity(bytes)
                .pinned_capacity(bytes)
                .managed_capacity(bytes)
                .granularity(GRANULARITY)
                .virtual_memory(self.virtual_memory);
            let sim = SimDevice::new(options)?;
            return Ok((sim.clone(), Some(sim)));
        }
        if name == DeviceName::HOST {
            let options = HostOptions::default().capacity(bytes).pinned_capacity(bytes);
            return Ok((HostDevice::with_options(options)?, None));
        }
        Ok((name.open()?, None))
    }

    pub(crate) fn budget(&self) -> Result<Option<Budget>> {
        if let Some(name) = &self.named_budget {
            let budget = Budget::named(name, NAMED_BUDGET)?;
            // A program that lacks memory goes on without.
            budget.set_patience(Duration::ZERO)?;
            return Ok(Some(budget));
        }
        Ok(self.budget_pages.map(|pages| Budget::bytes(pages * GRANULARITY)))
    }

    /// Whether what other processes do decides what this one gets.
    pub(crate) fn has_named_budget(&self) -> bool {
        self.named_budget.is_some()
    }

    /// A new pool for the slot with this number.
    pub(crate) fn pool(&self, context: &Context, budget: Option<&Budget>, slot: usize) -> Result<Pool> {
        let builder = match self.pools[slot] {
            Memory::Device => Pool::builder(context),
            Memory::Pinned => context.pinned()?,
            Memory::Managed => context.managed()?,
        };
        let [follow_event_dependencies, opportunistic, internal_dependencies] = self.reuse;
        let smallest = GRANULARITY << self.page_sizes[0];
        let mut builder = builder
            .name(format!("pool {slot}"))
            .live(false)
            .reuse(ReusePolicies { follow_event_dependencies, opportunistic, internal_dependencies })
            .page_sizes(smallest, smallest << self.page_sizes[1]);
        if let Some(pages) = self.release_threshold_pages {
            builder = builder.release_threshold(pages * GRANULARITY);
        }
        if let Some(pages) = self.hard_limit_pages {
            builder = builder.hard_limit(pages * GRANULARITY);
        }
        if let Some(budget) = budget {
            builder = builder.budget(budget);
        }
        builder.build()
    }
}

/// A device, and the same where it is simulated.
pub(crate) type Opened = (Arc<dyn Device>, Option<Arc<SimDevice>>);

/// The limit of the budget that processes share.
pub(crate) const NAMED_BUDGET: u64 = 256 << 20;
