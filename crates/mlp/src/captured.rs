//! Steps that are captured once as graphs, and replayed.
//!
//! The data set is on the device. The order of an epoch is copied there once. A graph takes the next images of the order by
//! itself, so that the same graph is every step. One graph has many steps: those of the longest are replayed as long as there
//! are so many, then single ones, then the last batch, which may be shorter. The validation is one graph.
//!
//! The operations are those of eager steps, in the same order. So are the losses, to the last bit.

use std::ops::ControlFlow::{self, Break, Continue};

use crate::backend::{Batch, Graph, Source};
use crate::data::{Dataset, Split};
use crate::feed::Upload;
use crate::graph_memory::GraphMemory;
use crate::optimizer::Optimizer;
use crate::rank_share::Share;
use crate::totals::Totals;
use crate::{Backend, Hyper, Kind, Memory, Model, Result, Tensor};

/// Floating-point operations of a graph at least, where an epoch has so many: some milliseconds of a fast GPU.
const WORK: usize = 60_000_000_000;
/// Steps of a graph at most.
const MOST_STEPS: usize = 64;

/// What takes part in a step.
pub(crate) struct Trainee<'t, 'a> {
    pub(crate) backend: &'t mut dyn Backend,
    pub(crate) optimizer: &'t mut Optimizer<'a>,
    pub(crate) model: &'t mut Model,
    /// Of the training, and of the validation.
    pub(crate) totals: &'t mut [Totals; 2],
    pub(crate) share: Share,
}

/// The graphs of a training, with the data set.
#[derive(Debug)]
pub(crate) struct Captured {
    /// Graphs of so many images, the longest first. Before their memory.
    steps: Vec<(usize, Box<dyn Graph>)>,
    validation: Box<dyn Graph>,
    order: Tensor<u32>,
    next: Tensor<u32>,
    _data: [Tensor<u8>; 2],
    _memory: GraphMemory,
}

/// The rows of a split on the device.
fn placed(memory: &Memory, split: &Split) -> Result<Tensor<u8>> {
    let order: Vec<u32> = (0..split.len() as u32).collect();
    let mut rows = vec![0; split.len() * split.row()];
    split.gather(&order, &mut rows);
    memory.upload(split.len(), split.row(), &rows)
}

impl Captured {
    /// Places the data set, and captures. `batch` images are validated at once.
    pub(crate) fn new(
        mut trainee: Trainee<'_, '_>,
        (data, hyper): (&Dataset, &Hyper),
        upload: &Upload,
        batch: usize,
    ) -> Result<Self> {
        let memory = trainee.backend.memory().clone();
        memory.next_is(Kind::Batch, 0);
        let [train, validation] = [placed(&memory, &data.train)?, placed(&memory, &data.validation)?];
        let (order, next) = (memory.zeroed(1, data.train.len())?, memory.zeroed(1, 1)?);
        let of_graphs = GraphMemory::new(&memory, upload.stream());
        let source = Source { data: &train, order: &order, next: &next };
        let mut steps = Vec::new();
        for (count, images) in lengths(hyper, trainee.model.parameters(), data.train.len()) {
            let graph = trainee.captured(&of_graphs, |trainee| trainee.steps(source, count, images))?;
            steps.push((count * images, graph));
        }
        let validation_graph =
            trainee.captured(&of_graphs, |trainee| trainee.validate(&validation, batch))?;
        memory.synchronize()?;
        Ok(Self {
            steps,
            validation: validation_graph,
            order,
            next,
            _data: [train, validation],
            _memory: of_graphs,
        })
    }

    /// Replays the steps of an epoch from this image of its order on. `after` is told how many images were trained on, in
    /// steps that are queued. No graph goes beyond a multiple of `due` images.
    pub(crate) fn train(
        &mut self,
        order: &[u32],
        mut done: usize,
        due: Option<usize>,
        mut after: impl FnMut(usize) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        self.order.set(order)?;
        self.next.set(&[done as u32])?;
        while done < order.len() {
            let left = order.len() - done;
            let left = due.map_or(left, |due| left.min(due - done % due));
            let Some((images, graph)) = self.steps.iter().find(|(images, _)| *images <= left) else { break };
            graph.replay()?;
            done += images;
            if after(*images)?.is_break() {
                return Ok(Break(()));
            }
        }
        Ok(Continue(()))
    }

    /// Validates.
    pub(crate) fn validate(&self) -> Result<()> {
        self.validation.replay()
    }
}

