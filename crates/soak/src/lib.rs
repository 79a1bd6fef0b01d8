//! Random programs over Millpond's pools, watched for long.
//!
//! **How one program passes through.** Its number and the seed decide on what it runs (`setup`), and its steps: random ones
//! (`step`), or those of a job that repeats itself (`job`). A
//! `stage` has the device, a checker over it, and the pools. Each of its threads (`thread`) has streams and blocks of its own,
//! orders its work (`order`), and allocates, uses and frees. Device calls fail by chance (`failing`), and the host refuses
//! memory (`refusing`). At the end everything must have gone back.
//!
//! **What is found.** [`soak`] runs programs until there were enough operations. A [`Finding`] comes with a program that
//! was shortened (`shorten`), and repeats it. Beside the programs, other processes share a budget, and are killed (`tenants`).

mod ending;
mod failing;
mod finding;
mod graphs;
mod job;
mod leaving;
mod options;
mod order;
mod pools;
mod program;
mod refusing;
mod setup;
mod shorten;
mod soak;
mod stage;
mod step;
mod tenants;
#[cfg(test)]
mod tests;
mod thread;

pub use finding::{Finding, Kind};
pub use options::{Options, Tenant};
pub use program::Program;
pub use refusing::RefusingAllocator;
pub use setup::Setup;
pub use soak::{Found, Report, repeat, repeat_number, soak};
pub use tenants::tenant;
