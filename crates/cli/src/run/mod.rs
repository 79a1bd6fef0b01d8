//! `millpond run`: a program that nobody changed, over the pool, watched, or under a limit.
//!
//! | file | concern |
//! | --- | --- |
//! | `args` | the arguments |
//! | `command` | the run, from its beginning to its end |
//! | `environment` | the variables of the program's processes |
//! | `library` | where the library lies that is preloaded |
//! | `program` | whether a program can be reached; its start, its signals, its end |
//! | `around` | the limit of another `millpond run` that this command runs under |
//! | `handed` | files that its processes find, without a name |
//! | `accounts` | what its processes told, and what is said of it |
//! | `recorded` | the recordings that it wrote |
//! | `top` | what its pools hold while it runs |
//! | `python/` | what Python processes begin with: PyTorch and others get their own interfaces |

mod accounts;
mod args;
mod around;
mod command;
mod environment;
mod handed;
pub(crate) mod library;
pub(crate) mod program;
mod recorded;
mod top;

pub(crate) use args::RunArgs;
pub(crate) use command::run;
pub(crate) use environment::{PREDICTED, is_predicted, preloaded, python_path};
