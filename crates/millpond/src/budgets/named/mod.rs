//! `named/`: one budget for many processes.
//!
//! **How one request passes through.** A pool that grows calls [`Tenancy::take`], which looks into the shared
//! [`Register`]: one page of memory in a file of the user's, with a slot for each process. Where there is no room, the pool
//! makes some of its own, and then calls [`Tenancy::ask`]: the slot says what is wanted, and the other processes are woken. A
//! thread of each process waits for that. It has the process's pools give free memory back, and says that it did.
//!
//! A slot is a process's as long as it has the slot's [seat](seat), a lock. See the register for why it is right after
//! `kill -9` at any instruction.
//!
//! Who only [looks](look) takes no slot, and writes nothing.

pub(crate) mod folder;
mod lease;
mod look;
mod mapped;
mod modelled;
#[cfg(all(test, loom))]
mod models;
mod register;
mod seat;
mod table;
mod tenancy;
mod tenants;

pub(crate) use tenancy::{GivesBack, Tenancy};
