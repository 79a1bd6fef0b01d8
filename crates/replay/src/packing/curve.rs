//! What a job holds over time, and how several jobs add up when each begins at another moment.

use fastrand::Rng;
use serde::Serialize;

use crate::replay::Program;

/// Spans of equal length that a recorded time is cut into.
const SPANS: usize = 1024;

/// Ways to begin that are tried.
const STARTS: usize = 400;

/// A job's memory over its recorded time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Curve {
    /// Microseconds in which the job runs through all of it.
    wall_us: u64,
    /// The most bytes in each of [`SPANS`] equal spans.
    spans: Vec<u64>,
}

impl Curve {
    /// The live bytes of a program, raised in proportion so that their peak is `need`.
    pub fn of(program: &Program, need: u64) -> Self {
        let wall_us = program.steps.iter().map(|step| step.time_us).max().unwrap_or_default() + 1;
        let peak = program.peak_requested().0.max(1);
        let (mut spans, mut live, mut last) = (vec![0; SPANS], 0u64, 0);
        for step in &program.steps {
            let span = (u128::from(step.time_us) * SPANS as u128 / u128::from(wall_us)) as usize;
            // Times of several threads may be out of order by a little.
            let span = span.max(last);
            // What is live goes on until the next step.
            spans[last..=span].iter_mut().for_each(|most| *most = live.max(*most));
            last = span;
            live = if step.alloc { live + step.size } else { live - step.size };
            spans[span] = spans[span].max(live);
        }
        spans[last..].iter_mut().for_each(|most| *most = live.max(*most));
        for most in &mut spans {
            *most = (u128::from(*most) * u128::from(need) / u128::from(peak)) as u64;
        }
        Self { wall_us, spans }
    }

    /// The most that is held from one moment to another, where the job begins anew when it is through.
    fn most(&self, from_us: u64, to_us: u64) -> u64 {
        let span = |us: u64| (u128::from(us) * SPANS as u128 / u128::from(self.wall_us)) as usize;
        let (from, to) = (span(from_us), span(to_us));
        if to - from >= SPANS {
            return self.spans.iter().copied().max().unwrap_or_default();
        }
        (from..=to).map(|span| self.spans[span % SPANS]).max().unwrap_or_default()
    }
}

/// How jobs add up that run beside each other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Together {
    /// The part of the ways to begin with which the sum stays within the budget all the time.
    pub fits: f64,
    /// The most of the sum in the median of the ways to begin, in bytes.
    pub median: u64,
    /// The most of all, in bytes.
    pub worst: u64,
}

impl Together {
    /// Adds the curves up over the longest of them, with each at a moment of its own when that begins: 400 times, and with
    /// the same moments each time that it is asked. A shorter job is taken to begin anew.
    pub fn of(curves: &[&Curve], budget: u64) -> Self {
        let longest = curves.iter().map(|curve| curve.wall_us).max().unwrap_or(1);
        let mut rng = Rng::with_seed(1);
        let mut sums: Vec<u64> = Vec::with_capacity(STARTS);
        for _ in 0..STARTS {
            let begins: Vec<u64> = curves.iter().map(|curve| rng.u64(0..curve.wall_us)).collect();
            let at = |span: usize| (u128::from(longest) * span as u128 / SPANS as u128) as u64;
            let sum = |span: usize| {
                let each = curves.iter().zip(&begins);
                each.map(|(curve, begin)| curve.most(begin + at(span), begin + at(span + 1))).sum()
            };
            sums.push((0..SPANS).map(sum).max().unwrap_or_default());
        }
        sums.sort_unstable();
        let fits = sums.partition_point(|sum| *sum <= budget) as f64 / STARTS as f64;
        Self { fits, median: sums[STARTS / 2], worst: sums[STARTS - 1] }
    }
}
