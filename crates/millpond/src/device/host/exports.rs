//! Files that other processes may have, too: how they get them, and what is checked of them.
//!
//! A page is a range of its device's file. What stands for it in another process is that file, opened anew, and where in it
//! the page begins. The file's own position says nothing: all who have a descriptor can move it.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use crate::device::error::system;
use crate::device::inventory::invalid;
use crate::device::{DeviceResult, PageExport, sealed};

/// The file, opened anew, so that position and locks are not shared.
pub(super) fn reopen(file: &OwnedFd) -> DeviceResult<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(system("open"))
}

/// Refuses what is no page of so many bytes.
pub(super) fn check_page(from: &PageExport, bytes: u64) -> DeviceResult<()> {
    const CALL: &str = "import_page";
    let system_page = rustix::param::page_size() as u64;
    match from.position.checked_add(bytes) {
        Some(end) if from.position.is_multiple_of(system_page) => sealed::check(CALL, &from.descriptor, end),
        _ => invalid(CALL, "the descriptor is at no page of another process's host device"),
    }
}
