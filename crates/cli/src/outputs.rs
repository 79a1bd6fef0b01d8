//! The files that a command writes. Whether they can be written is found out before the work. They are written beside and
//! renamed, so that a file is whole at any time, also where the command is killed.
//!
//! `-` is stdout, as other tools have it; a file of that name is `./-`. So is what leads to where stdout goes: `/dev/stdout`, or
//! the file of `> FILE`.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions, Permissions, canonicalize, metadata, read_link};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tempfile::NamedTempFile;

use crate::error::{Error, Result};
use crate::temporary::Temporary;
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
        match OpenOptions::new().append(true).open(path) {
            Ok(file) if !file.metadata()?.is_file() => return Ok(Self::Stream(file)),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if path.as_os_str().as_bytes().ends_with(b"/") {
                    return Err(ErrorKind::IsADirectory.into());
                }
                // Whether its folder takes it. It is not made itself: another process may make it meanwhile.
                beside(&behind_links(path)?)?;
            }
            Err(error) => return Err(error),
        }
        Ok(Self::File(behind_links(path)?))
    }
}

/// Where a file lies, or is to be made: behind all links, also those that lead to nothing yet.
fn behind_links(path: &Path) -> std::io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    loop {
        match canonicalize(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            found => return found,
        }
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok(path) };
        match read_link(&path) {
            Ok(link) => path = folder.join(link),
            Err(_) => return Ok(canonicalize(folder)?.join(name)),
        }
    }
}

/// A new file in the folder of another one, whose place it is to take. As every new file, it has what the umask leaves.
fn beside(path: &Path) -> std::io::Result<NamedTempFile> {
    /// What is added to it must fit in a name, too.
    const MOST_OF_NAME: usize = 200;
    let name = path.file_name().unwrap_or_default().as_bytes();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut part = tempfile::Builder::new();
    part.prefix(OsStr::from_bytes(&name[..name.len().min(MOST_OF_NAME)])).suffix(".part");
    part.permissions(Permissions::from_mode(0o666)).tempfile_in(folder)
}

/// Gives a new file the owner and the permissions of the one whose place it takes. Where it cannot have that owner, nobody else
/// reads it.
fn takes_after(part: &File, before: &Metadata) -> std::io::Result<bool> {
    let owner = |file: &Metadata| (file.uid(), file.gid());
    if owner(&part.metadata()?) != owner(before)
        && fchown(part, Some(before.uid()), Some(before.gid())).is_err()
    {
        part.set_permissions(Permissions::from_mode(0o600))?;
        return Ok(false);
    }
    part.set_permissions(before.permissions())?;
    Ok(true)
}

/// Writes a file of this path beside it and renames that. Where the folder takes no new file, or another user's file would
/// become this one's, it is written in place.
pub(crate) fn replace<E: From<std::io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let before = metadata(path).ok();
    let part = match beside(path) {
        Ok(part) => part,
        Err(error)
            if before.is_some()
                && matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) =>
        {
            return buffered(File::create(path)?, write);
        }
        Err(error) => return Err(error.into()),
    };
    let _temporary = Temporary::at(part.path());
    let takes_its_place = match &before {
        Some(before) => takes_after(part.as_file(), before)?,
        None => true,
    };
    buffered(part.as_file(), write)?;
    let in_place =
        |part: &NamedTempFile| std::io::copy(&mut part.reopen()?, &mut File::create(path)?).map(drop);
    if !takes_its_place {
        return Ok(in_place(&part)?);
    }
    match part.persist(path) {
        Ok(_) => Ok(()),
        // In a folder such as /tmp, where nobody renames over another user's file.
        Err(refused) if before.is_some() && refused.error.kind() == ErrorKind::PermissionDenied => {
            Ok(in_place(&refused.file)?)
        }
        Err(refused) => Err(refused.error.into()),
    }
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

fn is_dash(path: &Path) -> bool {
    path == Path::new("-")
}

/// Whether what is written there goes where stdout goes. `/dev/null` keeps nothing, so nothing mixes there.
fn is_stdout(path: &Path) -> bool {
    let place = |file: Metadata| (file.dev(), file.ino());
    let there = metadata(path).ok().map(place);
    let is_same = || there == stdout_itself().map(place) && there != metadata("/dev/null").ok().map(place);
    is_dash(path) || there.is_some() && is_same()
}

