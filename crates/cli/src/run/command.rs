//! Runs a program, and says what its memory did.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;

use clap::Parser;
use millpond::bindings::refuse_to_replace;

use super::accounts::{self, Told};
use super::args::RunArgs;
use super::around::Bounds;
use super::environment::{PYTHON, environment, is_predicted};
use super::handed::{Handed, archive};
use super::program::{Ended, Program};
use super::recorded::Recorded;
use super::{library, top};
use crate::amounts::of_the_gpus;
use crate::error::{Error, Result};
use crate::outputs::{Output, files_among, refuse_clashes, refuse_stdout, write_json};
use crate::replay;
use crate::replay::ReplayArgs;
use crate::temporary::OwnFolder;
use crate::terminal::{remark, silently};

/// Runs the command.
pub(crate) fn run(args: &RunArgs) -> Result<()> {
    for (flag, file, why) in [
        ("--record", &args.record, "a recording needs a file"),
        ("--report", &args.report, "the program has standard output, so a page needs a file"),
        ("--json", &args.json, "the program has standard output, so figures need a file"),
    ] {
        refuse_stdout(flag, file.as_deref(), why)?;
    }
    if args.mode() == "limit" && (args.record.is_some() || args.report.is_some()) {
        let why = "--record and --report are for --pool and --watch: with a limit alone, nothing is recorded";
        return Err(Error::Usage(why.to_owned()));
    }
    let of_the_pool = [
        ("--async-free", args.async_free),
        ("--ipc", args.ipc),
        ("--top", args.top),
        ("--decay", args.decay.is_some()),
        ("--offload", args.offload.is_some()),
    ];
    for (flag, is_given) in of_the_pool {
        if args.mode() == "limit" && is_given {
            return Err(Error::Usage(format!("{flag} is for the pool: add --pool")));
        }
    }
    if std::env::var_os("MILLPOND_DISABLE").is_some_and(|is| is == "1") {
        return as_it_is(&Program::new(&args.program), "MILLPOND_DISABLE=1");
    }
    if is_predicted() {
        return as_it_is(&Program::new(&args.program), "under millpond predict");
    }
    refuse_clashes(
        &files_among(&args.program),
        &[&args.record, &args.report, &args.json].map(Option::as_deref),
    )?;
    let [page, json] = [&args.report, &args.json].map(|file| file.as_deref().map(Output::open).transpose());
    let (page, json) = (page?, json?);
    // Whether it can be made there: the program finds out once it allocates. A pipe waits for its reader then.
    if let Some(file) = args.record.as_deref().filter(|file| file.is_dir() || !file.exists()) {
        Output::open(file)?;
    }
    if let Some(file) = args.record.as_deref().filter(|file| file.is_file()) {
        refuse_to_replace(file).map_err(|source| Error::Io {
            path: file.to_owned(),
            action: "record to it",
            source,
        })?;
    }
    if let (Some(file), Some(_)) = (&args.record, &page)
        && file.metadata().is_ok_and(|about| !about.is_file())
    {
        let why = "a report is read from the recording, which needs to be a file";
        return Err(Error::Usage(format!("{}: {why}", file.display())));
    }
    let library = library::RUN.find()?;
    let folder =
        args.report.as_ref().filter(|_| args.record.is_none()).map(|page| folder_beside(page)).transpose()?;
    let recording = args.recording(folder.as_ref().map(OwnFolder::path)).map(Recorded::to);
    let own = Bounds {
        limit: args.limit.map(of_the_gpus).transpose()?,
        budget: args.budget.clone(),
        counts_overhead: args.count_overhead,
    };
    let bounds = own.within(&Bounds::around(), args.watch)?;
    let accounts = Handed::new("accounts", &[])?;
    let python = Handed::new("python", &archive(&PYTHON))?;
    let program = Program::new(&args.program);
    let out_of_reach = program.out_of_reach();
    let environment = environment((args, &bounds), &library, [&accounts, &python], recording.as_ref())?;
    let run = || program.run(&environment, Stdio::inherit());
    let ended = if args.top { top::beside(run)? } else { run()? };
    let told = Told::read(&accounts.read()?);
    match &out_of_reach {
        Some(why) => remark(&format!("millpond: {}: {why}", program.name())),
        None => accounts::say(&told, &program.name()),
    }
    // The exit status stays the program's, also where these cannot be written.
    let said = |written: Result<()>| {
        if let Err(error) = written {
            remark(&format!("millpond: {}", error.worded()));
        }
    };
    if let Some(json) = json {
        said(write_json(json, &accounts::Json::new(&program.name(), &ended, &told)));
    }
    let Some(recording) = recording else { return outcome(ended) };
    let recordings = recording.by(&told.processes());
    let Some(longest) = recordings.longest() else {
        remark(&nothing_recorded(args, &told));
        return outcome(ended);
    };
    if args.record.is_some() && !recording.is_stream() {
        remark(&format!("millpond: {}", recordings.said()));
    }
    if let Some(page) = &args.report {
        said(write_report(longest, page));
        if recordings.files.len() > 1 {
            remark(&of_several(args.record.is_some(), page, longest, recordings.files.len()));
        }
    }
    outcome(ended)
}

