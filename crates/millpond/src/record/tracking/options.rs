//! What a pool is to know of its live blocks, and what it says of them.

use std::ffi::OsStr;
use std::path::PathBuf;

use super::super::options::environment;
use crate::log::warn_in_any_case;

/// Bytes between two samples, in the mean.
const INTERVAL: u64 = 16 << 20;

/// Where a pool without another choice dumps.
const DUMP: &str = "millpond-oom.%p.mprec";

const TRACK: &str = "MILLPOND_TRACK";
const LEAKS: &str = "MILLPOND_LEAKS";
const OOM_DUMP: &str = "MILLPOND_OOM_DUMP";

/// Which live blocks a pool keeps the call stack, tag and time of, and what it says of them at its end and when memory runs
/// out. For [`PoolBuilder::track`](crate::PoolBuilder::track) and [`Pool::start_tracking`](crate::Pool::start_tracking).
///
/// ```
/// use millpond::{Context, Pool, record};
///
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let path = folder.path().join("oom.mprec");
/// let device = Context::host()?;
/// let tracking = record::Tracking::all().dump(path); // "oom.mprec", if memory runs out
/// let pool = Pool::builder(&device).track(tracking).build()?;
/// let stream = device.create_stream()?;
/// let cache = {
///     let _tag = record::tag("cache");
///     millpond::Buffer::<u8>::new(&pool, 1 << 20, &stream)?
/// };
/// let holders = record::holders(&pool.live_blocks()?);
/// assert_eq!((holders[0].bytes, holders[0].tag.as_deref()), (1 << 20, Some("cache")));
/// println!("{}", holders[0]); // bytes, tag, and the lines of source code
/// # drop(cache);
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "options do nothing until a pool is given them"]
pub struct Tracking {
    /// Mean bytes between samples; 0 tracks all.
    pub(super) interval: u64,
    pub(super) reports_leaks: bool,
    pub(super) dump: Option<PathBuf>,
}

impl Tracking {
    /// Tracks one sample in 16 MiB allocated, in the mean: longer blocks nearly always, short ones seldom. So it costs
    /// next to nothing, and what is live by call stack is estimated without bias.
    pub fn sampled() -> Self {
        Self { interval: INTERVAL, reports_leaks: false, dump: Some(DUMP.into()) }
    }

    /// Tracks every block. An allocation then takes about a microsecond more.
    pub fn all() -> Self {
        Self { interval: 0, ..Self::sampled() }
    }

    /// Tracks one sample in so many bytes allocated, in the mean.
    pub fn every(self, bytes: u64) -> Self {
        Self { interval: bytes, ..self }
    }

    /// Whether the pool lists at its end what is live, by call stack, on the standard error. Not by default. A pool that
    /// is never dropped does so when the process ends.
    pub fn report_leaks(self, report: bool) -> Self {
        Self { reports_leaks: report, ..self }
    }

    /// Where to dump when memory runs out: a file, or a folder. `%p` becomes the process's number. By default it is
    /// `millpond-oom.%p.mprec` in the working directory. There are at most four files of a name: `oom.mprec`,
    /// `oom.2.mprec` and so on. None is written over.
    pub fn dump(self, path: impl Into<PathBuf>) -> Self {
        Self { dump: Some(path.into()), ..self }
    }

    /// Dumps nothing.
    pub fn no_dump(self) -> Self {
        Self { dump: None, ..self }
    }

    /// What the environment asks for. What is wrong there is warned of, and ignored.
    pub(crate) fn from_environment() -> Option<Self> {
        let set = |name| environment(name).filter(|value| value != "0");
        let [track, leaks, dump] = [TRACK, LEAKS, OOM_DUMP].map(set);
        let asked = track.and_then(|track| {
            let interval = interval(&track);
            if interval.is_none() {
                let track = track.display();
                warn_in_any_case(&format!(
                    "{TRACK}={track} is ignored: use \"sampled\", \"all\", or the bytes between two samples"
                ));
            }
            interval
        });
        let leaks = leaks.is_some();
        let by_leaks = || leaks.then_some(0);
        let by_dump = || dump.as_ref().filter(|path| *path != "off").map(|_| INTERVAL);
        let interval = asked.or_else(by_leaks).or_else(by_dump)?;
        let new = Self { reports_leaks: leaks, ..Self::sampled().every(interval) };
        Some(match dump {
            Some(path) if path == "off" => new.no_dump(),
            Some(path) => new.dump(path),
            None => new,
        })
    }
}

/// What `MILLPOND_TRACK` says: the bytes between two samples.
fn interval(text: &OsStr) -> Option<u64> {
    match text.to_str()? {
        "sampled" | "on" | "1" => Some(INTERVAL),
        "all" => Some(0),
        bytes => bytes.parse().ok().filter(|bytes| *bytes > 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_an_interval_or_is_refused() {
        let read = |text: &str| interval(OsStr::new(text));
        assert_eq!([read("sampled"), read("1"), read("on")], [Some(INTERVAL); 3]);
        assert_eq!((read("all"), read("4096")), (Some(0), Some(4096)));
        assert_eq!([read("often"), read("-1"), read("4M"), read("")], [None; 4]);
    }
}
