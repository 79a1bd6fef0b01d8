//! `millpond fetch`: the four files of MNIST, checked before they are kept.
//!
//! | file | concern |
//! | --- | --- |
//! | `args` | its arguments |
//! | `command` | fetches them |

mod args;
mod command;

pub(crate) use self::args::FetchArgs;
pub(crate) use self::command::run;
