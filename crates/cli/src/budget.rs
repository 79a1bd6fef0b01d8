//! `millpond budget`: the processes that share a budget, and its limit.

use millpond::{Budget, HumanBytes, Tenant};
use serde::Serialize;

use crate::args::BudgetArgs;
use crate::error::{Error, Result};
use crate::terminal::{answer, table};

/// Sizes in bytes.
#[derive(Debug, Serialize)]
struct Shared {
    name: String,
    limit: u64,
    held: u64,
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

/// Runs the command.
pub(crate) fn run(args: BudgetArgs) -> Result<()> {
    let Some(budget) = Budget::find(&args.name)? else { return Err(Error::NoBudget(args.name)) };
    if let Some(limit) = args.limit {
        budget.set_limit(limit);
    }
    // Without this command, which holds nothing.
    let others = budget.tenants().into_iter().filter(|tenant| tenant.pid != std::process::id());
    let processes: Vec<_> = others.map(Process::from).collect();
    let held = processes.iter().map(|process| process.held).sum();
    let shared = Shared { name: args.name, limit: budget.limit(), held, processes };
    if !args.json {
        show(&shared);
        return Ok(());
    }
    let text = serde_json::to_string_pretty(&shared).map_err(|error| Error::Io {
        path: "standard output".into(),
        action: "write JSON",
        source: error.into(),
    })?;
    answer(&text);
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
