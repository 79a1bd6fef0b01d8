//! The `millpond` command: one file a subcommand, and what they say to people in `screen.rs`.
//!
//! A command returns an `Error` (`error.rs`) or nothing; the error is one line on stderr and exit code 1.
//! Wrong usage is clap's: a few lines and exit code 2.
//!
//! It is a library, so that the Python package has the command too, out of the same file as everything else of it.

mod account;
mod args;
mod bench;
mod bench_args;
mod bench_tables;
mod choices;
mod curves;
mod error;
mod fetch;
mod info;
mod outputs;
mod progress;
mod replay;
mod replay_args;
mod replay_export;
mod replay_tables;
mod screen;
mod train;

use std::ffi::OsString;

use clap::Parser;

use args::{Args, Command};
use error::Error;

/// Runs the command with its arguments, of which the first is the program's name, and returns its exit status: 0
/// where all went well, 1 after an error, 2 for wrong usage. What it says is on stdout and stderr.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    screen::begin();
    let args = match Args::try_parse_from(arguments) {
        Ok(args) => args,
        Err(usage) => {
            let printed = usage.print();
            // Help and version come this way too, on stdout.
            if !usage.use_stderr() {
                screen::note_lost(printed);
                return status(Ok(()));
            }
            return u8::try_from(usage.exit_code()).unwrap_or(2);
        }
    };
    if args.command.builds_pools_of_its_own() {
        millpond::record::ignore_environment();
    }
    status(match args.command {
        Command::Train(args) => train::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Info(args) => info::run(args.json),
        Command::Fetch(args) => fetch::run(&args),
    })
}

/// Why a replay came to nothing.
#[derive(Debug)]
pub enum Refused {
    /// The arguments make no sense.
    Usage(String),
    /// It could not be done.
    Failed(String),
}

/// Runs `millpond replay` with these arguments, of which the first is the trace. Prints nothing: the answer is in the files
/// that the arguments ask for, such as `--json`. Returns its remarks.
///
/// # Errors
/// What the command would have printed as its error.
pub fn replay_silently(arguments: impl IntoIterator<Item = OsString>) -> Result<Vec<String>, Refused> {
    let begin = ["millpond", "replay"].map(OsString::from);
    let args = Args::try_parse_from(begin.into_iter().chain(arguments));
    let args = match args.map_err(|usage| Refused::Usage(usage.to_string()))?.command {
        Command::Replay(args) => args,
        _ => return Err(Refused::Usage("the arguments are not those of a replay".to_owned())),
    };
    let (ended, remarks) = screen::silently(|| replay::run(&args));
    match ended {
        Ok(()) => Ok(remarks),
        Err(error @ Error::Usage(_)) => Err(Refused::Usage(error.to_string())),
        Err(error) => Err(Refused::Failed(error.to_string())),
    }
}

/// The exit status of a command that came to this; says what went wrong.
fn status(result: error::Result<()>) -> u8 {
    let result = result.and_then(|()| match screen::take_lost() {
        None => Ok(()),
        Some(source) => Err(Error::Io { path: "stdout".into(), action: "write to it", source }),
    });
    match result {
        Ok(()) => 0,
        Err(error) => {
            screen::complain(&error.to_string());
            1
        }
    }
}
