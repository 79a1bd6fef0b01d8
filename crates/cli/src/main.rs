//! The `millpond` command: one file a subcommand, and what they say to people in `screen.rs`.
//!
//! A command returns an [`Error`](error::Error) or nothing; the error is one line on stderr and exit code 1.
//! Wrong usage is clap's: a few lines and exit code 2.

mod account;
mod args;
mod bench;
mod bench_args;
mod bench_tables;
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

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Train(args) => train::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Info(args) => info::run(args.json),
        Command::Fetch(args) => fetch::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            screen::complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}
