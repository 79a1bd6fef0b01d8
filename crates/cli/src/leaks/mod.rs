//! `millpond leaks`: what a recorded job holds more and more of from step to step, and what is live at its end.
//!
//! | file | concern |
//! | --- | --- |
//! | `args` | its arguments |
//! | `command` | finds it and shows it |

mod args;
mod command;

pub(crate) use self::args::LeaksArgs;
pub(crate) use self::command::run;
