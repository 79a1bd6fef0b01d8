//! What a process that ran out of memory leaves: a file that stays when the process has ended, whatever ended it.
//!
//! It is written at each out-of-memory error, before the program hears of the error, and whole at any moment. A program without such
//! errors has no file. The folder is `errors` in that of the budgets.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::figures::{SeenPool, figures_of, is_unshown, read, tamed};
use super::who::{Who, own_id};
use crate::core::Core;
use crate::lock::Mutex;
use crate::log::log;
use crate::out_of_memory::OutOfMemory;
use crate::physical::{SharedFolder, shared_folder, shared_folders};
use crate::policy::watching::{ERRORS_STAY, LONGEST_ERROR, MOST_ERROR_FILES, MOST_POOLS_WITH_ERRORS};
use crate::process::PerProcess;

/// The folder in that of the budgets.
const FOLDER: &str = "errors";

/// What a file's name ends with.
const ENDING: &str = ".json";

/// Bytes of a file that are read: none of ours has so many.
const LONGEST_FILE: u64 = 1 << 20;

/// A process that ran out of memory, whether or not it still runs. The module [`live`](crate::live) has an example.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SeenErrors {
    /// The process, by its number in its own PID namespace.
    pub pid: u32,
    /// The name of its program.
    pub program: String,
    /// Whose it is.
    pub who: Who,
    /// Out-of-memory errors of all its pools.
    pub errors: u64,
    /// When the last one was, in seconds since 1970.
    pub last_at: u64,
    /// What the last one said.
    pub last: String,
    /// The pools that had such errors, as they were then.
    pub pools: Vec<SeenPool>,
    /// As [`SeenProcess::id`](crate::live::SeenProcess::id).
    #[serde(skip)]
    pub id: String,
    /// The file that says it.
    #[serde(skip)]
    pub file: String,
}

/// What this process has written.
#[derive(Debug, Default)]
struct Written {
    says: SeenErrors,
    /// `None` before the first error, and where no file can be made.
    to: Option<(SharedFolder, PathBuf)>,
}

static WRITTEN: PerProcess<Mutex<Written>> = PerProcess::new(Default::default);

/// Writes down which of a pool's requests found no memory.
pub(crate) fn watch(pool: &Arc<Core>) {
    let weak: Weak<Core> = Arc::downgrade(pool);
    let tell = move |report: &OutOfMemory| {
        if let Some(pool) = weak.upgrade()
            && let Err(error) = note(&pool, report)
        {
            log!(DEBUG, "what this process ran out of is not written down", error);
        }
    };
    pool.observers.add(Arc::new(tell), true);
}

fn note(pool: &Core, report: &OutOfMemory) -> io::Result<()> {
    let figures = figures_of(pool);
    let mut written = WRITTEN.get().lock();
    let Written { says, to } = &mut *written;
    if says.errors == 0 {
        let comm = fs::read_to_string("/proc/self/comm").unwrap_or_default();
        (says.pid, says.program, says.who) = (std::process::id(), tamed(&comm), Who::of("self"));
        *to = new_file().ok();
    }
    says.errors += 1;
    says.last_at = seconds(SystemTime::now());
    says.last = report.to_string().chars().take(LONGEST_ERROR).collect();
    says.pools.retain(|known| known.number != figures.number);
    if says.pools.len() < MOST_POOLS_WITH_ERRORS {
        says.pools.push(figures);
    }
    let Some((folder, path)) = to else { return Ok(()) };
    let text = serde_json::to_vec(says)?;
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&text)?;
    file.set_permissions(Permissions::from_mode(folder.mode))?;
    fs::rename(&new, path)
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Where this process writes. Files of processes that had their last error long ago go.
fn new_file() -> io::Result<(SharedFolder, PathBuf)> {
    let folder = shared_folder().map_err(|(_, what)| io::Error::other(what))?;
    let path = folder.path.join(FOLDER);
    match fs::create_dir(&path) {
        Ok(()) => {
            let mode = fs::metadata(&folder.path)?.mode();
            fs::set_permissions(&path, Permissions::from_mode(mode & 0o7777))?;
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    make_room(&path);
    Ok((folder, path.join(format!("{}{ENDING}", own_id()))))
}

/// Removes what is old, and the oldest files beyond a number.
fn make_room(folder: &Path) {
    let age = |entry: &fs::DirEntry| {
        entry.metadata().and_then(|about| about.modified()?.elapsed().map_err(io::Error::other))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<(Duration, PathBuf)> =
        entries.map(|entry| (age(&entry).unwrap_or_default(), entry.path())).collect();
    files.sort();
    for (at, (age, path)) in files.iter().enumerate() {
        if *age > ERRORS_STAY || at >= MOST_ERROR_FILES {
            fs::remove_file(path).ok();
        }
    }
}

/// The processes that ran out of memory in the last day, those with the latest errors first: of this user, and for root of all
/// users.
pub fn errors() -> Vec<SeenErrors> {
    let files = |folder: PathBuf| fs::read_dir(folder.join(FOLDER)).into_iter().flatten().flatten();
    let paths = shared_folders().into_iter().flat_map(|folder| files(folder).take(2 * MOST_ERROR_FILES));
    let mut all: Vec<_> = paths.filter_map(|file| read_file(&file.path())).collect();
    all.sort_by(|one, other| (other.last_at, &one.file).cmp(&(one.last_at, &other.file)));
    all
}

/// `None` where it is no file of a process, or too old.
fn read_file(path: &Path) -> Option<SeenErrors> {
    let id = tamed(path.file_name()?.to_str()?.strip_suffix(ENDING)?);
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let about = file.metadata().ok().filter(fs::Metadata::is_file)?;
    if about.modified().ok()?.elapsed().unwrap_or_default() > ERRORS_STAY {
        return None;
    }
    let mut text = String::new();
    file.take(LONGEST_FILE).read_to_string(&mut text).ok()?;
    let value: Value = serde_json::from_str(&text).ok().filter(Value::is_object)?;
    let last = value["last"].as_str().unwrap_or_default().chars().filter(|c| !is_unshown(*c));
    let seen = SeenErrors { last: last.take(LONGEST_ERROR).collect(), ..read(&text) };
    // The system says whose the file is. In a container, the process may have had another number for its user.
    let who = Who { user: about.uid(), ..seen.who };
    Some(SeenErrors { who, id, file: path.display().to_string(), ..seen })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn old_files_go_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["old", "new"].map(|name| folder.path().join(name));
        for (path, age) in paths.iter().zip([ERRORS_STAY + Duration::from_secs(60), Duration::ZERO]) {
            let file = File::create(path).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        make_room(folder.path());
        assert_eq!(paths.map(|path| path.exists()), [false, true]);
    }

    #[test]
    fn what_is_no_file_of_a_process_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1-2.json");
        for (text, is_read) in [("", false), ("[1]", false), (r#"{"errors": 2, "last": "a\u0007b"}"#, true)] {
            fs::write(&path, text).unwrap();
            let seen = read_file(&path);
            assert_eq!(seen.is_some(), is_read, "{text}");
            assert!(seen.is_none_or(|seen| seen.errors == 2 && seen.last == "ab"));
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert_eq!(read_file(&path), None);
    }
}
