//! The files that `millpond replay` writes besides its results: the report of all traces; exports of the first
//! trace, and of its replays.

use std::io::Write;

use millpond::Context;
use millpond_replay::export::{ExportError, chrome, flame, folded, pprof, snapshot};
use millpond_replay::replay::Program;
use millpond_replay::report::{About, Section};
use millpond_replay::trace::Trace;

use super::args::{ReplayArgs, StacksFormat};
use crate::error::{Error, Result};
use crate::outputs::{Output, say_written};
use crate::terminal::remark;

/// The exports that were asked for.
#[derive(Debug)]
pub(crate) struct Exports {
    snapshot: Option<Output>,
    counters: Option<Output>,
    stacks: Option<(Output, StacksFormat)>,
}

impl Exports {
    /// Opens their files.
    pub(crate) fn open(args: &ReplayArgs) -> Result<Self> {
        let stacks = match &args.export_stacks {
            Some(file) => Some((Output::open(&file.path)?, file.format)),
            None => None,
        };
        Ok(Self {
            stacks,
            snapshot: args.export_snapshot.as_deref().map(Output::open).transpose()?,
            counters: args.export_counters.as_deref().map(Output::open).transpose()?,
        })
    }

    /// Writes them. Where there are other traces, says whose they are.
    pub(crate) fn write(self, args: &ReplayArgs, trace: &Trace, others: bool) -> Result<()> {
        let any = self.snapshot.is_some() || self.counters.is_some() || self.stacks.is_some();
        if let Some((file, format)) = self.stacks {
            let program = Program::new(trace, args.free());
            let write = match format {
                StacksFormat::Flame => flame,
                StacksFormat::Folded => folded,
                StacksFormat::Pprof => pprof,
            };
            to_file(file, |out| write(trace, &program, out))?;
        }
        if let Some(file) = self.snapshot {
            to_file(file, |out| snapshot(trace, out))?;
        }
        if let Some(file) = self.counters {
            let (choice, names) = (&args.choice(), args.allocators_for(trace));
            let built: Vec<_> =
                names.iter().map(|&name| move |context: &Context| choice.build(name, context)).collect();
            let allocators: Vec<_> =
                names.iter().zip(&built).map(|(&name, build)| (name, build as _)).collect();
            to_file(file, |out| chrome(trace, args.free(), &allocators, out))?;
        }
        if others && any {
            remark(&format!("exports have the first trace only: {}", trace.name));
        }
        Ok(())
    }
}

/// Writes the report to its file, which was opened before the replays.
pub(crate) fn report(file: Output, sections: &[Section]) -> Result<()> {
    let path = file.path().to_owned();
    let mut page = Vec::new();
    millpond_replay::report::write(&about(), sections, &mut page)
        .map_err(|error| Error::Export { path: path.clone(), error: Box::new(error.into()) })?;
    file.write(&String::from_utf8_lossy(&page))?;
    say_written(&path);
    Ok(())
}

/// Where a report comes from.
fn about() -> About {
    let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    // Whatever runs the command, Python's interpreter say, stands before its name.
    let arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let arguments: Vec<_> = arguments.skip_while(|argument| argument != "replay").map(quoted).collect();
    About {
        date: now.replace('T', " ").replace('Z', " UTC"),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command: format!("millpond {}", arguments.join(" ")),
    }
}

/// As a shell takes it.
fn quoted(argument: String) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+%@".contains(c);
    match !argument.is_empty() && argument.chars().all(is_plain) {
        true => argument,
        false => format!("'{}'", argument.replace('\'', "'\\''")),
    }
}

fn to_file(
    file: Output,
    write: impl FnOnce(&mut dyn Write) -> std::result::Result<(), ExportError>,
) -> Result<()> {
    let path = file.path().to_owned();
    file.write_with(write).map_err(|error| Error::Export { path: path.clone(), error: Box::new(error) })?;
    say_written(&path);
    Ok(())
}
