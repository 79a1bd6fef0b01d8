//! What reads folders: one that the program wrote to has entries of both, each name once.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use super::path_lookup::{Found, look};
use super::redirect::{behind, folder, named, read, text};
use super::store::Store;

type Stream = *mut c_void;

/// A folder that is open, and is not simply the real one.
#[derive(Debug)]
struct Both {
    logical: PathBuf,
    /// Of the program's own entries, which are read first; null where it has none.
    upper: usize,
    /// Of the real ones.
    lower: usize,
    seen: HashSet<Vec<u8>>,
}

/// By the address of the stream that the program has.
static OPEN: LazyLock<Mutex<HashMap<usize, Both>>> = LazyLock::new(Mutex::default);

fn open_folders() -> std::sync::MutexGuard<'static, HashMap<usize, Both>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_real(path: *const c_char) -> Stream {
    behind!(c"opendir": fn(path => *const c_char) -> Stream)
}

/// Notes that a stream is of a folder with entries of both kinds. `is_upper` says whose it is.
fn note(store: &Store, found: &Found, stream: Stream, is_upper: bool) {
    if stream.is_null() || found.passes || found.lower.is_none() {
        return;
    }
    let mut both =
        Both { logical: found.logical.clone(), upper: 0, lower: stream as usize, seen: HashSet::new() };
    if is_upper {
        let path = text(found.logical.clone());
        (both.upper, both.lower) = (stream as usize, open_real(path.as_ptr()) as usize);
    } else if found.upper.is_some() {
        let path = text(store.upper(&found.logical));
        both.upper = open_real(path.as_ptr()) as usize;
    }
    open_folders().insert(stream as usize, both);
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn opendir(path: *const c_char) -> Stream {
    // SAFETY: the caller's promise.
    let stream = unsafe { read(named(path), |_, path| open_real(path)) };
    note_of(stream, || {
        // SAFETY: the caller's promise.
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
        Some(if path.is_absolute() { path.to_owned() } else { folder(libc::AT_FDCWD)?.join(path) })
    });
    stream
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn fdopendir(file: c_int) -> Stream {
    let stream = behind!(c"fdopendir": fn(file => c_int) -> Stream);
    note_of(stream, || folder(file));
    stream
}

fn note_of(stream: Stream, path: impl FnOnce() -> Option<PathBuf>) {
    let Some(store) = Store::get().filter(|store| store.is_changed() && !stream.is_null()) else { return };
    let Some(Ok(found)) = path().map(|path| look(store, Path::new("/"), &path, true)) else { return };
    // Where there is one of the program's, that was opened.
    let descriptor = behind!(c"dirfd": fn(stream => Stream) -> c_int);
    let is_upper = folder(descriptor).is_some_and(|opened| store.logical(opened.clone()) != opened);
    note(store, &found, stream, is_upper);
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn readdir(stream: Stream) -> *mut libc::dirent64 {
    let next = |stream: Stream| behind!(c"readdir64": fn(stream => Stream) -> *mut libc::dirent64);
    let Some(store) = Store::get().filter(|store| store.is_changed()) else { return next(stream) };
    let mut open = open_folders();
    let Some(both) = open.get_mut(&(stream as usize)) else {
        drop(open);
        return next(stream);
    };
    let sources = [(both.upper, true), (both.lower, false)];
    for (source, is_upper) in sources.into_iter().filter(|(source, _)| *source != 0) {
        loop {
            let entry = next(source as Stream);
            if entry.is_null() {
                break;
            }
            // SAFETY: an entry has a name, which is a text of C.
            let name = unsafe { CStr::from_ptr((&raw const (*entry).d_name).cast()) }.to_bytes().to_owned();
            let path = || both.logical.join(OsStr::from_bytes(&name));
            let is_hidden = !is_upper && !matches!(&name[..], b"." | b"..") && store.is_hidden(&path());
            if !is_hidden && both.seen.insert(name) {
                return entry;
            }
        }
    }
    std::ptr::null_mut()
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn readdir64(stream: Stream) -> *mut libc::dirent64 {
    // SAFETY: the caller's promise. Both have the same entries on systems of 64 bits.
    unsafe { readdir(stream) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn rewinddir(stream: Stream) {
    let begin = |stream: Stream| behind!(c"rewinddir": fn(stream => Stream));
    if let Some(both) = open_folders().get_mut(&(stream as usize)) {
        both.seen.clear();
        for other in
            [both.upper, both.lower].into_iter().filter(|other| ![0, stream as usize].contains(other))
        {
            begin(other as Stream);
        }
    }
    begin(stream);
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn closedir(stream: Stream) -> c_int {
    let close = |stream: Stream| behind!(c"closedir": fn(stream => Stream) -> c_int);
    let both = open_folders().remove(&(stream as usize));
    for other in both.into_iter().flat_map(|both| [both.upper, both.lower]) {
        if ![0, stream as usize].contains(&other) {
            close(other as Stream);
        }
    }
    close(stream)
}
