//! The folder: the two trees, and whether there is anything in them.

use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{self, Access, CWD, Mode, OFlags};
use rustix::io::Errno;

/// The folder of a run. All processes of the program share it.
#[derive(Debug)]
pub(crate) struct Store {
    /// What lies in it beside the two trees is not looked at.
    own: PathBuf,
    files: PathBuf,
    gone: PathBuf,
    /// Where copies are made.
    new: PathBuf,
    /// Bits, in memory that all processes map.
    state: &'static AtomicU8,
}

/// Something was written.
const CHANGED: u8 = 1;
/// Something was removed.
const REMOVED: u8 = 2;

/// The file that says that a real one is gone. A folder of `gone` begins with `d`, so it has no such name.
const MARKER: &str = "gone";

impl Store {
    /// The one that the environment names; `None` where the program writes to its own files.
    #[cfg_attr(test, allow(dead_code, reason = "a test names its own"))]
    pub(crate) fn get() -> Option<&'static Self> {
        static STORE: OnceLock<Option<Store>> = OnceLock::new();
        let make = || {
            let folder = std::env::var_os("MILLPOND_PREDICT_APART").filter(|folder| !folder.is_empty())?;
            Store::at(folder.into()).ok()
        };
        STORE.get_or_init(make).as_ref()
    }

    pub(crate) fn at(own: PathBuf) -> Result<Self, Errno> {
        let [files, gone, new] = ["files", "gone", "new"].map(|name| own.join(name));
        for folder in [&files, &gone, &new] {
            made(fs::mkdir(folder, Mode::RWXU))?;
        }
        let state = shared(&own.join("state")).unwrap_or_else(|_| {
            // Without the memory, each path is looked at.
            static ANYTHING: AtomicU8 = AtomicU8::new(CHANGED | REMOVED);
            &ANYTHING
        });
        Ok(Self { own, files, gone, new, state })
    }

    /// Whether the program has changed anything.
    pub(crate) fn is_changed(&self) -> bool {
        // Relaxed, here and below: who changes a file tells of it through the system, which orders both.
        self.state.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn is_own(&self, path: &Path) -> bool {
        path == self.own
    }

    /// Where a file of this path lies in the folder, whether it is there or not.
    pub(crate) fn upper(&self, logical: &Path) -> PathBuf {
        below(&self.files, logical)
    }

    /// The program's name for a path: what lies in `files` has the one that it is there for.
    pub(crate) fn logical(&self, path: PathBuf) -> PathBuf {
        match path.strip_prefix(&self.files) {
            Ok(rest) => Path::new("/").join(rest),
            Err(_) => path,
        }
    }

    /// Whether the real file of this path was removed. Whether a folder above it was is not looked at.
    pub(crate) fn is_hidden(&self, logical: &Path) -> bool {
        self.state.load(Ordering::Relaxed) & REMOVED != 0
            && fs::access(self.marker(logical).join(MARKER), Access::EXISTS).is_ok()
    }

    /// Hides the real file, or folder with all that is in it, if there is one.
    pub(crate) fn hide(&self, logical: &Path) -> Result<(), Errno> {
        if fs::lstat(logical).is_err() {
            return Ok(());
        }
        self.state.fetch_or(CHANGED | REMOVED, Ordering::Relaxed);
        let folder = self.marker(logical);
        for ancestor in ancestors(&folder, &self.gone) {
            made(fs::mkdir(ancestor, Mode::RWXU))?;
        }
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        fs::openat(CWD, folder.join(MARKER), flags, Mode::RUSR | Mode::WUSR).map(drop)
    }

    fn marker(&self, logical: &Path) -> PathBuf {
        let mut marker = self.gone.clone();
        for part in logical.components() {
            if let Component::Normal(name) = part {
                marker.push(OsStr::from_bytes(&[b"d", name.as_bytes()].concat()));
            }
        }
        marker
    }

    /// Makes the folders of `files` that a file of this path lies in, with the rights that the real ones have.
    pub(crate) fn make_parents(&self, logical: &Path) -> Result<(), Errno> {
        self.state.fetch_or(CHANGED, Ordering::Relaxed);
        let Some(parent) = logical.parent() else { return Ok(()) };
        for upper in ancestors(&self.upper(parent), &self.files) {
            let real = Path::new("/").join(upper.strip_prefix(&self.files).unwrap_or(Path::new("")));
            let rights = fs::stat(&real).map_or(Mode::RWXU, |about| Mode::from_raw_mode(about.st_mode));
            if made(fs::mkdir(upper, Mode::RWXU))? {
                fs::chmod(upper, rights | Mode::RWXU)?;
            }
        }
        Ok(())
    }

    /// A path for a copy under way, which no other thread or process has.
    pub(crate) fn new_path(&self) -> PathBuf {
        static COUNT: AtomicU8 = AtomicU8::new(0);
        let [process, thread] =
            [rustix::process::getpid(), rustix::thread::gettid()].map(|id| id.as_raw_nonzero());
        self.new.join(format!("{process}-{thread}-{}", COUNT.fetch_add(1, Ordering::Relaxed)))
    }
}

/// Whether a folder was made; one that is there already is as good.
fn made(result: Result<(), Errno>) -> Result<bool, Errno> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

/// `folder` and the folders above it that lie below `top`, the outermost first.
fn ancestors<'a>(folder: &'a Path, top: &Path) -> Vec<&'a Path> {
    let mut all: Vec<_> = folder.ancestors().take_while(|path| *path != top).collect();
    all.reverse();
    all
}

fn below(folder: &Path, logical: &Path) -> PathBuf {
    let mut path = folder.as_os_str().to_owned().into_vec();
    path.extend_from_slice(logical.as_os_str().as_bytes());
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    PathBuf::from(std::ffi::OsString::from_vec(path))
}

/// A byte in a file that each process maps.
fn shared(path: &Path) -> Result<&'static AtomicU8, Errno> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = fs::openat(CWD, path, flags, Mode::RUSR | Mode::WUSR)?;
    fs::ftruncate(&file, 1)?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new addresses, which stay mapped.
    let at = unsafe { libc::mmap(ptr::null_mut(), 1, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return Err(Errno::NOMEM);
    }
    // SAFETY: the byte is mapped for ever, and all processes use it as an atomic.
    Ok(unsafe { &*at.cast() })
}
