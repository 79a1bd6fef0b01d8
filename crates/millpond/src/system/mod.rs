//! `system/`: what the pool asks of the operating system: locks, processes, files, sockets, and memory of the host's that may be
//! refused.
//!
//! Uses `policy/`.

pub(crate) mod close_on_fork;
pub(crate) mod file_limit;
pub(crate) mod host_memory;
pub(crate) mod lock;
pub(crate) mod open_file;
pub(crate) mod process;
pub(crate) mod short_file;
pub(crate) mod socket_peer;
