//! `millpond soak`: random programs over the pools, watched for long.
//!
//! | file | concern |
//! | --- | --- |
//! | `args` | its arguments |
//! | `command` | runs them, or one of them again |

mod args;
mod command;

pub(crate) use self::args::SoakArgs;
pub(crate) use self::command::run;
