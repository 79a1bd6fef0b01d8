//! `sharing/`: what goes from one process to another, so that both use the same memory: a token, descriptors, a lease.
//!
//! Uses `core/` and what is below it.
//!
//! **How a block goes to another process.** Its pages are exported, each as a descriptor. The [token](SharedToken) says how
//! long they are, and where on them the block lies. With them go an event, and one end of a pair of sockets: the *lease*.
//! Whoever has that end may use the memory. When the last copy of it is closed, by hand or by the system because a process
//! died, the owner sees that its pages are its own again.

mod event;
mod exports;
mod imported;
mod lease;
mod lending;
mod opening;
mod socket;
mod token;

pub use event::SharedEvent;
pub(crate) use imported::ImportedMemory;
pub use lending::Shared;
pub(crate) use lending::share;
pub(crate) use opening::OfOthers;
pub use socket::Received;
pub use token::SharedToken;
