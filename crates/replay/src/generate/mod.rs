//! `generate/`: traces of jobs that nobody recorded, from a seed.
//!
//! Uses `trace`. Each [`Pattern`] is one function in `patterns.rs` that plays a job's allocations on a
//! `job::GeneratedJob`, which keeps addresses and time. They are for property tests, and for looking for what
//! an allocator is worst at ([`Pattern::generate`] over many seeds): a recorded trace shows one day only.

mod job;
mod patterns;

use crate::trace::Trace;

/// A kind of job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Fine-tuning with adapters and activation checkpointing, sequences of varying length.
    LoraCheckpointing,
    /// Training a mixture of experts: each expert gets another number of tokens each time.
    MixtureOfExperts,
    /// Text generation: each request's keys and values are copied to a block one token longer at every step.
    GrowingKvCache,
    /// A diffusion model's U-Net at varying image sizes.
    Diffusion,
    /// Nested lifetimes whose sizes are never the same twice.
    ShapesThatNeverRepeat,
    /// Short-lived blocks, among which some are born that stay.
    LongAmongShort,
    /// Several streams, each feeding the next.
    Pipeline,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::LoraCheckpointing,
        Self::MixtureOfExperts,
        Self::GrowingKvCache,
        Self::Diffusion,
        Self::ShapesThatNeverRepeat,
        Self::LongAmongShort,
        Self::Pipeline,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::LoraCheckpointing => "LoRA, checkpointing",
            Self::MixtureOfExperts => "mixture of experts",
            Self::GrowingKvCache => "growing KV cache",
            Self::Diffusion => "diffusion",
            Self::ShapesThatNeverRepeat => "shapes that never repeat",
            Self::LongAmongShort => "long-lived among short",
            Self::Pipeline => "pipeline of streams",
        }
    }

    /// A job of this kind. The same seed gives the same trace; another seed also other model sizes.
    pub fn generate(self, seed: u64) -> Trace {
        let mut job = job::GeneratedJob::new(seed);
        match self {
            Self::LoraCheckpointing => patterns::lora(&mut job),
            Self::MixtureOfExperts => patterns::experts(&mut job),
            Self::GrowingKvCache => patterns::kv_cache(&mut job),
            Self::Diffusion => patterns::diffusion(&mut job),
            Self::ShapesThatNeverRepeat => patterns::never_repeats(&mut job),
            Self::LongAmongShort => patterns::long_among_short(&mut job),
            Self::Pipeline => patterns::pipeline(&mut job),
        }
        job.finish(&format!("{} (seed {seed})", self.name()))
    }
}

#[cfg(test)]
mod tests;
