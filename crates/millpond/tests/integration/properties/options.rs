//! The devices and pools that programs run on.

use std::sync::Arc;

use millpond::device::MemoryKind;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Budget, Context, Pool, Result, ReusePolicies};
use proptest::prelude::*;

pub(crate) const GRANULARITY: u64 = 2 << 20;

/// How a case is run, apart from its program.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Memory of the device, in pages of the granularity.
    pub(crate) capacity: u64,
    pub(crate) virtual_memory: bool,
    /// What every second pool is of, if not of the device's memory. There is as much of it.
    pub(crate) other: Option<MemoryKind>,
    pub(crate) reuse: (bool, bool, bool),
    /// Powers of two: the smallest page over the granularity, and the largest over the smallest.
    pub(crate) pages: (u32, u32),
    pub(crate) min_alignment: u64,
    /// In pages of the granularity, as are the next two.
    pub(crate) release_threshold: Option<u64>,
    pub(crate) hard_limit: Option<u64>,
    pub(crate) headroom: u64,
    pub(crate) budget: Option<u64>,
    /// Chance of each device call to fail, in thousandths.
    pub(crate) failures: u32,
    pub(crate) seed: u64,
    pub(crate) ending: Ending,
}

/// In which order everything is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Blocks, then a synchronise and a trim, then pools and streams.
    Orderly,
    /// Streams, then pools with live blocks, then the blocks.
    PoolsFirst,
    /// Blocks, then pools while work is pending.
    Hasty,
}

impl Options {
    pub(crate) fn smallest_page(&self) -> u64 {
        GRANULARITY << self.pages.0
    }

    /// What the pool with this number is of.
    pub(crate) fn memory_of(&self, id: usize) -> MemoryKind {
        self.other.filter(|_| id.is_multiple_of(2)).unwrap_or_default()
    }

    pub(crate) fn policies(&self) -> ReusePolicies {
        let (follow_event_dependencies, opportunistic, internal_dependencies) = self.reuse;
        ReusePolicies { follow_event_dependencies, opportunistic, internal_dependencies }
    }

    pub(crate) fn device(&self) -> Arc<SimDevice> {
        let options = SimOptions::default()
            .capacity(self.capacity * GRANULARITY)
            .pinned_capacity(self.capacity * GRANULARITY)
            .managed_capacity(self.capacity * GRANULARITY)
            .granularity(GRANULARITY)
            .virtual_memory(self.virtual_memory);
        SimDevice::new(options).expect("the options are a device's")
    }

    pub(crate) fn budget(&self) -> Option<Budget> {
        self.budget.map(|pages| Budget::bytes(pages * GRANULARITY))
    }

    pub(crate) fn pool(&self, context: &Context, budget: Option<&Budget>, id: usize) -> Result<Pool> {
        let smallest = self.smallest_page();
        let builder = match self.memory_of(id) {
            MemoryKind::Pinned => context.pinned()?,
            MemoryKind::Managed => context.managed()?,
            _ => Pool::builder(context),
        };
        let mut builder = builder
            .name(format!("pool {id}"))
            // What is left at the end is counted at once: an answer to `millpond top` may have a pool for longer, when the
            // last block of one without handles goes.
            .live(false)
            .reuse(self.policies())
            .page_sizes(smallest, smallest << self.pages.1)
            .min_alignment(self.min_alignment)
            .headroom(self.headroom * GRANULARITY);
        if let Some(pages) = self.release_threshold {
            builder = builder.release_threshold(pages * GRANULARITY);
        }
        if let Some(pages) = self.hard_limit {
            builder = builder.hard_limit(pages * GRANULARITY);
        }
        if let Some(budget) = budget {
            builder = builder.budget(budget);
        }
        builder.build()
    }
}

pub(crate) fn options() -> impl Strategy<Value = Options> {
    let other = prop_oneof![
        2 => Just(None),
        1 => Just(Some(MemoryKind::Pinned)),
        1 => Just(Some(MemoryKind::Managed)),
    ];
    let device = (2..24_u64, prop::bool::weighted(0.8), other, any::<(bool, bool, bool)>());
    let min_alignment = prop_oneof![4 => Just(512_u64), 1 => Just(256), 1 => Just(4096), 1 => Just(2 << 20)];
    let sizes = (prop_oneof![4 => Just(0_u32), 1 => Just(1)], 0..5_u32, min_alignment);
    let limits = (
        prop::option::weighted(0.5, 0..8_u64),
        prop::option::weighted(0.2, 1..12_u64),
        prop_oneof![4 => Just(0_u64), 1 => 1..3_u64],
        prop::option::weighted(0.2, 1..16_u64),
    );
    let ending = prop_oneof![Just(Ending::Orderly), Just(Ending::PoolsFirst), Just(Ending::Hasty)];
    (device, sizes, limits, any::<u64>(), ending).prop_map(|(device, sizes, limits, seed, ending)| Options {
        capacity: device.0,
        virtual_memory: device.1,
        other: device.2,
        reuse: device.3,
        pages: (sizes.0, sizes.1),
        min_alignment: sizes.2,
        release_threshold: limits.0,
        hard_limit: limits.1,
        headroom: limits.2,
        budget: limits.3,
        failures: 0,
        seed,
        ending,
    })
}
