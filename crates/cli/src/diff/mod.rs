//! `millpond diff`: who holds more and who holds less, in two recordings or at two moments of one.
//!
//! | file | concern |
//! | --- | --- |
//! | `args` | its arguments |
//! | `command` | which traces and moments are compared |
//! | `table` | the rows of a difference |

mod args;
mod command;
mod table;

pub(crate) use self::args::DiffArgs;
pub(crate) use self::command::run;
pub(crate) use self::table::show;