/// Runs the program as if this command were not there.
fn as_it_is(program: &Program<'_>, why: &str) -> Result<()> {
    remark(&format!("millpond: {why}: {} runs as it is, without pool and limit", program.name()));
    outcome(program.run(&[], Stdio::inherit())?)
}

/// The exit status is the program's.
fn outcome(ended: Ended) -> Result<()> {
    match ended {
        Ended { status: 0, .. } => Ok(()),
        Ended { status, .. } => Err(Error::SaidElsewhere { status }),
    }
}

/// Where a recording lies that only a page is made of.
fn folder_beside(page: &Path) -> Result<OwnFolder> {
    let beside = page.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    OwnFolder::below(&std::env::temp_dir()).or_else(|_| OwnFolder::below(beside))
}

/// Why files that were asked for are not there, or are those of an earlier run.
fn nothing_recorded(args: &RunArgs, told: &Told) -> String {
    let why = match told.has_pools() {
        true => "a line above says why",
        false => "no pool was asked for GPU memory",
    };
    let mut line = format!("millpond: nothing was recorded: {why}");
    if let Some(file) = &args.record {
        let state = match file.metadata().map(|about| about.len()) {
            Ok(0) => "is empty",
            Ok(_) => "is as it was before",
            Err(_) => "is not there",
        };
        line += &format!("; {} {state}", file.display());
    }
    if let Some(page) = &args.report {
        line += &format!("; {} is not written", page.display());
    }
    line
}

/// What a page does not show.
fn of_several(are_kept: bool, page: &Path, shown: &Path, number: usize) -> String {
    let page = page.display();
    match are_kept {
        true => format!(
            "millpond: {page} shows {}, the longest recording; millpond replay FILE --report PAGE shows another",
            shown.display()
        ),
        false => format!(
            "millpond: {page} shows the longest of {number} recordings, one for each process; --record FILE keeps all"
        ),
    }
}

/// The recording of the program as a page.
fn write_report(recording: &Path, page: &Path) -> Result<()> {
    /// As `millpond replay` has them.
    #[derive(Debug, Parser)]
    struct Replay {
        #[command(flatten)]
        args: ReplayArgs,
    }
    let arguments = [OsStr::new("replay"), recording.as_os_str(), OsStr::new("--report"), page.as_os_str()];
    let parsed = Replay::try_parse_from(arguments).map_err(|error| Error::Usage(error.to_string()))?;
    let (written, remarks) = silently(|| replay::run(&parsed.args));
    remarks.iter().for_each(|line| remark(line));
    written
}
