//! A program's first steps on a card that is not there.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use millpond::HumanBytes;
use millpond_replay::replay::{FreeWhen, Program as Replayed};
use millpond_replay::trace::Trace;
use serde::Deserialize;

use super::apart::{self, Kept};
use super::cards::CardFacts;
use super::left;
use crate::error::{Error, Result};
use crate::outputs::Output;
use crate::run::library::Library;
use crate::run::program::{Ended, Program};
use crate::run::{PREDICTED, is_predicted, preloaded, python_path};
use crate::temporary::OwnFolder;
use crate::terminal::{Signal, count, is_quiet};
use crate::traces::{TraceProgress, read_file};

/// What is preloaded: CUDA's runtime of a card that does nothing.
const CARD: Library =
    Library { name: "libmillpond_card.so", variable: "MILLPOND_CARD_LIBRARY", made_by: "millpond-card" };

/// What watches PyTorch, and what has it imported.
const HOOK: [(&str, &str); 14] = [
    ("millpond_imports.py", "import millpond_predict\n\nmillpond_predict.begin()\n"),
    ("millpond_predict/__init__.py", include_str!("python/millpond_predict/__init__.py")),
    ("millpond_predict/allocator.py", include_str!("python/millpond_predict/allocator.py")),
    ("millpond_predict/counts.py", include_str!("python/millpond_predict/counts.py")),
    ("millpond_predict/generation.py", include_str!("python/millpond_predict/generation.py")),
    ("millpond_predict/kernels.py", include_str!("python/millpond_predict/kernels.py")),
    ("millpond_predict/libraries.py", include_str!("python/millpond_predict/libraries.py")),
    ("millpond_predict/ranks.py", include_str!("python/millpond_predict/ranks.py")),
    ("millpond_predict/recording.py", include_str!("python/millpond_predict/recording.py")),
    ("millpond_predict/recurrent.py", include_str!("python/millpond_predict/recurrent.py")),
    ("millpond_predict/settings.py", include_str!("python/millpond_predict/settings.py")),
    ("millpond_predict/values.py", include_str!("python/millpond_predict/values.py")),
    ("millpond_predict/watching.py", include_str!("python/millpond_predict/watching.py")),
    ("millpond_predict/weights.py", include_str!("python/millpond_predict/weights.py")),
];

/// How it is run.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) card: CardFacts,
    pub(super) ranks: Option<u32>,
    pub(super) steps: u32,
    pub(super) item: Option<f64>,
    pub(super) selected: Option<f64>,
    /// Whether it writes its own files.
    pub(super) writes_through: bool,
}

/// A program that is to be predicted.
#[derive(Debug)]
pub(super) struct Job<'a> {
    words: &'a [OsString],
    options: Options,
    library: PathBuf,
}

/// One run of it, and the files that it wrote.
#[derive(Debug)]
pub(super) struct Run {
    processes: Vec<Process>,
    kept: Kept,
    /// What ended the program, and not by itself: no other run follows.
    stopped: Option<Signal>,
    /// Goes with this.
    _folders: Vec<OwnFolder>,
}

/// What a process of it did.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) rank: u32,
    pub(super) answer: Answer,
    pub(super) trace: Trace,
    recording: PathBuf,
}

/// As `settings.py` and `recording.py` write it.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    ended: String,
    error: Option<String>,
    recording: Option<PathBuf>,
    /// What is said before all else.
    #[serde(default)]
    pub(super) first: Vec<String>,
    pub(super) remarks: Vec<String>,
    #[serde(default)]
    pub(super) steps: u32,
    #[serde(default)]
    pub(super) torch: String,
    #[serde(default)]
    rank: u32,
    #[serde(default)]
    pub(super) peak_reserved: u64,
    /// Where a library asked if something holds for all values, and either answer may need more memory.
    asked: Option<String>,
}

