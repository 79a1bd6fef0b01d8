//! SGD over the gradients of all parts of a batch, on this rank and on others.

mod buckets;

use crate::ranks::Team;
use crate::share::Piece;
use crate::{Backend, Batch, Model, Result, Tensor};
use buckets::Buckets;

/// One step of SGD after another.
#[derive(Debug)]
pub(crate) struct Optimizer<'a> {
    /// Where there are other ranks.
    buckets: Option<Buckets<'a>>,
    /// The gradients of the step so far, where there are not.
    sums: Vec<Tensor>,
}

impl<'a> Optimizer<'a> {
    /// For this model, whose weights may move.
    pub(crate) fn new(backend: &dyn Backend, model: &mut Model, team: Option<&'a Team>) -> Result<Self> {
        let buckets = team.map(|team| Buckets::new(backend, model, team)).transpose()?;
        Ok(Self { buckets, sums: Vec::new() })
    }

    /// Gives all ranks the weights of rank 0.
    pub(crate) fn equalise(&mut self, backend: &dyn Backend, model: &Model) -> Result<()> {
        self.buckets.as_ref().map_or(Ok(()), |buckets| buckets.equalise(backend, model))
    }

    /// Adds the gradients of a piece of the step's batch, which may be empty.
    pub(crate) fn add(
        &mut self,
        backend: &mut dyn Backend,
        model: &Model,
        (batch, piece): (Batch<'_>, Piece<'_>),
        totals: &mut Tensor<f64>,
    ) -> Result<()> {
        if batch.count == 0 {
            return self.buckets.as_mut().map_or(Ok(()), |buckets| buckets.add_nothing(backend));
        }
        match &mut self.buckets {
            Some(buckets) if piece.is_first => {
                buckets.begin(piece.is_last);
                model.backward(backend, batch, totals, buckets)
            }
            Some(buckets) => {
                let gradients = model.gradients(backend, batch, totals)?;
                buckets.add(backend, &gradients, piece.is_last)
            }
            None if self.sums.is_empty() => {
                self.sums = model.gradients(backend, batch, totals)?;
                Ok(())
            }
            None => {
                let gradients = model.gradients(backend, batch, totals)?;
                add(backend, &mut self.sums, &gradients)
            }
        }
    }

    /// One step of SGD.
    pub(crate) fn step(&mut self, backend: &mut dyn Backend, model: &mut Model, rate: f32) -> Result<()> {
        match &mut self.buckets {
            Some(buckets) => buckets.step(backend, model, rate),
            None => {
                model.update(backend, &self.sums, rate)?;
                self.sums.clear();
                Ok(())
            }
        }
    }
}

/// Adds each gradient to its sum: exactly what an update at rate −1 does.
fn add(backend: &mut dyn Backend, sums: &mut [Tensor], gradients: &[Tensor]) -> Result<()> {
    backend.update(sums, gradients, -1.0)
}