/// The graphs that an epoch of so many images needs: how many batches of how many images, the longest first.
fn lengths(hyper: &Hyper, parameters: usize, images: usize) -> Vec<(usize, usize)> {
    let batch = hyper.batch_size;
    let (batches, rest) = (images / batch, images % batch);
    // Two operations for each weight and image, forward and twice backward.
    let most = WORK.div_ceil(6 * batch * parameters).min(MOST_STEPS).min(batches);
    // So many that few steps are left for graphs of one.
    let many = (most / 2 + 1..=most).rev().min_by_key(|many| batches % many).unwrap_or(0);
    let mut lengths = vec![(many, batch), (1, batch), (1, rest)];
    lengths.retain(|(count, images)| count * images > 0 && count * images <= batches * batch + rest);
    lengths.dedup();
    if batches == 0 {
        lengths.retain(|(_, images)| *images == rest);
    }
    lengths
}

impl Trainee<'_, '_> {
    fn captured(
        &mut self,
        memory: &GraphMemory,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Box<dyn Graph>> {
        memory.within(|| {
            self.backend.begin_capture()?;
            let worked = work(self);
            let graph = self.backend.end_capture();
            if worked.is_err() {
                self.optimizer.forget();
            }
            worked.and(graph)
        })
    }

    /// Some steps, of as many images each. Their batches are gathered at once.
    fn steps(&mut self, source: Source<'_>, count: usize, images: usize) -> Result<()> {
        let memory = self.backend.memory().clone();
        let (row, pixels) = (source.data.cols(), source.data.cols() - 1);
        memory.next_is(Kind::Batch, 0);
        let mut rows = memory.uninit(count * images, row)?;
        self.backend.gather(source, &mut rows)?;
        let all = Batch { rows: &rows, count: count * images, of: images, images: None };
        let ledger = memory.ledger().filter(|_| count == 1);
        ledger.inspect(|ledger| ledger.phase("one step", true));
        let totals = &mut self.totals[0].parts;
        if totals.len() == 1
            && self.optimizer.steps(self.backend, self.model, (all, images), &mut totals[0])?
        {
            ledger.inspect(|ledger| ledger.ends());
            return Ok(());
        }
        let floats = self.backend.images(all)?;
        let numbers: Vec<u32> = (0..(count * images) as u32).collect();
        for batch in numbers.chunks(images) {
            for piece in self.share.of(batch) {
                ledger.inspect(|ledger| ledger.phase("forward", piece.is_first));
                let (first, len) = (piece.images[0] as usize, piece.images.len());
                let rows = Tensor::part(&rows, first * row, len, row)?;
                let floats = Tensor::part(&floats, first * pixels, len, pixels)?;
                let batch = Batch { rows: &rows, count: len, of: piece.of, images: Some(&floats) };
                let totals = &mut self.totals[0].parts[piece.part];
                self.optimizer.add(self.backend, self.model, (batch, piece), totals)?;
            }
            ledger.inspect(|ledger| ledger.phase("update", false));
            self.optimizer.step(self.backend, self.model)?;
            ledger.inspect(|ledger| ledger.ends());
        }
        Ok(())
    }

    /// The validation, in batches.
    fn validate(&mut self, data: &Tensor<u8>, batch: usize) -> Result<()> {
        let numbers: Vec<u32> = (0..data.rows() as u32).collect();
        for piece in numbers.chunks(batch).flat_map(|batch| self.share.of(batch)) {
            let (first, count) = (piece.images[0] as usize, piece.images.len());
            let rows = Tensor::part(data, first * data.cols(), count, data.cols())?;
            let batch = Batch { rows: &rows, count, of: piece.of, images: None };
            let logits = self.model.infer(self.backend, batch)?;
            self.backend.score(&logits, batch, &mut self.totals[1].parts[piece.part])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_cover_every_length_of_an_epoch() {
        let hyper = |batch_size| Hyper {
            num_layers: 4,
            feat_dim: 784,
            learning_rate: 0.1,
            momentum: 0.0,
            batch_size,
            micro_batches: 1,
            epochs: 1,
            seed: 1,
        };
        let parameters = 4 * 784 * 784 + 7840;
        assert_eq!(lengths(&hyper(64), parameters, 60_000), [(52, 64), (1, 64), (1, 32)]);
        assert_eq!(lengths(&hyper(64), parameters, 128), [(2, 64), (1, 64)]);
        assert_eq!(lengths(&hyper(64), 100 * parameters, 128), [(1, 64)]);
        assert_eq!(lengths(&hyper(64), parameters, 50), [(1, 50)]);
        assert_eq!(lengths(&hyper(64), parameters, 65), [(1, 64), (1, 1)]);
    }
}
