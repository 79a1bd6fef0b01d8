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
mod replay_progress;
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
