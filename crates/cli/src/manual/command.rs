//! Writes completions and man pages.

use std::fs::create_dir_all;
use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::{Args, VERSION};
use crate::error::{Error, Result};
use crate::outputs::replace;
use crate::terminal::{answer, say};

/// Prints the completions of a shell.
pub(crate) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "millpond", &mut script);
    answer(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}

/// Writes `millpond.1`, and one page for each command.
pub(crate) fn pages(dir: &Path) -> Result<()> {
    let failed = |action, path: &Path, source| Error::Io { path: path.to_owned(), action, source };
    create_dir_all(dir).map_err(|source| failed("create the folder", dir, source))?;
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    for page in std::iter::once(&command).chain(command.get_subcommands()) {
        let path = dir.join(Man::new(page.clone()).get_filename());
        let write = |out: &mut dyn Write| {
            let mut text = Vec::new();
            Man::new(page.clone()).source(format!("Millpond {VERSION}")).render(&mut text)?;
            let text = with_examples(&with_values(&String::from_utf8_lossy(&text), page));
            // Where the pages are installed.
            let text = text.replace("docs/", "share/doc/millpond/");
            out.write_all((text.trim_end().to_owned() + "\n" + &environment(page.get_name())).as_bytes())
        };
        replace(&path, write).map_err(|source| failed("write it", &path, source))?;
    }
    say(&format!("{0}: read them with `man -l {0}/millpond.1`", dir.display()));
    Ok(())
}

/// Variables of pages, which docs/environment.md has, too: of which commands, the name, and what it means. No command is the first
/// page, which has all.
const VARIABLES: [(&[&str], &str, &str); 14] = [
    (&["run"], "MILLPOND_DISABLE", "1 starts programs as they are, and leaves Python's libraries alone"),
    (
        &["run", "train", "budget"],
        "MILLPOND_LIMIT",
        "the most that the pools of a process hold on each GPU: 20GiB, 50% or 0=20GiB,1=50%",
    ),
    (
        &["run", "train", "budget"],
        "MILLPOND_BUDGET",
        "a name by which processes share that limit; %g in it is the GPU",
    ),
    (
        &["run", "budget", "top", "metrics"],
        "MILLPOND_BUDGET_DIR",
        "a folder of budgets that several users or containers share",
    ),
    (&["run", "train"], "MILLPOND_CONFIG", "a file with limits; /etc/millpond.conf by default"),
    (&["run"], "MILLPOND_DECAY", "seconds after which what nobody used goes back, or off"),
    (&["top", "metrics"], "MILLPOND_LIVE", "off hides all pools of a process"),
    (&["run", "replay"], "MILLPOND_RECORD", "a file to record all pools of a process to"),
    (&["run", "replay"], "MILLPOND_RECORD_LIMIT", "the most that such a file takes"),
    (&["run", "replay"], "MILLPOND_RECORD_ROTATE", "1 keeps its last part, in two files"),
    (&["top", "leaks"], "MILLPOND_TRACK", "sampled or all: who holds memory"),
    (&["run", "leaks"], "MILLPOND_OOM_DUMP", "a file for what is known when memory runs out"),
    (&["train"], "MILLPOND_SECRET", "what only the ranks of one job know"),
    (&["run"], "MILLPOND_RUN_LIBRARY", "the library that is preloaded"),
];

/// The sections behind a page's own; none where the command reads no variable.
fn environment(command: &str) -> String {
    let is_here = |of: &[&str]| command == "millpond" || of.contains(&command);
    let told: Vec<_> = VARIABLES
        .iter()
        .filter(|(of, ..)| is_here(of))
        .map(|(_, name, meaning)| format!(".TP\n\\fB{name}\\fR\n{meaning}"))
        .collect();
    if told.is_empty() {
        return String::new();
    }
    let all = "share/doc/millpond/environment.md has all variables.";
    format!(".SH ENVIRONMENT\n{}\n.PP\n{all}\n", told.join("\n"))
}

/// The page with the options' values in its synopsis, too.
fn with_values(page: &str, command: &clap::Command) -> String {
    let options = command.get_arguments().filter(|option| option.get_action().takes_values());
    options.fold(page.to_owned(), |page, option| {
        let Some((long, [value, ..])) = option.get_long().zip(option.get_value_names()) else { return page };
        let flag = format!("\\fB\\-\\-{}\\fR", long.replace('-', "\\-"));
        page.replacen(&format!("[{flag}]"), &format!("[{flag} \\fI{}\\fR]", value.replace('-', "\\-")), 1)
    })
}

/// The page with its examples as a section, whose lines stay as they are.
fn with_examples(page: &str) -> String {
    let Some((page, extra)) = page.split_once(".SH EXTRA\n") else { return page.to_owned() };
    let (extra, rest) = extra.split_once("\n.SH ").unwrap_or((extra, ""));
    let rest = if rest.is_empty() { String::new() } else { format!("\n.SH {rest}") };
    let examples = ["Examples:\n", "Example:\n"].iter().find_map(|title| extra.split_once(title));
    let (notes, examples) = examples.unwrap_or((extra, ""));
    let notes = if notes.is_empty() { String::new() } else { format!(".SH NOTES\n{notes}") };
    format!("{page}{notes}.SH EXAMPLES\n.nf\n{}\n.fi{rest}", examples.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variables_of_pages_are_those_of_the_manual() {
        let page = include_str!("../../../../docs/environment.md");
        for (_, name, _) in VARIABLES {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
        assert_eq!(environment("completions"), "");
        assert!(environment("budget").contains("\\fBMILLPOND_BUDGET_DIR\\fR\n"));
    }

    #[test]
    fn examples_of_a_page_are_not_filled() {
        let page = ".SH A\nx\n.SH EXTRA\nSome words.\n\nExamples:\n  millpond a   b\n.SH VERSION\nv1\n";
        assert_eq!(
            with_examples(page),
            ".SH A\nx\n.SH NOTES\nSome words.\n\n.SH EXAMPLES\n.nf\n  millpond a   b\n.fi\n.SH VERSION\nv1\n"
        );
        assert_eq!(with_examples(".SH A\nx\n"), ".SH A\nx\n");
    }
}
