//! What one allocator did in a training: its epochs and its memory.

use millpond_baselines::Usage;
use millpond_mlp::Epoch;
use serde::Serialize;

use super::ranks::RankMemory;

/// What one allocator gave, as `--json` has it.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    /// The device by the name that `--device` takes.
    pub(crate) device: String,
    /// The allocator's name.
    pub(crate) allocator: String,
    /// Epoch by epoch.
    pub(crate) epochs: Vec<Epoch>,
    /// Physical bytes held at most.
    pub(crate) peak_reserved: u64,
    /// Bytes in live blocks at most.
    pub(crate) peak_requested: u64,
    /// The memory of each rank, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ranks: Vec<RankMemory>,
}

impl Outcome {
    /// Before the first epoch.
    pub(crate) fn new(device: &str, allocator: &str) -> Self {
        let (device, allocator) = (device.to_owned(), allocator.to_owned());
        Self { device, allocator, epochs: Vec::new(), peak_reserved: 0, peak_requested: 0, ranks: Vec::new() }
    }

    /// Takes over what the allocator counts.
    pub(crate) fn count(&mut self, usage: &Usage) {
        (self.peak_reserved, self.peak_requested) = (usage.reserved.high, usage.requested.high);
    }
}

/// How long epochs took, in milliseconds. The first, which warms up, counts where there is no other.
pub(crate) struct Times {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
    /// How many there were.
    pub(super) epochs: usize,
}

impl Times {
    pub(super) fn spread(&self) -> f64 {
        self.most - self.least
    }

    pub(crate) fn of(epochs: &[Epoch]) -> Option<Self> {
        let mut times: Vec<f64> = epochs.iter().map(|epoch| epoch.wall_ms).collect();
        if times.len() > 1 {
            times.remove(0);
        }
        times.sort_by(f64::total_cmp);
        let (least, most, epochs) = (*times.first()?, *times.last()?, times.len());
        Some(Self { least, median: times[epochs / 2], most, epochs })
    }
}
