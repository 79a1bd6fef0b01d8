//! What looks at files.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;

use super::redirect::{Failure, behind, named, read, system, text};
use super::store::Store;
use rustix::io::Errno;

macro_rules! reads {
    ($($name:ident($($arg:ident: $type:ty),*) = $at:expr, |$folder:pat_param, $path:ident| $call:expr;)*) => { $(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { read($at, |$folder, $path| $call) }
        }
    )* };
}

const NO_FOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;

reads! {
    stat(path: *const c_char, to: *mut c_void) = named(path), |at, path| system!(SYS_newfstatat, at, path, to, 0);
    stat64(path: *const c_char, to: *mut c_void) = named(path), |at, path| system!(SYS_newfstatat, at, path, to, 0);
    lstat(path: *const c_char, to: *mut c_void) =
        named(path).follows(false), |at, path| system!(SYS_newfstatat, at, path, to, NO_FOLLOW);
    lstat64(path: *const c_char, to: *mut c_void) =
        named(path).follows(false), |at, path| system!(SYS_newfstatat, at, path, to, NO_FOLLOW);
    fstatat(folder: c_int, path: *const c_char, to: *mut c_void, flags: c_int) =
        named(path).at(folder).follows(flags & NO_FOLLOW == 0), |at, path| system!(SYS_newfstatat, at, path, to, flags);
    fstatat64(folder: c_int, path: *const c_char, to: *mut c_void, flags: c_int) =
        named(path).at(folder).follows(flags & NO_FOLLOW == 0), |at, path| system!(SYS_newfstatat, at, path, to, flags);
    // As programs call it that were built with a C library before 2.33.
    __xstat(_version: c_int, path: *const c_char, to: *mut c_void) =
        named(path), |at, path| system!(SYS_newfstatat, at, path, to, 0);
    __xstat64(_version: c_int, path: *const c_char, to: *mut c_void) =
        named(path), |at, path| system!(SYS_newfstatat, at, path, to, 0);
    __lxstat(_version: c_int, path: *const c_char, to: *mut c_void) =
        named(path).follows(false), |at, path| system!(SYS_newfstatat, at, path, to, NO_FOLLOW);
    __lxstat64(_version: c_int, path: *const c_char, to: *mut c_void) =
        named(path).follows(false), |at, path| system!(SYS_newfstatat, at, path, to, NO_FOLLOW);
    __fxstatat(_version: c_int, folder: c_int, path: *const c_char, to: *mut c_void, flags: c_int) =
        named(path).at(folder).follows(flags & NO_FOLLOW == 0), |at, path| system!(SYS_newfstatat, at, path, to, flags);
    __fxstatat64(_version: c_int, folder: c_int, path: *const c_char, to: *mut c_void, flags: c_int) =
        named(path).at(folder).follows(flags & NO_FOLLOW == 0), |at, path| system!(SYS_newfstatat, at, path, to, flags);
    statx(folder: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut c_void) =
        named(path).at(folder).follows(flags & NO_FOLLOW == 0), |at, path| system!(SYS_statx, at, path, flags, mask, to);
    access(path: *const c_char, mode: c_int) = named(path), |at, path| system!(SYS_faccessat, at, path, mode);
    euidaccess(path: *const c_char, mode: c_int) =
        named(path), |_, path| behind!(c"euidaccess": fn(path => *const c_char, mode => c_int) -> c_int);
    eaccess(path: *const c_char, mode: c_int) =
        named(path), |_, path| behind!(c"eaccess": fn(path => *const c_char, mode => c_int) -> c_int);
    faccessat(folder: c_int, path: *const c_char, mode: c_int, flags: c_int) =
        named(path).at(folder).follows(flags & NO_FOLLOW == 0), |at, path| {
            behind!(c"faccessat": fn(at => c_int, path => *const c_char, mode => c_int, flags => c_int) -> c_int)
        };
    chdir(path: *const c_char) = named(path), |_, path| system!(SYS_chdir, path);
    statfs(path: *const c_char, to: *mut c_void) = named(path), |_, path| system!(SYS_statfs, path, to);
    statfs64(path: *const c_char, to: *mut c_void) = named(path), |_, path| system!(SYS_statfs, path, to);
    statvfs(path: *const c_char, to: *mut c_void) =
        named(path), |_, path| behind!(c"statvfs": fn(path => *const c_char, to => *mut c_void) -> c_int);
    statvfs64(path: *const c_char, to: *mut c_void) =
        named(path), |_, path| behind!(c"statvfs64": fn(path => *const c_char, to => *mut c_void) -> c_int);
}

