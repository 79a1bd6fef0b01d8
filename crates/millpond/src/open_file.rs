//! `open_file`: a file that is open without a descriptor. Uses `process`; every floor may use it.

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags};

use crate::process::Process;

/// Keeps the open file description of a descriptor, which may be closed then. It is let go of when this is dropped, at `exec`, and
/// at the end of the process. A forked child has it, too, until one of the latter two.
///
/// The locks of an open file description (`F_OFD_SETLK`) last as long as anybody has it. A mapping has it, of which
/// nothing is ever read. So it takes no descriptor. And a process that ends lets go of its mappings' files after those of
/// its descriptors (Linux closes what was let go of last first), so after the driver's.
#[derive(Debug)]
pub(crate) struct OpenFile {
    at: NonNull<c_void>,
    process: Process,
}

// SAFETY: the mapping is never read or written, and not bound to a thread.
unsafe impl Send for OpenFile {}
// SAFETY: as above.
unsafe impl Sync for OpenFile {}

impl OpenFile {
    /// Keeps a file that has at least one byte.
    pub(crate) fn keep(file: impl AsFd) -> rustix::io::Result<Self> {
        // SAFETY: a new mapping, at an address that the system chooses.
        let at =
            unsafe { rustix::mm::mmap(ptr::null_mut(), 1, ProtFlags::empty(), MapFlags::SHARED, file, 0) }?;
        Ok(Self { at: NonNull::new(at).expect("nothing is mapped at null"), process: Process::here() })
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // A forked child keeps it, as it keeps the driver's descriptors.
        if self.process.is_here() {
            // SAFETY: mapped by `keep`, and nobody knows the address.
            if let Err(error) = unsafe { rustix::mm::munmap(self.at.as_ptr(), 1) } {
                tracing::warn!(%error, "a file could not be closed: it stays open until this process ends");
            }
        }
    }
}
