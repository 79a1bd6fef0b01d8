//! A program's files, apart from the real ones: what it writes goes to the folder of its run, and is thrown away with that.
//!
//! The preloaded library sends each file there (`crates/card/src/files`). What comes past it, such as a program without the C
//! library, may write nowhere else: where the system has Landlock, it refuses that.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use landlock::{
    ABI, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError,
};
use serde::{Serialize, Serializer};

use crate::terminal::count;

/// Runs something that starts the program, in a thread whose children may write to this folder only.
pub(super) fn run<R: Send>(folder: &Path, run: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let restricted = scope.spawn(|| {
            // Where the system lacks it, the preloaded library does alone.
            restrict(folder).ok();
            run()
        });
        restricted.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn restrict(folder: &Path) -> Result<(), RulesetError> {
    // What truncates a file is refused from Linux 6.2 on.
    let writes = AccessFs::from_write(ABI::V3);
    let mut rules = Ruleset::default()
        // Without it, nothing could be renamed within the folder. Linux has it from 5.19 on.
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Refer)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(writes)?
        .create()?;
    // Devices, shared memory, and what the system lets processes set.
    for allowed in [folder, Path::new("/dev"), Path::new("/proc")] {
        if let Ok(allowed) = PathFd::new(allowed) {
            rules = rules.add_rule(PathBeneath::new(allowed, writes))?;
        }
    }
    // A program may open these again by their names, such as /dev/stderr.
    for stream in ["/proc/self/fd/1", "/proc/self/fd/2"].map(Path::new) {
        if let Some(opened) = PathFd::new(stream).ok().filter(|_| stream.is_file()) {
            rules = rules.add_rule(PathBeneath::new(opened, writes & AccessFs::from_file(ABI::V3)))?;
        }
    }
    rules.restrict_self().map(drop)
}

/// The files that programs wrote or removed, and that are as they were.
#[derive(Debug, Default, Serialize)]
pub(super) struct Kept {
    #[serde(serialize_with = "as_text")]
    written: BTreeSet<PathBuf>,
    #[serde(serialize_with = "as_text")]
    removed: BTreeSet<PathBuf>,
}

/// Names may be any bytes, and JSON has text.
fn as_text<S: Serializer>(paths: &BTreeSet<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

/// As the preloaded library names its trees: what was written, and what was removed.
const WRITTEN: &str = "files";
const REMOVED: &str = "gone";

impl Kept {
    /// Adds those of a run.
    pub(super) fn add(&mut self, folder: &Path) {
        let written = files(&folder.join(WRITTEN));
        // The marker of a file lies in a folder of the file's name. Each name of a folder begins with a letter of its own.
        let removed = files(&folder.join(REMOVED)).into_iter().filter_map(|marker| {
            let named = |name: Component<'_>| {
                Some(OsStr::from_bytes(name.as_os_str().as_bytes().strip_prefix(b"d")?).to_owned())
            };
            Some(marker.parent()?.components().filter_map(named).collect::<PathBuf>())
        });
        self.removed.extend(removed.filter(|path| !written.contains(path)));
        self.written.extend(written);
    }

    /// For people; `None` where there are none.
    pub(super) fn said(&self, program: &str) -> Option<String> {
        let [written, removed] = [&self.written, &self.removed].map(|files| files.len() as u64);
        let wrote = format!("{program} wrote {}", count(written, "file"));
        let what = match (written, removed) {
            (0, 0) => return None,
            (_, 0) => wrote,
            (0, _) => format!("{program} removed {}", count(removed, "file")),
            _ => format!("{wrote} and removed {}", count(removed, "other")),
        };
        Some(format!(
            "{what}: nothing of that is kept, and the real files are as they were (--write-through writes them)"
        ))
    }
}

/// The files below a folder, by their paths in it. Folders are not counted.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                _ => {
                    found.extend(entry.path().strip_prefix(folder).map(Path::to_owned));
                }
            }
        }
    }
    found
}
