//! `millpond run`: a program that nobody changed, over the pool, watched, or under a limit.
//!
//! | file | concern |
//! | --- | --- |
//! | `library` | where the library lies that is preloaded |
//! | `program` | whether a program can be reached; its start, its signals, its end |
//! | `around` | the limit of another `millpond run` that this command runs under |
//! | `handed` | files that its processes find, without a name |
//! | `accounts` | what its processes told, and what is said of it |
//! | `recorded` | the recordings that it wrote |
//! | `top` | what its pools hold while it runs |
//! | `python/` | what Python processes begin with: PyTorch and others get their own interfaces |

mod accounts;
mod around;
mod handed;
pub(crate) mod library;
pub(crate) mod program;
mod recorded;
mod top;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use clap::{Args, Parser};
use millpond::bindings::{Amount, refuse_to_replace};

use self::accounts::Told;
use self::around::Bounds;
use self::handed::{Handed, archive};
use self::program::{Ended, Program};
use self::recorded::Recorded;
use crate::amounts::of_the_gpus;
use crate::error::{Error, Result};
use crate::outputs::{Output, files_among, refuse_clashes, refuse_stdout, write_json};
use crate::replay;
use crate::replay::ReplayArgs;
use crate::temporary::OwnFolder;
use crate::terminal::{remark, silently};

#[derive(Debug, Args)]
#[command(after_help = "\
The program's CUDA memory comes from a pool for each GPU. With --limit alone, it
is the driver's, up to the limit. What was held is said at the end, on standard
error. The exit status is the program's. docs/run.md says what is reached.

Examples:
  millpond run -- ./program its arguments
  millpond run --watch --report run.html -- ./program
  millpond run --limit 20GiB --count-overhead -- ./program
  millpond run --pool --limit 40GiB --budget gpu0 -- python train.py")]
pub(crate) struct RunArgs {
    /// Serve its memory by a pool; the default without --limit
    #[arg(long)]
    pool: bool,
    /// Change nothing, and say what a pool would have held
    #[arg(long, conflicts_with_all = ["pool", "limit", "async_free", "ipc"])]
    watch: bool,
    /// The most that a process may have, on all GPUs: 20GiB, 20Gi, 50%
    #[arg(long, value_name = "SIZE")]
    limit: Option<Amount>,
    /// Count what CUDA itself takes, too: contexts, libraries
    #[arg(long, requires = "limit", conflicts_with = "budget")]
    count_overhead: bool,
    /// Share the limit with all processes that name it
    #[arg(long, value_name = "NAME", requires_all = ["pool", "limit"], value_parser = name)]
    budget: Option<String>,
    /// Let cuMemFree not wait for the GPU
    #[arg(long)]
    async_free: bool,
    /// Leave cuMemAlloc to the driver, for CUDA's IPC
    #[arg(long)]
    ipc: bool,
    /// Give back what nobody used for so long; 1 by default
    #[arg(long, value_name = "SECONDS|off", value_parser = seconds, conflicts_with = "watch")]
    decay: Option<String>,
    /// Have PyTorch's optimizers on the GPU around their steps only
    #[arg(long, value_name = "WHAT", value_parser = ["optimizer"], conflicts_with = "watch")]
    offload: Option<String>,
    /// Record the allocations, for millpond replay
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Write a page with charts, from a recording
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Say what its pools hold while it runs
    #[arg(long, conflicts_with = "watch")]
    top: bool,
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

/// As a budget takes it.
fn name(text: &str) -> std::result::Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !text.is_empty() && text.chars().all(fits) {
        return Ok(text.to_owned());
    }
    Err(format!("'{text}' is not a name of letters, digits, - and _"))
}

/// As the variable takes it.
fn seconds(text: &str) -> std::result::Result<String, String> {
    let is_time = |seconds: f64| Duration::try_from_secs_f64(seconds).is_ok();
    if text == "off" || text.parse().is_ok_and(is_time) {
        return Ok(text.to_owned());
    }
    Err(format!("'{text}' is no time: use seconds, such as 1 or 0.5, or off"))
}

impl RunArgs {
    /// What the preloaded library is told.
    fn mode(&self) -> &'static str {
        match self.limit {
            _ if self.watch => "watch",
            Some(_) if !self.pool => "limit",
            _ => "pool",
        }
    }

    /// The file to record to, if any.
    fn recording(&self, folder: Option<&Path>) -> Option<PathBuf> {
        self.record.clone().or_else(|| folder.map(|folder| folder.join("run.mprec")))
    }
}

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