/// `None` where it is closed.
fn stdout_itself() -> Option<Metadata> {
    File::from(std::io::stdout().as_fd().try_clone_to_owned().ok()?).metadata().ok()
}

/// Says where something was written, unless that was to stdout.
pub(crate) fn say_written(path: &Path) {
    if !is_stdout(path) {
        say(&format!("wrote {}", path.display()));
    }
}

/// Refuses stdout where only a file or a folder will do.
///
/// # Errors
/// [`Error::Usage`], which names the flag.
pub(crate) fn refuse_stdout(flag: &str, path: Option<&Path>, why: &str) -> Result<()> {
    match path {
        Some(path) if is_dash(path) => {
            Err(Error::Usage(format!("{flag} -: {why}; for one of the name '-' say ./-")))
        }
        Some(path) if is_stdout(path) => {
            Err(Error::Usage(format!("{flag} {}: this is standard output; {why}", path.display())))
        }
        _ => Ok(()),
    }
}

/// The files that a program's words name: itself, a script, what it reads.
pub(crate) fn files_among(words: &[OsString]) -> Vec<&Path> {
    words.iter().map(Path::new).filter(|path| !is_dash(path) && path.is_file()).collect()
}

/// Refuses to write over what is read, to read standard input twice, and to write two things to one file.
///
/// # Errors
/// [`Error::Usage`], which names the file.
pub(crate) fn refuse_clashes(read: &[&Path], written: &[Option<&Path>]) -> Result<()> {
    let mut taken: Vec<(Identity, &str)> = Vec::new();
    if read.iter().filter(|path| is_dash(path)).count() > 1 {
        return Err(Error::Usage("-: standard input is one trace; name a file for the other".to_owned()));
    }
    taken.extend(read.iter().filter_map(|path| {
        let path = if is_dash(path) { Path::new("/dev/stdin") } else { path };
        Some((Identity::of(path)?, "is read"))
    }));
    for path in written.iter().flatten() {
        let file = if is_stdout(path) { Some(Identity::Stdout) } else { Identity::of(path) };
        let Some(file) = file else { continue };
        if let Some((_, what_for)) = taken.iter().find(|(other, _)| *other == file) {
            let name = path.display();
            let of = if file == Identity::Stdout { " (standard output)" } else { "" };
            return Err(Error::Usage(format!("{name}{of}: {what_for}; name another file")));
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
            // The folder may have to be made, too.
            Err(_) => behind_links(path).or_else(|_| std::path::absolute(path)).ok().map(Self::ToBeMade),
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
    fn a_link_to_a_file_that_is_not_there_yet_is_that_file() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink("./file", &link).unwrap();
        assert!(refuse_clashes(&[], &[Some(&file), Some(&link)]).is_err());
        Output::open(&link).unwrap().write("new").unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
    }

    #[test]
    fn a_file_that_another_process_makes_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let output = Output::open(&path).unwrap();
        std::fs::write(&path, "another's").unwrap();
        assert!(Output::open(&path).is_ok());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "another's");
        output.write("whole").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole");
    }

    #[test]
    fn a_name_may_be_as_long_as_the_system_allows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n".repeat(255));
        Output::open(&path).unwrap().write("text").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
        assert!(Output::open(&dir.path().join("n".repeat(256))).is_err());
    }

    #[test]
    fn a_file_keeps_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("theirs");
        std::fs::write(&path, "before").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        // Only root gives files away.
        let is_given = std::os::unix::fs::chown(&path, Some(12_345), Some(12_345)).is_ok();
        Output::open(&path).unwrap().write("after").unwrap();
        let about = metadata(&path).unwrap();
        assert_eq!(about.permissions().mode() & 0o777, 0o600);
        assert_eq!((about.uid(), about.gid()) == (12_345, 12_345), is_given);
    }

    #[test]
    fn standard_input_is_read_once() {
        let error = refuse_clashes(&[Path::new("-"), Path::new("-")], &[]).unwrap_err();
        assert!(error.to_string().starts_with("-: standard input is one trace"), "{error}");
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
