//! What is done before a file is written, made, renamed or removed. Each function checks what the system would check of the real
//! file, and returns paths of the folder for the call itself.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, Access, AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, Timestamps};
use rustix::io::Errno;

use super::path_lookup::{Found, Kind, look};
use super::store::Store;

/// For `open`: the path to open. What is only read is not copied.
pub(crate) fn to_open(store: &Store, found: &Found, flags: OFlags) -> Result<PathBuf, Errno> {
    let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
    match found.kind() {
        _ if found.passes || flags.contains(OFlags::PATH) => Ok(found.real(store)),
        Some(Kind::Folder) if flags.contains(OFlags::TMPFILE) => {
            let inside = found.logical.join("new");
            store.make_parents(&inside)?;
            Ok(store.upper(&found.logical))
        }
        Some(_) if flags.contains(OFlags::CREATE | OFlags::EXCL) => Err(Errno::EXIST),
        Some(Kind::File) if writes && found.upper.is_none() => {
            fs::access(&found.logical, Access::WRITE_OK)?;
            copy(store, found, !flags.contains(OFlags::TRUNC))
        }
        // Something else is the system's to open or to refuse.
        Some(_) => Ok(found.real(store)),
        None if flags.contains(OFlags::CREATE) && found.wants_folder => Err(Errno::ISDIR),
        None if flags.contains(OFlags::CREATE) => to_make(store, found),
        None => Err(Errno::NOENT),
    }
}

/// For what makes something new: the path to make it at.
pub(crate) fn to_make(store: &Store, found: &Found) -> Result<PathBuf, Errno> {
    if found.passes {
        return Ok(found.logical.clone());
    }
    if found.kind().is_some() {
        return Err(Errno::EXIST);
    }
    in_folder(found)?;
    store.make_parents(&found.logical)?;
    Ok(store.upper(&found.logical))
}

/// For what changes a file's length, rights or times: the path of the copy.
pub(crate) fn to_change(store: &Store, found: &Found) -> Result<PathBuf, Errno> {
    match found.kind() {
        _ if found.passes || found.upper.is_some() => Ok(found.real(store)),
        None => Err(Errno::NOENT),
        Some(_) => {
            let owner = fs::lstat(&found.logical)?.st_uid;
            let own = rustix::process::geteuid();
            if !own.is_root() && own.as_raw() != owner {
                fs::access(&found.logical, Access::WRITE_OK).map_err(|_| Errno::PERM)?;
            }
            copy(store, found, true)
        }
    }
}

/// Removes a file or, as `folder` says, an empty folder.
pub(crate) fn remove(store: &Store, found: &Found, folder: bool) -> Result<(), Errno> {
    let flags = if folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    if found.passes {
        return fs::unlinkat(CWD, &found.logical, flags);
    }
    match (found.kind(), folder) {
        (None, _) => return Err(Errno::NOENT),
        (Some(Kind::Folder), false) => return Err(Errno::ISDIR),
        (Some(Kind::Folder), true) if !names(store, found)?.is_empty() => return Err(Errno::NOTEMPTY),
        (Some(Kind::Folder), true) | (_, false) => {}
        (_, true) => return Err(Errno::NOTDIR),
    }
    in_folder(found)?;
    store.hide(&found.logical)?;
    if found.upper.is_some() {
        fs::unlinkat(CWD, store.upper(&found.logical), flags)?;
    }
    Ok(())
}

/// Renames, also over what is there.
pub(crate) fn rename(store: &Store, from: &Found, to: &Found, flags: RenameFlags) -> Result<(), Errno> {
    if from.passes || to.passes {
        let both = from.passes && to.passes;
        return if both {
            fs::renameat_with(CWD, &from.logical, CWD, &to.logical, flags)
        } else {
            Err(Errno::XDEV)
        };
    }
    let is_folder = from.kind().ok_or(Errno::NOENT)? == Kind::Folder;
    match to.kind() {
        Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(Errno::EXIST),
        _ if flags.contains(RenameFlags::EXCHANGE) => return Err(Errno::INVAL),
        _ if from.logical == to.logical => return Ok(()),
        _ if is_folder && to.logical.starts_with(&from.logical) => return Err(Errno::INVAL),
        Some(Kind::Folder) if !is_folder => return Err(Errno::ISDIR),
        Some(Kind::Folder) if !names(store, to)?.is_empty() => return Err(Errno::NOTEMPTY),
        Some(Kind::Folder) | None => {}
        Some(_) if is_folder => return Err(Errno::NOTDIR),
        Some(_) => {}
    }
    in_folder(from)?;
    in_folder(to)?;
    copy_all(store, from)?;
    store.make_parents(&to.logical)?;
    if is_folder {
        // What was in the real one does not come back beside what is moved there.
        store.hide(&to.logical)?;
    }
    fs::rename(store.upper(&from.logical), store.upper(&to.logical))?;
    store.hide(&from.logical)
}

