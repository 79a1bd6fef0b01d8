//! The file of a named budget: a table in memory that processes share.
//!
//! **What is mapped may hold anything.** Whoever may write the file may change it at any time, and it may be of another
//! program. The file never shrinks by our doing; if its owner cuts it, the system ends the processes that use it (`SIGBUS`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use memmap2::{MmapOptions, MmapRaw};

use super::folder::Folder;
use super::table::{ORDER, Table};
use crate::system::file_limit;

const _: () = assert!(size_of::<Table>() == 64 + 64 * super::modelled::SLOTS);

/// What a register's file is, and its version.
pub(super) const KIND: [u64; 2] = [u64::from_le_bytes(*b"millpond"), 3];

/// The table that processes share, in a file that is mapped. What is asked of it, and who has which of its slots, is in
/// [`register`](super::register).
#[derive(Debug)]
pub(super) struct Register {
    table: MmapRaw,
    file: File,
}

impl std::ops::Deref for Register {
    type Target = Table;

    fn deref(&self) -> &Table {
        // SAFETY: as long as a table, and aligned to a page, as long as this lives. Any bytes are a table, and whoever
        // changes them meanwhile changes atomics.
        unsafe { &*self.table.as_ptr().cast() }
    }
}

impl Register {
    /// The register of this name, which is made if there is none.
    pub(super) fn open(folder: &Folder, name: &str) -> Result<Self, String> {
        if let Some(found) = Self::open_existing(folder, name)? {
            return Ok(found);
        }
        let failed = |error| format!("it cannot be made: {error}: is the folder there, and writable?");
        create(&folder.path.join(name), folder.mode).map_err(failed)?;
        Self::open_existing(folder, name)?.ok_or_else(|| "it was removed as soon as it was made".to_owned())
    }

    /// The register of this name; `None` where there is no such file.
    pub(super) fn open_existing(folder: &Folder, name: &str) -> Result<Option<Self>, String> {
        let path = folder.path.join(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = match options.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("it cannot be opened: {error}")),
        };
        let about = file.metadata().map_err(|error| format!("it cannot be read: {error}"))?;
        let user = rustix::process::geteuid().as_raw();
        if !about.is_file() || about.len() != size_of::<Table>() as u64 {
            return Err(no_register());
        }
        if !folder.is_shared && (about.uid() != user || about.mode() & 0o077 != 0) {
            let (owner, mode) = (about.uid(), about.mode() & 0o777);
            return Err(format!(
                "it belongs to user {owner} with mode {mode:o}, not to user {user} with mode 600: {ANOTHER}"
            ));
        }
        let mapped = MmapOptions::new().len(size_of::<Table>()).map_raw(&file);
        let table = mapped.map_err(|error| format!("it cannot be mapped: {error}"))?;
        let register = Self { table, file };
        if [0, 1].map(|at| register.head[at].load(ORDER)) != KIND {
            return Err(no_register());
        }
        Ok(Some(register))
    }

    /// Whether nobody finds the file any more.
    pub(super) fn is_removed(&self) -> bool {
        self.file.metadata().is_ok_and(|about| about.nlink() == 0)
    }

    /// To ask for locks. It has none itself.
    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

/// What to do where the file is not ours.
const ANOTHER: &str = "remove it, or use another name";

fn no_register() -> String {
    format!("it is no register of a budget for this version of millpond: {ANOTHER}")
}

/// Makes the file. It is written under another name first, so that it is whole from its first moment on. Where another
/// process is faster, its file stays.
fn create(path: &Path, mode: u32) -> io::Result<()> {
    let mut content: Vec<u8> = KIND.into_iter().flat_map(u64::to_ne_bytes).collect();
    content.resize(size_of::<Table>(), 0);
    let mut new = path.as_os_str().to_owned();
    // With the time: a thread of another container may have the same number.
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    new.push(format!(".{}-{since:x}", rustix::thread::gettid().as_raw_nonzero()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let mut write = || {
        file_limit::refusing(|| file.write_all(&content))?;
        // Whatever the umask.
        file.set_permissions(fs::Permissions::from_mode(mode))
    };
    let made = write().and_then(|()| match fs::hard_link(&new, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    });
    fs::remove_file(&new)?;
    made
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const NAME: &str = "register";

    fn in_folder() -> (tempfile::TempDir, Folder, std::path::PathBuf) {
        let temporary = tempfile::tempdir().unwrap();
        let (path, file) = (temporary.path().to_owned(), temporary.path().join(NAME));
        (temporary, Folder { path, mode: 0o600, is_shared: false }, file)
    }

    #[test]
    fn a_register_that_another_process_makes_first_stays() {
        let (_temporary, folder, path) = in_folder();
        let first = Register::open(&folder, NAME).unwrap();
        first.limit.store(7, ORDER);
        create(&path, 0o600).unwrap();
        assert_eq!(Register::open(&folder, NAME).unwrap().limit.load(ORDER), 7);
        assert_eq!(fs::read_dir(&folder.path).unwrap().count(), 1, "nothing else is left there");
        assert!(!first.is_removed());
        fs::remove_file(&path).unwrap();
        assert!(first.is_removed());
    }

    #[test]
    fn files_that_are_no_ledger_are_refused() {
        let (_temporary, folder, path) = in_folder();
        let refusal = |_: &Path| Register::open(&folder, NAME).unwrap_err();
        for length in [0, 10, 4096, size_of::<Table>(), size_of::<Table>() + 1] {
            fs::write(&path, vec![0xa5; length]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(refusal(&path).starts_with("it is no register of a budget for"), "{length}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(refusal(&path).contains("cannot be opened"));
        fs::remove_dir(&path).unwrap();
        symlink("/dev/zero", &path).unwrap();
        assert!(refusal(&path).contains("cannot be opened"));
        fs::remove_file(&path).unwrap();
        let mapped = Register::open(&folder, NAME).unwrap();
        mapped.head[1].store(KIND[1] + 1, ORDER);
        assert!(
            refusal(&path)
                .starts_with("it is no register of a budget for this version of millpond: remove it")
        );
        mapped.head[1].store(KIND[1], ORDER);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refusal(&path).contains("with mode 644, not to user"));
        let shared = Folder { is_shared: true, ..folder };
        assert!(Register::open(&shared, NAME).is_ok(), "it is for those who may write to the folder");
    }

    #[test]
    fn where_no_file_can_be_made_the_error_says_so() {
        for folder in ["/nonexistent", "/proc"] {
            let folder = Folder { path: folder.into(), mode: 0o600, is_shared: false };
            let refused = Register::open(&folder, NAME).unwrap_err();
            assert!(refused.starts_with("it cannot be made: "), "{refused}");
        }
    }

    #[test]
    fn a_file_is_whole_from_its_first_moment_whoever_makes_it() {
        let (_temporary, folder, _) = in_folder();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..200).for_each(|_| drop(Register::open(&folder, NAME).unwrap())));
            }
            for _ in 0..200 {
                assert!(Register::open_existing(&folder, NAME).is_ok());
            }
        });
    }
}
