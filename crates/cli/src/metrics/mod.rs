//! `millpond metrics`: what the pools of running programs hold and do, for Prometheus.
//!
//! | file | concern |
//! | --- | --- |
//! | `args` | its arguments |
//! | `command` | looks, and writes what was seen or answers with it |
//! | `server` | reads the requests of those who ask, whatever they send, and sends them answers |

mod args;
mod command;
mod server;

pub(crate) use self::args::MetricsArgs;
pub(crate) use self::command::run;
