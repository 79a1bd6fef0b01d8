//! The file of a recording: where it lies, whose it is, and appending to it whole chunks or nothing.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::chunks::file_head;
use super::format::MAGIC;
use super::names::{begun, kept_name, open_recording, recording_names};
use crate::log::{log, warn_in_any_case};
use crate::system::close_on_fork::CloseOnFork;
use crate::system::file_limit;

/// See the [module](self). Locked (`flock`) for as long as it is open, so that no other process takes it for
/// an old one. A forked child would keep the lock.
#[derive(Debug)]
pub(super) struct RecordFile {
    file: CloseOnFork<File>,
    path: PathBuf,
    /// Whether somebody can find it, so that it is seen if that ends. Not so of pipes, and of files that never had a name.
    is_named: bool,
    /// Whole chunks end here.
    good: u64,
    /// Whether a write that failed may have left a part of a chunk.
    torn: bool,
    /// Recordings that began since then are kept under their names.
    keeps_since: Option<SystemTime>,
    /// Whether `NAME.old` is a part of this recording.
    has_rotated: bool,
}

impl RecordFile {
    /// Creates the file. An existing recording is kept beside it as `NAME.old`, in place of an older one. If a process
    /// is still recording to it, or it began since `keeps_since`, it stays, and the new file has the next
    /// [name](recording_names). Another file, under any of these names, stays as it is, and is an error.
    pub(super) fn create(path: &Path, keeps_since: Option<SystemTime>) -> io::Result<Self> {
        let mut path = path.to_owned();
        let mut others = recording_names(&path, std::process::id()).skip(1);
        // Each turn is one that another process won, or a name that is taken.
        for _ in 0..16 {
            // Names, sizes and call stacks are nobody else's business, whatever the umask.
            let open = || {
                OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)
            };
            let [opened] = CloseOnFork::open(|| Ok::<_, io::Error>([open()?]))?;
            let file = opened.here().ok_or_else(forked)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let taken = std::mem::replace(&mut path, others.next().unwrap_or_default());
                    let (taken, instead) = (taken.display(), path.display());
                    warn_in_any_case(&format!(
                        "another process records to {taken}; this one records to {instead}"
                    ));
                    continue;
                }
                // Pipes and some file systems know no locks.
                Err(TryLockError::Error(error)) => {
                    log!(DEBUG, "recording without a lock", path = path.display(), error);
                }
            }
            let found = file.metadata()?;
            let new = |opened, is_named| Self::begin(opened, path.clone(), is_named, keeps_since);
            if !found.is_file() {
                return new(opened, false);
            }
            // The name may have gone to another file between opening and locking.
            if std::fs::metadata(&path).map(|there| there.ino()).ok() != Some(found.ino()) {
                continue;
            }
            if found.len() == 0 {
                return new(opened, found.nlink() > 0);
            }
            refuse_what_is_no_recording(&path, file)?;
            if is_kept(file, keeps_since)? {
                path = others.next().unwrap_or_default();
            } else {
                keep_as_old(&path, false)?;
            }
        }
        Err(io::Error::other(
            "other processes keep taking this name: put %p, which becomes the process's number, into it",
        ))
    }

    fn begin(
        file: CloseOnFork<File>,
        path: PathBuf,
        is_named: bool,
        keeps_since: Option<SystemTime>,
    ) -> io::Result<Self> {
        let mut new = Self { file, path, is_named, good: 0, torn: false, keeps_since, has_rotated: false };
        new.append(&file_head())?;
        Ok(new)
    }

    /// Goes on in a new file, under the name that this one had. This one is kept beside it as `NAME.old`, in place of an older one.
    ///
    /// # Errors
    /// No file can be made, or what has one of the names is no recording. Then this is to be tried again before anything is
    /// appended.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        let own = self.file.here().ok_or_else(forked)?.metadata()?;
        refuse_removed(&own)?;
        // Somebody may have moved it away, and the last attempt may have.
        if std::fs::metadata(&self.path)
            .is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino()))
        {
            keep_as_old(&self.path, self.has_rotated)?;
        }
        *self = Self { has_rotated: true, ..Self::create(&self.path, self.keeps_since)? };
        Ok(())
    }

    /// Whether it can rotate: no pipe can, nor what has no name. Nor one whose `NAME.old` is no recording.
    pub(super) fn refuse_to_rotate(&self) -> io::Result<()> {
        if !self.is_named {
            let what = format!("{} is no file that has a name: it cannot rotate", self.path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        old_name(&self.path).map(drop)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes written.
    pub(super) fn len(&self) -> u64 {
        self.good
    }

    /// Appends all of `bytes`; after an error, the file ends where it ended before.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if std::mem::take(&mut self.torn) {
            self.heal()?;
        }
        let mut file = self.file.here().ok_or_else(forked)?;
        if self.is_named {
            refuse_removed(&file.metadata()?)?;
        }
        let written = file_limit::refusing(|| file.write_all(bytes));
        match written {
            Ok(()) => self.good += bytes.len() as u64,
            Err(_) => {
                // If not now, then before the next chunk; if never, readers notice the torn one.
                self.heal().ok();
            }
        }
        written
    }

    /// Removes what a failed write has left.
    fn heal(&mut self) -> io::Result<()> {
        self.torn = true;
        let mut file = self.file.here().ok_or_else(forked)?;
        file.set_len(self.good)?;
        file.seek(SeekFrom::Start(self.good))?;
        self.torn = false;
        Ok(())
    }
}

