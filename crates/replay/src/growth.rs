//! What a program holds more and more of, from step to step.
//!
//! A program that leaks may free everything when it ends, so that nothing is live then. What it leaks is never freed
//! before: the least that is held within a step is more in each step. So a line is laid through these least figures of each
//! call site, by least squares. What comes and goes by gigabytes has a slope, too, but one that chance may have made. The
//! standard error says how much of a slope is sure. It is widened where steps resemble the step before
//! ([effective sample size](https://en.wikipedia.org/wiki/Effective_sample_size)), as those of a single jump do.

use serde::Serialize;

use crate::owners::{Owners, named};
use crate::replay::{Program, Step};
use crate::steps::{FEWEST, StepBy, Steps};
use crate::trace::Trace;

/// Call sites that are listed.
const MOST_SITES: usize = 20;

/// Steps that are looked at one by one. Of more, several neighbours are taken as one.
const MOST_WINDOWS: usize = 256;

/// Figures that are kept at once: 8 bytes each.
const MOST_FIGURES: usize = 1 << 24;

/// Standard errors that a slope must be above 0. A single jump in the middle of the run comes to 3.8.
const SURE: f64 = 4.0;

/// What one call site under one tag held more and more of. Where no call stacks were recorded: one tag, or blocks of like
/// sizes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Grown {
    /// The tags, outermost first, with `/` between; `None` outside of any.
    pub tag: Option<String>,
    /// The call site, as a [`Site`](crate::sites::Site) has it; `None` where no call stacks were recorded.
    pub site: Option<String>,
    /// The power of two that the blocks' sizes are not below, where neither call stacks nor tags were recorded.
    pub size: Option<u64>,
    /// Bytes more in each step: the slope of the line through `least`.
    pub bytes_a_step: f64,
    /// So many of them are sure: the slope less four of its standard errors.
    pub sure_bytes_a_step: f64,
    /// R²: the share of what `least` varies by that the line explains, 0 to 1.
    pub r2: f64,
    /// The bytes that were held at least, within each step or each few steps.
    pub least: Vec<u64>,
    /// Bytes that are live when the recording ends.
    pub live_at_end: u64,
    /// In how many blocks.
    pub blocks_at_end: u64,
}

impl Grown {
    /// The least that was held in the first step that counts and in the last one, in bytes.
    pub fn from_to(&self) -> (u64, u64) {
        (self.least.first().copied().unwrap_or_default(), self.least.last().copied().unwrap_or_default())
    }

    /// Tag and call site in one line, or the sizes.
    pub fn name(&self) -> String {
        named(self.tag.as_deref(), self.site.as_deref(), self.size)
    }
}

/// What grew, and what a step is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Growth {
    /// What steps are told by.
    pub step_by: StepBy,
    /// The phase, tag or allocation that a step begins with; empty where the run was cut into parts.
    pub step: String,
    /// How many steps there are.
    pub steps: usize,
    /// What grew, the most first by what is sure; at most 20.
    pub grown: Vec<Grown>,
    /// How many grew.
    pub grew: usize,
    /// How many call sites, tags or sizes were looked at.
    pub looked_at: usize,
}

impl Growth {
    /// What grew from step to step.
    pub fn of(trace: &Trace, program: &Program, steps: Steps) -> Self {
        let Owners { all, of_block } = Owners::of(trace);
        let count = steps.count();
        let (each, history) = history(program, &steps, &of_block, all.len());
        let (live, blocks) = at_end(program, &of_block, all.len());
        let row = |owner: usize| {
            let least: Vec<u64> = history.iter().map(|least| least[owner]).collect();
            let trend = Trend::of(&least).filter(|trend| trend.sure() > 0.0)?;
            Some((owner, trend, least))
        };
        let mut rows: Vec<_> = (0..all.len()).filter_map(row).collect();
        rows.sort_by(|(one, a, _), (other, b, _)| {
            b.sure().total_cmp(&a.sure()).then_with(|| all[*one].cmp(&all[*other]))
        });
        let grew = rows.len();
        let grown = rows.into_iter().take(MOST_SITES).map(|(owner, trend, least)| Grown {
            tag: all[owner].tag.clone(),
            site: all[owner].site(),
            size: all[owner].size(),
            bytes_a_step: trend.slope / each as f64,
            sure_bytes_a_step: trend.sure() / each as f64,
            r2: trend.r2,
            least,
            live_at_end: live[owner],
            blocks_at_end: blocks[owner],
        });
        let grown = grown.collect();
        Self { step_by: steps.by, step: steps.name, steps: count, grown, grew, looked_at: all.len() }
    }
}

