//! `replay/`: puts a trace through an allocator on a device, and says what came of it.
//!
//! Uses `trace`, and the allocators of `millpond-baselines`.
//!
//! **How one replay runs.** [`Program`] keeps of the trace what the allocator will be asked. A [`Stage`] is a
//! device with the trace's streams. [`Stage::play`] makes the calls one after another, as fast as they go:
//! the trace's times are not waited for, and on the simulated device all work is complete at once. What the
//! device's calls cost there is counted in virtual time. The time that an allocator can ask the device for
//! ([`Device::now`](millpond::device::Device::now)) is the trace's.

mod error;
mod managed;
mod outcome;
mod played;
mod program;
mod rising;
mod run;
mod stage;
#[cfg(test)]
mod tests;
mod verify;
mod waste;
mod watch;

pub use error::ReplayError;
pub use managed::{Moves, in_managed_memory};
pub use outcome::{Calls, DriverMemory, Outcome};
pub use played::{Oom, Played};
pub use program::{FreeWhen, Program, Step, WITHOUT_TIMES_US};
pub(crate) use rising::{Ran, SegmentOrder, about_needed, run_with};
pub use run::{Choose, on_device, on_sim, on_sim_memory, on_sim_timed};
pub use stage::{Stage, UNLIMITED};
pub(crate) use waste::maps_at;
pub use waste::{Map, Waste, map_at_peak, map_at_step};
pub use watch::{Backing, Watched};
