//! Other processes that share a named budget, and are killed at any moment.
//!
//! Each is this program again, and only allocates and frees. A thread of the soak starts them, looks at the ledger, and kills
//! one after the other. What they hold together never exceeds the limit, and a killed one counts for nothing soon.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fastrand::Rng;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Budget, Context, Error, Pool};

use crate::finding::{Finding, Kind, Verdict};
use crate::options::{Options, Tenant};
use crate::setup::NAMED_BUDGET;

/// Processes at once.
const PROCESSES: usize = 2;

/// How long one lives at most.
const LONGEST_LIFE: u64 = 400;

/// How long the ledger may count a process that was killed and waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// The processes of a soak.
#[derive(Debug)]
pub(crate) struct Tenants(Option<Running>);

#[derive(Debug)]
struct Running {
    killed: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Verdict>,
}

impl Tenants {
    pub(crate) fn begin(options: &Options) -> Self {
        let Some(tenant) = options.tenant.clone() else { return Self(None) };
        let (killed, is_over) = <(Arc<AtomicU64>, Arc<AtomicBool>)>::default();
        let (count, stop, seed) = (killed.clone(), is_over.clone(), options.seed);
        let thread = std::thread::spawn(move || kill_and_look(&tenant, seed, &count, &stop));
        Self(Some(Running { killed, is_over, thread }))
    }

    /// How many processes were killed, and what was wrong.
    pub(crate) fn end(self) -> (u64, Option<Box<Finding>>) {
        let Some(Running { killed, is_over, thread }) = self.0 else { return (0, None) };
        // Relaxed: a flag and a count.
        is_over.store(true, Ordering::Relaxed);
        let found = thread.join().unwrap_or_else(|_| Err(Finding::wrong("a panic beside the processes")));
        (killed.load(Ordering::Relaxed), found.err())
    }
}

fn wrong(error: impl std::fmt::Display) -> Box<Finding> {
    Finding::wrong(format!("the shared budget: {error}"))
}

fn kill_and_look(tenant: &Tenant, seed: u64, killed: &AtomicU64, is_over: &AtomicBool) -> Verdict {
    let budget = Budget::named(&tenant.budget, NAMED_BUDGET).map_err(wrong)?;
    let mut rng = Rng::with_seed(seed);
    let start = |rng: &mut Rng| -> Verdict<Child> {
        let mut command = Command::new(&tenant.program);
        command.args(&tenant.arguments).arg(&tenant.budget).arg(rng.u64(..).to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().map_err(wrong)
    };
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        processes.push(start(&mut rng)?);
    }
    // Relaxed: a flag.
    while !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(rng.u64(1..LONGEST_LIFE)));
        let (held, limit) = (budget.held(), budget.limit());
        if held > limit {
            return Err(wrong(format!("{held} bytes are held of {limit}")));
        }
        let at = rng.usize(..PROCESSES);
        end(&mut processes[at], &budget)?;
        killed.fetch_add(1, Ordering::Relaxed);
        processes[at] = start(&mut rng)?;
    }
    processes.iter_mut().try_for_each(|process| end(process, &budget))?;
    // Nobody has the budget any more.
    budget.path().map_or(Ok(()), std::fs::remove_file).map_err(wrong)
}

/// Kills a process. Soon the ledger does not name it any more.
fn end(process: &mut Child, budget: &Budget) -> Verdict {
    if let Some(status) = process.try_wait().map_err(wrong)? {
        return Err(wrong(format!("a process ended by itself: {status}")));
    }
    process.kill().map_err(wrong)?;
    process.wait().map_err(wrong)?;
    let began = Instant::now();
    while budget.tenants().iter().any(|tenant| tenant.pid == process.id() && tenant.held > 0) {
        if began.elapsed() > PATIENCE {
            let what = format!("the ledger counts process {} long after it was killed", process.id());
            return Err(Finding::new(Kind::LostBytes, what));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// What such a process does until it is killed, or its standard input ends.
///
/// # Errors
/// What a pool said, other than that memory ran out.
pub fn tenant(budget: &str, seed: u64) -> millpond::Result<()> {
    // Else it would outlive a soak that is killed.
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let budget = Budget::named(budget, NAMED_BUDGET)?;
    let mut rng = Rng::with_seed(seed);
    budget.set_floor(rng.u64(..NAMED_BUDGET / 16))?;
    let context = Context::new(SimDevice::new(SimOptions::default().capacity(2 * NAMED_BUDGET))?);
    let pool = Pool::builder(&context).live(false).budget(&budget).build()?;
    let stream = context.create_stream()?;
    let mut live = Vec::new();
    loop {
        if rng.bool() && live.len() < 16 {
            match pool.alloc(rng.u64(1..NAMED_BUDGET / 12), &stream) {
                Ok(at) => live.push(at),
                Err(Error::OutOfMemory(_)) => {}
                Err(error) => return Err(error),
            }
        } else if let Some(at) = rng.usize(..).checked_rem(live.len()) {
            // SAFETY: nobody else has the block, and no work uses it.
            unsafe { pool.free(live.swap_remove(at), &stream) }?;
        }
        if rng.u32(..64) == 0 {
            pool.trim_to(0)?;
        }
        // It is there to hold memory and to be asked for it, not for speed.
        std::thread::sleep(Duration::from_millis(1));
    }
}
