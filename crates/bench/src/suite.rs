//! The suites by name, and what each measures.

/// A set of figures that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// Pairs of one size, and each call alone.
    Latency,
    /// Ten thousand pairs of 1 MiB in a row.
    Throughput,
    /// Ten thousand pairs in a row, 64 KiB to 16 MiB at random.
    Mixed,
    /// Pairs at once on 1, 2, 4, … threads, each with a stream of its own.
    Threads,
    /// One thread allocates, another frees.
    HandOver,
    /// Live blocks replaced at random.
    Churn,
    /// A thousand allocations with nothing cached, and a thousand again.
    Reuse,
    /// Allocated on one stream and freed on another, with kernels pending.
    Streams,
    /// One call of the pool beside very many pages, streams, threads and blocks.
    Scale,
    /// The host's reference: mimalloc's pair of 512 B, which every run measures.
    Reference,
}

impl Suite {
    /// All that can be asked for, in the order in which they run.
    pub const ALL: [Self; 9] = [
        Self::Latency,
        Self::Throughput,
        Self::Mixed,
        Self::Threads,
        Self::HandOver,
        Self::Churn,
        Self::Reuse,
        Self::Streams,
        Self::Scale,
    ];

    /// What is measured, in one sentence.
    pub fn about(self) -> &'static str {
        match self {
            Self::Latency => "One thread and one size: pairs timed in batches, and each call timed alone.",
            Self::Throughput => "Ten thousand pairs of 1 MiB in a row.",
            Self::Mixed => "Ten thousand pairs in a row, 64 KiB to 16 MiB at random.",
            Self::Threads => "Pairs at once on many threads, each with a stream of its own.",
            Self::HandOver => "Half of the threads allocate 1 MiB, the others free what those allocated.",
            Self::Churn => "Live blocks, of which one chosen at random is freed and another allocated.",
            Self::Reuse => "A thousand allocations of 1 MiB with nothing cached, and a thousand again.",
            Self::Streams => "Allocated on one stream and freed on another, with kernels pending on both.",
            Self::Scale => "One call beside very many of something; CPU time, on the simulated device.",
            Self::Reference => "What a pair of 512 B costs the host's own allocator.",
        }
    }

    /// The name that `--suite` takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency | Self::Reference => "latency",
            Self::Throughput => "throughput",
            Self::Mixed => "mixed",
            Self::Threads => "threads",
            Self::HandOver => "hand-over",
            Self::Churn => "churn",
            Self::Reuse => "reuse",
            Self::Streams => "streams",
            Self::Scale => "scale",
        }
    }
}
