//! A process under a budget that several processes share.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::figures::stats::HumanBytes;

/// A process under a [named budget](crate::Budget::named), as [`Budget::tenants`](crate::Budget::tenants) lists it. Bytes
/// throughout.
///
/// ```
/// use millpond::Budget;
///
/// # let name = format!("tenant-example-{}", std::process::id());
/// # let name = name.as_str();
/// let budget = Budget::named(name, 1 << 30)?;
/// for tenant in budget.tenants() {
///     println!("{tenant}"); // process 4711 (python) holds 20.00 GiB
/// }
/// # std::fs::remove_file(budget.path().unwrap()).unwrap();
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tenant {
    /// The process.
    pub pid: u32,
    /// The name of its program, as the system has it; empty where it cannot be told. `has ended` where it runs no more, and a
    /// child that it forked, or a process that opened what it shared, still has its memory.
    pub program: String,
    /// Bytes that its pools with the budget hold.
    pub held: u64,
    /// Bytes that are kept for it. See [`Budget::set_floor`](crate::Budget::set_floor).
    pub floor: u64,
    /// Bytes that it holds at most. See [`Budget::set_claim`](crate::Budget::set_claim).
    pub claim: u64,
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)?;
        if !self.program.is_empty() {
            write!(f, " ({})", self.program)?;
        }
        write!(f, " holds {}", HumanBytes(self.held))
    }
}

/// A [named budget](crate::Budget::named) as somebody sees it who does not have it: see [`Budget::all`](crate::Budget::all).
///
/// ```
/// use millpond::{Budget, HumanBytes};
///
/// for budget in Budget::all() {
///     println!("{}: {} of {} held", budget.name, HumanBytes(budget.held()), HumanBytes(budget.limit));
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeenBudget {
    /// Its name.
    pub name: String,
    /// The file that its processes share.
    pub path: PathBuf,
    /// Bytes that all processes may hold together.
    pub limit: u64,
    /// Whether the limit stays when all processes have ended: it was set [for all](crate::Budget::keep_limit).
    pub stays: bool,
    /// The processes that have it, those that hold most first.
    pub tenants: Vec<Tenant>,
}

impl SeenBudget {
    /// Bytes that all processes hold. Memory that passes from one to another just now may count twice.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.tenants.iter().fold(0, |sum, tenant| sum.saturating_add(tenant.held))
    }
}
