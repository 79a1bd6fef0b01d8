//! The folder of registers. A user's own is one in which nobody else can take a name first. One that the environment names is
//! shared by all who may write there, in whatever container: they are trusted with the budgets in it.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where the system gives no user a folder: memory, not a disk, which every user may write to.
const FOR_ALL: &str = "/dev/shm";

/// Where root finds those that the environment names by the manual.
const OF_JOBS: &str = "/run/millpond";

/// The variable that names a folder for several users or containers.
const VARIABLE: &str = "MILLPOND_BUDGET_DIR";

/// A folder of registers.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// Who may read and write a register: those who may write to the folder.
    pub(crate) mode: u32,
    /// Whether the files may belong to anybody.
    pub(super) is_shared: bool,
}

impl Folder {
    fn own(path: PathBuf) -> Self {
        Self { path, mode: 0o600, is_shared: false }
    }

    /// The one that the environment names.
    fn shared(path: PathBuf) -> Result<Self, String> {
        if !path.is_absolute() {
            return Err(format!("{VARIABLE} is no absolute path: name one, which all processes find"));
        }
        let about = fs::metadata(&path);
        let about = about
            .map_err(|error| format!("it cannot be read: {error}: make the folder that {VARIABLE} names"))?;
        if !about.is_dir() {
            return Err(format!("it is no folder: {VARIABLE} names one"));
        }
        let writers = about.mode() & 0o022;
        // Who may write may read.
        Ok(Self { path, mode: 0o600 | writers | writers << 1, is_shared: true })
    }
}

/// The folder of this process's registers. An error comes with the folder that it is about.
pub(crate) fn present() -> Result<Folder, (PathBuf, String)> {
    match std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        Some(named) => Folder::shared(named.clone().into()).map_err(|what| (named.into(), what)),
        None => of_user().map(Folder::own),
    }
}

/// All folders of registers that this process may look into: its own, and for root those of all users.
pub(crate) fn all() -> Vec<PathBuf> {
    let mut all: Vec<_> = present().ok().map(|folder| folder.path).into_iter().collect();
    if rustix::process::geteuid().is_root() {
        let inside = |of: &str| fs::read_dir(of).into_iter().flatten().flatten().map(|entry| entry.path());
        let for_all = inside(FOR_ALL).filter(|path| {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"millpond-"))
        });
        all.extend(inside("/run/user").map(|user| user.join("millpond")).chain(for_all));
        // Where docs/operate.md has the folders of jobs and containers.
        all.extend(inside(OF_JOBS).chain([OF_JOBS.into()]));
        all.sort();
        all.dedup();
    }
    all
}

/// The folder of the user's registers, which is made if there is none. An error comes with the folder that it is about.
///
/// It is `millpond` in the user's runtime folder, which the environment names. A process that lacks it there (a service, say) finds
/// it where systemd has it, so that all processes of the user come to the same one. Without that, it is in `/dev/shm`.
fn of_user() -> Result<PathBuf, (PathBuf, String)> {
    let user = rustix::process::geteuid().as_raw();
    let runtime =
        [std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from), Some(format!("/run/user/{user}").into())];
    let folder = match runtime.into_iter().flatten().find(|folder| is_for(user, folder)) {
        Some(runtime) => runtime.join("millpond"),
        None => Path::new(FOR_ALL).join(format!("millpond-{user}")),
    };
    make(&folder, user).map_err(|what| (folder.clone(), what)).map(|()| folder)
}

/// Whether nobody but this user (and root) can write to a folder. Where it is another one's, as after `sudo`, it is not meant.
fn is_for(user: u32, folder: &Path) -> bool {
    let is_ours = |about: Metadata| about.is_dir() && about.uid() == user && about.mode() & 0o022 == 0;
    folder.is_absolute() && fs::metadata(folder).is_ok_and(is_ours)
}

/// Makes the folder, or checks that the one that is there is the user's own.
fn make(folder: &Path, user: u32) -> Result<(), String> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(format!("it cannot be made: {error}: is the folder above it there, and writable?"));
        }
        _ => {}
    }
    // Not where a symbolic link leads.
    let about = fs::symlink_metadata(folder).map_err(|error| format!("it cannot be read: {error}"))?;
    let (owner, mode) = (about.uid(), about.mode() & 0o777);
    let found = match about.is_dir() {
        false => "it is no folder".to_owned(),
        true if owner == user && mode & 0o077 == 0 => return Ok(()),
        true => format!("it belongs to user {owner} with mode {mode:o}, not to user {user} with mode 700"),
    };
    Err(format!(
        "{found}: have it removed, or set XDG_RUNTIME_DIR to a folder of user {user} in all processes"
    ))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn user() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn with_mode(folder: &Path, mode: u32) {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_folder_is_made_for_its_user_alone() {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("millpond");
        make(&folder, user()).unwrap();
        make(&folder, user()).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_folder_that_others_can_use_is_refused() {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("millpond");
        let refused = || make(&folder, user()).unwrap_err();
        symlink(above.path(), &folder).unwrap();
        assert!(
            refused().starts_with("it is no folder: have it removed, or set XDG_RUNTIME_DIR"),
            "{}",
            refused()
        );
        fs::remove_file(&folder).unwrap();
        fs::write(&folder, "").unwrap();
        assert!(refused().starts_with("it is no folder"));
        fs::remove_file(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
        with_mode(&folder, 0o755);
        assert!(refused().contains("with mode 755, not to user"));
        with_mode(&folder, 0o700);
        make(&folder, user()).unwrap();
        // Only root can give a folder away.
        if user() == 0 {
            chown(&folder, Some(1), None).unwrap();
            assert!(
                refused().starts_with("it belongs to user 1 with mode 700, not to user 0"),
                "{}",
                refused()
            );
        }
        assert!(
            make(Path::new("/nonexistent/millpond"), user()).unwrap_err().starts_with("it cannot be made")
        );
    }

    #[test]
    fn a_register_in_a_shared_folder_is_for_those_who_may_write_there() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |mode| {
            with_mode(folder.path(), mode);
            Folder::shared(folder.path().to_owned()).unwrap().mode
        };
        assert_eq!([0o700, 0o755, 0o770, 0o1777].map(mode), [0o600, 0o600, 0o660, 0o666]);
        assert!(Folder::shared("relative".into()).unwrap_err().contains("absolute"));
        assert!(Folder::shared("/nonexistent".into()).unwrap_err().contains("make the folder"));
        assert!(Folder::shared("/dev/null".into()).unwrap_err().starts_with("it is no folder"));
    }

    #[test]
    fn a_runtime_folder_counts_where_nobody_else_can_write_to_it() {
        let folder = tempfile::tempdir().unwrap();
        assert!(is_for(user(), folder.path()) && !is_for(user() + 1, folder.path()));
        assert!(!is_for(user(), Path::new("relative")) && !is_for(user(), Path::new("")));
        assert!(!is_for(user(), Path::new("/nonexistent")));
        with_mode(folder.path(), 0o777);
        assert!(!is_for(user(), folder.path()));
    }
}
