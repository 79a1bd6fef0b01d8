//! `read/`: files in, traces out.
//!
//! Uses `pickle/`, `event` and `trace`. One reader a format; what a file is, its first bytes say, not its
//! name. Every reader turns what it finds into [`Event`](crate::event::Event)s.

mod error;
mod file;
mod gzip;
mod labels;
mod millpond;
mod pytorch;
mod rmm;
mod zstd;

pub use error::{FormatError, ReadError};
pub use file::{read, read_from, read_stdin};

pub use crate::pickle::Limits;
