//! The files that a command writes. Whether they can be written is found out before the work. They are written beside and
//! renamed, so that a file is whole at any time, also where the command is killed.
//!
//! `-` is stdout, as other tools have it; a file of that name is `./-`.

use std::fs::{File, OpenOptions, Permissions, canonicalize, metadata, remove_file};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::terminal::{Stdout, give_stdout_away, say};

/// Something to be written, once or several times.
#[derive(Debug)]
pub(crate) struct Output {
    /// As it was named.
    path: PathBuf,
    sink: Sink,
}

#[derive(Debug)]
enum Sink {
    Stdout,
    /// A terminal or a pipe, such as `/dev/stderr`.
    Stream(File),
    /// A file, by the path behind all links.
    File(PathBuf),
}

impl Output {
    /// Finds out whether it can be written. A file is made or changed by [`write`](Self::write) only. What goes to stdout
    /// has it for itself from now on.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let sink = Sink::open(path).map_err(|source| failed(path, "write it", source))?;
        Ok(Self { path: path.to_owned(), sink })
    }

    /// Whether what is written replaces what was written before.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self.sink, Sink::File(_))
    }

    /// Replaces what is in the file.
    pub(crate) fn write(&self, contents: &str) -> Result<()> {
        let written = self.write_with(|out| out.write_all(contents.as_bytes()));
        written.map_err(|source| failed(&self.path, "write it", source))
    }

    /// Replaces what is in the file by what `write` writes, piece by piece.
    pub(crate) fn write_with<E: From<std::io::Error>>(
        &self,
        write: impl FnOnce(&mut dyn Write) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        match &self.sink {
            Sink::Stdout => buffered(Stdout, write),
            Sink::Stream(stream) => buffered(stream, write),
            Sink::File(path) => replace(path, write),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Sink {
    fn open(path: &Path) -> std::io::Result<Self> {
        if is_stdout(path) {
            give_stdout_away();
            return Ok(Self::Stdout);
        }
        let was_there = path.exists();
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        if !file.metadata()?.is_file() {
            return Ok(Self::Stream(file));
        }
        let path = canonicalize(path)?;
        if !was_there {
            remove_file(&path)?;
        }
        Ok(Self::File(path))
    }
}

/// Writes a file of this path beside it and renames that. Where the folder takes no new file, it is written in place.
pub(crate) fn replace<E: From<std::io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let before = metadata(path).map(|before| before.permissions()).ok();
    let name = path.file_name().unwrap_or_default();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut part = tempfile::Builder::new();
    // As every new file, it has what the umask leaves of these.
    part.prefix(name).suffix(".part").permissions(Permissions::from_mode(0o666));
    let part = match part.tempfile_in(folder) {
        Ok(part) => part,
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            return buffered(File::create(path)?, write);
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(before) = before {
        part.as_file().set_permissions(before)?;
    }
    buffered(part.as_file(), write)?;
    part.persist(path).map_err(|error| error.error)?;
    Ok(())
}

fn buffered<E: From<std::io::Error>>(
    out: impl Write,
    write: impl FnOnce(&mut dyn Write) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let mut out = BufWriter::new(out);
    write(&mut out)?;
    Ok(out.flush()?)
}

/// Writes what `--json` asks for.
pub(crate) fn write_json(file: Output, told: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(told);
    let text = text.map_err(|error| failed(file.path(), "write the results to it", error.into()))?;
    file.write(&(text + "\n"))
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
    fn a_file_is_made_when_written_and_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.json");
        let names = || {
            let entries = std::fs::read_dir(dir.path()).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        let output = Output::open(&path).unwrap();
        assert_eq!(names(), [""; 0]);
        output.write("first, and long").unwrap();
        output.write("second").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second");
        let refused = output.write_with(|out| {
            out.write_all(b"third")?;
            Err(std::io::Error::from(ErrorKind::StorageFull))
        });
        assert!(refused.is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(names(), ["run.json"]);
    }

    #[test]
    fn links_and_permissions_of_a_file_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "before").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        Output::open(&link).unwrap().write("after").unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "after");
        assert_eq!(metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_new_file_has_the_permissions_of_any_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let [file, other] = ["file", "other"].map(|name| dir.path().join(name));
        Output::open(&file).unwrap().write("new").unwrap();
        std::fs::write(&other, "new").unwrap();
        let [file, other] = [file, other].map(|path| metadata(path).unwrap().permissions());
        assert_eq!(file, other);
    }

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
