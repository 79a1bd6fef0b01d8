//! A file that is replaced whole: whenever the program is ended, what was there before or what is there now can be read.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Written beside its place and renamed. A link to it stays a link: the file behind it is replaced.
#[derive(Debug, Clone)]
pub(crate) struct WholeFile {
    /// Behind all links.
    place: PathBuf,
    /// What it is called until it is whole.
    part: PathBuf,
}

impl WholeFile {
    /// It need not be there. A link may lead to nothing yet.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let place = behind_links(path)?;
        let mut name = OsString::from(&place);
        name.push(".part");
        Ok(Self { place, part: name.into() })
    }

    /// Finds out whether it can be written, and leaves nothing.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.new_part()?;
        fs::remove_file(&self.part)
    }

    /// Writes it, has it on the disk, and puts it in its place. Nothing stays of one that could not be written.
    pub(crate) fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = self.new_part()?;
        let mut write = || {
            out.write_all(bytes)?;
            out.sync_all()?;
            fs::rename(&self.part, &self.place)
        };
        write().inspect_err(|_| {
            fs::remove_file(&self.part).ok();
        })?;
        // So that the new name survives the machine, too.
        self.place.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    }

    /// In place of one that a killed program left.
    fn new_part(&self) -> io::Result<File> {
        let part = self.part.display();
        if self.part.symlink_metadata().is_ok_and(|there| there.is_dir()) {
            let what = format!("it is written as {part} first, which is a folder: remove or rename that");
            return Err(io::Error::new(ErrorKind::IsADirectory, what));
        }
        fs::remove_file(&self.part).or_else(|error| match error.kind() {
            ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        OpenOptions::new().write(true).create_new(true).open(&self.part)
    }
}

/// Where a file lies, or is to be made: behind all links, also those that lead to nothing yet.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    loop {
        match fs::canonicalize(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            found => return found,
        }
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok(path) };
        match fs::read_link(&path) {
            Ok(link) => path = folder.join(link),
            Err(_) => return Ok(fs::canonicalize(folder)?.join(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_stays_of_a_file_that_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let taken = dir.path().join("checkpoint.safetensors");
        // No file takes the place of a folder.
        fs::create_dir(&taken).unwrap();
        assert!(WholeFile::at(&taken).unwrap().replace(b"bytes").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_stays_and_the_file_behind_it_is_replaced() {
        let (dir, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let [link, file] = [dir.path().join("link"), disk.path().join("model.1")];
        symlink(&file, &link).unwrap();
        for contents in ["of a link that led to nothing", "of a link to a file"] {
            WholeFile::at(&link).unwrap().replace(contents.as_bytes()).unwrap();
            assert!(link.is_symlink());
            assert_eq!(fs::read_to_string(&file).unwrap(), contents);
        }
        assert_eq!([dir, disk].map(|dir| fs::read_dir(dir.path()).unwrap().count()), [1, 1]);
    }

    #[test]
    fn a_check_finds_a_folder_in_the_way_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = WholeFile::at(&dir.path().join("file")).unwrap();
        file.check().unwrap();
        // As a killed program leaves one.
        fs::write(dir.path().join("file.part"), "half").unwrap();
        file.check().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        fs::create_dir(dir.path().join("file.part")).unwrap();
        let error = file.check().unwrap_err().to_string();
        assert!(error.ends_with("file.part first, which is a folder: remove or rename that"), "{error}");
    }
}
