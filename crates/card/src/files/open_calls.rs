//! What opens files.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use rustix::fs::OFlags;

use super::before_change::{to_make, to_open};
use super::redirect::{Failure, Named, behind, change, named, read, system};

/// # Safety
/// As for `openat`, in all of this file.
unsafe fn opened(at: Named, flags: c_int, mode: c_uint) -> c_int {
    let flags = flags | libc::O_LARGEFILE;
    let call = |folder: c_int, path: *const c_char| system!(SYS_openat, folder, path, flags, mode);
    let asked = OFlags::from_bits_retain(flags as c_uint);
    let writes = asked.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC);
    let is_new = asked.contains(OFlags::CREATE | OFlags::EXCL);
    let at = at.follows(!asked.contains(OFlags::NOFOLLOW) && !is_new);
    // SAFETY: the caller's promise.
    unsafe {
        match writes {
            true => change(at, |store, found| to_open(store, found, asked), call),
            false => read(at, call),
        }
    }
}

macro_rules! opens {
    ($($name:ident($($arg:ident: $type:ty),*) = $at:expr, $flags:expr, $mode:expr;)*) => { $(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { opened($at, $flags, $mode) }
        }
    )* };
}

// The mode of a call that makes no file is not looked at.
opens! {
    open(path: *const c_char, flags: c_int, mode: c_uint) = named(path), flags, mode;
    open64(path: *const c_char, flags: c_int, mode: c_uint) = named(path), flags, mode;
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) = named(path).at(folder), flags, mode;
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) = named(path).at(folder), flags, mode;
    __open_2(path: *const c_char, flags: c_int) = named(path), flags, 0;
    __open64_2(path: *const c_char, flags: c_int) = named(path), flags, 0;
    __openat_2(folder: c_int, path: *const c_char, flags: c_int) = named(path).at(folder), flags, 0;
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int) = named(path).at(folder), flags, 0;
    creat(path: *const c_char, mode: c_uint) = named(path), libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode;
    creat64(path: *const c_char, mode: c_uint) = named(path), libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode;
}

/// The flags of a stream's mode.
unsafe fn flags(mode: *const c_char) -> OFlags {
    // SAFETY: the caller's promise.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let kind = match mode.first() {
        Some(b'w') => OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC,
        Some(b'a') => OFlags::WRONLY | OFlags::CREATE,
        _ if mode.contains(&b'+') => OFlags::RDWR,
        _ => OFlags::empty(),
    };
    if mode.contains(&b'x') { kind | OFlags::EXCL } else { kind }
}

macro_rules! streams {
    ($($name:ident($real:literal; $($arg:ident: $type:ty),*);)*) => { $(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char, $($arg: $type),*) -> *mut c_void {
            let call = |_, path: *const c_char| {
                behind!($real: fn(path => *const c_char, mode => *const c_char $(, $arg => $type)*) -> *mut c_void)
            };
            // SAFETY: the caller's promise.
            let asked = unsafe { flags(mode) };
            // SAFETY: as above.
            unsafe {
                match asked.is_empty() {
                    true => read(named(path), call),
                    false => change(named(path), |store, found| to_open(store, found, asked), call),
                }
            }
        }
    )* };
}

streams! {
    fopen(c"fopen";);
    fopen64(c"fopen64";);
    freopen(c"freopen"; stream: *mut c_void);
    freopen64(c"freopen64"; stream: *mut c_void);
}

/// How often another name is tried.
const TRIES: u32 = 10_000;

/// Fills in the six letters of a name, until `make` has made something of it.
unsafe fn with_new_name(template: *mut c_char, after: c_int, make: impl Fn(*const c_char) -> c_int) -> c_int {
    const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    // SAFETY: the caller's promise.
    let length = unsafe { CStr::from_ptr(template) }.to_bytes().len();
    let Some(at) = length.checked_sub(6 + usize::try_from(after).unwrap_or(usize::MAX).min(length)) else {
        return c_int::failed(rustix::io::Errno::INVAL);
    };
    // SAFETY: the template has these six bytes, which the caller lets be written.
    let place = unsafe { std::slice::from_raw_parts_mut(template.add(at).cast::<u8>(), 6) };
    if place != b"XXXXXX" {
        return c_int::failed(rustix::io::Errno::INVAL);
    }
    for _ in 0..TRIES {
        let mut random = [0u8; 6];
        // SAFETY: the array has six bytes.
        unsafe { libc::syscall(libc::SYS_getrandom, random.as_mut_ptr(), 6, 0) };
        random.iter().zip(place.iter_mut()).for_each(|(byte, to)| *to = LETTERS[usize::from(byte % 64)]);
        let made = make(template);
        // SAFETY: the thread's own.
        if made >= 0 || unsafe { *libc::__errno_location() } != libc::EEXIST {
            return made;
        }
    }
    c_int::failed(rustix::io::Errno::EXIST)
}

macro_rules! new_files {
    ($($name:ident($($arg:ident),*) = $after:expr, $flags:expr;)*) => { $(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(template: *mut c_char, $($arg: c_int),*) -> c_int {
            let flags = $flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
            // SAFETY: the caller's promise.
            unsafe { with_new_name(template, $after, |path| opened(named(path), flags, 0o600)) }
        }
    )* };
}

new_files! {
    mkstemp() = 0, 0;
    mkstemp64() = 0, 0;
    mkostemp(flags) = 0, flags;
    mkostemp64(flags) = 0, flags;
    mkstemps(after) = after, 0;
    mkstemps64(after) = after, 0;
    mkostemps(after, flags) = after, flags;
    mkostemps64(after, flags) = after, flags;
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn mkdtemp(template: *mut c_char) -> *mut c_char {
    let make = |path| {
        let call = |folder: c_int, path: *const c_char| system!(SYS_mkdirat, folder, path, 0o700);
        // SAFETY: the caller's promise.
        unsafe { change(named(path).follows(false), to_make, call) }
    };
    // SAFETY: the caller's promise.
    if unsafe { with_new_name(template, 0, make) } < 0 { std::ptr::null_mut() } else { template }
}

/// A file without a name.
#[unsafe(no_mangle)]
extern "C" fn tmpfile() -> *mut c_void {
    // SAFETY: the text is one of C; the folder is there, or the program is told.
    let file = unsafe { opened(named(c"/tmp".as_ptr()), libc::O_TMPFILE | libc::O_RDWR, 0o600) };
    if file < 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the descriptor is new, and the stream's from here on.
    unsafe { libc::fdopen(file, c"w+".as_ptr()) }.cast()
}

#[unsafe(no_mangle)]
extern "C" fn tmpfile64() -> *mut c_void {
    tmpfile()
}
