//! The names of recordings: of each process that was asked for the same file, and of what a recording took the place of.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::chunks::Chunks;

/// The files that a process may record to where it is asked for `path`, in the order in which it tries them: `run.mprec`,
/// `run.PROCESS.mprec`, `run.PROCESS.2.mprec` and so on. `%p` becomes the process's number.
pub fn recording_names(path: &Path, process: u32) -> impl Iterator<Item = PathBuf> + use<> {
    let first = expanded(path, process);
    let asked = first.clone();
    let own = (1_u32..).map(move |number| match number {
        1 => with(&asked, process),
        _ => with(&asked, format_args!("{process}.{number}")),
    });
    std::iter::once(first).chain(own)
}

/// The name that a recording is kept under when another takes its place.
pub fn kept_name(path: &Path) -> PathBuf {
    let mut old = path.to_owned().into_os_string();
    old.push(".old");
    old.into()
}

/// When a recording began, by its own words. `None` for what is no recording, or has no first chunk. Waits for nobody.
pub fn recording_begun(path: &Path) -> Option<SystemTime> {
    begun(open_recording(path).ok()?)
}

/// For reading. A pipe without a writer is not waited for.
pub(super) fn open_recording(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// The same of an open file.
pub(super) fn begun(file: impl io::Read) -> Option<SystemTime> {
    let mut chunks = Chunks::new(BufReader::new(file)).ok()?;
    // The first record is `Record::Start`, by its number, and that begins with the time. To read all kinds takes 6 kB of code.
    let ((number, unix_ns), _) = postcard::take_from_bytes::<(u32, u64)>(chunks.next_chunk().ok()??).ok()?;
    (number == 0).then(|| UNIX_EPOCH.checked_add(Duration::from_nanos(unix_ns)))?
}

/// The path with `%p` replaced by the process's number.
pub(super) fn expanded(path: &Path, process: u32) -> PathBuf {
    match path.to_str() {
        Some(text) if text.contains("%p") => text.replace("%p", &process.to_string()).into(),
        _ => path.to_owned(),
    }
}

/// The first file of this name, and the next ones: `run.mprec`, `run.2.mprec`.
pub(super) fn numbered(path: &Path, number: u32) -> PathBuf {
    if number > 1 { with(path, number) } else { path.to_owned() }
}

/// `run.mprec` as `run.LABEL.mprec`.
fn with(path: &Path, label: impl Display) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{label}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_names_of_its_own() {
        let names = |path: &str| recording_names(Path::new(path), 7).take(3).collect::<Vec<_>>();
        assert_eq!(
            names("a/run.mprec"),
            ["a/run.mprec", "a/run.7.mprec", "a/run.7.2.mprec"].map(PathBuf::from)
        );
        assert_eq!(names("plain"), ["plain", "plain.7", "plain.7.2"].map(PathBuf::from));
        assert_eq!(names("%p/a-%p")[..2], ["7/a-7", "7/a-7.7"].map(PathBuf::from));
    }

    #[test]
    fn what_is_no_recording_has_not_begun() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.mprec");
        assert_eq!(recording_begun(&path), None);
        std::fs::write(&path, super::super::chunks::file_head()).unwrap();
        assert_eq!(recording_begun(&path), None);
        assert_eq!(recording_begun(folder.path()), None);
        assert_eq!(recording_begun(Path::new("/dev/zero")), None);
    }
}
