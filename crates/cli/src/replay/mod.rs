//! `millpond replay`: traces through allocators, on a simulated or a real device, and what they tell.
//!
//! | file | concern |
//! | --- | --- |
//! | `args` | its arguments |
//! | `command` | the order of things |
//! | `check` | arguments that do not go together |
//! | `compute` | reads and replays, on all cores; prints nothing |
//! | `text`, `tables` | what people are told |
//! | `json` | what programs are told |
//! | `export` | the other files that it writes |
//! | `side_by_side` | several traces beside each other |

mod args;
mod check;
mod command;
mod compute;
mod export;
mod json;
mod side_by_side;
mod tables;
mod text;

pub(crate) use self::args::ReplayArgs;
pub(crate) use self::command::run;
