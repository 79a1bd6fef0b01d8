//! Program after program, on several threads, until so many operations are done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;

use crate::finding::{Finding, Kind};
use crate::job::Job;
use crate::options::Options;
use crate::program::{Outcome, Program, run};
use crate::refusing::refused;
use crate::setup::Setup;
use crate::shorten::shorten;
use crate::step::{Step, Steps};
use crate::tenants::Tenants;

/// What came of a soak.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Steps that were done.
    pub operations: u64,
    /// By the clock.
    pub operations_per_s: u64,
    /// Device calls that were made to fail.
    pub faults: u64,
    /// Allocations of the host's that were refused.
    pub refusals: u64,
    /// Programs that were run.
    pub programs: u64,
    /// Processes that shared a budget, and were killed.
    pub killed: u64,
    /// Findings of [`Kind::Unordered`].
    pub unordered: u64,
    /// Findings of [`Kind::Overlapping`].
    pub overlapping: u64,
    /// Bytes that were lost.
    pub lost_bytes: u64,
    /// Findings of [`Kind::Hang`].
    pub hangs: u64,
    /// Findings of [`Kind::Wrong`].
    pub wrong: u64,
    /// The seed that the programs came from.
    pub seed: u64,
    /// What was found.
    pub findings: Vec<Found>,
}

/// A finding, and how it is found again.
#[derive(Debug, Serialize)]
pub struct Found {
    /// Which rule was broken.
    pub kind: Kind,
    /// In words.
    pub what: String,
    /// The program's number: `--seed` and this name it.
    pub number: u64,
    /// What the program ran on.
    pub setup: Setup,
    /// The shortest program found that breaks it.
    pub program: Option<Program>,
    /// How often that did, of ten runs.
    pub repeats: u32,
}

/// Steps of a program.
const STEPS: usize = 40_000;

/// Each program with a number that this divides runs on several threads.
const TOGETHER: u64 = 16;

/// Each program with a number that this divides is a job that repeats itself.
const JOBS: u64 = 4;

/// How often it is looked how far the programs are.
const LOOK: Duration = Duration::from_millis(100);

/// A program that does nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// After so many findings a soak ends.
const MOST_FOUND: usize = 8;

/// What the threads of a soak share.
#[derive(Debug)]
struct Soak {
    options: Options,
    next: AtomicU64,
    faults: AtomicU64,
    is_over: AtomicBool,
    found: Mutex<Vec<(u64, Box<Finding>)>>,
    workers: Vec<Worker>,
}

/// One thread: the operations that it did, and its program.
#[derive(Debug, Default)]
struct Worker {
    operations: AtomicU64,
    program: AtomicU64,
    is_done: AtomicBool,
}

/// The seed of the program with this number.
fn seed_of(options: &Options, number: u64) -> u64 {
    fastrand::Rng::with_seed(options.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).u64(..)
}

/// The steps of one thread.
type ProgramThread = Box<dyn Iterator<Item = Step> + Send>;

/// The program with this number.
fn random(options: &Options, number: u64) -> (Setup, Vec<ProgramThread>) {
    if number.is_multiple_of(JOBS) {
        let seed = seed_of(options, number);
        let setup = Setup::of_job(options, seed);
        let job: ProgramThread = Box::new(Job::new(seed, STEPS, setup.streams));
        return (setup, vec![job]);
    }
    let threads = if number % TOGETHER == TOGETHER - 1 { options.threads.max(2) } else { 1 };
    let (seed, steps) = (seed_of(options, number), STEPS / threads);
    let setup = Setup::random(options, seed, threads > 1);
    let thread = |thread| -> ProgramThread {
        Box::new(Steps::new(seed.wrapping_add(thread), steps, setup.streams, threads == 1))
    };
    let threads = (0..threads as u64).map(thread).collect();
    (setup, threads)
}

pub(crate) fn run_number(options: &Options, number: u64, progress: &AtomicU64) -> Outcome {
    let (setup, threads) = random(options, number);
    run(&setup, threads, progress)
}

/// The program with this number, as a list of steps. Calls that failed by chance fail by steps of it.
pub(crate) fn written(options: &Options, number: u64) -> Program {
    let (setup, threads) = random(options, number);
    let threads: Vec<Vec<Step>> = threads.into_iter().map(Iterator::collect).collect();
    let mut program = Program { setup, threads };
    if let [steps] = &mut program.threads[..] {
        let failed = run_number(options, number, &AtomicU64::new(0)).failed;
        // From behind, so that the numbers of earlier steps stay.
        for (at, nth) in failed.into_iter().rev() {
            steps.insert(at as usize, Step::Fail { nth });
        }
        program.setup.faults = 0.0;
    }
    program
}

/// Runs the program of a finding again.
///
/// # Errors
/// What it found.
pub fn repeat(program: &Program) -> Result<(), Finding> {
    program.run(&AtomicU64::new(0)).found.map_err(|found| *found)
}

