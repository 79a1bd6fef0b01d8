//! The files a run writes. They are opened before the work, so that a place that cannot be written is found then, and
//! written at its end. What a run that failed did not write is not left behind empty.
//!
//! `-` is stdout, as other tools have it; a file of that name is `./-`.

use std::fs::{File, OpenOptions, canonicalize, create_dir_all, metadata, remove_file};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::screen::{Stdout, give_stdout_away, say};

/// A file to be written later.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    /// `None` for stdout.
    file: Option<File>,
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
    /// Opens or creates the file; what is in it stays until it is written. What goes to stdout has it for itself from
    /// now on.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if is_stdout(path) {
            give_stdout_away();
            return Ok(Self { path: path.to_owned(), file: None, is_new: false });
        }
        let mut options = OpenOptions::new();
        options.append(true);
        let (opened, is_new) = match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (options.create(true).open(path), false)
            }
            made => (made, true),
        };
        let file = opened.map_err(|source| failed(path, "write it", source))?;
        Ok(Self { path: path.to_owned(), file: Some(file), is_new })
    }

    /// Replaces what is in the file.
    pub(crate) fn write(self, contents: &str) -> Result<()> {
        let path = self.path.clone();
        let written = self.write_with(|out| out.write_all(contents.as_bytes()));
        written.map_err(|source| failed(&path, "write it", source))
    }

    /// Replaces what is in the file by what `write` writes, piece by piece.
    pub(crate) fn write_with<E: From<std::io::Error>>(
        mut self,
        write: impl FnOnce(&mut dyn Write) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let Some(file) = &mut self.file else {
            let mut out = BufWriter::new(Stdout);
            write(&mut out)?;
            return Ok(out.flush()?);
        };
        // A terminal or a pipe (`--json /dev/stdout`) cannot be cut short, and need not be.
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        out.flush()?;
        drop(out);
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
        let [csv, svg] = Self::NAMES.map(|name| Output::open(&dir.join(name)));
        Ok(Self { csv: csv?, svg: svg? })
    }

    const NAMES: [&str; 2] = ["curves.csv", "curves.svg"];

    /// What [`open`](Self::open) would open.
    pub(crate) fn files(dir: Option<&Path>) -> [Option<PathBuf>; 2] {
        Self::NAMES.map(|name| Some(dir?.join(name)))
    }
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Says where something was written, unless that was to stdout.
pub(crate) fn say_written(path: &Path) {
    if !is_stdout(path) {
        say(&format!("wrote {}", path.display()));
    }
}

/// Refuses `-` where only a file or a folder will do.
///
/// # Errors
/// [`Error::Usage`], which names the flag.
pub(crate) fn refuse_stdout(flag: &str, path: Option<&Path>, why: &str) -> Result<()> {
    match path {
        Some(path) if is_stdout(path) => {
            Err(Error::Usage(format!("{flag} -: {why}; for one of the name '-' say ./-")))
        }
        _ => Ok(()),
    }
}

/// Refuses to write over what is read, and to write two things to one file.
///
/// # Errors
/// [`Error::Usage`], which names the file.
pub(crate) fn refuse_clashes(read: &[&Path], written: &[Option<&Path>]) -> Result<()> {
    let mut taken: Vec<(Identity, &str)> = Vec::new();
    taken.extend(read.iter().filter_map(|path| Some((Identity::of(path)?, "is read"))));
    for path in written.iter().flatten() {
        let file = if is_stdout(path) { Some(Identity::Stdout) } else { Identity::of(path) };
        let Some(file) = file else { continue };
        if let Some((_, what_for)) = taken.iter().find(|(other, _)| *other == file) {
            let name =
                if file == Identity::Stdout { "- (standard output)".into() } else { path.to_string_lossy() };
            return Err(Error::Usage(format!("{name}: {what_for}; name another file")));
        }
        taken.push((file, "is written to already"));
    }
    Ok(())
}

/// A file, whatever path leads to it.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    /// By device and number.
    There(u64, u64),
    /// By its folder and name.
    ToBeMade(PathBuf),
    Stdout,
}

impl Identity {
    /// `None` for what is no file: a terminal or a pipe takes whatever comes.
    fn of(path: &Path) -> Option<Self> {
        match metadata(path) {
            Ok(file) => file.is_file().then(|| Self::There(file.dev(), file.ino())),
            Err(_) => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = folder.unwrap_or(Path::new("."));
                // The folder may have to be made, too.
                let folder = canonicalize(folder).or_else(|_| std::path::absolute(folder)).ok()?;
                Some(Self::ToBeMade(folder.join(path.file_name()?)))
            }
        }
    }
}

fn failed(path: &Path, action: &'static str, source: std::io::Error) -> Error {
    Error::Io { path: path.to_owned(), action, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_written_twice_or_where_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("trace"), "").unwrap();
        std::os::unix::fs::symlink(at("trace"), at("link")).unwrap();
        std::fs::hard_link(at("trace"), at("hard")).unwrap();
        let said = |written: &[Option<&Path>]| {
            refuse_clashes(&[&at("trace")], written).map_err(|error| error.to_string())
        };
        for name in ["trace", "link", "hard"] {
            let error = said(&[None, Some(&at(name))]).unwrap_err();
            assert!(error.ends_with(&format!("{name}: is read; name another file")), "{error}");
        }
        let (new, again) = (at("new"), dir.path().join(".").join("new"));
        let error = said(&[Some(&new), None, Some(&again)]).unwrap_err();
        assert!(error.ends_with("new: is written to already; name another file"), "{error}");
        assert_eq!(said(&[Some(&new), Some(&at("other"))]), Ok(()));
    }

    #[test]
    fn what_is_no_file_takes_whatever_comes() {
        let null = Path::new("/dev/null");
        assert!(refuse_clashes(&[null], &[Some(null), Some(null)]).is_ok());
    }

    #[test]
    fn a_file_in_a_new_folder_is_one_file() {
        let error = refuse_clashes(&[], &[Some(Path::new("/no/such/folder/a")); 2]).unwrap_err();
        assert!(error.to_string().starts_with("/no/such/folder/a: is written to already"), "{error}");
    }
}