fn forked() -> io::Error {
    io::Error::other("the parent records to the file")
}

/// An error for a file that has no name any more: nobody could read what is written to it.
fn refuse_removed(file: &Metadata) -> io::Result<()> {
    if file.nlink() == 0 {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the file was removed: stop, and start again"));
    }
    Ok(())
}

/// Whether a recording may take this name from what has it.
///
/// # Errors
/// What has it, or `NAME.old`, is no recording or cannot be read.
pub fn refuse_to_replace(path: &Path) -> io::Result<()> {
    let there = open_recording(path)?;
    refuse_what_is_no_recording(path, &there)?;
    // What is empty is not kept.
    if there.metadata()?.len() > 0 { old_name(path).map(drop) } else { Ok(()) }
}

/// Whether a recording that nobody writes to is to stay under its name.
fn is_kept(mut file: &File, since: Option<SystemTime>) -> io::Result<bool> {
    let Some(since) = since else { return Ok(false) };
    file.seek(SeekFrom::Start(0))?;
    Ok(begun(file).is_some_and(|begun| begun >= since))
}

/// The name that a recording of this name is kept under, unless another file has it. And whether an older recording has it.
fn old_name(path: &Path) -> io::Result<(PathBuf, bool)> {
    let old = kept_name(path);
    match open_recording(&old) {
        Ok(older) => {
            refuse_what_is_no_recording(&old, &older)?;
            Ok((old, older.metadata()?.len() > 0))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((old, false)),
        Err(error) => Err(error),
    }
}

/// In place of an older one, which is nobody's loss where it is a part of the same recording.
fn keep_as_old(path: &Path, is_of_the_same: bool) -> io::Result<()> {
    let (old, is_taken) = old_name(path)?;
    std::fs::rename(path, &old)?;
    if is_taken && !is_of_the_same {
        warn_in_any_case(&format!(
            "the older recording {} is replaced: %p in the name, which becomes the process's number, keeps each",
            old.display()
        ));
    }
    Ok(())
}

/// An error unless the file is empty, or begins as a recording does.
fn refuse_what_is_no_recording(path: &Path, mut file: &File) -> io::Result<()> {
    let mut head = Vec::with_capacity(MAGIC.len());
    if file.metadata()?.is_file() {
        file.seek(SeekFrom::Start(0))?;
        file.take(MAGIC.len() as u64).read_to_end(&mut head)?;
        if MAGIC.starts_with(&head) {
            return Ok(());
        }
    }
    let what =
        format!("{} exists and is not a recording: name another file, or move it away", path.display());
    Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::super::chunks::Chunk;
    use super::super::format::Record;
    use super::*;

    #[test]
    fn what_an_earlier_process_recorded_is_kept_beside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.mprec");
        let earlier = [&MAGIC[..], b"earlier"].concat();
        std::fs::write(&path, &earlier).unwrap();
        let mut file = RecordFile::create(&path, None).unwrap();
        file.append(b"now").unwrap();
        assert_eq!(file.path(), path);
        assert_eq!(std::fs::read(folder.path().join("run.mprec.old")).unwrap(), earlier);
        assert!(std::fs::read(&path).unwrap().ends_with(b"now"));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(file.len(), std::fs::metadata(&path).unwrap().len());
    }

    #[test]
    fn what_is_no_recording_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("thesis.tex"), folder.path().join("thesis.tex.old"));
        let recording = [&MAGIC[..], b"earlier"].concat();
        let refused = |there: &[u8], older: Option<&[u8]>, named: &Path| {
            std::fs::write(&path, there).unwrap();
            older.into_iter().for_each(|older| std::fs::write(&old, older).unwrap());
            let error = RecordFile::create(&path, None).unwrap_err().to_string();
            assert!(error.starts_with(&named.display().to_string()), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), there);
            assert_eq!(std::fs::read(&old).ok().as_deref(), older);
        };
        refused(b"ten years of work", None, &path);
        refused(b"short", None, &path);
        refused(&recording, Some(b"the year before"), &old);
    }

    #[test]
    fn an_older_recording_makes_room_for_an_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("run.mprec"), folder.path().join("run.mprec.old"));
        for round in [b"1", b"2", b"3"] {
            std::fs::write(&path, [&MAGIC[..], round].concat()).unwrap();
            drop(RecordFile::create(&path, None).unwrap());
            assert!(std::fs::read(&old).unwrap().ends_with(round));
        }
    }

    #[test]
    fn recordings_of_the_same_run_stay_under_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let recorded = |since: u64| {
            let mut file =
                RecordFile::create(&at("run.mprec"), Some(UNIX_EPOCH + Duration::from_nanos(since))).unwrap();
            let start = Record::Start { unix_ns: 5, process: 7, program: "test" };
            let mut chunk = Chunk::new(64);
            chunk.put(&start);
            file.append(&chunk.seal()).unwrap();
            file.path().to_owned()
        };
        let own = std::process::id();
        let names = [format!("run.{own}.mprec"), format!("run.{own}.2.mprec")].map(|name| at(&name));
        // An earlier run's makes room, and those of this one do not.
        assert_eq!([recorded(5), recorded(6)], [at("run.mprec"), at("run.mprec")]);
        assert_eq!([recorded(5), recorded(5)], names);
        assert!(at("run.mprec.old").exists() && !at(&format!("run.{own}.mprec.old")).exists());
    }

    #[test]
    fn a_file_that_rotates_is_kept_beside_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("run.mprec"), folder.path().join("run.mprec.old"));
        let mut file = RecordFile::create(&path, None).unwrap();
        for round in [b"1", b"2", b"3"] {
            file.append(round).unwrap();
            file.rotate().unwrap();
            assert!(std::fs::read(&old).unwrap().ends_with(round));
            assert_eq!((std::fs::read(&path).unwrap(), file.len()), (file_head().to_vec(), 12));
        }
        // The next has the lock.
        assert_ne!(RecordFile::create(&path, None).unwrap().path(), path);
        // What somebody else put under its name stays.
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.rotate().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(std::fs::read(&old).unwrap().ends_with(b"3"));
    }

    #[test]
    fn a_file_rotates_over_no_file_that_is_no_recording() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("run.mprec"), folder.path().join("run.mprec.old"));
        let mut file = RecordFile::create(&path, None).unwrap();
        file.refuse_to_rotate().unwrap();
        std::fs::write(&old, "the year before").unwrap();
        assert!(file.refuse_to_rotate().is_err() && file.rotate().is_err());
        assert_eq!(std::fs::read(&old).unwrap(), b"the year before");
        std::fs::remove_file(&old).unwrap();
        file.append(b"now").unwrap();
        // Moved away by somebody: it is theirs, under its new name.
        let moved = folder.path().join("mine.mprec");
        std::fs::rename(&path, &moved).unwrap();
        file.rotate().unwrap();
        assert!(std::fs::read(&moved).unwrap().ends_with(b"now") && path.exists() && !old.exists());
    }

    #[test]
    fn a_file_that_is_being_recorded_to_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.mprec");
        let _first = RecordFile::create(&path, None).unwrap();
        let second = RecordFile::create(&path, None).unwrap();
        let expected = format!("run.{}.mprec", std::process::id());
        assert_eq!(second.path().file_name().unwrap().to_str(), Some(expected.as_str()));
    }
}
