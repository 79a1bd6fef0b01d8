//! Gradients in buckets, each of which is summed over the ranks as soon as it is complete.
//!
//! The layers of a bucket lie one after another, from the head down, as the backward pass computes them. While the team's
//! stream sums one bucket, the backend goes on with the layers of the next.
//!
//! With [`Shard::Optimizer`], a rank gets one piece of each sum. It updates the same piece of the weights, which lie as the
//! gradients do, and all ranks gather the pieces. With [`Shard::Gradients`], two buckets take turns.

use std::any::Any;

use millpond::Stream;

use crate::model::Gradients;
use crate::ranks::{Shard, Team};
use crate::{Backend, Model, Result, Sgd, Tensor};

/// Layers begin at multiples of this many floats: 256 bytes, as blocks of their own do.
const ALIGNMENT: usize = 64;

/// The gradients of a model on this rank.
#[derive(Debug)]
pub(crate) struct Buckets<'a> {
    team: &'a Team,
    /// What the library registered. Before the memory that it is of.
    _registered: Vec<Box<dyn Any>>,
    buckets: Vec<Bucket>,
    /// The gradient of each layer, in the order of the layers.
    layers: Vec<Tensor>,
    /// The piece of each bucket that this rank updates: weights, and the sum of their gradients.
    pieces: (Vec<Tensor>, Vec<Tensor>),
    /// Whether buckets are summed while the backward pass goes on.
    is_last: bool,
    /// The layer whose gradient is on its way.
    layer: usize,
    main: Stream,
}

#[derive(Debug)]
struct Bucket {
    gradients: Tensor,
    /// The weights of its layers, where ranks update pieces.
    weights: Option<Tensor>,
    plan: BucketPlan,
    /// Whether another bucket takes turns with it.
    shares_memory: bool,
}

/// Which layers are in a bucket, and where in it each begins.
#[derive(Debug, Default, PartialEq, Eq)]
struct BucketPlan {
    /// Layer and offset, from the head down.
    layers: Vec<(usize, usize)>,
    len: usize,
}

/// Buckets of at least `least` floats for layers of these sizes. Each can be cut into `ranks` equal pieces.
fn plan(sizes: &[usize], least: usize, ranks: usize) -> Vec<BucketPlan> {
    let mut plans: Vec<BucketPlan> = Vec::new();
    for (layer, size) in sizes.iter().enumerate().rev() {
        if plans.last().is_none_or(|plan| plan.len >= least) {
            plans.push(BucketPlan::default());
        }
        let Some(plan) = plans.last_mut() else { continue };
        plan.layers.push((layer, plan.len));
        plan.len += size.next_multiple_of(ALIGNMENT);
    }
    plans.iter_mut().for_each(|plan| plan.len = plan.len.next_multiple_of(ALIGNMENT * ranks));
    plans
}

/// The lengths of two tensors in which buckets take turns, if that takes less memory than all buckets.
fn turns(plans: &[BucketPlan], ranks: usize) -> Option<[usize; 2]> {
    let longest = |first: usize| plans.iter().skip(first).step_by(2).map(|plan| plan.len).max().unwrap_or(0);
    let (lengths, all) = ([longest(0), longest(1)], plans.iter().map(|plan| plan.len).sum::<usize>());
    (lengths.iter().sum::<usize>() + all / ranks < all).then_some(lengths)
}

impl<'a> Buckets<'a> {
    pub(crate) fn new(backend: &dyn Backend, model: &mut Model, team: &'a Team) -> Result<Self> {
        let memory = backend.memory();
        let sizes: Vec<_> = model.weights().iter().map(Tensor::len).collect();
        let plans = plan(&sizes, team.bucket_bytes / size_of::<f32>(), team.size());
        let turns = turns(&plans, team.size()).filter(|_| team.shard == Shard::Gradients);
        let mut wholes = Vec::new();
        let mut buckets = Vec::new();
        let mut layers: Vec<Option<Tensor>> = (0..sizes.len()).map(|_| None).collect();
        let mut pieces = (Vec::new(), Vec::new());
        for (at, plan) in plans.into_iter().enumerate() {
            let BucketPlan { layers: planned, len } = &plan;
            let slot = if turns.is_some() { at % 2 } else { at };
            if slot == wholes.len() {
                wholes.push(memory.zeroed(1, turns.map_or(*len, |lengths| lengths[slot]))?);
            }
            let whole: &Tensor = &wholes[slot];
            for (layer, from) in planned {
                let (rows, cols) = model.weights()[*layer].shape();
                layers[*layer] = Some(Tensor::part(whole, *from, rows, cols)?);
            }
            let mut weights = None;
            if team.shard != Shard::Nothing {
                let moved = moved(backend, model, planned, *len)?;
                let (piece, mine) = (len / team.size(), team.rank() * len / team.size());
                pieces.0.push(Tensor::part(&moved, mine, 1, piece)?);
                pieces.1.push(match turns {
                    Some(_) => memory.zeroed(1, piece)?,
                    None => Tensor::part(whole, mine, 1, piece)?,
                });
                weights = Some(Tensor::part(&moved, 0, 1, *len)?);
            }
            let gradients = Tensor::part(whole, 0, 1, *len)?;
            buckets.push(Bucket { gradients, weights, plan, shares_memory: turns.is_some() });
        }
        memory.synchronize()?;
        let mut registered: Vec<_> =
            wholes.iter().filter_map(|whole| team.collective.register(whole)).collect();
        // Either all ranks use registered memory, or none does.
        if !team.gather(&(registered.len() == wholes.len()))?.into_iter().all(|all| all) {
            registered.clear();
        }
        Ok(Self {
            team,
            _registered: registered,
            buckets,
            layers: layers.into_iter().flatten().collect(),
            pieces,
            is_last: true,
            layer: 0,
            main: memory.stream().clone(),
        })
    }

