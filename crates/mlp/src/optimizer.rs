//! SGD over the gradients of all parts of a batch, on this rank and on others.

use crate::buckets::Buckets;
use crate::rank_share::Piece;
use crate::ranks::Team;
use crate::{Backend, Batch, Kind, Model, Result, Sgd, Tensor};

/// One step of SGD after another.
#[derive(Debug)]
pub(crate) struct Optimizer<'a> {
    /// Where there are other ranks.
    buckets: Option<Buckets<'a>>,
    /// The gradients of the step so far, where there are not.
    sums: Vec<Tensor>,
    /// Of each layer, or of each piece that this rank updates. None without momentum.
    velocities: Vec<Tensor>,
    sgd: Sgd,
}

impl<'a> Optimizer<'a> {
    /// For this model, whose weights may move.
    pub(crate) fn new(
        backend: &dyn Backend,
        model: &mut Model,
        sgd: Sgd,
        team: Option<&'a Team>,
    ) -> Result<Self> {
        let buckets = team.map(|team| Buckets::new(backend, model, team)).transpose()?;
        let pieces = buckets.as_ref().and_then(Buckets::pieces);
        let updated = if sgd.momentum > 0.0 { pieces.unwrap_or(model.weights()) } else { &[] };
        let zeroed = |(layer, of): (usize, &Tensor)| {
            backend.memory().next_is(Kind::Optimizer, layer + 1);
            backend.memory().zeroed(of.rows(), of.cols())
        };
        let velocities = updated.iter().enumerate().map(zeroed).collect::<Result<_>>()?;
        Ok(Self { buckets, sums: Vec::new(), velocities, sgd })
    }

    /// Gives all ranks the weights of rank 0.
    pub(crate) fn begin(&self, backend: &dyn Backend, model: &Model) -> Result<()> {
        let buckets = self.buckets.as_ref();
        buckets.map_or(Ok(()), |buckets| buckets.equalise(backend, model.weights()))
    }

    /// Goes on with these velocities, which rank 0 has. All ranks call it.
    pub(crate) fn resume(
        &mut self,
        backend: &dyn Backend,
        model: &Model,
        velocities: &[Vec<f32>],
    ) -> Result<()> {
        let layers = model.weights().iter().zip(velocities);
        let uploaded = layers.map(|(w, values)| backend.memory().upload(w.rows(), w.cols(), values));
        let uploaded: Vec<_> = uploaded.collect::<Result<_>>()?;
        match &self.buckets {
            None => self.velocities.iter_mut().zip(&uploaded).try_for_each(|(to, from)| to.copy_from(from)),
            Some(buckets) => buckets.scatter(backend, &mut self.velocities, &uploaded),
        }
    }

    /// The velocities of all layers, as [`resume`](Self::resume) takes them. All ranks call it; rank 0 gets them.
    pub(crate) fn velocities(&self, backend: &dyn Backend) -> Result<Vec<Vec<f32>>> {
        match self.buckets.as_ref().filter(|buckets| buckets.pieces().is_some()) {
            None => self.velocities.iter().map(Tensor::to_vec).collect(),
            Some(buckets) => buckets.gathered(backend, &self.velocities),
        }
    }

    /// Adds the gradients of a piece of the step's batch, which may be empty. Where nothing else is to be added, the step may
    /// be done at once.
    pub(crate) fn add(
        &mut self,
        backend: &mut dyn Backend,
        model: &mut Model,
        (batch, piece): (Batch<'_>, Piece<'_>),
        totals: &mut Tensor<f64>,
    ) -> Result<()> {
        if batch.count == 0 {
            return self.buckets.as_mut().map_or(Ok(()), |buckets| buckets.add_nothing(backend));
        }
        let is_plain =
            self.buckets.is_none() && self.velocities.is_empty() && piece.is_first && piece.is_last;
        if is_plain {
            return model.train(backend, batch, totals, self.sgd.rate);
        }
        let mut gradients = Vec::new();
        match &mut self.buckets {
            Some(buckets) if piece.is_first => {
                buckets.begin(piece.is_last);
                model.backward(backend, batch, totals, buckets)
            }
            _ => model.backward(backend, batch, totals, &mut gradients),
        }?;
        gradients.reverse();
        match &mut self.buckets {
            _ if gradients.is_empty() => Ok(()),
            Some(buckets) => buckets.add(backend, &gradients, piece.is_last),
            None if self.sums.is_empty() => {
                self.sums = gradients;
                Ok(())
            }
            None => backend.add(&mut self.sums, &gradients),
        }
    }

    /// Several steps at once, on batches of so many images. Returns whether the backend can; otherwise nothing is done.
    pub(crate) fn steps(
        &self,
        backend: &mut dyn Backend,
        model: &mut Model,
        batches: (Batch<'_>, usize),
        totals: &mut Tensor<f64>,
    ) -> Result<bool> {
        let is_plain = self.buckets.is_none() && self.velocities.is_empty();
        Ok(is_plain && model.steps(backend, batches, self.sgd.rate, totals)?)
    }

    /// Forgets what was added since the last step.
    pub(crate) fn forget(&mut self) {
        self.sums.clear();
    }

    /// One step of SGD.
    pub(crate) fn step(&mut self, backend: &mut dyn Backend, model: &mut Model) -> Result<()> {
        let Self { buckets, sums, velocities, sgd } = self;
        match buckets {
            Some(buckets) => buckets.step(backend, model, velocities, *sgd)?,
            // Nothing, where the step was done with the gradients.
            None if sums.is_empty() => {}
            None => model.descend(backend, sums, velocities, *sgd)?,
        }
        sums.clear();
        Ok(())
    }
}
