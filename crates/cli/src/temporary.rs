//! Files and folders of the command's own, which go with it, also where a signal ends it.

use std::collections::BTreeSet;
use std::fs::{
    DirEntry, File, OpenOptions, Permissions, TryLockError, remove_dir_all, remove_file, set_permissions,
};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;
use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::terminal::before_ending;

/// Those that are there now.
static THERE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A file or folder that a signal removes while this lives.
#[derive(Debug)]
pub(crate) struct Temporary(PathBuf);

impl Temporary {
    pub(crate) fn at(path: &Path) -> Self {
        before_ending(|| there().iter().for_each(|path| remove(path)));
        there().insert(path.to_owned());
        Self(path.to_owned())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        there().remove(&self.0);
    }
}

/// A folder that is this user's alone, whatever the umask, and goes with this.
#[derive(Debug)]
pub(crate) struct OwnFolder {
    path: PathBuf,
    /// Whoever has it locked, has it: what is not locked was left by a command that was killed.
    _locked: File,
    _temporary: Temporary,
}

/// What its name begins with: another folder has no such name, nor one of another machine, whose locks may not be seen here.
fn prefix() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("millpond-temporary-{}-", boot.get(..8).unwrap_or_default())
}

impl OwnFolder {
    pub(crate) fn below(place: &Path) -> Result<Self> {
        let mut new = tempfile::Builder::new();
        let prefix = prefix();
        new.prefix(&prefix).permissions(Permissions::from_mode(0o700));
        loop {
            let made = new.tempdir_in(place).map(TempDir::keep).and_then(|path| Ok((open(&path)?, path)));
            let (folder, path) =
                made.map_err(|source| Error::NoFolder { place: place.to_owned(), source })?;
            match folder.try_lock() {
                // Another command took it for one that was left.
                Err(TryLockError::WouldBlock) => {}
                Ok(()) if !path.exists() => {}
                // A file system without locks: then nobody takes it.
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(Self::of(path, folder)),
            }
        }
    }

    /// Those that commands left in this place when they were killed. They go with these.
    pub(crate) fn left_in(place: &Path) -> Vec<Self> {
        let there = std::fs::read_dir(place).into_iter().flatten().flatten();
        let prefix = prefix();
        let named = there.filter(|entry| entry.file_name().as_bytes().starts_with(prefix.as_bytes()));
        let is_left = |folder: &File| {
            folder.metadata().is_ok_and(|about| about.uid() == rustix::process::geteuid().as_raw())
                && folder.try_lock().is_ok()
        };
        let left = |entry: DirEntry| {
            open(&entry.path()).ok().filter(is_left).map(|folder| Self::of(entry.path(), folder))
        };
        named.filter_map(left).collect()
    }

    fn of(path: PathBuf, locked: File) -> Self {
        Self { _temporary: Temporary::at(&path), _locked: locked, path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OwnFolder {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Opens a folder, and no link to one.
fn open(folder: &Path) -> std::io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(folder)
}

fn there() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    THERE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes a file, or a folder with all that is in it: also in folders that a program made unwritable.
fn remove(path: &Path) {
    if remove_file(path).is_err() && remove_dir_all(path).is_err() && path.exists() {
        open_up(path);
        remove_dir_all(path).ok();
    }
}

/// Lets the user change this folder and those in it.
fn open_up(folder: &Path) {
    set_permissions(folder, Permissions::from_mode(0o700)).ok();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_own_folder_goes_with_the_folders_that_nobody_may_write() {
        let place = tempfile::tempdir().unwrap();
        let folder = OwnFolder::below(place.path()).unwrap();
        let below = folder.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        std::fs::write(below.join("file"), "").unwrap();
        for folder in [below.as_path(), below.parent().unwrap()] {
            set_permissions(folder, Permissions::from_mode(0o000)).unwrap();
        }
        drop(folder);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        assert_eq!(there().iter().filter(|path| path.starts_with(place.path())).count(), 0);
    }
}
