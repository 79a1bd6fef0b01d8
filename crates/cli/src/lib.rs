//! The `millpond` command.
//!
//! Each subcommand has a folder of its name: its arguments in `args.rs`, what it does in `command.rs`, what it shows in
//! `tables.rs`. `args.rs` beside this file puts them together. What several of them use: `flags/` and `outputs.rs` for
//! arguments and files, `terminal/` for what is said, `traces/` for recordings, `live/` for running programs.
//!
//! A command returns an `Error` (`error.rs`) or nothing. The error is one paragraph on stderr, and the exit status 1. It is
//! 2 for wrong usage (`flags/usage.rs` words what clap finds), and 128 and its number after a signal.
//!
//! It is a library, so that the Python package has the command too, out of the same file as everything else of it.

mod amounts;
mod args;
mod bench;
mod budget;
mod diff;
mod error;
mod fetch;
mod flags;
mod info;
mod leaks;
mod live;
mod manual;
mod metrics;
mod numa;
mod outputs;
mod plan;
mod predict;
mod probe;
mod replay;
mod run;
mod soak;
mod temporary;
mod terminal;
mod top;
mod traces;
mod train;

use std::ffi::OsString;

use args::{Args, Command};
use clap::Parser;
use clap::error::ErrorKind;
use error::Error;

/// Runs the command with its arguments, of which the first is the program's name, and returns its exit status: 0
/// where all went well, 1 after an error, 2 for wrong usage, 130 after Ctrl-C. What it says is on stdout and stderr.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    terminal::begin();
    terminal::be_the_command();
    let args = match Args::try_parse_from(asking_for_help_once(arguments)) {
        Ok(args) => args,
        // Help and version come this way too, on stdout.
        Err(asked) if !asked.use_stderr() => {
            terminal::note_lost(asked.print());
            return status(Ok(()));
        }
        Err(bare) if bare.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = bare.print();
            return 2;
        }
        // All ranks of a launcher have the same arguments.
        Err(_) if train::another_speaks() => return 2,
        Err(wrong) => return status(Err(flags::wrong_usage(&wrong))),
    };
    terminal::be_quiet(args.quiet);
    if args.command.builds_pools_of_its_own() {
        millpond::record::ignore_environment();
        millpond::live::hide_all();
    }
    status(match args.command {
        Command::Train(args) => train::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Leaks(args) => leaks::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Predict(args) => predict::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Info(args) => info::run(args),
        Command::Budget(args) => budget::run(args),
        Command::Fetch(args) => fetch::run(&args),
        Command::Completions(args) => manual::completions(args.shell),
        Command::Man(args) => manual::pages(&args.dir),
    })
}

/// `millpond help --help` is what `millpond help` is, which clap does not take.
fn asking_for_help_once(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<_> = arguments.into_iter().collect();
    if arguments.get(1).is_some_and(|command| command == "help") {
        arguments.retain(|argument| argument != "--help" && argument != "-h");
    }
    arguments
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
    let args = match args.map_err(|wrong| Refused::Usage(flags::wrong_usage(&wrong).to_string()))?.command {
        Command::Replay(args) => args,
        _ => return Err(Refused::Usage("the arguments are not those of a replay".to_owned())),
    };
    let (ended, remarks) = terminal::silently(|| replay::run(&args));
    match ended {
        Ok(()) => Ok(remarks),
        Err(error) if error.status() == 2 => Err(Refused::Usage(error.to_string())),
        Err(error) => Err(Refused::Failed(error.to_string())),
    }
}

/// The exit status of a command that came to this; says what went wrong.
fn status(result: error::Result<()>) -> u8 {
    let result = result.and_then(|()| match terminal::take_lost() {
        None => Ok(()),
        Some(source) => Err(Error::Io { path: "stdout".into(), action: "write to it", source }),
    });
    match result {
        Ok(()) => 0,
        Err(Error::SaidElsewhere { status }) => status,
        Err(error) => {
            terminal::complain(&error.worded());
            error.status()
        }
    }
}
