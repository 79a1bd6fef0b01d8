//! What came of a replay, in the shape that `--json` writes.

use std::time::Duration;

use millpond::DeviceCalls;
use millpond_baselines::Allocator;
use serde::Serialize;

use super::played::{Oom, Played};
use crate::trace::Trace;

/// What came of one trace with one allocator. Sizes in bytes.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The trace's name.
    pub trace: String,
    /// The allocator's name.
    pub allocator: String,
    /// `sim`, `host` or `cuda`.
    pub device: String,
    /// Allocations and frees that were replayed.
    pub events: usize,
    /// The most that was requested at once.
    pub peak_requested: u64,
    /// The most that the allocator held at once.
    pub peak_reserved: u64,
    /// Peak reserved over peak requested.
    pub ratio: f64,
    /// Calls of the device, by kind.
    pub device_calls: Calls,
    /// Microseconds in those calls: modelled on `sim`, measured on a real device.
    pub device_us: Option<f64>,
    /// Microseconds from the trace's first event to its last.
    pub trace_wall_us: u64,
    /// Seconds that the replay took, or the fastest of [several](super::on_sim_timed).
    pub replay_s: f64,
    /// The request that found no memory, where one did: the replay ended there.
    pub oom: Option<Oom>,
    /// What the driver says of its memory, on a real device.
    #[serde(flatten)]
    pub driver: Option<DriverMemory>,
}

/// What the driver of a real device counts, all programs together, in bytes. To be held against
/// [`Outcome::peak_reserved`], which the allocator counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DriverMemory {
    /// Free before the allocator was built.
    #[serde(rename = "driver_free_before")]
    pub free_before: u64,
    /// The most that was in use at once beyond what was in use before.
    #[serde(rename = "driver_used_peak")]
    pub used_peak: u64,
    /// What is in use beyond that when the allocator is gone. The driver's own pool stays.
    #[serde(rename = "driver_used_after")]
    pub used_after: u64,
}

impl DriverMemory {
    /// By what part of `reserved` the driver counts more (or, below 0, less) at the peak.
    pub fn disagreement(&self, reserved: u64) -> f64 {
        (self.used_peak as f64 - reserved as f64) / reserved.max(1) as f64
    }
}

/// Calls of the device, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "each is named as the field of `millpond::DeviceCalls`")]
pub struct Calls {
    pub reserve: u64,
    pub unreserve: u64,
    pub create: u64,
    pub map: u64,
    pub set_access: u64,
    pub unmap: u64,
    pub release: u64,
    pub alloc: u64,
    pub free: u64,
}

impl Calls {
    /// Each kind, by its name, and how many.
    pub fn by_kind(&self) -> [(&'static str, u64); 9] {
        let Self { reserve, unreserve, create, map, set_access, unmap, release, alloc, free } = *self;
        [
            ("reserve", reserve),
            ("unreserve", unreserve),
            ("create", create),
            ("map", map),
            ("access", set_access),
            ("unmap", unmap),
            ("release", release),
            ("alloc", alloc),
            ("free", free),
        ]
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.by_kind().iter().map(|(_, count)| count).sum()
    }
}

impl From<DeviceCalls> for Calls {
    fn from(calls: DeviceCalls) -> Self {
        let DeviceCalls { reserve, unreserve, create, map, set_access, unmap, release, alloc, free, .. } =
            calls;
        Self { reserve, unreserve, create, map, set_access, unmap, release, alloc, free }
    }
}

impl Outcome {
    pub(super) fn new(
        trace: &Trace,
        allocator: &dyn Allocator,
        device: &str,
        played: &Played,
        device_time: Option<Duration>,
    ) -> Self {
        let usage = allocator.usage();
        let (requested, reserved) = (usage.requested.high, usage.reserved.high);
        Self {
            trace: trace.name.clone(),
            allocator: allocator.name().to_owned(),
            device: device.to_owned(),
            events: played.events,
            peak_requested: requested,
            peak_reserved: reserved,
            ratio: if requested == 0 { 1.0 } else { reserved as f64 / requested as f64 },
            device_calls: usage.calls.into(),
            device_us: device_time.map(|time| time.as_nanos() as f64 / 1e3),
            trace_wall_us: trace.wall_us,
            replay_s: played.took.as_secs_f64(),
            oom: played.oom,
            driver: None,
        }
    }

    /// The device's calls' share of the trace's wall time; `None` where either is not known.
    pub fn device_share(&self) -> Option<f64> {
        let wall = (self.trace_wall_us > 0).then_some(self.trace_wall_us as f64)?;
        Some(self.device_us? / wall)
    }
}
