//! The `millpond` command as a program; everything is in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    millpond_cli::run(std::env::args_os()).into()
}
