//! How a function of the C library is answered: with another path, where the program has a file of its own.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::io::Errno;

use super::path_lookup::{Found, look};
use super::store::Store;

/// A path as a program names it: from an open folder on, or from the working folder.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named {
    pub(super) folder: c_int,
    pub(super) path: *const c_char,
    /// Whether a link at its end stands for what it leads to.
    pub(super) follows: bool,
}

/// From the working folder on.
pub(super) fn named(path: *const c_char) -> Named {
    Named { folder: libc::AT_FDCWD, path, follows: true }
}

impl Named {
    pub(super) fn at(self, folder: c_int) -> Self {
        Self { folder, ..self }
    }

    pub(super) fn follows(self, follows: bool) -> Self {
        Self { follows, ..self }
    }

    /// `None` where the call has no path, or names none of a file.
    unsafe fn look(self, store: &Store) -> Option<Result<Found, Errno>> {
        if self.path.is_null() {
            return None;
        }
        // SAFETY: it is a text of C by the caller's promise.
        let path = unsafe { CStr::from_ptr(self.path) }.to_bytes();
        if path.is_empty() {
            return None;
        }
        let path = Path::new(OsStr::from_bytes(path));
        let from = match path.is_absolute() {
            true => PathBuf::new(),
            false => folder(self.folder)?,
        };
        Some(look(store, &from, path, self.follows))
    }
}

/// The path of an open folder, or of the working folder.
pub(super) fn folder(descriptor: c_int) -> Option<PathBuf> {
    let link = match descriptor {
        libc::AT_FDCWD => "/proc/self/cwd".to_owned(),
        number => format!("/proc/self/fd/{number}"),
    };
    let path = rustix::fs::readlink(link, Vec::new()).ok()?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes()));
    path.is_absolute().then_some(path)
}

/// Calls with what lies at a path. `call` gets a folder's descriptor and a path.
///
/// # Safety
/// The path is null or a text of C.
pub(super) unsafe fn read<R: Failure>(named: Named, call: impl FnOnce(c_int, *const c_char) -> R) -> R {
    match Store::get() {
        // SAFETY: the caller's promise.
        Some(store) if store.is_changed() => unsafe {
            change(named, |store, found| Ok(found.real(store)), call)
        },
        _ => call(named.folder, named.path),
    }
}

/// Calls with the path that a change is to be made at, as `prepare` says.
///
/// # Safety
/// As for [`read`].
pub(super) unsafe fn change<R: Failure>(
    named: Named,
    prepare: impl FnOnce(&Store, &Found) -> Result<PathBuf, Errno>,
    call: impl FnOnce(c_int, *const c_char) -> R,
) -> R {
    let Some(store) = Store::get() else { return call(named.folder, named.path) };
    // SAFETY: the caller's promise.
    let Some(found) = (unsafe { named.look(store) }) else { return call(named.folder, named.path) };
    match found.and_then(|found| prepare(store, &found)) {
        Ok(path) => {
            let path = text(path);
            call(libc::AT_FDCWD, path.as_ptr())
        }
        Err(error) => R::failed(error),
    }
}

/// Does something with what lies at each of some paths. `None` where the program writes to its own files.
///
/// # Safety
/// As for [`read`].
pub(super) unsafe fn done<const N: usize>(
    named: [Named; N],
    act: impl FnOnce(&Store, [Found; N]) -> Result<(), Errno>,
) -> Option<c_int> {
    let store = Store::get()?;
    let mut all = Vec::new();
    for one in named {
        // SAFETY: the caller's promise.
        match unsafe { one.look(store) }? {
            Ok(found) => all.push(found),
            Err(error) => return Some(c_int::failed(error)),
        }
    }
    let all = all.try_into().ok()?;
    Some(match act(store, all) {
        Ok(()) => 0,
        Err(error) => c_int::failed(error),
    })
}

/// A path has no zero byte.
pub(super) fn text(path: PathBuf) -> CString {
    CString::new(path.into_os_string().into_vec()).unwrap_or_default()
}

/// What a function returns when it failed; `errno` says why.
pub(super) trait Failure {
    fn failed(error: Errno) -> Self;
}

impl Failure for c_int {
    fn failed(error: Errno) -> Self {
        // SAFETY: the thread's own.
        unsafe { *libc::__errno_location() = error.raw_os_error() };
        -1
    }
}

impl Failure for isize {
    fn failed(error: Errno) -> Self {
        c_int::failed(error) as isize
    }
}

impl<T> Failure for *mut T {
    fn failed(error: Errno) -> Self {
        c_int::failed(error);
        std::ptr::null_mut()
    }
}

/// A function of the C library, which is behind this library's.
#[derive(Debug)]
pub(super) struct Behind(&'static CStr, AtomicPtr<c_void>);

impl Behind {
    pub(super) const fn new(name: &'static CStr) -> Self {
        Self(name, AtomicPtr::new(std::ptr::null_mut()))
    }

    pub(super) fn address(&self) -> *mut c_void {
        // Relaxed: each thread finds the same.
        let known = self.1.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a text of C.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.0.as_ptr()) };
        self.1.store(found, Ordering::Relaxed);
        found
    }
}

/// The real function behind one of these, called by its type.
macro_rules! behind {
    ($name:literal: fn($($arg:expr => $ty:ty),*) $(-> $to:ty)?) => {{
        static REAL: $crate::files::redirect::Behind = $crate::files::redirect::Behind::new($name);
        // SAFETY: the C library has a function of this name and type, and the caller keeps its contract.
        unsafe {
            let real: unsafe extern "C" fn($($ty),*) $(-> $to)? = std::mem::transmute(REAL.address());
            real($($arg),*)
        }
    }};
}

/// A call of the system, which sets `errno`.
macro_rules! system {
    ($number:ident $(, $arg:expr)*) => {
        // SAFETY: the caller keeps the function's contract.
        unsafe { libc::syscall(libc::$number $(, $arg)*) as _ }
    };
}

pub(super) use {behind, system};
