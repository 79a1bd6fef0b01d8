//! Wrong usage in one paragraph: the flag, what is wrong with it, and what would be right.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::error::Error;

/// What clap found.
pub(crate) fn wrong_usage(found: &clap::Error) -> Error {
    Error::Usage(worded(found).unwrap_or_else(|| first_line(found)))
}

/// `None` for what is rare enough for clap's own words.
fn worded(found: &clap::Error) -> Option<String> {
    let flag = || Some(without_value(text(found, ContextKind::InvalidArg)?));
    let help = format!("`{} --help`", command(found));
    Some(match found.kind() {
        ErrorKind::MissingSubcommand => format!("a command is missing; {help} lists them"),
        ErrorKind::InvalidValue => {
            let value = text(found, ContextKind::InvalidValue)?;
            let possible = text(found, ContextKind::ValidValue).unwrap_or_default();
            match (value.as_str(), possible.as_str()) {
                ("", "") => format!("{}: its value is missing", flag()?),
                ("", possible) => format!("{}: its value is missing, one of {possible}", flag()?),
                (value, possible) => format!("{}: '{value}' is not one of {possible}", flag()?),
            }
        }
        ErrorKind::ValueValidation => format!("{}: {}", flag()?, found.source()?),
        ErrorKind::UnknownArgument => {
            let near = text(found, ContextKind::SuggestedArg);
            let near = near.map(|near| format!(" Did you mean {near}?")).unwrap_or_default();
            let what = if flag()?.starts_with('-') { "there is no such flag" } else { "it is one too many" };
            format!("{}: {what}.{near} {help} says what there is", flag()?)
        }
        ErrorKind::InvalidSubcommand => {
            let name = text(found, ContextKind::InvalidSubcommand)?;
            let near = text(found, ContextKind::SuggestedSubcommand);
            let near = near.map(|near| format!(" Did you mean {near}?")).unwrap_or_default();
            format!("{name}: there is no such command.{near} {help} lists them")
        }
        ErrorKind::MissingRequiredArgument => format!(
            "{} is missing; {help} has examples",
            text(found, ContextKind::InvalidArg)?.replace("...", "")
        ),
        ErrorKind::ArgumentConflict => {
            let other = text(found, ContextKind::PriorArg).map(without_value);
            match (flag()?, other) {
                (flag, Some(other)) if other != flag => format!("{flag} and {other} exclude each other"),
                (flag, _) => format!("{flag}: it is given twice"),
            }
        }
        ErrorKind::TooManyValues => format!("{}: it takes no value", flag()?),
        _ => return None,
    })
}

/// `--epochs` of `--epochs <N>`.
fn without_value(flag: String) -> String {
    flag.split(' ').next().map(str::to_owned).unwrap_or(flag)
}

fn text(found: &clap::Error, kind: ContextKind) -> Option<String> {
    match found.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => Some(texts.join(", ")),
        ContextValue::StyledStr(text) => Some(text.to_string()),
        _ => None,
    }
}

/// The command that was called, as far as it is known: `millpond train`.
fn command(found: &clap::Error) -> String {
    let usage = text(found, ContextKind::Usage).unwrap_or_default();
    let words = usage.trim_start_matches("Usage:").split_whitespace();
    let words: Vec<_> = words.take_while(|word| word.starts_with(char::is_lowercase)).collect();
    if words.is_empty() { "millpond".to_owned() } else { words.join(" ") }
}

fn first_line(found: &clap::Error) -> String {
    let text = found.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
