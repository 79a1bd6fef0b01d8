//! What a process that ran out of memory leaves: a file that stays when the process has ended, whatever ended it.
//!
//! It is written at each out-of-memory error, before the program hears of the error, and whole at any moment. A program without such
//! errors has no file. The folder is `errors.d` in that of the budgets.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error_folder::{ENDINGS, ErrorFolder};
use super::figures::{SeenPool, parsed, tamed};
use super::side_by_side;
use super::who::{Who, own_id};
use crate::budgets::{SharedFolder, shared_folder, shared_folders};
use crate::core::{Core, HasCore};
use crate::log::log;
use crate::out_of_memory::OutOfMemory;
use crate::policy::watching::{ERRORS_STAY, LONGEST_ERROR, MOST_ERROR_FILES, MOST_POOLS_WITH_ERRORS};
use crate::system::lock::Mutex;
use crate::system::process::PerProcess;

/// The folder in that of the budgets. No budget can have this name.
const FOLDER: &str = "errors.d";

/// Bytes of a file. A pool takes 2 KiB at most, and each tenant of a budget 200 bytes.
const LONGEST_FILE: usize = 64 << 10;

/// A process that ran out of memory, whether or not it still runs. The module [`live`](crate::live) has an example.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
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
    #[serde(skip)]
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

/// The part of a file that is made into a text when it is read: to do so takes memory.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Failed {
    failed: Option<OutOfMemory>,
}

/// What a file says.
#[derive(Debug, Serialize)]
struct Said<'a> {
    #[serde(flatten)]
    process: &'a Process,
    errors: u64,
    last_at: u64,
    failed: &'a OutOfMemory,
    pools: &'a [SeenPool],
}

/// This process, as all of its files name it.
#[derive(Debug, Serialize)]
struct Process {
    pid: u32,
    program: String,
    who: Who,
}

/// All that is needed to write. It is there before memory runs out: then the host may have none, either.
#[derive(Debug)]
struct Ready {
    process: Process,
    /// Where budgets are, and the folder of the errors in it.
    folders: [PathBuf; 2],
    /// The file, and its name until it is whole.
    names: [String; 2],
    mode: u32,
    errors: u64,
    /// Those with errors, of which it has room for so many.
    pools: Vec<SeenPool>,
    text: Vec<u8>,
}

/// `None` where there is no folder for it.
static READY: PerProcess<Mutex<Option<Ready>>> = PerProcess::new(|| Mutex::new(Ready::new().ok()));

/// Writes down which of a pool's requests found no memory.
pub(crate) fn watch(pool: &Arc<impl HasCore + 'static>) {
    drop(READY.get().lock());
    let (weak, figures) = (Arc::downgrade(pool), Mutex::new(Some(SeenPool::of(pool.core()))));
    let tell = move |report: &OutOfMemory| {
        if let Some(pool) = weak.upgrade()
            && let Some(ready) = &mut *READY.get().lock()
        {
            ready.note(pool.core(), &figures, report);
        }
    };
    pool.core().observers.add(Arc::new(tell), true);
}

impl Ready {
    fn new() -> io::Result<Self> {
        let comm = fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let process = Process { pid: std::process::id(), program: tamed(&comm), who: Who::of("self") };
        let SharedFolder { path, mode, .. } = shared_folder().map_err(|(_, what)| io::Error::other(what))?;
        let folder = path.join(FOLDER);
        if let Err(error) = ErrorFolder::open(&folder).and_then(|folder| folder.make_room())
            && error.kind() != io::ErrorKind::NotFound
        {
            log!(DEBUG, "what processes ran out of before is not removed", error);
        }
        let names = ENDINGS.map(|ending| format!("{}{ending}", own_id()));
        let (pools, text) = (Vec::with_capacity(MOST_POOLS_WITH_ERRORS), Vec::with_capacity(LONGEST_FILE));
        Ok(Self { process, folders: [path, folder], names, mode, errors: 0, pools, text })
    }

