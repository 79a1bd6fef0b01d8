//! The files a run writes. They are opened before the work, so that a place that cannot be written is found then, and
//! written at its end. What a run that failed did not write is not left behind empty.

use std::fs::{File, OpenOptions, create_dir_all, metadata, remove_file};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A file to be written later.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: File,
    /// Made by [`open`](Self::open), and not written yet.
    is_new: bool,
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_new {
            // The run has failed, and says why.
            let _ = remove_file(&self.path);
        }
    }
}

impl Output {
    /// Opens or creates the file; what is in it stays until [`write`](Self::write).
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.append(true);
        let (opened, is_new) = match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (options.create(true).open(path), false)
            }
            made => (made, true),
        };
        let file = opened.map_err(|source| failed(path, "write it", source))?;
        Ok(Self { path: path.to_owned(), file, is_new })
    }

    /// Replaces what is in the file.
    pub(crate) fn write(mut self, contents: &str) -> Result<()> {
        // A terminal or a pipe (`--json /dev/stdout`) cannot be cut short, and need not be.
        let is_file = metadata(&self.path).is_ok_and(|metadata| metadata.is_file());
        let cut = if is_file { self.file.set_len(0) } else { Ok(()) };
        cut.and_then(|()| self.file.write_all(contents.as_bytes()))
            .map_err(|source| failed(&self.path, "write it", source))?;
        self.is_new = false;
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The files of a log folder.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) csv: Output,
    pub(crate) svg: Output,
}

impl Log {
    /// Creates the folder if need be, and opens its files.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        create_dir_all(dir).map_err(|source| failed(dir, "create the log folder", source))?;
        Ok(Self { csv: Output::open(&dir.join("curves.csv"))?, svg: Output::open(&dir.join("curves.svg"))? })
    }
}

fn failed(path: &Path, action: &'static str, source: std::io::Error) -> Error {
    Error::Io { path: path.to_owned(), action, source }
}