    /// The pieces of the weights that this rank updates, if they are split.
    pub(crate) fn pieces(&self) -> Option<&[Tensor]> {
        (self.team.shard != Shard::Nothing).then_some(&self.pieces.0)
    }

    /// Gives all ranks what rank 0 has in these tensors.
    pub(crate) fn equalise(&self, backend: &dyn Backend, tensors: &[Tensor]) -> Result<()> {
        let (main, team) = (backend.memory().stream(), self.team);
        team.stream.wait_for(main)?;
        tensors.iter().try_for_each(|tensor| team.collective.broadcast(tensor, &team.stream))?;
        Ok(main.wait_for(&team.stream)?)
    }

    /// Gives each rank its pieces of the layers that rank 0 has, or all of them where nothing is split.
    pub(crate) fn scatter(&self, backend: &dyn Backend, to: &mut [Tensor], layers: &[Tensor]) -> Result<()> {
        if self.pieces().is_none() {
            to.iter_mut().zip(layers).try_for_each(|(to, from)| to.copy_from(from))?;
            return self.equalise(backend, to);
        }
        for (at, to) in to.iter_mut().enumerate() {
            let whole = backend.memory().zeroed(1, self.buckets[at].gradients.len())?;
            for &(layer, from) in &self.buckets[at].plan.layers {
                if let Some(values) = layers.get(layer) {
                    Tensor::part(&whole, from, values.rows(), values.cols())?.copy_from(values)?;
                }
            }
            self.equalise(backend, std::slice::from_ref(&whole))?;
            to.copy_from(&Tensor::part(&whole, self.team.rank() * to.len(), 1, to.len())?)?;
        }
        Ok(())
    }

    /// All layers, of which each rank has these pieces.
    pub(crate) fn gathered(&self, backend: &dyn Backend, pieces: &[Tensor]) -> Result<Vec<Vec<f32>>> {
        let (main, team) = (backend.memory().stream(), self.team);
        let mut layers = vec![Vec::new(); self.layers.len()];
        for (at, piece) in pieces.iter().enumerate() {
            let whole = backend.memory().zeroed(1, self.buckets[at].gradients.len())?;
            Tensor::part(&whole, team.rank() * piece.len(), 1, piece.len())?.copy_from(piece)?;
            team.stream.wait_for(main)?;
            team.collective.all_gather(&whole, &team.stream)?;
            main.wait_for(&team.stream)?;
            let values = whole.to_vec()?;
            for &(layer, from) in &self.buckets[at].plan.layers {
                layers[layer] = values[from..][..self.layers[layer].len()].to_vec();
            }
        }
        Ok(layers)
    }

    /// The bucket of a layer.
    fn bucket_of(&self, layer: usize) -> usize {
        let has = |bucket: &Bucket| bucket.plan.layers.iter().any(|(other, _)| *other == layer);
        self.buckets.iter().position(has).unwrap_or(0)
    }

    /// Begins a step, or a part of it. If it is the last part, buckets are summed as they are complete.
    pub(crate) fn begin(&mut self, is_last: bool) {
        self.is_last = is_last;
    }

    /// Adds these gradients to those of the step so far.
    pub(crate) fn add(
        &mut self,
        backend: &mut dyn Backend,
        gradients: &[Tensor],
        is_last: bool,
    ) -> Result<()> {
        backend.add(&mut self.layers, gradients)?;
        if is_last { self.sum_all(backend) } else { Ok(()) }
    }

