//! `millpond probe`: what the memory of this machine does.
//!
//! | file | concern |
//! | --- | --- |
//! | `args` | its arguments |
//! | `command` | measures, and writes the figures |
//! | `tables` | a table for each section |

mod args;
mod command;
mod tables;

pub(crate) use self::args::ProbeArgs;
pub(crate) use self::command::run;
