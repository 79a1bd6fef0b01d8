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
            let text = with_values(&String::from_utf8_lossy(&text), page);
            out.write_all(with_examples(&text).as_bytes())
        };
        replace(&path, write).map_err(|source| failed("write it", &path, source))?;
    }
    say(&format!("{0}: read them with `man -l {0}/millpond.1`", dir.display()));
    Ok(())
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
    fn examples_of_a_page_are_not_filled() {
        let page = ".SH A\nx\n.SH EXTRA\nSome words.\n\nExamples:\n  millpond a   b\n.SH VERSION\nv1\n";
        assert_eq!(
            with_examples(page),
            ".SH A\nx\n.SH NOTES\nSome words.\n\n.SH EXAMPLES\n.nf\n  millpond a   b\n.fi\n.SH VERSION\nv1\n"
        );
        assert_eq!(with_examples(".SH A\nx\n"), ".SH A\nx\n");
    }
}