    /// Takes part in a step without images of this rank.
    pub(crate) fn add_nothing(&mut self, backend: &dyn Backend) -> Result<()> {
        // In the order of the buckets, two of which may share their memory.
        for at in 0..self.buckets.len() {
            backend.memory().stream().wait_for(&self.team.stream)?;
            self.buckets[at].gradients.clear()?;
            self.team.stream.wait_for(backend.memory().stream())?;
            self.sum(at)?;
        }
        Ok(())
    }

    fn sum_all(&mut self, backend: &dyn Backend) -> Result<()> {
        self.team.stream.wait_for(backend.memory().stream())?;
        (0..self.buckets.len()).try_for_each(|at| self.sum(at))
    }

    /// Sums a bucket over the ranks, on the team's stream, which waits for its gradients already.
    fn sum(&self, at: usize) -> Result<()> {
        let (collective, stream) = (&self.team.collective, &self.team.stream);
        let gradients = &self.buckets[at].gradients;
        match self.pieces.1.get(at) {
            None => collective.all_reduce(gradients, stream),
            Some(piece) => collective.reduce_scatter(gradients, piece, stream),
        }
    }

    /// One step of SGD, of what this rank updates.
    pub(crate) fn step(
        &mut self,
        backend: &mut dyn Backend,
        model: &mut Model,
        velocities: &mut [Tensor],
        sgd: Sgd,
    ) -> Result<()> {
        let (main, team) = (backend.memory().stream().clone(), self.team);
        main.wait_for(&team.stream)?;
        if team.shard == Shard::Nothing {
            return model.descend(backend, &self.layers, velocities, sgd);
        }
        let (weights, gradients) = &mut self.pieces;
        backend.update(weights, gradients, velocities, sgd)?;
        team.stream.wait_for(&main)?;
        let mut wholes = self.buckets.iter().filter_map(|bucket| bucket.weights.as_ref());
        wholes.try_for_each(|whole| team.collective.all_gather(whole, &team.stream))?;
        Ok(main.wait_for(&team.stream)?)
    }
}

/// Moves the weights of these layers into one tensor, where they lie as their gradients do.
fn moved(backend: &dyn Backend, model: &mut Model, layers: &[(usize, usize)], len: usize) -> Result<Tensor> {
    let whole = backend.memory().zeroed(1, len)?;
    for (layer, from) in layers {
        let weights = &model.weights()[*layer];
        let mut part = Tensor::part(&whole, *from, weights.rows(), weights.cols())?;
        part.copy_from(weights)?;
        model.move_to(*layer, part);
    }
    Ok(whole)
}

impl Gradients for Buckets<'_> {
    fn place(&mut self, backend: &dyn Backend, layer: usize) -> Result<Option<Tensor>> {
        self.layer = layer;
        let Bucket { plan, shares_memory, .. } = &self.buckets[self.bucket_of(layer)];
        if *shares_memory && plan.layers.first().is_some_and(|(first, _)| layer == *first) {
            // The bucket that had the memory before is to be summed first.
            backend.memory().stream().wait_for(&self.team.stream)?;
        }
        Ok(Some(self.layers[layer].share()))
    }

    fn ready(&mut self, backend: &dyn Backend, _: Tensor) -> Result<()> {
        let at = self.bucket_of(self.layer);
        if !self.is_last || self.buckets[at].plan.layers.last().is_none_or(|(last, _)| self.layer != *last) {
            return Ok(());
        }
        self.team.stream.wait_for(backend.memory().stream())?;
        self.sum(at)
    }
}

impl Drop for Buckets<'_> {
    /// All that was queued comes before the memory is freed.
    fn drop(&mut self) {
        if self.main.wait_for(&self.team.stream).is_err() {
            // A device that refuses both does no more work.
            self.team.stream.synchronize().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_filled_from_the_head_down() {
        let planned = |sizes: &[usize], least, ranks| -> Vec<_> {
            plan(sizes, least, ranks).into_iter().map(|plan| (plan.layers, plan.len)).collect()
        };
        assert_eq!(
            planned(&[100, 640, 10], 1, 1),
            [(vec![(2, 0)], 64), (vec![(1, 0)], 640), (vec![(0, 0)], 128)]
        );
        assert_eq!(planned(&[100, 640, 10], 100, 4), [(vec![(2, 0), (1, 64)], 768), (vec![(0, 0)], 256)]);
        let lengths = |sizes: &[usize], ranks| turns(&plan(sizes, 1, ranks), ranks);
        assert_eq!(lengths(&[640, 64, 64, 64, 640, 64, 640], 2), Some([640, 128]));
        assert_eq!(lengths(&[640, 64, 64], 2), None, "they would take more");
        assert_eq!(planned(&[100, 640, 10], usize::MAX, 2), [(vec![(2, 0), (1, 64), (0, 704)], 896)]);
    }
}
