//! The recording that the program was asked for, and whether it wrote one.

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where a program is to record to, and what was there before it ran.
#[derive(Debug)]
pub(super) struct Recorded {
    path: PathBuf,
    before: Option<State>,
}

/// What changes when a file is written, or another one takes its place.
#[derive(Debug, PartialEq, Eq)]
struct State {
    device: u64,
    file: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl State {
    fn of(path: &Path) -> Option<Self> {
        let of = |about: Metadata| Self {
            device: about.dev(),
            file: about.ino(),
            bytes: about.len(),
            changed: (about.ctime(), about.ctime_nsec()),
        };
        path.metadata().ok().map(of)
    }
}

impl Recorded {
    /// Before the program runs.
    pub(super) fn to(path: PathBuf) -> Self {
        Self { before: State::of(&path), path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there was a file before. It is not what the program recorded.
    pub(super) fn was_there(&self) -> bool {
        self.before.is_some()
    }

    /// The file that one of these processes recorded to. A pipe or a device takes what comes, and nobody knows whether it came.
    pub(super) fn file(&self, processes: &[u32]) -> Option<PathBuf> {
        let is_stream = self.path.metadata().is_ok_and(|about| !about.is_file());
        let now = State::of(&self.path);
        if is_stream || (now.is_some() && now != self.before) {
            return Some(self.path.clone());
        }
        let named = processes.iter().flat_map(|process| self.names(*process));
        named.into_iter().find(|path| path.is_file())
    }

    /// As `crates/millpond/src/record/file.rs` names the file of a process: where `%p` stands for it, and where another process
    /// has the name.
    fn names(&self, process: u32) -> Vec<PathBuf> {
        let own = self.path.to_str().filter(|text| text.contains("%p"));
        let own = own.map(|text| text.replace("%p", &process.to_string()).into());
        let mut name = OsString::from(self.path.file_stem().unwrap_or_default());
        name.push(format!(".{process}"));
        if let Some(end) = self.path.extension() {
            name.push(".");
            name.push(end);
        }
        own.into_iter().chain([self.path.with_file_name(name)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_from_before_is_not_what_was_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.mprec");
        assert_eq!(Recorded::to(path.clone()).file(&[]), None);
        std::fs::write(&path, "before").unwrap();
        let recorded = Recorded::to(path.clone());
        assert!(recorded.was_there());
        assert_eq!(recorded.file(&[7]), None);
        std::fs::write(&path, "recorded").unwrap();
        assert_eq!(recorded.file(&[]), Some(path));
    }

    #[test]
    fn a_file_of_a_process_is_found() {
        let dir = tempfile::tempdir().unwrap();
        for (named, written) in [("a-%p", "a-7"), ("run.mprec", "run.7.mprec"), ("plain", "plain.7")] {
            let recorded = Recorded::to(dir.path().join(named));
            std::fs::write(dir.path().join(written), "").unwrap();
            assert_eq!(recorded.file(&[5, 7]), Some(dir.path().join(written)));
        }
    }
}
