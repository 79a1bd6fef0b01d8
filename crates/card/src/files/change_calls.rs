//! What makes, changes, renames and removes files.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::Path;

use rustix::fs::RenameFlags;

use super::before_change::{remove as removed, rename as renamed, to_change, to_link, to_make};
use super::path_lookup::{Kind, look};
use super::redirect::{Named, change, done, folder, named, system, text};
use super::store::Store;

macro_rules! changes {
    ($($name:ident($($arg:ident: $type:ty),*) = $prepare:expr, $at:expr, |$folder:pat_param, $path:ident| $call:expr;)*) => { $(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { change($at, $prepare, |$folder, $path| $call) }
        }
    )* };
}

const NO_FOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;

changes! {
    mkdir(path: *const c_char, mode: c_uint) =
        to_make, named(path).follows(false), |at, path| system!(SYS_mkdirat, at, path, mode);
    mkdirat(folder: c_int, path: *const c_char, mode: c_uint) =
        to_make, named(path).at(folder).follows(false), |at, path| system!(SYS_mkdirat, at, path, mode);
    mkfifo(path: *const c_char, mode: c_uint) =
        to_make, named(path).follows(false), |at, path| system!(SYS_mknodat, at, path, mode | libc::S_IFIFO, 0);
    mkfifoat(folder: c_int, path: *const c_char, mode: c_uint) =
        to_make, named(path).at(folder).follows(false), |at, path| system!(SYS_mknodat, at, path, mode | libc::S_IFIFO, 0);
    mknod(path: *const c_char, mode: c_uint, device: u64) =
        to_make, named(path).follows(false), |at, path| system!(SYS_mknodat, at, path, mode, device);
    mknodat(folder: c_int, path: *const c_char, mode: c_uint, device: u64) =
        to_make, named(path).at(folder).follows(false), |at, path| system!(SYS_mknodat, at, path, mode, device);
    symlink(to: *const c_char, path: *const c_char) =
        to_make, named(path).follows(false), |at, path| system!(SYS_symlinkat, to, at, path);
    symlinkat(to: *const c_char, folder: c_int, path: *const c_char) =
        to_make, named(path).at(folder).follows(false), |at, path| system!(SYS_symlinkat, to, at, path);
    truncate(path: *const c_char, bytes: i64) = to_change, named(path), |_, path| system!(SYS_truncate, path, bytes);
    truncate64(path: *const c_char, bytes: i64) = to_change, named(path), |_, path| system!(SYS_truncate, path, bytes);
    chmod(path: *const c_char, mode: c_uint) = to_change, named(path), |at, path| system!(SYS_fchmodat, at, path, mode);
    fchmodat(folder: c_int, path: *const c_char, mode: c_uint, _flags: c_int) =
        to_change, named(path).at(folder), |at, path| system!(SYS_fchmodat, at, path, mode);
    chown(path: *const c_char, user: c_uint, group: c_uint) =
        to_change, named(path), |at, path| system!(SYS_fchownat, at, path, user, group, 0);
    lchown(path: *const c_char, user: c_uint, group: c_uint) =
        to_change, named(path).follows(false), |at, path| system!(SYS_fchownat, at, path, user, group, NO_FOLLOW);
    fchownat(folder: c_int, path: *const c_char, user: c_uint, group: c_uint, flags: c_int) =
        to_change, named(path).at(folder).follows(flags & NO_FOLLOW == 0),
        |at, path| system!(SYS_fchownat, at, path, user, group, flags);
    utimensat(folder: c_int, path: *const c_char, times: *const c_void, flags: c_int) =
        to_change, named(path).at(folder).follows(flags & NO_FOLLOW == 0),
        |at, path| system!(SYS_utimensat, at, path, times, flags);
    utimes(path: *const c_char, times: *const libc::timeval) = to_change, named(path), |at, path| set_times(at, path, times, 0);
    lutimes(path: *const c_char, times: *const libc::timeval) =
        to_change, named(path).follows(false), |at, path| set_times(at, path, times, NO_FOLLOW);
    futimesat(folder: c_int, path: *const c_char, times: *const libc::timeval) =
        to_change, named(path).at(folder), |at, path| set_times(at, path, times, 0);
    utime(path: *const c_char, times: *const libc::utimbuf) = to_change, named(path), |at, path| {
        // SAFETY: it is null or has both times by the caller's promise.
        let times = unsafe { times.as_ref() }.map(|times| [times.actime, times.modtime]);
        let times = times.map(|times| times.map(|seconds| libc::timeval { tv_sec: seconds, tv_usec: 0 }));
        set_times(at, path, times.as_ref().map_or(std::ptr::null(), |times| times.as_ptr()), 0)
    };
    setxattr(path: *const c_char, name: *const c_char, value: *const c_void, bytes: usize, flags: c_int) =
        to_change, named(path), |_, path| system!(SYS_setxattr, path, name, value, bytes, flags);
    lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, bytes: usize, flags: c_int) =
        to_change, named(path).follows(false), |_, path| system!(SYS_lsetxattr, path, name, value, bytes, flags);
    removexattr(path: *const c_char, name: *const c_char) =
        to_change, named(path), |_, path| system!(SYS_removexattr, path, name);
    lremovexattr(path: *const c_char, name: *const c_char) =
        to_change, named(path).follows(false), |_, path| system!(SYS_lremovexattr, path, name);
}

