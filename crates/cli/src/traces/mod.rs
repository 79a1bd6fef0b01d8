//! What `replay`, `leaks`, `diff`, `plan` and `predict` share: traces are read, introduced and shown.
//!
//! | file | concern |
//! | --- | --- |
//! | `read` | traces of a file or of standard input |
//! | `progress` | which trace is worked on, and how far |
//! | `summary` | what was recorded, before anything that is found in it |
//! | `offloaded` | what a job would need whose memory is elsewhere at times |
//! | `tables` | who holds memory, and what grew |

mod offloaded;
mod progress;
mod read;
mod summary;
mod tables;

pub(crate) use self::offloaded::{Bandwidth, Offloaded};
pub(crate) use self::progress::TraceProgress;
pub(crate) use self::read::{read_file, read_traces};
pub(crate) use self::summary::say_summary;
pub(crate) use self::tables::{MOST_HELD, cut, grew_by, held, whole, wrapped};