/// Runs the program with this number again.
///
/// # Errors
/// What it found.
pub fn repeat_number(options: &Options, number: u64) -> Result<(), Finding> {
    run_number(options, number, &AtomicU64::new(0)).found.map_err(|found| *found)
}

/// Runs programs until there were enough operations, time is over, or `goes_on` says no. It is asked again and again, with how
/// many operations there were.
pub fn soak(options: Options, mut goes_on: impl FnMut(u64) -> bool) -> Report {
    let began = Instant::now();
    let refused_before = refused();
    let workers = (0..options.threads).map(|_| Worker::default()).collect();
    let soak = Arc::new(Soak {
        options,
        next: AtomicU64::new(0),
        faults: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        found: Mutex::default(),
        workers,
    });
    let tenants = Tenants::begin(&soak.options);
    // Not scoped: a thread that hangs is left behind.
    for worker in 0..soak.workers.len() {
        let soak = soak.clone();
        std::thread::spawn(move || soak.work(worker));
    }
    soak.watch(began, &mut goes_on);
    let elapsed = began.elapsed();
    let (killed, trouble) = tenants.end();
    soak.found.lock().extend(trouble.map(|trouble| (0, trouble)));
    soak.report(elapsed, refused() - refused_before, killed)
}

impl Soak {
    fn work(&self, worker: usize) {
        let worker = &self.workers[worker];
        // Relaxed, here and below: counts, and a flag that only ends loops.
        while !self.is_over.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            worker.program.store(number, Ordering::Relaxed);
            let outcome = run_number(&self.options, number, &worker.operations);
            self.faults.fetch_add(outcome.faults, Ordering::Relaxed);
            if let Err(found) = outcome.found {
                let mut all = self.found.lock();
                all.push((number, found));
                if all.len() >= MOST_FOUND {
                    self.is_over.store(true, Ordering::Relaxed);
                }
            }
        }
        worker.is_done.store(true, Ordering::Relaxed);
    }

    fn operations(&self) -> u64 {
        self.workers.iter().map(|worker| worker.operations.load(Ordering::Relaxed)).sum()
    }

    /// Ends the programs in time, and waits for them. A program that hangs is a finding, and is left behind.
    fn watch(&self, began: Instant, goes_on: &mut impl FnMut(u64) -> bool) {
        let mut seen = vec![(0, Instant::now()); self.workers.len()];
        let is_done = |worker: &Worker| worker.is_done.load(Ordering::Relaxed);
        while !self.workers.iter().all(is_done) {
            std::thread::sleep(LOOK);
            let operations = self.operations();
            let is_late = self.options.time.is_some_and(|time| began.elapsed() >= time);
            if operations >= self.options.operations || is_late || !goes_on(operations) {
                self.is_over.store(true, Ordering::Relaxed);
            }
            for (worker, seen) in self.workers.iter().zip(&mut seen) {
                let now = worker.operations.load(Ordering::Relaxed);
                if now != seen.0 || is_done(worker) {
                    *seen = (now, Instant::now());
                } else if seen.1.elapsed() >= PATIENCE {
                    let number = worker.program.load(Ordering::Relaxed);
                    let what = format!("no operation was done in {} seconds", PATIENCE.as_secs());
                    self.found.lock().push((number, Finding::new(Kind::Hang, what)));
                    self.is_over.store(true, Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    fn report(&self, elapsed: Duration, refusals: u64, killed: u64) -> Report {
        let found = std::mem::take(&mut *self.found.lock());
        let count = |kind| found.iter().filter(|(_, found)| found.kind == kind).count() as u64;
        let operations = self.operations();
        Report {
            operations,
            operations_per_s: (operations as f64 / elapsed.as_secs_f64()) as u64,
            faults: self.faults.load(Ordering::Relaxed),
            refusals,
            programs: self.next.load(Ordering::Relaxed),
            killed,
            unordered: count(Kind::Unordered),
            overlapping: count(Kind::Overlapping),
            // What was left, but cannot be told in bytes, is lost as well.
            lost_bytes: found
                .iter()
                .filter(|(_, f)| f.kind == Kind::LostBytes)
                .map(|(_, f)| f.bytes.max(1))
                .sum(),
            hangs: count(Kind::Hang),
            wrong: count(Kind::Wrong),
            seed: self.options.seed,
            findings: found.into_iter().map(|(number, found)| self.shortened(number, *found)).collect(),
        }
    }

    /// A finding with the shortest program that repeats it.
    fn shortened(&self, number: u64, found: Finding) -> Found {
        let Finding { kind, what, .. } = found;
        let setup = random(&self.options, number).0;
        if kind == Kind::Hang {
            return Found { kind, what, number, setup, program: None, repeats: 0 };
        }
        let (program, repeats) = shorten(written(&self.options, number), kind);
        Found { kind, what, number, setup, program: (repeats > 0).then_some(program), repeats }
    }
}
