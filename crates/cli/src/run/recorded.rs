//! The recordings that the program was asked for, and which ones it wrote.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use millpond::bindings::{kept_name, recording_begun, recording_names};

/// Where a program is to record to, and since when.
#[derive(Debug)]
pub(super) struct Recorded {
    path: PathBuf,
    began: SystemTime,
}

/// What there is after the program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Recordings {
    /// The first is of the process that recorded first.
    pub(super) files: Vec<PathBuf>,
    /// What went before their parts, where recordings rotate.
    pub(super) parts_before: Vec<PathBuf>,
}

impl Recorded {
    /// Before the program runs.
    pub(super) fn to(path: PathBuf) -> Self {
        Self { path, began: SystemTime::now() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// When the program began, as the library takes it: what its processes record since then stays.
    pub(super) fn since(&self) -> String {
        self.began.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
    }

    /// Whether it is a pipe or a device, which takes what comes. Nobody knows whether it came.
    pub(super) fn is_stream(&self) -> bool {
        self.path.metadata().is_ok_and(|about| !about.is_file())
    }

    /// What these processes recorded.
    pub(super) fn by(&self, processes: &[u32]) -> Recordings {
        if self.is_stream() {
            return Recordings { files: vec![self.path.clone()], parts_before: Vec::new() };
        }
        let is_new = |path: &PathBuf| recording_begun(path).is_some_and(|begun| begun >= self.began);
        // The first name may be another process's, or have been taken away since.
        let names_of = |process: &u32| {
            let mut names = recording_names(&self.path, *process);
            names.next().into_iter().chain(names.take_while(|path| path.exists()))
        };
        let mut files = vec![self.path.clone()];
        for name in processes.iter().flat_map(names_of) {
            if !files.contains(&name) {
                files.push(name);
            }
        }
        let parts_before = files.iter().map(|path| kept_name(path)).filter(is_new).collect();
        files.retain(is_new);
        Recordings { files, parts_before }
    }
}

impl Recordings {
    /// The one that a page is made of, where there are several.
    pub(super) fn longest(&self) -> Option<&PathBuf> {
        // The first of those that are as long.
        self.files.iter().rev().max_by_key(|path| path.metadata().map_or(0, |about| about.len()))
    }

    /// For people.
    pub(super) fn said(&self) -> String {
        /// More than fit in a few lines are not read.
        const MOST: usize = 8;
        let names: Vec<_> = self.files.iter().take(MOST).map(|path| path.display().to_string()).collect();
        let mut line = format!("recorded to {}", names.join(", "));
        if self.files.len() > MOST {
            line += &format!(" and {} others beside them", self.files.len() - MOST);
        }
        if !self.parts_before.is_empty() {
            let parts: Vec<_> = self.parts_before.iter().map(|path| path.display().to_string()).collect();
            line += &format!("; what came before: {}", parts.join(", "));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millpond::{Context, Pool};

    use super::*;

    /// A recording that begins now.
    fn record(path: &Path) {
        let pool = Pool::builder(&Context::host().unwrap()).record(path).build().unwrap();
        pool.stop_recording().unwrap();
    }

    #[test]
    fn a_recording_from_before_is_not_what_was_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.mprec");
        assert_eq!(Recorded::to(path.clone()).by(&[]).files, Vec::<PathBuf>::new());
        record(&path);
        let recorded = Recorded::to(path.clone());
        assert_eq!(recorded.by(&[]).files, Vec::<PathBuf>::new());
        record(&path);
        let recordings = recorded.by(&[]);
        assert_eq!((&recordings.files, &recordings.parts_before), (&vec![path], &vec![]));
    }

    #[test]
    fn each_file_of_a_process_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (named, written) in [
            ("a-%p", &["a-7", "a-7.7"][..]),
            ("run.mprec", &["run.mprec", "run.5.mprec", "run.7.mprec", "run.7.2.mprec"]),
            ("plain", &["plain.7"]),
        ] {
            let recorded = Recorded::to(at(named));
            written.iter().for_each(|name| record(&at(name)));
            let mut files = recorded.by(&[5, 7]).files;
            files.sort();
            let mut expected: Vec<_> = written.iter().map(|name| at(name)).collect();
            expected.sort();
            assert_eq!(files, expected);
        }
    }

    #[test]
    fn the_longest_recording_is_the_pages() {
        let dir = tempfile::tempdir().unwrap();
        let files: Vec<_> = ["a", "b", "c"].iter().map(|name| dir.path().join(name)).collect();
        files.iter().zip([2, 3, 3]).for_each(|(path, bytes)| std::fs::write(path, vec![0; bytes]).unwrap());
        let recordings = Recordings { files: files.clone(), parts_before: vec![] };
        assert_eq!(recordings.longest(), Some(&files[1]));
    }

    #[test]
    fn many_files_are_counted() {
        let files = (0..10).map(|number| format!("run.{number}.mprec").into()).collect();
        let said = Recordings { files, parts_before: vec!["run.0.mprec.old".into()] }.said();
        assert!(
            said.ends_with("run.7.mprec and 2 others beside them; what came before: run.0.mprec.old"),
            "{said}"
        );
    }

    #[test]
    fn the_library_is_told_when_the_program_began() {
        let recorded = Recorded { path: PathBuf::new(), began: UNIX_EPOCH + Duration::from_nanos(5) };
        assert_eq!(recorded.since(), "5");
    }
}