/// What each process of a prediction has in its environment, with the folder of the prediction.
pub(crate) const PREDICTED: &str = "MILLPOND_PREDICT";

/// Whether this command is part of a program that is predicted.
pub(crate) fn is_predicted() -> bool {
    std::env::var_os(PREDICTED).is_some_and(|folder| !folder.is_empty())
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

/// The variables that the program and its children inherit.
fn environment(
    (args, bounds): (&RunArgs, &Bounds),
    library: &Path,
    [accounts, python]: [&Handed; 2],
    recording: Option<&Recorded>,
) -> Result<Vec<(&'static str, OsString)>> {
    let mut all = vec![
        ("LD_PRELOAD", preloaded(library)),
        ("MILLPOND_RUN", args.mode().into()),
        ("MILLPOND_RUN_ACCOUNTS", accounts.path()),
        ("MILLPOND_RUN_ASYNC_FREE", if args.async_free { "1" } else { "" }.into()),
        ("MILLPOND_RUN_IPC", if args.ipc { "1" } else { "" }.into()),
        // Its runtime would not start where another library comes before it. That one has no function which it watches.
        ("ASAN_OPTIONS", before_others("verify_asan_link_order=0".into(), "ASAN_OPTIONS")),
    ];
    all.extend(bounds.variables());
    if args.mode() == "pool" {
        all.extend(for_python(python));
    }
    all.extend(args.decay.as_ref().map(|seconds| ("MILLPOND_DECAY", seconds.into())));
    all.extend(args.offload.as_ref().map(|what| ("MILLPOND_OFFLOAD", what.into())));
    if let Some(recording) = recording {
        // A program may go to another folder before it allocates.
        let path = std::path::absolute(recording.path()).map_err(|source| Error::Io {
            path: recording.path().to_owned(),
            action: "find its folder",
            source,
        })?;
        all.push(("MILLPOND_RECORD", path.into()));
        all.push(("MILLPOND_RECORD_SINCE", recording.since().into()));
    }
    Ok(all)
}

/// Where a recording lies that only a page is made of.
fn folder_beside(page: &Path) -> Result<OwnFolder> {
    let beside = page.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    OwnFolder::below(&std::env::temp_dir()).or_else(|_| OwnFolder::below(beside))
}

/// What Python processes begin with.
const START: (&str, &str) = ("sitecustomize.py", include_str!("python/sitecustomize.py"));
const PYTHON: [(&str, &str); 2] =
    [START, ("millpond_imports.py", include_str!("python/millpond_imports.py"))];

/// What Python processes begin with is the first on their path. A library that the caller's environment speaks of already is
/// left to that.
fn for_python(python: &Handed) -> Vec<(&'static str, OsString)> {
    const LIBRARIES: [&str; 4] = ["MILLPOND_TORCH", "MILLPOND_CUPY", "MILLPOND_RMM", "MILLPOND_NUMBA"];
    let path = before_others(python.path(), "PYTHONPATH");
    let unsaid = LIBRARIES.into_iter().filter(|name| std::env::var_os(name).is_none());
    unsaid.map(|name| (name, "1".into())).chain([("PYTHONPATH", path)]).collect()
}

/// Writes files into a new folder, beside what each Python process begins with: that imports `millpond_imports`. Returns
/// PYTHONPATH with the folder before all others.
pub(crate) fn python_path(folder: &Path, files: &[(&str, &str)]) -> Result<OsString> {
    let write = || {
        for (name, text) in files.iter().chain(&[START]) {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
            std::fs::write(path, text)?;
        }
        Ok(())
    };
    write().map_err(|source| Error::Io { path: folder.to_owned(), action: "write to it", source })?;
    Ok(before_others(folder.into(), "PYTHONPATH"))
}

/// A path before those that a variable has already.
fn before_others(mut path: OsString, variable: &str) -> OsString {
    if let Some(others) = std::env::var_os(variable).filter(|others| !others.is_empty()) {
        path.push(":");
        path.push(others);
    }
    path
}

/// The library that is to be preloaded, before those that are already.
///
/// It is named by a way that only glibc goes: from the program's folder up to the root, and down again. Musl knows no `$ORIGIN` there,
/// and does not find the library, which it could not load. It does not start a program with one that it finds.
pub(crate) fn preloaded(library: &Path) -> OsString {
    /// More folders than there are above any program.
    const UP: usize = 64;
    let mut path = OsString::from("$ORIGIN");
    path.push("/..".repeat(UP));
    path.push(library);
    before_others(path, "LD_PRELOAD")
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