/// As `utimensat`, of times in microseconds.
fn set_times(folder: c_int, path: *const c_char, times: *const libc::timeval, flags: c_int) -> c_int {
    // SAFETY: it is null, or there are two by the caller's promise.
    let both = (!times.is_null()).then(|| unsafe { [times.read(), times.add(1).read()] });
    let both = both
        .map(|both| both.map(|time| libc::timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec * 1000 }));
    system!(SYS_utimensat, folder, path, both.as_ref().map_or(std::ptr::null(), |both| both.as_ptr()), flags)
}

// What has a descriptor of a real file that is open for reading only may still change its rights, its owner and its times.
macro_rules! by_descriptor {
    ($($name:ident(file $(, $arg:ident: $type:ty)*) = $number:ident, |$path:ident| $call:expr;)*) => { $(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(file: c_int $(, $arg: $type)*) -> c_int {
            match real_file(file) {
                // SAFETY: the caller's promise.
                Some($path) => unsafe { change(named($path.as_ptr()), to_change, |_, $path| $call) },
                None => system!($number, file $(, $arg)*),
            }
        }
    )* };
}

by_descriptor! {
    fchmod(file, mode: c_uint) = SYS_fchmod, |path| system!(SYS_fchmodat, libc::AT_FDCWD, path, mode);
    fchown(file, user: c_uint, group: c_uint) =
        SYS_fchown, |path| system!(SYS_fchownat, libc::AT_FDCWD, path, user, group, 0);
    fsetxattr(file, name: *const c_char, value: *const c_void, bytes: usize, flags: c_int) =
        SYS_fsetxattr, |path| system!(SYS_setxattr, path, name, value, bytes, flags);
    fremovexattr(file, name: *const c_char) = SYS_fremovexattr, |path| system!(SYS_removexattr, path, name);
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn futimens(file: c_int, times: *const c_void) -> c_int {
    match real_file(file) {
        // SAFETY: the caller's promise.
        Some(path) => unsafe { utimensat(libc::AT_FDCWD, path.as_ptr(), times, 0) },
        None => system!(SYS_utimensat, file, std::ptr::null::<c_char>(), times, 0),
    }
}

/// The path of a file or folder that is open, if it is a real one.
fn real_file(descriptor: c_int) -> Option<CString> {
    let store = Store::get()?;
    let path = folder(descriptor)?;
    let found = look(store, Path::new("/"), &path, false).ok()?;
    let is_real =
        !found.passes && found.logical == path && matches!(found.lower, Some(Kind::File | Kind::Folder));
    is_real.then(|| text(path))
}

macro_rules! removes {
    ($($name:ident($($arg:ident: $type:ty),*) = $at:expr, $is_folder:expr, $call:expr;)*) => { $(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            let is_folder = $is_folder;
            // SAFETY: the caller's promise.
            let done = unsafe { done([$at.follows(false)], |store, [found]| removed(store, &found, is_folder)) };
            done.unwrap_or_else(|| $call)
        }
    )* };
}

removes! {
    unlink(path: *const c_char) = named(path), false, system!(SYS_unlinkat, libc::AT_FDCWD, path, 0);
    rmdir(path: *const c_char) = named(path), true, system!(SYS_unlinkat, libc::AT_FDCWD, path, libc::AT_REMOVEDIR);
    unlinkat(folder: c_int, path: *const c_char, flags: c_int) =
        named(path).at(folder), flags & libc::AT_REMOVEDIR != 0, system!(SYS_unlinkat, folder, path, flags);
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn remove(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise; the thread's own `errno`.
    unsafe {
        match unlink(path) {
            0 => 0,
            _ if *libc::__errno_location() == libc::EISDIR => rmdir(path),
            failed => failed,
        }
    }
}

/// # Safety
/// As `renameat2`.
unsafe fn renames(from: Named, to: Named, flags: c_uint) -> c_int {
    let how = RenameFlags::from_bits_retain(flags);
    // SAFETY: the caller's promise.
    let done = unsafe {
        done([from.follows(false), to.follows(false)], |store, [from, to]| renamed(store, &from, &to, how))
    };
    done.unwrap_or_else(|| system!(SYS_renameat2, from.folder, from.path, to.folder, to.path, flags))
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { renames(named(from), named(to), 0) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn renameat(in_from: c_int, from: *const c_char, in_to: c_int, to: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { renames(named(from).at(in_from), named(to).at(in_to), 0) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn renameat2(
    in_from: c_int,
    from: *const c_char,
    in_to: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { renames(named(from).at(in_from), named(to).at(in_to), flags) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn linkat(
    in_from: c_int,
    from: *const c_char,
    in_to: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    let old = named(from).at(in_from).follows(flags & libc::AT_SYMLINK_FOLLOW != 0);
    let new = named(to).at(in_to).follows(false);
    // SAFETY: the caller's promise.
    let done = unsafe {
        done([old, new], |store, [from, to]| {
            let [old, new] = to_link(store, &from, &to)?;
            rustix::fs::link(old, new)
        })
    };
    done.unwrap_or_else(|| system!(SYS_linkat, in_from, from, in_to, to, flags))
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn link(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { linkat(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) }
}
