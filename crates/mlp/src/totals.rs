//! What an epoch counts on the device: losses and correct answers.

use crate::rank_share::Share;
use crate::ranks::Team;
use crate::{Backend, Kind, Result, TOTAL_CORRECT, TOTAL_LOSS, TOTALS, Tensor};

/// What is counted on the device, for each part of a batch on its own: so the sum is the same, whether one rank works on all
/// parts or several do.
#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) parts: Vec<Tensor<f64>>,
}

impl Totals {
    pub(crate) fn new(backend: &dyn Backend, share: Share) -> Result<Self> {
        backend.memory().next_is(Kind::Batch, 0);
        let part = |_| backend.memory().zeroed(1, TOTALS);
        Ok(Self { parts: (0..share.parts).map(part).collect::<Result<_>>()? })
    }

    /// Begins to count, and goes on from these.
    pub(crate) fn begin(&mut self, from: [f64; TOTALS]) -> Result<()> {
        let mut from = Some(from);
        self.parts.iter_mut().try_for_each(|part| part.set(&from.take().unwrap_or_default()))
    }

    /// The sums of this rank. Waits for the device.
    pub(crate) fn here(&self) -> Result<[f64; TOTALS]> {
        Ok(sum(&self.read()?))
    }

    /// The sums of all ranks, in their order. All of them call it.
    pub(crate) fn sum(&self, team: Option<&Team>) -> Result<[f64; TOTALS]> {
        let parts = self.read()?;
        let Some(team) = team else { return Ok(sum(&parts)) };
        // As bits: JSON knows no infinity.
        let bits: Vec<_> = parts.iter().map(|part| part.map(f64::to_bits)).collect();
        let all: Vec<_> =
            team.gather(&bits)?.concat().into_iter().map(|part| part.map(f64::from_bits)).collect();
        Ok(sum(&all))
    }

    fn read(&self) -> Result<Vec<[f64; TOTALS]>> {
        let read =
            |part: &Tensor<f64>| part.to_vec().map(|part| [TOTAL_LOSS, TOTAL_CORRECT].map(|at| part[at]));
        self.parts.iter().map(read).collect()
    }
}

fn sum(parts: &[[f64; TOTALS]]) -> [f64; TOTALS] {
    let add =
        |sum: [f64; TOTALS], part: &[f64; TOTALS]| [TOTAL_LOSS, TOTAL_CORRECT].map(|at| sum[at] + part[at]);
    parts.iter().fold(Default::default(), add)
}
