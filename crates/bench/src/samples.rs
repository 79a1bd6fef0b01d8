//! Times as they were taken, and the figures that are made of them.

use std::time::Duration;

use crate::{Bench, Result};

/// Samples kept of one figure.
const MOST_SAMPLES: usize = 100_000;
/// Pairs between two readings of the clock, at most.
const MOST_PAIRS: usize = 100;
/// How long a batch should take at least, so that a reading's own jitter is small beside it.
const LEAST_BATCH_NS: f64 = 5_000.0;
/// Before anything is measured it runs for as long as it is measured, but no longer than this: an allocator that
/// adapts to its program has done so then.
pub(crate) const WARM_UP: Duration = Duration::from_millis(150);

/// Nanoseconds a pair, or a call; one for each batch, or call, that was timed.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    ns: Vec<f64>,
}

/// What is told of samples, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) mean: f64,
    pub(crate) min: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

impl Samples {
    pub(crate) fn with_room() -> Self {
        // Touched now, so that no page fault falls between two samples.
        let mut ns = vec![1.0; MOST_SAMPLES];
        ns.clear();
        Self { ns }
    }

    /// All samples of several threads.
    pub(crate) fn all(of: impl Iterator<Item = Self>) -> Self {
        Self { ns: of.flat_map(|samples| samples.ns).collect() }
    }

    /// Keeps a sample, if there is room.
    pub(crate) fn push(&mut self, ns: f64) {
        if !self.is_full() {
            self.ns.push(ns);
        }
    }

    /// Times one batch.
    fn time(
        &mut self,
        bench: &Bench,
        batch: usize,
        pairs: &mut impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let from = bench.clock.now();
        pairs(batch)?;
        let to = bench.clock.now();
        self.push(bench.clock.work_between(from, to) / batch as f64);
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.ns.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ns.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.ns.len() >= MOST_SAMPLES
    }

    /// The figures; zeros where there is no sample.
    pub(crate) fn figures(mut self) -> Figures {
        self.ns.sort_by(f64::total_cmp);
        let count = self.ns.len();
        let at = |share: f64| self.ns.get(((count as f64 * share) as usize).min(count.max(1) - 1)).copied();
        let mean = self.ns.iter().sum::<f64>() / count.max(1) as f64;
        let [min, p50, p99, p999] = [0.0, 0.5, 0.99, 0.999].map(|share| at(share).unwrap_or(0.0));
        Figures { mean, min, p50, p99, p999 }
    }
}

/// How many pairs a batch has, learnt by running some.
pub(crate) fn warm_up(bench: &Bench, mut pairs: impl FnMut(usize) -> Result<()>) -> Result<usize> {
    let clock = &bench.clock;
    let began = clock.now();
    let spent = || clock.between(began, clock.now());
    while spent() < WARM_UP.min(bench.time).as_nanos() as f64 {
        pairs(10)?;
    }
    // The last ones are the warm ones.
    let from = clock.now();
    pairs(10)?;
    let each = clock.work_between(from, clock.now()) / 10.0;
    Ok(((LEAST_BATCH_NS / each.max(1.0)) as usize).clamp(1, MOST_PAIRS))
}

/// Times batches of pairs until `time` is over: nanoseconds a pair.
pub(crate) fn batches(bench: &Bench, mut pairs: impl FnMut(usize) -> Result<()>) -> Result<Samples> {
    let batch = warm_up(bench, &mut pairs)?;
    let mut samples = Samples::with_room();
    let began = bench.clock.now();
    while !samples.is_full() && !bench.is_over(began, bench.clock.now()) {
        samples.time(bench, batch, &mut pairs)?;
    }
    Ok(samples)
}

/// Batches of one kind in a row, before it is the other's turn.
const TURN: usize = 50;

/// As [`batches`], of pairs of two kinds by turns: what changes the speed of the machine meanwhile changes both.
pub(crate) fn batches_by_turns(
    bench: &Bench,
    mut pairs: impl FnMut(usize) -> Result<()>,
    mut others: impl FnMut(usize) -> Result<()>,
) -> Result<[Samples; 2]> {
    let (batch, others_batch) = (warm_up(bench, &mut pairs)?, warm_up(bench, &mut others)?);
    let (mut samples, mut others_samples) = (Samples::with_room(), Samples::with_room());
    let began = bench.clock.now();
    while !samples.is_full() && !bench.is_over(began, bench.clock.now()) {
        for _ in 0..TURN {
            samples.time(bench, batch, &mut pairs)?;
        }
        for _ in 0..TURN {
            others_samples.time(bench, others_batch, &mut others)?;
        }
    }
    Ok([samples, others_samples])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_samples() {
        let ns = (1..=1000).rev().map(f64::from).collect();
        let figures = Samples { ns }.figures();
        assert_eq!((figures.min, figures.p50, figures.p99, figures.p999), (1.0, 501.0, 991.0, 1000.0));
        assert!((figures.mean - 500.5).abs() < 1e-9);
    }

    #[test]
    fn no_sample_gives_zeros_and_no_panic() {
        let figures = Samples::default().figures();
        assert_eq!((figures.mean, figures.p999), (0.0, 0.0));
    }
}