    /// Takes no memory of the host's.
    fn note(&mut self, pool: &Core, figures: &Mutex<Option<SeenPool>>, report: &OutOfMemory) {
        self.errors += 1;
        if self.pools.len() < MOST_POOLS_WITH_ERRORS {
            self.pools.extend(figures.lock().take());
        }
        if let Some(known) = self.pools.iter_mut().find(|known| known.number == pool.number) {
            known.stats = pool.stats();
        }
        if let Err(error) = self.write(report) {
            log!(DEBUG, "what this process ran out of is not written down", error);
        }
    }

    fn write(&mut self, failed: &OutOfMemory) -> io::Result<()> {
        let Self { process, errors, pools, text, .. } = self;
        let last_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // With as many pools as there is room for.
        let is_whole = [pools.as_slice(), pools.get(..1).unwrap_or_default(), &[]].into_iter().any(|pools| {
            text.clear();
            let mut room = Room { text, is_full: false };
            let said = Said { process, errors: *errors, last_at, failed, pools };
            serde_json::to_writer(&mut room, &said).is_ok() && !room.is_full
        });
        if !is_whole {
            return Ok(());
        }
        let [above, folder] = &self.folders;
        let names = self.names.each_ref().map(String::as_str);
        ErrorFolder::open_or_make(above, folder)?.write(names, &self.text, self.mode)
    }
}

/// A text that does not grow. What does not fit is left out, without an error: one would take memory.
struct Room<'a> {
    text: &'a mut Vec<u8>,
    is_full: bool,
}

impl Write for Room<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_full |= bytes.len() > self.text.capacity() - self.text.len();
        if !self.is_full {
            self.text.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The processes that ran out of memory in the last day, those with the latest errors first: of this user, and for root of all
/// users.
#[must_use]
pub fn errors() -> Vec<SeenErrors> {
    let files = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = shared_folders().into_iter().map(|folder| folder.join(FOLDER));
    let folders = folders.filter(|folder| fs::symlink_metadata(folder).is_ok_and(|about| about.is_dir()));
    let paths = folders.flat_map(|folder| files(folder).take(2 * MOST_ERROR_FILES));
    let mut all = side_by_side::each(paths.map(|file| file.path()).collect(), |path| read_file(&path));
    all.sort_by(|one, other| (other.last_at, &one.file).cmp(&(one.last_at, &other.file)));
    all
}

/// `None` where it is no file of a process, or too old.
fn read_file(path: &Path) -> Option<SeenErrors> {
    let id = tamed(path.file_name()?.to_str()?.strip_suffix(ENDINGS[0])?);
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let about = file.metadata().ok().filter(fs::Metadata::is_file)?;
    if about.modified().ok()?.elapsed().unwrap_or_default() > ERRORS_STAY {
        return None;
    }
    let mut text = String::with_capacity(about.len().min(LONGEST_FILE as u64) as usize + 1);
    file.take(LONGEST_FILE as u64).read_to_string(&mut text).ok()?;
    let said = Some(parsed(&text)).filter(Value::is_object)?;
    // Either part may be of another version.
    let failed = Failed::deserialize(&said).unwrap_or_default();
    let seen = SeenErrors::deserialize(said).unwrap_or_default();
    let last = failed.failed.map(|report| report.to_string().chars().take(LONGEST_ERROR).collect());
    let seen = SeenErrors { last: last.unwrap_or_default(), ..seen };
    // The system says whose the file is. In a container, the process may have had another number for its user.
    let who = Who { user: about.uid(), ..seen.who };
    Some(SeenErrors { who, id, file: path.display().to_string(), ..seen })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_of_a_process_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1-2.json");
        for (text, is_read) in
            [("", false), ("[1]", false), (r#"{"errors": 2, "failed": {"pool": 1}}"#, true)]
        {
            fs::write(&path, text).unwrap();
            let seen = read_file(&path);
            assert_eq!(seen.is_some(), is_read, "{text}");
            assert!(seen.is_none_or(|seen| seen.errors == 2 && seen.last.is_empty()));
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert_eq!(read_file(&path), None);
    }
}
