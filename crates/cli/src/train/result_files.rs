//! The results of a training, in the files that were asked for. They are kept after each epoch, so that a run that is
//! ended early has those of the epochs before.

use std::fs::create_dir_all;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::curves;
use super::outcome::Outcome;
use crate::error::{Error, Result};
use crate::outputs::Output;
use crate::terminal::{remark, say};

/// Writing takes at most this part of a run: curves of very many short epochs are not drawn after each.
const MOST_OF_THE_TIME: u32 = 20;

/// Where the results go.
#[derive(Debug)]
pub(crate) struct ResultFiles {
    json: Option<Output>,
    log: Option<Log>,
    /// Whether JSON is a list, one object a training.
    is_list: bool,
    last_kept: Option<(Instant, Duration)>,
    has_failed: bool,
}

impl ResultFiles {
    /// Finds out whether the files can be written. For several trainings the JSON is a list.
    pub(crate) fn open(json: Option<&Path>, log_dir: Option<&Path>, is_list: bool) -> Result<Self> {
        Ok(Self {
            log: log_dir.map(Log::open).transpose()?,
            json: json.map(Output::open).transpose()?,
            is_list,
            last_kept: None,
            has_failed: false,
        })
    }

    /// Whether there is anything to write.
    pub(crate) fn are_asked(&self) -> bool {
        self.json.is_some() || self.log.is_some()
    }

    /// Writes what there is so far to those of the files that can be replaced later.
    pub(crate) fn keep(&mut self, outcomes: &[Outcome]) {
        if self.last_kept.is_some_and(|(when, took)| when.elapsed() < took * MOST_OF_THE_TIME) {
            return;
        }
        let began = Instant::now();
        let json = self.json.as_ref().filter(|json| json.is_file());
        let log = self.log.as_ref().filter(|log| log.csv.is_file() && log.svg.is_file());
        if let Err(error) = self.write(json, log, outcomes)
            && !self.has_failed
        {
            // The end of the run may fare better; that it does not is an error then.
            self.has_failed = true;
            remark(&format!("{error}; the training goes on"));
        }
        self.last_kept = Some((Instant::now(), began.elapsed()));
    }

    /// Writes everything, and says where the curves are.
    pub(crate) fn finish(&self, outcomes: &[Outcome]) -> Result<()> {
        self.write(self.json.as_ref(), self.log.as_ref(), outcomes)?;
        if let Some(log) = &self.log {
            say(&format!("\ncurves: {} and {}", log.csv.path().display(), log.svg.path().display()));
        }
        Ok(())
    }

    /// Writes the picture of a step's memory, which `draw` makes, where one is asked for.
    pub(crate) fn step(&self, draw: impl FnOnce() -> std::result::Result<String, String>) -> Result<()> {
        let Some(Log { memory, .. }) = &self.log else { return Ok(()) };
        let drawn = draw().map_err(|why| Error::Drawing { path: memory.path().to_owned(), why })?;
        memory.write(&drawn)?;
        say(&format!("memory of one step: {}", memory.path().display()));
        Ok(())
    }

    fn write(&self, json: Option<&Output>, log: Option<&Log>, outcomes: &[Outcome]) -> Result<()> {
        if let Some(log) = log {
            log.csv.write(&curves::csv(outcomes))?;
            let picture = curves::svg(outcomes);
            let drawn = picture.map_err(|why| Error::Drawing { path: log.svg.path().to_owned(), why })?;
            log.svg.write(&drawn)?;
        }
        let Some(json) = json else { return Ok(()) };
        let text = match outcomes {
            [one] if !self.is_list => serde_json::to_string_pretty(one),
            several => serde_json::to_string_pretty(several),
        };
        let failed = |error: serde_json::Error| Error::Io {
            path: json.path().to_owned(),
            action: "write it",
            source: error.into(),
        };
        json.write(&(text.map_err(failed)? + "\n"))
    }
}

/// The files of a log folder.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) csv: Output,
    pub(crate) svg: Output,
    /// Of the memory of one step.
    pub(crate) memory: Output,
}

impl Log {
    /// Creates the folder if need be, and opens its files.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        create_dir_all(dir).map_err(|source| Error::Io {
            path: dir.to_owned(),
            action: "create the log folder",
            source,
        })?;
        let [csv, svg, memory] = Self::NAMES.map(|name| Output::open(&dir.join(name)));
        Ok(Self { csv: csv?, svg: svg?, memory: memory? })
    }

    const NAMES: [&str; 3] = ["curves.csv", "curves.svg", "memory.svg"];

    /// What [`open`](Self::open) would open.
    pub(crate) fn files(dir: Option<&Path>) -> [Option<PathBuf>; 3] {
        Self::NAMES.map(|name| Some(dir?.join(name)))
    }
}