impl<'a> Job<'a> {
    pub(super) fn new(words: &'a [OsString], options: Options) -> Result<Self> {
        let is_launcher =
            |word: &OsString| Path::new(word).file_name().is_some_and(|name| name == "torchrun");
        if words.first().is_some_and(is_launcher) {
            let why = "torchrun waits for all ranks: name --ranks N, and the script itself after --, as in -- python train.py";
            return Err(Error::Usage(why.to_owned()));
        }
        if is_predicted() {
            let why = "millpond predict is part of a program that is predicted: leave the outer one out";
            return Err(Error::Usage(why.to_owned()));
        }
        // What a prediction that was killed could not end.
        for left in OwnFolder::left_in(&std::env::temp_dir()) {
            left::end(&real(left.path()));
        }
        Ok(Self { words, options, library: CARD.find()? })
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// The script, or the program where there is none.
    pub(super) fn name(&self) -> String {
        let is_script = |word: &&OsString| Path::new(word).extension().is_some_and(|end| end == "py");
        let word = self.words.iter().find(is_script).or(self.words.first());
        word.map_or_else(String::new, |word| {
            Path::new(word).file_name().unwrap_or(word).to_string_lossy().into_owned()
        })
    }

    /// Runs it with these words behind its own. Where a library asks if something holds for all values, it is run with both answers,
    /// and the one that requests more is taken.
    pub(super) fn run(&self, more: &[OsString], is_shown: bool) -> Result<Run> {
        let mut run = self.run_with(more, is_shown, true)?;
        if run.stopped.is_some() {
            return Ok(run);
        }
        let Some(asked) = run.processes.iter().find_map(|process| process.answer.asked.clone()) else {
            return Ok(run);
        };
        let mut answer = "yes";
        // A program may wait for the first answer.
        let said = match self.run_with(more, false, false) {
            Err(stopped @ Error::Stopped { .. }) => return Err(stopped),
            Ok(Run { stopped: Some(signal), .. }) => return Err(nothing_predicted(signal)),
            Ok(other) => {
                let mut requested = [run.peak_requested(), other.peak_requested()];
                if requested[1] > requested[0] {
                    (run, answer) = (other, "no");
                    requested.reverse();
                }
                format!("with the other, {} are requested", HumanBytes(requested[1]))
            }
            Err(_) => "with the other, it does not run".to_owned(),
        };
        let said = format!("{asked} asks if something holds for all values: answered by {answer}; {said}");
        run.processes.iter_mut().for_each(|process| process.answer.remarks.push(said.clone()));
        Ok(run)
    }

    /// Runs it once for each rank, with this answer.
    fn run_with(&self, more: &[OsString], is_shown: bool, holds_for_all: bool) -> Result<Run> {
        let _progress = TraceProgress::new(&self.name(), "predicting");
        let mut run =
            Run { processes: Vec::new(), kept: Kept::default(), stopped: None, _folders: Vec::new() };
        let words: Vec<OsString> = self.words.iter().chain(more).cloned().collect();
        for rank in 0..self.options.ranks.unwrap_or(1) {
            let folder = OwnFolder::below(&std::env::temp_dir())?;
            let program = Program::ours(&words);
            // The results have standard output for themselves.
            let stdout = if is_shown && !is_quiet() { std::io::stderr().into() } else { Stdio::null() };
            let path = real(folder.path());
            let mut environment = self.environment(&path, rank)?;
            environment.push(("MILLPOND_PREDICT_ALL", if holds_for_all { "yes" } else { "no" }.into()));
            let ended = match self.options.writes_through {
                true => program.run(&environment, stdout)?,
                false => apart::run(&path, || program.run(&environment, stdout))?,
            };
            left::end(&path);
            match (self.processes(&path, ended), ended.asked) {
                (Ok(processes), _) => run.processes.extend(self.of_rank(rank, processes)?),
                (Err(_), Some(signal)) => return Err(nothing_predicted(signal)),
                (Err(error), None) => return Err(error),
            }
            run.kept.add(&path);
            run._folders.push(folder);
            run.stopped = ended.asked;
            if run.stopped.is_some() {
                break;
            }
        }
        run.processes.sort_by_key(|process| process.rank);
        Ok(run)
    }

    /// Refuses processes of another rank than the one that was begun: each rank would begin them again.
    fn of_rank(&self, rank: u32, processes: Vec<Process>) -> Result<Vec<Process>> {
        match processes.iter().find(|process| self.options.ranks.is_some() && process.rank != rank) {
            None => Ok(processes),
            Some(Process { rank: other, .. }) => Err(Error::NotPredicted(format!(
                "{} begins rank {other} itself, and --ranks begins the program once for each rank: let it take RANK, LOCAL_RANK and \
                 WORLD_SIZE from its environment, and begin no other",
                self.name()
            ))),
        }
    }

    fn environment(&self, folder: &Path, rank: u32) -> Result<Vec<(&'static str, OsString)>> {
        let Options { card, ranks, steps, item, selected, writes_through } = &self.options;
        let number = |number: Option<f64>| number.map_or_else(String::new, |number| number.to_string());
        // Triton links what it compiles with a libcuda.so.1.
        let driver = folder.join("driver");
        let linked = std::fs::create_dir(&driver)
            .and_then(|()| std::os::unix::fs::symlink(&self.library, driver.join("libcuda.so.1")));
        linked.map_err(|source| Error::Io { path: driver.clone(), action: "make it", source })?;
        let mut all = vec![
            ("TRITON_LIBCUDA_PATH", driver.into()),
            ("LD_PRELOAD", preloaded(&self.library)),
            ("PYTHONPATH", python_path(&folder.join("python"), &HOOK)?),
            // Files that go with the folder need no compiled form.
            ("PYTHONDONTWRITEBYTECODE", "1".into()),
            (PREDICTED, folder.into()),
            ("MILLPOND_PREDICT_APART", if *writes_through { "".into() } else { folder.into() }),
            ("MILLPOND_PREDICT_STEPS", steps.to_string().into()),
            ("MILLPOND_PREDICT_ITEM", number(*item).into()),
            ("MILLPOND_PREDICT_SELECTED", number(*selected).into()),
            ("MILLPOND_CARD", card.as_variable(ranks.unwrap_or(1)).into()),
            // A real one is not asked, and the allocator is PyTorch's own.
            ("PYTORCH_NVML_BASED_CUDA_CHECK", "0".into()),
            ("MILLPOND_TORCH", "".into()),
        ];
        if let Some(ranks) = ranks {
            let [rank, ranks] = [rank, *ranks].map(|number| OsString::from(number.to_string()));
            all.extend([
                ("RANK", rank.clone()),
                ("LOCAL_RANK", rank),
                ("WORLD_SIZE", ranks.clone()),
                ("LOCAL_WORLD_SIZE", ranks),
                ("MASTER_ADDR", "127.0.0.1".into()),
                ("MASTER_PORT", "29500".into()),
            ]);
        }
        Ok(all)
    }

    /// What the processes of a run told.
    fn processes(&self, folder: &Path, ended: Ended) -> Result<Vec<Process>> {
        let read = |path: PathBuf| serde_json::from_slice::<Answer>(&std::fs::read(path).ok()?).ok();
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path());
        let files = files.filter(|path| path.extension().is_some_and(|end| end == "json"));
        let answers: Vec<_> = files.filter_map(read).collect();
        if let Some(refused) = answers.iter().find(|answer| answer.ended == "refused") {
            return Err(Error::NotPredicted(refused.error.clone().unwrap_or_default()));
        }
        if let Some(failed) = answers.iter().find(|answer| answer.ended == "failed") {
            let why = failed.error.as_deref().unwrap_or_default();
            let why = why.lines().next().unwrap_or_default().to_owned();
            return Err(Error::ProgramFailed { program: self.name(), why });
        }
        let mut processes = Vec::new();
        for mut answer in answers {
            let Some(recording) = answer.recording.clone() else { continue };
            if ended.status != 0 && answer.ended == "ended" {
                answer.first.push(format!("{} ended with status {}", self.name(), ended.status));
            }
            // Of several cards, a process uses one.
            let peak = |trace: &Trace| trace.blocks.iter().map(|block| block.size).sum::<u64>();
            let Some(trace) = read_file(&recording)?.into_iter().max_by_key(peak) else { continue };
            processes.push(Process { rank: answer.rank, answer, trace, recording });
        }
        match processes.is_empty() {
            false => Ok(processes),
            true if is_full(folder) => {
                let why = format!(
                    "{} is full, where what it writes goes; TMPDIR names another place for temporary folders",
                    folder.parent().unwrap_or(folder).display()
                );
                Err(Error::ProgramFailed { program: self.name(), why })
            }
            // As shells have it.
            true if ended.status > 128 => {
                let why = format!("signal {} ended it before its allocations were told", ended.status - 128);
                Err(Error::ProgramFailed { program: self.name(), why })
            }
            true if ended.status != 0 => {
                let why = format!(
                    "it ended with status {} before it told of an allocation on a card",
                    ended.status
                );
                Err(Error::ProgramFailed { program: self.name(), why })
            }
            true => Err(Error::NotPredicted(format!(
                "{}: it allocated nothing on a card by PyTorch; name a Python program that does, such as python train.py",
                self.name()
            ))),
        }
    }
}

