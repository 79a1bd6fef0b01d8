//! `budgets/`: what pools may hold: limits of a pool, of several, of a process, and of several processes.
//!
//! Uses `device/`. It knows nothing of pages or of who holds them.

mod amount;
mod budget;
mod imposed;
mod limits;
mod named;

pub use amount::Amount;
pub use budget::Budget;
pub(crate) use imposed::budget_for;
pub(crate) use limits::{Limits, Live, Shortage};
pub(crate) use named::folder::{Folder as SharedFolder, all as shared_folders, present as shared_folder};
pub(crate) use named::{GivesBack, Tenancy};
