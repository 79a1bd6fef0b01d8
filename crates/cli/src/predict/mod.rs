//! `millpond predict`: what a job will need, before there is a GPU; or what a recorded one would need at another size.
//!
//! | file | concern |
//! | --- | --- |
//! | `args` | its arguments |
//! | `command` | the order of things |
//! | `apart` | what a program writes, apart from its real files |
//! | `cards` | what programs find out about a card, by its name |
//! | `job` | a program's first steps on a card that is not there |
//! | `left` | what a program leaves running, which is ended |
//! | `needs` | what is needed with each allocator, and which cards have that |
//! | `rank` | what one process of it requests and needs |
//! | `batch` | the largest batch that fits |
//! | `scaled` | recordings of two sizes, and a third |
//! | `python/` | what watches PyTorch; it is written beside the program's own modules for a run |
//!
//! **One prediction.** `job` starts the program with the library of `crates/card` preloaded and the Python files first on its path.
//! Each process writes PyTorch's own history of its allocations, and what was noted beside it. `rank` replays it.

mod apart;
mod args;
mod batch;
mod cards;
mod command;
mod job;
mod left;
mod needs;
mod rank;
mod scaled;

pub(crate) use self::args::PredictArgs;
pub(crate) use self::command::run;