impl Growth {
    /// What a step is, in words.
    pub fn steps_are(&self) -> String {
        match self.step_by {
            StepBy::Phase => format!("a step begins with the phase {}", self.step),
            StepBy::Tag => format!("a step begins with the tag {}", self.step),
            StepBy::Allocation => format!("a step begins with an allocation, {}", self.step),
            StepBy::Part => format!(
                "no step was found, which is a phase or a tag that comes more than {FEWEST} times; so the run is cut into \
                 equal parts"
            ),
        }
    }
}

/// The least that each owner holds in each window, and how many steps a window has. The first window is left out: a program
/// begins there.
fn history(program: &Program, steps: &Steps, of_block: &[u32], owners: usize) -> (usize, Vec<Vec<u64>>) {
    let most = (MOST_FIGURES / owners.max(1)).clamp(FEWEST, MOST_WINDOWS);
    let each = steps.count().div_ceil(most).max(1);
    let bounds: Vec<usize> = steps.bounds.iter().copied().step_by(each).collect();
    let mut live = vec![0u64; owners];
    let mut history = Vec::with_capacity(bounds.len());
    let mut from = 0;
    for (number, &to) in bounds.iter().enumerate() {
        let least = least(&program.steps[from..to.max(from)], of_block, &mut live);
        if number > 1 {
            history.push(least);
        }
        from = to.max(from);
    }
    (each, history)
}

/// The least that each owner holds in a stretch.
fn least(stretch: &[Step], of_block: &[u32], live: &mut [u64]) -> Vec<u64> {
    let mut least = live.to_vec();
    for step in stretch {
        let owner = of_block[step.block as usize] as usize;
        if step.alloc {
            live[owner] += step.size;
        } else {
            live[owner] -= step.size;
            least[owner] = least[owner].min(live[owner]);
        }
    }
    least
}

/// Bytes and blocks of each owner that are live at the end.
fn at_end(program: &Program, of_block: &[u32], owners: usize) -> (Vec<u64>, Vec<u64>) {
    let (mut live, mut blocks) = (vec![0u64; owners], vec![0u64; owners]);
    for step in &program.steps {
        let owner = of_block[step.block as usize] as usize;
        if step.alloc {
            live[owner] += step.size;
            blocks[owner] += 1;
        } else {
            live[owner] -= step.size;
            blocks[owner] -= 1;
        }
    }
    (live, blocks)
}

/// A line through figures that are one apart.
#[derive(Debug, Clone, Copy)]
struct Trend {
    slope: f64,
    error: f64,
    r2: f64,
}

impl Trend {
    /// By least squares; `None` of too few figures, and of those that are all the same.
    fn of(figures: &[u64]) -> Option<Self> {
        let count = figures.len() as f64;
        if figures.len() + 1 < FEWEST {
            return None;
        }
        let mean = figures.iter().map(|&y| y as f64).sum::<f64>() / count;
        let middle = (count - 1.0) / 2.0;
        let off = |at: usize| (at as f64 - middle, figures[at] as f64 - mean);
        let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
        for (x, y) in (0..figures.len()).map(off) {
            (xx, xy, yy) = (xx + x * x, xy + x * y, yy + y * y);
        }
        if yy == 0.0 {
            return None;
        }
        let slope = xy / xx;
        let left: Vec<f64> = (0..figures.len()).map(off).map(|(x, y)| y - slope * x).collect();
        let squares: f64 = left.iter().map(|left| left * left).sum();
        let alike =
            left.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / squares.max(f64::MIN_POSITIVE);
        let alike = alike.clamp(0.0, 0.99);
        let error = (squares / (count - 2.0) / xx * (1.0 + alike) / (1.0 - alike)).sqrt();
        Some(Self { slope, error, r2: 1.0 - squares / yy })
    }

    /// The slope that is sure.
    fn sure(&self) -> f64 {
        self.slope - SURE * self.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventKind, Frame, StackId};
    use crate::replay::FreeWhen;
    use crate::trace::TraceBuilder;

    /// What a test's program does, one event after another.
    #[derive(Default)]
    struct Job {
        builder: TraceBuilder,
        time_us: u64,
    }

    impl Job {
        fn stack(&mut self, name: &str) -> StackId {
            let frame =
                self.builder.stacks.add_frame(Frame { name: name.into(), file: "a.py".into(), line: 1 });
            self.builder.stacks.add_stack(&[frame])
        }

        fn push(&mut self, kind: EventKind, address: u64, size: u64, stack: StackId) {
            self.time_us += 1;
            let event = Event { kind, device: 0, stream: 0, time_us: self.time_us, address, size, stack };
            self.builder.push(event).unwrap();
        }

        fn finish(self) -> Trace {
            self.builder.finish("t").remove(0)
        }
    }

