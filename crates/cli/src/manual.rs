//! `millpond completions` and `millpond man`, made from the same definitions as `--help`.

use std::fs::create_dir_all;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::error::{Error, Result};
use crate::screen::{answer, say};

/// Prints the completions of a shell.
pub(crate) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "millpond", &mut script);
    answer(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}

/// Writes `millpond.1`, and one page for each command.
pub(crate) fn pages(dir: &Path) -> Result<()> {
    let failed = |action| move |source| Error::Io { path: dir.to_owned(), action, source };
    create_dir_all(dir).map_err(failed("create the folder"))?;
    let command = Args::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, dir).map_err(failed("write the pages to it"))?;
    say(&format!("{0}: read them with `man -l {0}/millpond.1`", dir.display()));
    Ok(())
}