/// For a further name of a file: the path of the file, and of the name.
pub(crate) fn to_link(store: &Store, from: &Found, to: &Found) -> Result<[PathBuf; 2], Errno> {
    if from.passes != to.passes {
        return Err(Errno::XDEV);
    }
    if from.kind().ok_or(Errno::NOENT)? == Kind::Folder {
        return Err(Errno::PERM);
    }
    let new = to_make(store, to)?;
    let old = if from.passes { from.logical.clone() } else { copy(store, from, true)? };
    Ok([old, new])
}

/// Whether the program may change the folder that this lies in.
fn in_folder(found: &Found) -> Result<(), Errno> {
    match found.logical.parent() {
        Some(parent) if found.is_in_real => fs::access(parent, Access::WRITE_OK | Access::EXEC_OK),
        _ => Ok(()),
    }
}

/// The names in a folder.
pub(crate) fn names(store: &Store, folder: &Found) -> Result<BTreeSet<OsString>, Errno> {
    let mut all = BTreeSet::new();
    let mut read = |path: &Path, is_real: bool| {
        let opened =
            fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        for entry in Dir::new(opened)? {
            let name = OsString::from_vec(entry?.file_name().to_bytes().to_owned());
            let is_hidden = is_real && store.is_hidden(&folder.logical.join(&name));
            if name != "." && name != ".." && !is_hidden {
                all.insert(name);
            }
        }
        Ok::<_, Errno>(())
    };
    if folder.upper.is_some() {
        read(&store.upper(&folder.logical), false)?;
    }
    if folder.lower.is_some() {
        read(&folder.logical, true)?;
    }
    Ok(all)
}

/// Copies all of a folder that is the real one's, or one file.
fn copy_all(store: &Store, found: &Found) -> Result<(), Errno> {
    copy(store, found, true)?;
    if found.kind() == Some(Kind::Folder) && found.lower.is_some() {
        for name in names(store, found)? {
            copy_all(store, &look(store, &found.logical, Path::new(&name), false)?)?;
        }
    }
    Ok(())
}

/// The path of the program's own copy of a file, which is made if need be.
fn copy(store: &Store, found: &Found, with_bytes: bool) -> Result<PathBuf, Errno> {
    let (real, upper) = (&found.logical, store.upper(&found.logical));
    let Some(kind) = found.lower.filter(|_| found.upper.is_none()) else { return Ok(upper) };
    store.make_parents(real)?;
    let about = fs::lstat(real)?;
    let rights = Mode::from_raw_mode(about.st_mode);
    let new = store.new_path();
    match kind {
        Kind::Folder => {
            // It is made like the parent of something.
            store.make_parents(&real.join("new"))?;
            return Ok(upper);
        }
        Kind::Link => fs::symlink(fs::readlink(real, Vec::new())?, &new)?,
        Kind::Other => return Err(Errno::PERM),
        Kind::File => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            let mut to = File::from(fs::openat(CWD, &new, flags, Mode::RUSR | Mode::WUSR)?);
            if with_bytes {
                let mut from =
                    File::from(fs::openat(CWD, real, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
                let copied = std::io::copy(&mut from, &mut to);
                copied.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            }
            fs::fchmod(&to, rights | Mode::RUSR | Mode::WUSR)?;
            let [last_access, last_modification] =
                [(about.st_atime, about.st_atime_nsec), (about.st_mtime, about.st_mtime_nsec)]
                    .map(|(seconds, rest)| fs::Timespec { tv_sec: seconds as _, tv_nsec: rest as _ });
            fs::futimens(&to, &Timestamps { last_access, last_modification })?;
        }
    }
    // Another thread may have been faster.
    match fs::renameat_with(CWD, &new, CWD, &upper, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => fs::unlink(&new).map(|()| upper),
        other => other.map(|()| upper),
    }
}
