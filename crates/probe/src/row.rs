//! One figure as programs read it.

use serde::Serialize;

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// 10⁹ bytes a second.
    #[serde(rename = "GB/s")]
    GigabytesPerSecond,
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// Microseconds.
    #[serde(rename = "µs")]
    Microseconds,
}

impl Unit {
    /// As it stands behind a figure.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::GigabytesPerSecond => "GB/s",
            Self::Nanoseconds => "ns",
            Self::Microseconds => "µs",
        }
    }
}

/// One figure: the median of its samples, and their spread.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The section's name.
    pub section: &'static str,
    /// What was measured: `pinned, to the GPU`, `stride 8`, `create`.
    pub what: String,
    /// Bytes of the copy, page, block or working set; `None` where that says nothing.
    pub bytes: Option<u64>,
    /// What the figures count.
    pub unit: Unit,
    /// The median.
    pub median: f64,
    /// The least of the samples.
    pub least: f64,
    /// The most of the samples.
    pub most: f64,
    /// How many samples.
    pub samples: usize,
    /// What the device's own properties say would be possible, in the same unit.
    pub peak: Option<f64>,
}
