//! Files that other processes may have, too: how they get them, and what is checked of them.
//!
//! A page is a range of its device's file. What stands for it in another process is that file, opened anew, whose position
//! is where the page begins.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, SealFlags, SeekFrom};

use crate::device::DeviceResult;
use crate::device::error::system;
use crate::device::ledger::invalid;

/// From now on nobody can shorten the file. To touch what was cut off ends a process.
pub(super) fn seal(file: &OwnedFd) -> DeviceResult<()> {
    rustix::fs::fcntl_add_seals(file, SealFlags::SHRINK).map_err(system("fcntl(F_ADD_SEALS)"))
}

/// The file, opened anew, so that position and locks are not shared.
pub(super) fn reopen(file: &OwnedFd) -> DeviceResult<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(system("open"))
}

/// The file, opened anew, at a position.
pub(super) fn reopen_at(file: &OwnedFd, position: u64) -> DeviceResult<OwnedFd> {
    let file = reopen(file)?;
    rustix::fs::seek(&file, SeekFrom::Start(position)).map_err(system("lseek"))?;
    Ok(file)
}

/// Refuses what is no file of so many bytes that stay.
pub(super) fn check_file(call: &'static str, file: &OwnedFd, bytes: u64) -> DeviceResult<()> {
    // Only files in memory have seals; others answer with an error.
    let sealed = rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    let length = rustix::fs::fstat(file).map_err(system("fstat"))?.st_size as u64;
    if !sealed || length < bytes {
        return invalid(call, "the descriptor is not what another process's host device exported");
    }
    Ok(())
}

/// Where in its file a page of so many bytes begins.
pub(super) fn check_page(file: &OwnedFd, bytes: u64) -> DeviceResult<u64> {
    const CALL: &str = "import_page";
    let position = rustix::fs::seek(file, SeekFrom::Current(0)).unwrap_or(u64::MAX);
    let system_page = rustix::param::page_size() as u64;
    match position.checked_add(bytes) {
        Some(end) if position.is_multiple_of(system_page) => check_file(CALL, file, end).map(|()| position),
        _ => invalid(CALL, "the descriptor is at no page of another process's host device"),
    }
}
