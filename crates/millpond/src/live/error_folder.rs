//! The folder of the files that processes leave which ran out of memory.
//!
//! **Others may write there**, where the environment names a folder for several users. So no link is followed, for which the folder is
//! held open. What has no name of such a process is somebody else's, and stays.

use std::ffi::CStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, renameat, statat, unlinkat};

use crate::policy::watching::{ERRORS_STAY, MOST_ERROR_FILES};
use crate::system::file_limit;

/// What the name of a whole file ends with, and that of one which is being written.
pub(super) const ENDINGS: [&str; 2] = [".json", ".new"];

/// See the [module](self).
#[derive(Debug)]
pub(super) struct ErrorFolder(File);

impl ErrorFolder {
    /// The folder, if there is one.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        OpenOptions::new().read(true).custom_flags(flags).open(path).map(Self)
    }

    /// The folder, which is made if there is none. Who may write to the one `above` may write to it.
    pub(super) fn open_or_make(above: &Path, path: &Path) -> io::Result<Self> {
        let is_new = match fs::create_dir(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        let folder = Self::open(path)?;
        if is_new {
            let mode = fs::metadata(above)?.mode();
            folder.0.set_permissions(Permissions::from_mode(mode & 0o7777))?;
        }
        Ok(folder)
    }

    /// Writes a file, which is whole at any moment. Takes no memory of the host's.
    pub(super) fn write(&self, [name, new]: [&str; 2], text: &[u8], mode: u32) -> io::Result<()> {
        // What an attempt left that failed.
        _ = unlinkat(&self.0, new, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.0, new, flags, Mode::from_raw_mode(0o600))?);
        file_limit::refusing(|| file.write_all(text))?;
        file.set_permissions(Permissions::from_mode(mode))?;
        Ok(renameat(&self.0, new, &self.0, name)?)
    }

    /// Removes what is old, and the oldest files beyond a number.
    pub(super) fn make_room(&self) -> io::Result<()> {
        let now = UNIX_EPOCH.elapsed().unwrap_or_default();
        let mut files = Vec::new();
        for entry in Dir::read_from(&self.0)?.flatten().filter(|entry| is_of_a_process(entry.file_name())) {
            if let Ok(about) = statat(&self.0, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                && FileType::from_raw_mode(about.st_mode) == FileType::RegularFile
            {
                let changed = Duration::from_secs(u64::try_from(about.st_mtime).unwrap_or_default());
                files.push((now.saturating_sub(changed), entry.file_name().to_owned()));
            }
        }
        files.sort();
        for (at, (age, name)) in files.iter().enumerate() {
            if *age > ERRORS_STAY || at >= MOST_ERROR_FILES {
                _ = unlinkat(&self.0, name, AtFlags::empty());
            }
        }
        Ok(())
    }
}

/// Whether a file has a name that processes give, from their [ids](super::who::own_id).
fn is_of_a_process(name: &CStr) -> bool {
    let id = name.to_str().ok().and_then(|name| ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)));
    id.and_then(|id| id.split_once('-')).is_some_and(|(pid, since)| {
        let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        pid.parse::<u32>().is_ok() && is_hex(since)
    })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    use super::*;

    const OLD: Duration = Duration::from_secs(60).saturating_add(ERRORS_STAY);

    fn file_of_age(folder: &Path, name: &str, age: Duration) {
        let file = File::create(folder.join(name)).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn old_files_go_and_those_of_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let others = ["1-2.json.bak", "17-.json", "errors.json", "notes-a.new", "x-1f.json"];
        ["1-2f.json", "3-a.new"].iter().chain(&others).for_each(|name| file_of_age(folder.path(), name, OLD));
        file_of_age(folder.path(), "5-6.json", Duration::ZERO);
        fs::create_dir(folder.path().join("7-8.json")).unwrap();
        ErrorFolder::open(folder.path()).unwrap().make_room().unwrap();
        assert_eq!(
            names(folder.path()),
            [&others[..1], &["17-.json", "5-6.json", "7-8.json"], &others[2..]].concat()
        );
    }

    #[test]
    fn a_link_to_a_folder_of_others_is_not_followed() {
        let (above, others) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        file_of_age(others.path(), "1-2.json", OLD);
        let folder = above.path().join("errors.d");
        symlink(others.path(), &folder).unwrap();
        assert!(ErrorFolder::open(&folder).is_err());
        assert!(ErrorFolder::open_or_make(above.path(), &folder).is_err());
        assert_eq!(names(others.path()), ["1-2.json"]);
    }

    #[test]
    fn a_link_to_a_file_of_others_is_replaced() {
        let above = tempfile::tempdir().unwrap();
        let (folder, others) = (above.path().join("errors.d"), above.path().join("others"));
        fs::write(&others, "theirs").unwrap();
        let opened = ErrorFolder::open_or_make(above.path(), &folder).unwrap();
        for name in ["1-2.new", "1-2.json"] {
            symlink(&others, folder.join(name)).unwrap();
        }
        opened.write(["1-2.json", "1-2.new"], b"ours", 0o600).unwrap();
        assert_eq!(fs::read_to_string(&others).unwrap(), "theirs");
        assert_eq!(fs::read_to_string(folder.join("1-2.json")).unwrap(), "ours");
        assert_eq!(names(&folder), ["1-2.json"]);
    }
}
