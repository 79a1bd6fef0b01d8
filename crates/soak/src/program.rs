//! A program, and running it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::finding::{Finding, Verdict};
use crate::setup::{POOLS, SLOTS, Setup, TAGS};
use crate::stage::Stage;
use crate::step::Step;
use crate::thread::{How, ProgramThread};
use crate::{ending, leaving, pools};

/// A program, and what it runs on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Program {
    pub(crate) setup: Setup,
    /// The steps of each thread.
    #[serde(rename = "lanes")]
    pub(crate) threads: Vec<Vec<Step>>,
}

/// What came of a program.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) operations: u64,
    pub(crate) faults: u64,
    /// Where calls failed by chance: the step of the only thread, and the call in it.
    pub(crate) failed: Vec<(u32, u32)>,
    pub(crate) found: Verdict,
}

/// Steps of a program of bytes at most.
const MOST_STEPS: usize = 400;

/// Steps after which the pools are asked whether all is well.
const CHECKED_EVERY: usize = 2048;

/// Steps after which others hear how far a program is.
const TOLD_EVERY: usize = 256;

impl Program {
    /// Steps of all threads.
    pub fn len(&self) -> usize {
        self.threads.iter().map(Vec::len).sum()
    }

    /// Whether it has no steps.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A program of some bytes, whatever they are: what it runs on, and its steps. On the simulated device, whose calls fail or not.
    pub fn of_bytes(bytes: &[u8], with_faults: bool) -> Self {
        let (seed, steps) = bytes
            .split_first_chunk::<2>()
            .map_or((0, bytes), |(seed, steps)| (u16::from_le_bytes(*seed), steps));
        let steps = steps.as_chunks().0.iter().take(MOST_STEPS).map(|bytes| Step::of_bytes(*bytes));
        let steps = steps.filter(|step| with_faults || !matches!(step, Step::Fail { .. })).collect();
        Self { setup: Setup::without_faults(seed.into()), threads: vec![steps] }
    }

    pub(crate) fn run(&self, progress: &AtomicU64) -> Outcome {
        run(&self.setup, self.threads.iter().map(|steps| steps.iter().copied()).collect(), progress)
    }
}

/// Runs a program whose steps come from anywhere.
pub(crate) fn run<S: Iterator<Item = Step> + Send>(
    setup: &Setup,
    threads: Vec<S>,
    progress: &AtomicU64,
) -> Outcome {
    let mut outcome = Outcome { operations: 0, faults: 0, failed: Vec::new(), found: Ok(()) };
    let before = progress.load(Ordering::Relaxed);
    let ran = catch_unwind(AssertUnwindSafe(|| run_all(setup, threads, progress, &mut outcome)));
    // Relaxed: counts.
    outcome.operations = progress.load(Ordering::Relaxed) - before;
    outcome.found = ran.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word");
        Err(Finding::wrong(format!("a panic: {said}")))
    });
    outcome
}

fn run_all<S: Iterator<Item = Step> + Send>(
    setup: &Setup,
    threads: Vec<S>,
    progress: &AtomicU64,
    outcome: &mut Outcome,
) -> Verdict {
    let stage = Stage::new(setup.clone())?;
    let is_alone = threads.len() == 1;
    let ran = std::thread::scope(|scope| {
        let start = |steps: S| {
            let stage = &stage;
            move || run_thread(stage, steps, is_alone, progress)
        };
        let mut threads = threads.into_iter().map(start);
        let Some(first) = threads.next() else { return Ok(()) };
        let others: Vec<_> = threads.map(|thread| scope.spawn(thread)).collect();
        let first = first();
        let others = others
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        others.fold(first, Result::and)
    });
    outcome.faults = stage.faults.count();
    outcome.failed = stage.faults.failed();
    ran?;
    stage.faults.stop();
    // What nobody took.
    let mut last = ProgramThread::new(&stage)?;
    while last.take(0)? {
        last.free_all()?;
    }
    drop(last);
    stage.finish()
}

