//! `millpond plan`: which recorded jobs share which card.
//!
//! | file | concern |
//! | --- | --- |
//! | `args` | its arguments |
//! | `command` | finds what each job needs, and packs the jobs onto the cards |

mod args;
mod command;

pub(crate) use self::args::PlanArgs;
pub(crate) use self::command::run;
