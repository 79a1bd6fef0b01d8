//! `millpond completions` and `millpond man`, made from the same definitions as `--help`.
//!
//! | file | concern |
//! | --- | --- |
//! | `args` | their arguments |
//! | `command` | writes both |

mod args;
mod command;

pub(crate) use self::args::{CompletionsArgs, ManArgs};
pub(crate) use self::command::{completions, pages};