macro_rules! read_sizes {
    ($($name:ident($path:ident, $($arg:ident: $type:ty),*) = $at:expr, |$folder:pat_param, $real:ident| $call:expr;)*) => { $(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($path: *const c_char, $($arg: $type),*) -> isize {
            // SAFETY: the caller's promise.
            unsafe { read($at, |$folder, $real| $call) }
        }
    )* };
}

read_sizes! {
    readlink(path, to: *mut c_char, bytes: usize) =
        named(path).follows(false), |at, path| system!(SYS_readlinkat, at, path, to, bytes);
    getxattr(path, name: *const c_char, to: *mut c_void, bytes: usize) =
        named(path), |_, path| system!(SYS_getxattr, path, name, to, bytes);
    lgetxattr(path, name: *const c_char, to: *mut c_void, bytes: usize) =
        named(path).follows(false), |_, path| system!(SYS_lgetxattr, path, name, to, bytes);
    listxattr(path, to: *mut c_char, bytes: usize) = named(path), |_, path| system!(SYS_listxattr, path, to, bytes);
    llistxattr(path, to: *mut c_char, bytes: usize) =
        named(path).follows(false), |_, path| system!(SYS_llistxattr, path, to, bytes);
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn readlinkat(folder: c_int, path: *const c_char, to: *mut c_char, bytes: usize) -> isize {
    let call = |at: c_int, path: *const c_char| system!(SYS_readlinkat, at, path, to, bytes);
    // SAFETY: the caller's promise.
    unsafe { read(named(path).at(folder).follows(false), call) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn getcwd(to: *mut c_char, bytes: usize) -> *mut c_char {
    let mut room = vec![0u8; libc::PATH_MAX as usize];
    let length: i64 = system!(SYS_getcwd, room.as_mut_ptr(), room.len());
    if length < 0 {
        return std::ptr::null_mut();
    }
    room.truncate(length as usize - 1);
    let path = std::path::PathBuf::from(std::ffi::OsStr::from_bytes(&room));
    let path = Store::get().map_or(path.clone(), |store| store.logical(path));
    // SAFETY: the caller's promise.
    unsafe { put(path.as_os_str().as_bytes(), to, bytes) }
}

/// Copies a text to where the caller wants it: to a place with so much room or, if none is named, to a new one.
unsafe fn put(path: &[u8], to: *mut c_char, bytes: usize) -> *mut c_char {
    let bytes = if to.is_null() && bytes == 0 { path.len() + 1 } else { bytes };
    if path.len() >= bytes {
        return Failure::failed(if bytes == 0 { Errno::INVAL } else { Errno::RANGE });
    }
    // SAFETY: as the caller's of `getcwd`, who frees it.
    let to = if to.is_null() { unsafe { libc::malloc(bytes) }.cast() } else { to };
    if !to.is_null() {
        // SAFETY: the place has room for the path and a zero.
        unsafe {
            std::ptr::copy_nonoverlapping(path.as_ptr().cast(), to, path.len());
            to.add(path.len()).write(0);
        }
    }
    to
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
    let real = |path| behind!(c"realpath": fn(path => *const c_char, to => *mut c_char) -> *mut c_char);
    match Store::get() {
        Some(store) if store.is_changed() && !path.is_null() => {
            // SAFETY: the caller's promise.
            let found = unsafe {
                read(
                    named(path),
                    |_, path| behind!(c"realpath": fn(path => *const c_char, std::ptr::null_mut() => *mut c_char) -> *mut c_char),
                )
            };
            if found.is_null() {
                return found;
            }
            // SAFETY: it is a text of C.
            let whole = unsafe { CStr::from_ptr(found) }.to_bytes().to_owned();
            // SAFETY: `realpath` has allocated it.
            unsafe { libc::free(found.cast()) };
            let whole = text(store.logical(std::ffi::OsStr::from_bytes(&whole).into()));
            // SAFETY: a place that the caller names has this much room.
            unsafe { put(whole.to_bytes(), to, if to.is_null() { 0 } else { libc::PATH_MAX as usize }) }
        }
        _ => real(path),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn __realpath_chk(path: *const c_char, to: *mut c_char, _room: usize) -> *mut c_char {
    // SAFETY: the caller's promise.
    unsafe { realpath(path, to) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the caller's promise.
    unsafe { realpath(path, std::ptr::null_mut()) }
}
