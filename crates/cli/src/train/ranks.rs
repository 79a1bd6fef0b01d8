//! `millpond train` as one rank of several, of which rank 0 speaks.

use std::sync::Arc;

use millpond_mlp::ranks::{Loss, Place, Ranks};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::terminal::{be_quiet, complain};

/// What one rank's allocator held, as `--json` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankMemory {
    pub(crate) rank: usize,
    /// The machine's name.
    pub(crate) host: String,
    /// The device by the name that `--device` takes.
    pub(crate) device: String,
    /// Physical bytes held at most.
    pub(crate) peak_reserved: u64,
    /// Bytes in live blocks at most.
    pub(crate) peak_requested: u64,
}

/// The name of this machine.
pub(crate) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Whether a launcher has started others, of which one says what is wrong with all.
pub(crate) fn another_speaks() -> bool {
    Place::of_this_process().is_ok_and(|place| place.is_some_and(|place| place.rank > 0))
}

/// Meets the other ranks, if a launcher has started several.
pub(crate) fn meet() -> Result<Option<Arc<Ranks>>> {
    match Place::of_this_process()? {
        Some(place) if place.world > 1 => {
            if place.rank > 0 {
                be_quiet(true);
            }
            Ok(Some(Arc::new(Ranks::meet(place, give_up)?)))
        }
        _ => Ok(None),
    }
}

/// Ends the process while its main thread is stuck in a driver.
fn give_up(loss: &Loss, place: &Place) {
    if says(place.rank, loss) {
        complain(&millpond_mlp::Error::from(loss.clone()).to_string());
    }
    std::process::exit(1);
}

/// Whether this rank is the one that prints why the training ended: rank 0, or where that has died, rank 1.
fn says(rank: usize, loss: &Loss) -> bool {
    rank == 0 || (rank == 1 && loss.rank == 0 && loss.error.is_none())
}

/// Whether an error is another rank's end, or what that leads to here. Wrong usage, say, is every rank's own.
fn may_come_of_another(error: &Error) -> bool {
    use millpond_mlp::Error::{Library, RankLost, Rendezvous};
    match error {
        Error::Trial { error, .. } => may_come_of_another(error),
        Error::Training(error) => matches!(error, RankLost { .. } | Rendezvous { .. } | Library { .. }),
        _ => false,
    }
}

/// Tells the other ranks how this one ended, and returns what it prints itself.
pub(crate) fn ended(ranks: &Ranks, ended: Result<()>) -> Result<()> {
    let Err(error) = ended else {
        ranks.leave(None);
        return Ok(());
    };
    let is_agreed = matches!(error, Error::Stopped { .. });
    let worded = error.worded();
    ranks.leave(if is_agreed { None } else { Some(&worded) });
    let rank = ranks.place().rank;
    match ranks.loss() {
        Some(loss) if loss.rank != rank && says(rank, loss) && may_come_of_another(&error) => {
            Err(Error::Training(millpond_mlp::Error::from(loss.clone())))
        }
        _ if rank == 0 => Err(error),
        _ => Err(Error::SaidElsewhere { status: error.status() }),
    }
}