    fn growth(trace: &Trace) -> Growth {
        let program = Program::new(trace, FreeWhen::Completed);
        Growth::of(trace, &program, Steps::found(trace, &program))
    }

    const ALLOC: EventKind = EventKind::Alloc;
    const FREE: EventKind = EventKind::FreeCompleted;

    /// A hundred steps of a program, each of which allocates and frees, and one site of which keeps what it allocated; at
    /// the end everything is freed.
    fn leaking(with_stacks: bool) -> Trace {
        let mut job = Job::default();
        let [weights, step, leak] =
            ["weights", "step", "leak"].map(|name| if with_stacks { job.stack(name) } else { StackId::NONE });
        job.push(ALLOC, 1, 5000, weights);
        for turn in 0..100 {
            job.push(ALLOC, 2, 300 + turn, step);
            job.push(ALLOC, 1000 + turn, 64, leak);
            job.push(FREE, 2, 300 + turn, step);
        }
        for turn in 0..100 {
            job.push(FREE, 1000 + turn, 64, leak);
        }
        job.push(FREE, 1, 5000, weights);
        job.finish()
    }

    #[test]
    fn what_leaks_grows_although_all_is_freed_at_the_end() {
        let growth = growth(&leaking(true));
        let [leak] = &growth.grown[..] else { panic!("{growth:?}") };
        assert_eq!(leak.site.as_deref(), Some("leak (a.py:1)"));
        assert!((leak.bytes_a_step - 64.0).abs() < 1e-6 && leak.r2 > 0.9999, "{leak:?}");
        assert_eq!((growth.step_by, growth.steps, leak.live_at_end), (StepBy::Allocation, 99, 0));
    }

    #[test]
    fn without_call_stacks_it_is_told_by_size() {
        let growth = growth(&leaking(false));
        let [leak] = &growth.grown[..] else { panic!("{growth:?}") };
        assert_eq!((leak.site.as_deref(), leak.size), (None, Some(64)));
        assert_eq!(leak.name(), "blocks of 64 B to 128 B");
    }

    /// Sixty steps with caches that change by gigabytes from step to step, a buffer that doubles once, and one MiB a step
    /// that is kept.
    fn planted() -> Trace {
        const MIB: u64 = 1 << 20;
        let mut job = Job::default();
        let sites: Vec<_> = (0..40).map(|site| job.stack(&format!("cache_{site}"))).collect();
        let [leak, twice] = ["leak", "doubled_once"].map(|name| job.stack(name));
        let mut random = fastrand::Rng::with_seed(7);
        let mut cached: Vec<Option<u64>> = vec![None; sites.len()];
        job.push(ALLOC, 1, 2048 * MIB, twice);
        for turn in 0..60 {
            for (site, &stack) in sites.iter().enumerate() {
                let address = 100 + site as u64;
                if let Some(size) = cached[site].take() {
                    job.push(FREE, address, size, stack);
                }
                let size = random.u64(1..2048) * MIB;
                job.push(ALLOC, address, size, stack);
                cached[site] = Some(size);
            }
            if turn == 30 {
                job.push(ALLOC, 2, 2048 * MIB, twice);
            }
            job.push(ALLOC, 1000 + turn, MIB, leak);
        }
        job.finish()
    }

    #[test]
    fn a_leak_of_a_mebibyte_a_step_comes_before_gigabytes_that_change() {
        let growth = growth(&planted());
        let first = &growth.grown[0];
        assert_eq!(first.site.as_deref(), Some("leak (a.py:1)"), "{growth:?}");
        assert!((first.bytes_a_step / f64::from(1 << 20) - 1.0).abs() < 1e-6, "{first:?}");
        assert_eq!((growth.looked_at, first.blocks_at_end), (42, 60));
        assert!(growth.grown.iter().all(|grown| !grown.name().contains("doubled_once")), "{growth:?}");
    }

    #[test]
    fn what_jumps_once_or_comes_and_goes_does_not_grow() {
        let sure = |figures: &[u64]| Trend::of(figures).is_some_and(|trend| trend.sure() > 0.0);
        assert!(sure(&[1, 2, 3, 4, 5, 6, 7]));
        assert!(sure(&[1, 2, 3, 3, 3, 6, 7, 8, 9, 10]), "a step may add nothing");
        assert!(!sure(&[5; 10]));
        assert!(!sure(&[0, 5, 5, 5, 5, 5, 5, 5, 5]));
        assert!(!sure(&[1, 9, 2, 8, 3, 9, 1, 9, 2, 9]));
        for length in [20, 60, 256] {
            let jump: Vec<u64> = (0..length).map(|at| u64::from(at >= length / 2)).collect();
            assert!(!sure(&jump), "{length}");
        }
    }
}
