//! `millpond budget`: the budgets that processes share, who has them, and their limits.

use std::path::PathBuf;

use millpond::{Budget, HumanBytes, SeenBudget, Tenant};
use serde::Serialize;

use crate::args::BudgetArgs;
use crate::error::{Error, Result};
use crate::terminal::{answer, say, table};

/// Sizes in bytes.
#[derive(Debug, Serialize)]
struct Shared {
    name: String,
    /// The file that its processes share.
    path: PathBuf,
    limit: u64,
    held: u64,
    /// Whether the limit stays when all processes have ended.
    stays: bool,
    processes: Vec<Process>,
}

#[derive(Debug, Serialize)]
struct Process {
    pid: u32,
    program: String,
    held: u64,
    floor: u64,
    /// What it takes at most, if it said so.
    claim: Option<u64>,
}

impl From<Tenant> for Process {
    fn from(tenant: Tenant) -> Self {
        let Tenant { pid, program, held, floor, claim, .. } = tenant;
        Self { pid, program, held, floor, claim: (claim < u64::MAX).then_some(claim) }
    }
}

impl From<SeenBudget> for Shared {
    fn from(seen: SeenBudget) -> Self {
        let held = seen.held();
        let SeenBudget { name, path, limit, stays, tenants, .. } = seen;
        Self { name, path, limit, held, stays, processes: tenants.into_iter().map(Process::from).collect() }
    }
}

/// Runs the command.
pub(crate) fn run(args: BudgetArgs) -> Result<()> {
    let Some(name) = args.name else { return all(args.json) };
    if args.remove {
        return remove(name);
    }
    if let Some(limit) = args.limit {
        Budget::keep_limit(&name, limit)?;
    }
    let Some(seen) = Budget::look(&name)? else { return Err(Error::NoBudget(name)) };
    let shared = Shared::from(seen);
    if args.json {
        return json(&shared);
    }
    show(&shared);
    Ok(())
}

fn remove(name: String) -> Result<()> {
    if Budget::remove(&name)? {
        say(&format!("budget {name} is removed"));
        return Ok(());
    }
    Err(if Budget::look(&name)?.is_some() { Error::BudgetInUse(name) } else { Error::NoBudget(name) })
}

fn json(what: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(what).map_err(|error| Error::Io {
        path: "standard output".into(),
        action: "write JSON",
        source: error.into(),
    })?;
    answer(&text);
    Ok(())
}

/// A line for each budget.
fn all(as_json: bool) -> Result<()> {
    let all: Vec<_> = Budget::all().into_iter().map(Shared::from).collect();
    if as_json {
        return json(&all);
    }
    if all.is_empty() {
        answer("there is no budget: a program that names one makes it, or millpond budget NAME --limit SIZE");
        return Ok(());
    }
    let mut rows = vec![["budget", "limit", "held", "processes", "stays"].map(str::to_owned).to_vec()];
    rows.extend(all.iter().map(|shared| {
        let [limit, held] = [shared.limit, shared.held].map(|bytes| HumanBytes(bytes).to_string());
        let stays = if shared.stays { "yes" } else { "no" };
        vec![shared.name.clone(), limit, held, shared.processes.len().to_string(), stays.to_owned()]
    }));
    answer(&table(&rows));
    Ok(())
}

fn show(shared: &Shared) {
    let [held, limit] = [shared.held, shared.limit].map(HumanBytes);
    answer(&format!("budget {}: {held} of {limit} held\n", shared.name));
    let mut rows = vec![["process", "program", "held", "floor", "claim"].map(str::to_owned).to_vec()];
    rows.extend(shared.processes.iter().map(|process| {
        let [held, floor] = [process.held, process.floor].map(|bytes| HumanBytes(bytes).to_string());
        let claim = process.claim.map_or_else(|| "-".to_owned(), |bytes| HumanBytes(bytes).to_string());
        vec![process.pid.to_string(), process.program.clone(), held, floor, claim]
    }));
    answer(&table(&rows));
}
