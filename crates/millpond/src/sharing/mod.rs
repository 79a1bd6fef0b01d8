//! `sharing/`: what goes from one process to another, so that both use the same memory: a token, descriptors, a lease.
//!
//! Uses `device/` and the errors. The pool of `pool/sharing.rs` makes and opens what is sent here.
//!
//! **How a block goes to another process.** Its pages are exported, each as a descriptor. The [token](SharedToken) says how
//! long they are, and where on them the block lies. With them go an event, and one end of a pair of sockets: the *lease*.
//! Whoever has that end may use the memory. When the last copy of it is closed, by hand or by the system because a process
//! died, the owner sees that its pages are its own again.

mod imported;
mod lease;
mod socket;
mod token;

pub(crate) use imported::{Import, ImportedMemory};
pub(crate) use lease::{Borrowed, Lent};
pub use socket::Received;
pub(crate) use socket::send;
pub use token::SharedToken;
