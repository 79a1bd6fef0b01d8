//! Files in memory that several processes have. Nobody can shorten them: to touch what was cut off ends a process.

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::DeviceResult;
use super::error::system;
use super::inventory::invalid;
use crate::system::file_limit;

/// A new file of so many bytes. Others can make it longer, but add no seals.
pub(crate) fn create(name: &str, bytes: u64) -> DeviceResult<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags).map_err(system("memfd_create"))?;
    lengthen(&file, bytes)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL)
        .map_err(system("fcntl(F_ADD_SEALS)"))?;
    Ok(file)
}

/// Makes a file so long.
pub(crate) fn lengthen(file: &OwnedFd, bytes: u64) -> DeviceResult<()> {
    file_limit::refusing(|| rustix::fs::ftruncate(file, bytes)).map_err(system("ftruncate"))
}

/// `TMPFS_MAGIC` of linux/magic.h.
const IN_MEMORY: rustix::fs::FsWord = 0x0102_1994;

/// Refuses what is no file of so many bytes that stay.
pub(crate) fn check(call: &'static str, file: &OwnedFd, bytes: u64) -> DeviceResult<()> {
    // Only files in memory have seals; others answer with an error.
    let sealed = rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    // Files of huge pages have seals, too. But the system maps more of them than it is asked for, over what lies behind.
    let plain = rustix::fs::fstatfs(file).is_ok_and(|of| of.f_type == IN_MEMORY);
    if !sealed || !plain || length(file)? < bytes {
        return invalid(call, "the descriptor is not what another process of millpond exported");
    }
    Ok(())
}

pub(crate) fn length(file: &OwnedFd) -> DeviceResult<u64> {
    Ok(rustix::fs::fstat(file).map_err(system("fstat"))?.st_size as u64)
}

/// A number that several processes read and write, in a file of its own. It may be anything at any time.
#[derive(Debug)]
pub(crate) struct SharedNumber(*const AtomicU64);

// SAFETY: the pointer is to memory that threads, and processes, share.
unsafe impl Send for SharedNumber {}
// SAFETY: as above.
unsafe impl Sync for SharedNumber {}

impl SharedNumber {
    /// Bytes of its file, and of its mapping.
    const BYTES: usize = 4096;

    /// A zero, and the file that others open it by.
    pub(crate) fn create(name: &str) -> DeviceResult<(Self, OwnedFd)> {
        let file = create(name, Self::BYTES as u64)?;
        Ok((Self::open("mmap", &file)?, file))
    }

    /// The number in a file, which another process may have made.
    pub(crate) fn open(call: &'static str, file: &OwnedFd) -> DeviceResult<Self> {
        check(call, file, Self::BYTES as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the system chooses. Nobody can shorten the file.
        let at =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), Self::BYTES, access, MapFlags::SHARED, file, 0) };
        at.map(|at| Self(at.cast_const().cast())).map_err(system("mmap"))
    }
}

impl std::ops::Deref for SharedNumber {
    type Target = AtomicU64;

    fn deref(&self) -> &AtomicU64 {
        // SAFETY: mapped as long as this lives, and aligned as a page is.
        unsafe { &*self.0 }
    }
}

impl Drop for SharedNumber {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, and nobody has the pointer after this.
        let unmapped = unsafe { rustix::mm::munmap(self.0.cast_mut().cast(), Self::BYTES) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}
