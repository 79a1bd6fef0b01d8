//! What one play of a program came to.

use std::time::Duration;

use serde::Serialize;

/// What [`Stage::play`](super::Stage::play) did.
#[derive(Debug, Clone, Copy)]
pub struct Played {
    /// Steps done, a failed one not counted.
    pub events: usize,
    /// How long that took, by the clock on the wall.
    pub took: Duration,
    /// The request that found no memory.
    pub oom: Option<Oom>,
}

/// A request that found no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Oom {
    /// Its number among the replayed events, from 0.
    pub event: usize,
    /// Bytes asked for.
    pub bytes: u64,
}
