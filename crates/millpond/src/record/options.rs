//! What to record, and where to.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::budgets::Amount;
use crate::log::warn_in_any_case;
use crate::policy::watching::LARGEST_RECORDING;

/// The environment variable that names a file for every pool of the process.
const PATH: &str = "MILLPOND_RECORD";

/// The environment variable that lets such recordings hold call sites.
const CALL_SITES: &str = "MILLPOND_RECORD_CALL_SITES";

/// The environment variable that says how many bytes they have.
const LIMIT: &str = "MILLPOND_RECORD_LIMIT";

/// The environment variable that lets them keep their last part.
const ROTATE: &str = "MILLPOND_RECORD_ROTATE";

/// The environment variable that says since when recordings of other processes stay, as nanoseconds since 1970.
const SINCE: &str = "MILLPOND_RECORD_SINCE";

/// Whether the environment is not asked.
static IGNORED: AtomicBool = AtomicBool::new(false);

/// Ignores `MILLPOND_RECORD`, and the variables of [`Tracking`](crate::record::Tracking), in this process from now on: pools
/// record only if their own options say so. For programs
/// whose pools are not the user's own, as those of `millpond replay`. There the variable may name the recording that is
/// replayed.
pub fn ignore_environment() {
    // Relaxed: a setting; nothing is concluded from when it is seen.
    IGNORED.store(true, Ordering::Relaxed);
}

/// What a variable says; `None` where it is empty or not asked.
pub(crate) fn environment(name: &str) -> Option<OsString> {
    if IGNORED.load(Ordering::Relaxed) {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Where to record, and what beside the events. A path alone will do: `pool.start_recording("run.mprec")`.
///
/// ```
/// use millpond::{Context, Pool, record};
///
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let path = folder.path().join("run.%p.mprec");
/// let device = Context::host()?;
/// let options = record::Options::new(path).call_sites(true); // "run.%p.mprec": %p is the process's number
/// let pool = Pool::builder(&device).record(options).build()?;
/// assert!(pool.recording().is_some());
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "options do nothing until a pool is given them"]
pub struct Options {
    pub(super) path: PathBuf,
    pub(super) call_sites: bool,
    /// Whether the file stays open when no pool records to it.
    pub(super) keep: bool,
    /// Of the file, or of both where it rotates.
    pub(super) most_bytes: u64,
    pub(super) rotates: bool,
    /// Recordings that began since then are kept under their names, and not as `PATH.old`.
    pub(super) keeps_since: Option<SystemTime>,
}

impl Options {
    /// Records to this file. `%p` in it becomes the process's number. Pools of one process that name the same file
    /// share it. An existing recording is kept as `PATH.old`. Any other file stays as it is, and is an error. A file
    /// that another process is recording to is left alone, and this one's name has the process's number.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let most_bytes = LARGEST_RECORDING;
        Self {
            path: path.into(),
            call_sites: false,
            keep: false,
            most_bytes,
            rotates: false,
            keeps_since: None,
        }
    }

    /// Whether each allocation's call stack is kept, which takes it a microsecond or less, and some for a new one. The recorder's thread looks up the
    /// lines of source code. Not by default.
    pub fn call_sites(mut self, keep: bool) -> Self {
        self.call_sites = keep;
        self
    }

    /// The most bytes that the file takes, within a chunk of 64 KiB: 10 GiB by default. What comes then is counted, and the file says
    /// how many events there were. Pools that share a file have the limit of the first.
    pub fn most_bytes(mut self, bytes: u64) -> Self {
        self.most_bytes = bytes;
        self
    }

    /// Whether the last part is kept where there is more than the file may have, in place of the first. Not by default. The file
    /// then has half of [`most_bytes`](Self::most_bytes). Once it is full it is kept as `PATH.old`, in place of an older one, and
    /// the next file begins with what is live. Each can be read alone. They are larger where more than half of a file is
    /// what lives. Following what is live takes the recorder's thread some time for each event, and memory for each live block.
    ///
    /// ```
    /// use millpond::{Context, Pool, record};
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let path = folder.path().join("run.mprec");
    /// let device = Context::host()?;
    /// let options = record::Options::new(path).most_bytes(100 << 20).rotate(true);
    /// let pool = Pool::builder(&device).record(options).build()?;
    /// assert_eq!(pool.recording().expect("it records").rotated, 0);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    pub fn rotate(mut self, rotate: bool) -> Self {
        self.rotates = rotate;
        self
    }

    /// What the environment asks for: `MILLPOND_RECORD` is a path, as for [`new`](Self::new), for all pools
    /// until the process ends; with `MILLPOND_RECORD_CALL_SITES=1`, call sites are kept. `MILLPOND_RECORD_LIMIT` is the most that the
    /// file takes; one that cannot be read is not taken for none. `MILLPOND_RECORD_ROTATE=1` keeps the last part.
    /// With `MILLPOND_RECORD_SINCE`, processes one after another have a file each.
    pub(crate) fn from_environment() -> Option<Self> {
        let path = environment(PATH)?;
        let is_on = |name| environment(name).is_some_and(|value| value != "0");
        let (call_sites, rotates) = (is_on(CALL_SITES), is_on(ROTATE));
        let most_bytes = environment(LIMIT).map_or(LARGEST_RECORDING, |text| {
            text.to_string_lossy().parse().map(|amount: Amount| amount.of(0)).unwrap_or_else(|why| {
                warn_in_any_case(&format!("MILLPOND_RECORD_LIMIT: {why}. It is {LARGEST_RECORDING} bytes"));
                LARGEST_RECORDING
            })
        });
        let keeps_since = environment(SINCE).and_then(|text| {
            let since = text.to_str()?.parse().ok()?;
            UNIX_EPOCH.checked_add(Duration::from_nanos(since))
        });
        Some(Self {
            call_sites,
            keep: true,
            most_bytes,
            rotates,
            keeps_since,
            ..Self::new(PathBuf::from(path))
        })
    }
}

impl From<PathBuf> for Options {
    fn from(path: PathBuf) -> Self {
        Self::new(path)
    }
}

impl From<&Path> for Options {
    fn from(path: &Path) -> Self {
        Self::new(path)
    }
}

impl From<&str> for Options {
    fn from(path: &str) -> Self {
        Self::new(path)
    }
}

impl From<String> for Options {
    fn from(path: String) -> Self {
        Self::new(path)
    }
}

impl From<OsString> for Options {
    fn from(path: OsString) -> Self {
        Self::new(path)
    }
}
