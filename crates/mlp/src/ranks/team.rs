//! The ranks with what their devices do together.

use std::sync::Arc;

use millpond::Stream;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::collective::Collective;
use super::world::Ranks;
use crate::{Error, Result};

/// How the memory of a training is split over its ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shard {
    /// Each rank has all of it.
    #[default]
    Nothing,
    /// Each rank has a part of the optimizer's state, and updates a part of the weights (ZeRO, stage 1).
    Optimizer,
    /// Each rank has a part of the gradients, too (ZeRO, stage 2).
    Gradients,
}

/// The ranks with what their devices do together.
#[derive(Debug)]
pub struct Team {
    ranks: Arc<Ranks>,
    pub(crate) collective: Box<dyn Collective>,
    /// The stream of the collectives, so that they run beside other work.
    pub(crate) stream: Stream,
    pub(crate) shard: Shard,
    pub(crate) bucket_bytes: usize,
}

/// As much as PyTorch's `DistributedDataParallel` puts into a bucket (`bucket_cap_mb`).
const BUCKET_BYTES: usize = 25 << 20;

impl Team {
    /// Of these ranks, whose collectives run on this stream.
    pub fn new(ranks: Arc<Ranks>, collective: Box<dyn Collective>, stream: Stream, shard: Shard) -> Self {
        Self { ranks, collective, stream, shard, bucket_bytes: BUCKET_BYTES }
    }

    /// With buckets of gradients of this size at least, by default 25 MiB. A layer is not split.
    #[must_use]
    pub fn bucket_bytes(self, bucket_bytes: usize) -> Self {
        Self { bucket_bytes, ..self }
    }

    /// Which rank this is.
    pub fn rank(&self) -> usize {
        self.ranks.place().rank
    }

    /// Ranks in all.
    pub fn size(&self) -> usize {
        self.ranks.place().world
    }

    /// What each rank has to say, in their order.
    pub(crate) fn gather<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>> {
        self.ranks.gather(mine)
    }

    /// Whether all ranks are there, and all that was queued went well so far.
    pub(crate) fn check(&self) -> Result<()> {
        match self.ranks.loss() {
            Some(loss) => Err(loss.clone().into()),
            None => self.collective.check(),
        }
    }

    /// The error to end with.
    pub(crate) fn ended_by(&self, error: Error) -> Error {
        self.ranks.ended_by(error)
    }
}