fn run_thread(
    stage: &Stage,
    steps: impl Iterator<Item = Step>,
    is_alone: bool,
    progress: &AtomicU64,
) -> Verdict {
    let mut thread = ProgramThread::new(stage)?;
    if stage.setup.refuses {
        pools::warm_up(&mut thread)?;
    }
    let mut done = 0;
    for (at, step) in steps.enumerate() {
        if is_alone {
            stage.faults.begin_step(at as u32);
        }
        done += u64::from(take(&mut thread, step).map_err(|found| found.in_step(at, step))?);
        if at % TOLD_EVERY == 0 {
            // Relaxed: a count.
            progress.fetch_add(std::mem::take(&mut done), Ordering::Relaxed);
        }
        if is_alone && at % CHECKED_EVERY == CHECKED_EVERY - 1 {
            stage.check().map_err(|found| found.in_step(at, step))?;
            thread.check_figures().map_err(|found| found.in_step(at, step))?;
        }
    }
    progress.fetch_add(done, Ordering::Relaxed);
    if is_alone {
        stage.check()?;
        thread.check_figures()?;
        stage.faults.stop();
    }
    ending::finish(thread)
}

/// Does a step. `false` where it makes no sense now, and nothing was done.
fn take(thread: &mut ProgramThread<'_>, step: Step) -> Verdict<bool> {
    let streams = thread.streams.len();
    let pool = |pool: u8| usize::from(pool) % SLOTS;
    let tag = |tag: u8| POOLS + usize::from(tag) % TAGS;
    let stream = |stream: u8| usize::from(stream) % streams;
    let done = |()| true;
    let may_end_the_process = matches!(
        step,
        Step::NewStream { .. }
            | Step::NewPool { .. }
            | Step::Capture { .. }
            | Step::Sleep { .. }
            | Step::Share { .. }
            | Step::Evict { .. }
    );
    if thread.stage.setup.refuses && may_end_the_process {
        return Ok(false);
    }
    match step {
        Step::Alloc { pool: of, stream: on, bytes } => thread.alloc(pool(of), stream(on), bytes, How::Plain),
        Step::AllocZeroed { pool: of, stream: on, bytes } => {
            thread.alloc(pool(of), stream(on), bytes, How::Zeroed)
        }
        Step::AllocAligned { pool: of, stream: on, bytes, log } => {
            thread.alloc(pool(of), stream(on), bytes, How::Aligned(1 << log))
        }
        Step::Use { block, stream: on, micros, recorded } => {
            thread.use_block(block, stream(on), micros, recorded)
        }
        Step::Free { block, stream: on } => thread.free(block, stream(on)),
        Step::WaitFor { stream: on, other } => thread.wait_for(stream(on), stream(other)),
        Step::Advance { micros } => Ok(thread.stage.advance(micros)),
        Step::SyncStream { stream: on } => thread.synchronize_stream(stream(on)).map(done),
        Step::SyncDevice => thread.synchronize_device(),
        Step::NewStream { stream: on } => thread.new_stream(stream(on)).map(done),
        Step::Trim { pool: of, pages } => pools::trim(thread, pool(of), pages).map(done),
        Step::Reserve { pool: of, stream: on, pages } => pools::reserve(thread, pool(of), stream(on), pages),
        Step::SetThreshold { pool: of, pages } => {
            thread.stage.set_threshold(pool(of), pages);
            Ok(true)
        }
        Step::NewPool { pool: of } => pools::replace(thread, pool(of)),
        Step::Capture { pool: of, stream: on, blocks, bytes } => {
            pools::new_graph(thread, pool(of), stream(on), blocks, bytes)
        }
        Step::Launch { graph } => pools::launch(thread, graph),
        Step::DropGraph { graph } => pools::drop_graph(thread, graph),
        Step::Sleep { pool: of, keeps } => leaving::sleep(thread, pool(of), keeps),
        Step::Wake { pool: of } => leaving::wake(thread, pool(of)),
        Step::Share { pool: of, stream: on, other, bytes } => {
            pools::share(thread, pool(of), (stream(on), stream(other)), bytes)
        }
        Step::Evict { tag: of, stream: on } => leaving::evict(thread, tag(of), stream(on)),
        Step::Restore { tag: of, stream: on } => leaving::restore(thread, tag(of), stream(on)),
        Step::RestoreEarly { tag: of, is_whole } => leaving::restore_early(thread, tag(of), is_whole),
        Step::HandOver { block, stream: on } => thread.hand_over(block, stream(on)),
        Step::Take { stream: on } => thread.take(stream(on)),
        Step::Fail { nth } => {
            thread.stage.faults.plan(nth);
            Ok(false)
        }
        Step::Refuse { nth } => {
            thread.refuse = if thread.stage.setup.refuses { nth.into() } else { 0 };
            Ok(false)
        }
    }
}
