//! `millpond train`: settings, then a training with each allocator, then what they did.
//!
//! | file | concern |
//! | --- | --- |
//! | `args` | its arguments |
//! | `command` | the order of things |
//! | `trial` | one allocator's training |
//! | `ranks` | the command as one process of several |
//! | `progress` | a training as people watch it |
//! | `outcome` | what one allocator did |
//! | `tables` | the same for people |
//! | `result_files` | the same in files |
//! | `curves` | losses and times, as CSV and as a picture |
//! | `step_picture` | the memory of one step, as a picture |
//! | `pytorch` | the same training in PyTorch |

mod args;
mod command;
mod curves;
mod outcome;
mod progress;
mod pytorch;
mod ranks;
mod result_files;
mod step_picture;
mod tables;
mod trial;

pub(crate) use self::args::TrainArgs;
pub(crate) use self::command::run;
pub(crate) use self::ranks::another_speaks;
