//! The sections by name, and what each measures.

/// Figures that belong together: one table, one chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Copies between the host and the GPU.
    Copies,
    /// Copies between GPUs.
    Peers,
    /// Copies and fills on the device.
    Device,
    /// Reading, writing and copying by one core and by all.
    Cores,
    /// Reads in a row, with strides, and of records.
    Reads,
    /// What one read takes.
    Latency,
    /// Managed memory.
    Managed,
    /// What the calls on pages cost.
    Pages,
    /// The same for pinned pages.
    PinnedPages,
    /// What whole segments cost.
    Segments,
    /// What other calls cost.
    Calls,
    /// What a pair of the pool costs.
    Pool,
}

impl Section {
    /// All of them, in the order in which they are measured.
    pub const ALL: [Self; 12] = [
        Self::Copies,
        Self::Peers,
        Self::Device,
        Self::Cores,
        Self::Reads,
        Self::Latency,
        Self::Managed,
        Self::Pages,
        Self::PinnedPages,
        Self::Segments,
        Self::Calls,
        Self::Pool,
    ];

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copies => "copies",
            Self::Peers => "peers",
            Self::Device => "device",
            Self::Cores => "cores",
            Self::Reads => "reads",
            Self::Latency => "latency",
            Self::Managed => "managed",
            Self::Pages => "pages",
            Self::PinnedPages => "pinned-pages",
            Self::Segments => "segments",
            Self::Calls => "calls",
            Self::Pool => "pool",
        }
    }

    /// What is measured, in a sentence or two.
    pub fn about(self) -> &'static str {
        match self {
            Self::Copies => {
                "Copies between the host and the GPU, one at a time, from the call until the stream is done."
            }
            Self::Peers => "Copies between GPUs, one at a time, from the call until the stream is done.",
            Self::Device => {
                "Copies and fills within the GPU's memory, in batches. A copy counts what it reads and what it writes."
            }
            Self::Cores => {
                "Loops over a working set. A copy counts what it reads and what it writes. Each core has its own part."
            }
            Self::Reads => {
                "Reads of memory much larger than the caches. Only bytes that the program wants are counted."
            }
            Self::Latency => "One read that waits for the one before, through a working set in random order.",
            Self::Managed => "A kernel reads managed memory, and prefetches move it.",
            Self::Pages => "Calls on one page of the device's memory, by the page's size.",
            Self::PinnedPages => "Calls on one page of pinned host memory, by the page's size.",
            Self::Segments => {
                "Whole segments of the device's memory, of registered pinned memory and of managed memory, with nothing pending."
            }
            Self::Calls => "Other calls, which do not depend on a size.",
            Self::Pool => "An allocation and its free by the pool, with the block cached.",
        }
    }

    /// Whether its figures are by size, with a column for each kind; else they are a list.
    pub fn is_by_size(self) -> bool {
        !matches!(self, Self::Reads | Self::Latency | Self::Managed | Self::Calls)
    }
}
