//! This process among the ranks of a training.

use std::net::TcpStream;
use std::sync::Arc;

use millpond::Stream;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::collective::Collective;
use super::control::{Control, LastResort, Loss};
use super::environment::Place;
use super::rendezvous;
use crate::{Error, Result};

/// This process among the ranks of a training: how they talk, and learn of each other's end.
#[derive(Debug)]
pub struct Ranks {
    control: Control,
    data: Vec<TcpStream>,
}

impl Ranks {
    /// Meets the other ranks. `last_resort` ends the process, in case it is stuck in a driver when another rank is gone.
    ///
    /// # Errors
    /// [`Error::Rendezvous`], which names the ranks that did not come.
    pub fn meet(place: Place, last_resort: LastResort) -> Result<Self> {
        let links = rendezvous::meet(&place)?;
        let connected = Control::new(place, links, last_resort);
        let (control, data) = connected.map_err(|error| Error::Rendezvous { what: error.to_string() })?;
        Ok(Self { control, data })
    }

    /// Which rank this is.
    pub fn place(&self) -> &Place {
        self.control.place()
    }

    /// What each rank has to say, in their order. All ranks call it, the same number of times.
    ///
    /// # Errors
    /// [`Error::RankLost`] where a rank is gone.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>> {
        self.control.gather(mine)
    }

    /// The connections for data: rank 0's to all others in their order, another's to rank 0.
    pub(super) fn data(&self) -> Result<Vec<TcpStream>> {
        let cloned: std::io::Result<_> = self.data.iter().map(TcpStream::try_clone).collect();
        cloned.map_err(|error| Error::Rendezvous { what: error.to_string() })
    }

    /// Why the training ends early, if a rank is gone.
    pub fn loss(&self) -> Option<&Loss> {
        self.control.loss()
    }

    /// Has this done on another thread when a rank is gone: ending what waits for that rank.
    pub(crate) fn on_loss(&self, hook: impl FnOnce() + Send + 'static) {
        self.control.on_loss(hook);
    }

    /// Tells the others that this rank is done, or that it ends with an error. Then they end, too, and rank 0 prints it.
    pub fn leave(&self, error: Option<&str>) {
        self.control.leave(error);
    }

    /// The error to end with: that another rank is lost, if this one may come of that. Else the others are told of it.
    fn ended_by(&self, error: Error) -> Error {
        let may_come_of_another = matches!(error, Error::Rendezvous { .. } | Error::Library { .. });
        if let Some(loss) = may_come_of_another.then(|| self.control.wait_for_loss()).flatten() {
            return loss.into();
        }
        self.leave(Some(&error.to_string()));
        error
    }
}

/// How the memory of a training is split over its ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
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
    /// `None` for a process that is alone.
    ranks: Option<Arc<Ranks>>,
    collective: Box<dyn Collective>,
    /// The stream of the collectives, so that they run beside other work.
    stream: Stream,
    shard: Shard,
    bucket_bytes: usize,
}

/// As much as PyTorch's `DistributedDataParallel` puts into a bucket (`bucket_cap_mb`).
const BUCKET_BYTES: usize = 25 << 20;

impl Team {
    /// Of these ranks, whose collectives run on this stream.
    pub fn new(
        ranks: Option<Arc<Ranks>>,
        collective: Box<dyn Collective>,
        stream: Stream,
        shard: Shard,
    ) -> Self {
        Self { ranks, collective, stream, shard, bucket_bytes: BUCKET_BYTES }
    }

    /// With buckets of gradients of this size at least, by default 25 MiB. A layer is not split.
    #[must_use]
    pub fn bucket_bytes(self, bucket_bytes: usize) -> Self {
        Self { bucket_bytes, ..self }
    }

    /// Which rank this is.
    pub fn rank(&self) -> usize {
        self.ranks.as_ref().map_or(0, |ranks| ranks.place().rank)
    }

    /// Ranks in all.
    pub fn size(&self) -> usize {
        self.collective.size()
    }

    pub(crate) fn collective(&self) -> &dyn Collective {
        &*self.collective
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn least_in_a_bucket(&self) -> usize {
        self.bucket_bytes
    }

    pub(crate) fn shard(&self) -> Shard {
        self.shard
    }

    /// What each rank has to say, in their order.
    pub(crate) fn gather<T: Serialize + DeserializeOwned + Clone>(&self, mine: &T) -> Result<Vec<T>> {
        self.ranks.as_ref().map_or_else(|| Ok(vec![mine.clone()]), |ranks| ranks.gather(mine))
    }

    /// Whether all ranks are there, and all that was queued went well so far.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(loss) = self.ranks.as_ref().and_then(|ranks| ranks.loss()) {
            return Err(loss.clone().into());
        }
        self.collective.check()
    }

    /// The error to end with.
    pub(crate) fn ended_by(&self, error: Error) -> Error {
        match &self.ranks {
            Some(ranks) => ranks.ended_by(error),
            None => error,
        }
    }
}