/// The path that the system itself has for a folder: what lies in it is told by that.
fn real(folder: &Path) -> PathBuf {
    folder.canonicalize().unwrap_or_else(|_| folder.to_owned())
}

/// Whether an answer may not have found room in a folder.
fn is_full(folder: &Path) -> bool {
    /// Longer than an answer is.
    const ROOM: u64 = 64 << 10;
    rustix::fs::statvfs(folder).is_ok_and(|about| about.f_bavail * about.f_frsize < ROOM)
}

/// Where a signal came before there was anything to tell.
pub(super) fn nothing_predicted(signal: Signal) -> Error {
    Error::Stopped { signal, kept: "nothing is predicted".to_owned() }
}

impl Run {
    pub(super) fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// The signal that ended the program before it was through.
    pub(super) fn stopped(&self) -> Option<Signal> {
        self.stopped
    }

    /// The most that one process requests, in bytes.
    fn peak_requested(&self) -> u64 {
        let of = |process: &Process| Replayed::new(&process.trace, FreeWhen::Completed).peak_requested().0;
        self.processes.iter().map(of).max().unwrap_or(0)
    }

    /// What it wrote and removed, to no effect.
    pub(super) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Keeps the recording: of several ranks, that of the first.
    pub(super) fn keep(&self, file: &Output) -> Result<()> {
        let Some(process) = self.processes.first() else { return Ok(()) };
        let copy = |out: &mut dyn Write| std::io::copy(&mut File::open(&process.recording)?, out).map(drop);
        let copied = file.write_with(copy);
        copied.map_err(|source| Error::Io { path: file.path().to_owned(), action: "write it", source })
    }
}

impl Process {
    /// In words: how far the program came.
    pub(super) fn seen(&self) -> String {
        let Answer { ended, steps, torch, .. } = &self.answer;
        let steps = count(u64::from(*steps), "step");
        match ended.as_str() {
            "steps" => format!("PyTorch {torch}; {steps} of the optimizer"),
            _ if self.answer.steps > 0 => {
                format!("PyTorch {torch}; {steps} of the optimizer, to the program's end")
            }
            _ => format!("PyTorch {torch}; to the program's end"),
        }
    }
}
