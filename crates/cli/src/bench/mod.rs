//! `millpond bench`: what an allocation and its free cost, beside other allocators and the host's own.
//!
//! | file | concern |
//! | --- | --- |
//! | `args` | its arguments |
//! | `command` | measures, and writes the figures |
//! | `tables` | a table for each suite |

mod args;
mod command;
mod tables;

pub(crate) use self::args::BenchArgs;
pub(crate) use self::command::run;
