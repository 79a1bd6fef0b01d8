//! Why a command failed.

use std::path::{Path, PathBuf};

use millpond_baselines::ChoiceError;
use rustix::io::Errno;

use crate::terminal::Signal;

/// Why a command failed, in one line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Training(#[from] millpond_mlp::Error),
    #[error("{0}")]
    Usage(String),
    #[error("{}: {error}", path.display())]
    Export { path: PathBuf, error: Box<millpond_replay::export::ExportError> },
    #[error(transparent)]
    Trace(#[from] millpond_replay::read::ReadError),
    #[error(transparent)]
    Replay(#[from] millpond_replay::replay::ReplayError),
    #[error(transparent)]
    NoSuchStep(#[from] millpond_replay::steps::NoSuchStep),
    #[error(transparent)]
    NothingToOffload(#[from] millpond_replay::offload::NothingToOffload),
    #[error(transparent)]
    NoMoment(#[from] millpond_replay::moment::NoMoment),
    #[error(transparent)]
    Bench(#[from] millpond_bench::Error),
    #[error(transparent)]
    Probe(#[from] millpond_probe::Error),
    #[error(transparent)]
    Look(#[from] millpond::live::LookError),
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    #[error(transparent)]
    Memory(#[from] millpond::Error),
    #[error(transparent)]
    Device(#[from] millpond::device::DeviceError),
    #[error(
        "there is no budget '{0}': a program that names it makes it, or millpond budget {0} --limit SIZE"
    )]
    NoBudget(String),
    #[error("budget '{0}' is in use: end its processes first; millpond budget {0} shows them")]
    BudgetInUse(String),
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    #[error("{trace}: nothing is promised of a job of which a part is missing: {lacks}")]
    NotWhole { trace: String, lacks: String },
    #[error(
        "no card has room for {left}, by itself or in {likely:.0} % of the ways to begin beside others: add a card"
    )]
    NoRoom { left: String, likely: f64 },
    #[error("with allocator {allocator}: {error}")]
    Trial { allocator: String, error: Box<Error> },
    /// This rank ends for a reason that another one says; or the program that was run has said it.
    #[error("another rank or program says why")]
    SaidElsewhere { status: u8 },
    #[error("stopped by {signal}: {kept}")]
    Stopped {
        signal: Signal,
        /// What was done before, and is kept.
        kept: String,
    },
    #[error("{findings}; the first: {first}")]
    Soak { findings: String, first: String },
    #[error("{}: cannot {action}: {source}", path.display())]
    Io { path: PathBuf, action: &'static str, source: std::io::Error },
    #[error(
        "{}: cannot make a folder there: {}; TMPDIR names another place for temporary folders",
        place.display(), source.kind()
    )]
    NoFolder { place: PathBuf, source: std::io::Error },
    #[error("{}: cannot run it: {source}{}", program.display(), what_to_do(program, source))]
    CannotRun { program: PathBuf, source: std::io::Error },
    #[error(
        "{name} is neither beside the command nor in ../lib: `scripts/install` puts it there, `cargo build --release -p \
         {made_by}` makes it, and {variable} names it elsewhere"
    )]
    NoLibrary { name: &'static str, variable: &'static str, made_by: &'static str },
    #[error(
        "{name} is not in this Python package: `pip install ./crates/python` of a checkout builds it in, and so does \
         `scripts/run-library` before `maturin build`; {variable} names it elsewhere"
    )]
    NoLibraryInPackage { name: &'static str, variable: &'static str },
    #[error("{variable} names {}, which is {}", path.display(), if path.exists() { "no file" } else { "not there" })]
    NoLibraryThere { variable: &'static str, path: PathBuf },
    #[error("{} is damaged or no library: `cargo build --release -p {made_by}` makes it anew", path.display())]
    NoElf { path: PathBuf, made_by: &'static str },
    /// What a program does that cannot be predicted, with what to do about it.
    #[error("{0}")]
    NotPredicted(String),
    #[error("{program}: {why}; nothing is predicted")]
    ProgramFailed { program: String, why: String },
    #[error("{}: cannot draw the curves: {why}", path.display())]
    Drawing { path: PathBuf, why: String },
    #[error(
        "cannot fetch {file} ({tried}). Without a network: install the Debian package dataset-fashion-mnist and \
         train with --data /usr/share/datasets/fashion-mnist, or copy MNIST's four files into a folder and train \
         with --data DIR"
    )]
    Offline {
        file: &'static str,
        /// Each mirror with its answer.
        tried: String,
    },
}

/// What helps where a program cannot be run.
fn what_to_do(program: &Path, source: &std::io::Error) -> &'static str {
    match Errno::from_io_error(source) {
        Some(Errno::NOENT) if program.as_os_str().is_empty() => {
            "; its name is empty: is a variable that should have it not set?"
        }
        Some(Errno::ACCESS) if program.is_dir() => "; it is a folder: name the program in it",
        Some(Errno::NOTDIR) => "; a part of its path is a file, and no folder",
        Some(Errno::NOEXEC) => {
            "; a script without #! in its first line needs its shell named, as in -- sh ./script; another file is for \
             another machine"
        }
        Some(Errno::NOENT) => "; the program or, for a script, what its first line names is not there",
        Some(Errno::ACCESS) => "; it needs to be a file that this user may execute (chmod +x)",
        _ => "",
    }
}

impl Error {
    /// In the command's words: what a program calls the host device is a flag here.
    pub(crate) fn worded(&self) -> String {
        self.to_string().replace("use the host device", "run with `--device host`")
    }

    /// The exit status of the command: 2 where it was called in a wrong way.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Usage(_)
            | Self::NoSuchStep(_)
            | Self::NoMoment(_)
            | Self::NothingToOffload(_)
            | Self::NotPredicted(_)
            | Self::Training(millpond_mlp::Error::ConfigFile { .. })
            | Self::Probe(millpond_probe::Error::CostTable { .. }) => 2,
            Self::Training(millpond_mlp::Error::Launcher { .. }) => 2,
            Self::SaidElsewhere { status } => *status,
            // As shells and `env` have it.
            Self::CannotRun { source, .. } if source.kind() == std::io::ErrorKind::NotFound => 127,
            Self::CannotRun { .. } => 126,
            Self::Stopped { signal, .. } => signal.status(),
            _ => 1,
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, Error>;
