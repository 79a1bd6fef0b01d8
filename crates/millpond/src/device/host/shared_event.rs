//! An event that several processes record and wait for.
//!
//! Its file holds one number: how often it was recorded. Whoever records it locks the byte of that number, until the work
//! before is done, and whoever waits for it waits for the lock. The system drops the locks of a process that dies, so
//! nobody waits for it.
//!
//! Such locks belong to an open file. So each event opens its file twice: once to record it, and once to wait.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::exports;
use crate::device::DeviceResult;
use crate::device::error::system;
use crate::lock::Mutex;

/// Bytes of the file that are mapped.
const BYTES: usize = 4096;

#[derive(Debug)]
pub(super) struct SharedEvent {
    /// Locked while the number is raised. Threads share the locks of a file, and so exclude each other here.
    recording: Arc<Mutex<OwnedFd>>,
    waiting: OwnedFd,
    /// How often it was recorded, in any process.
    count: *const AtomicU64,
}

// SAFETY: the pointer is to memory that threads, and processes, share.
unsafe impl Send for SharedEvent {}
// SAFETY: as above.
unsafe impl Sync for SharedEvent {}

/// One record. Dropped when the work before it is done.
#[derive(Debug)]
pub(super) struct Pending {
    file: Arc<Mutex<OwnedFd>>,
    number: u64,
}

impl Drop for Pending {
    fn drop(&mut self) {
        let unlocked = lock(&self.file.lock(), libc::F_UNLCK, self.number, libc::F_OFD_SETLK);
        debug_assert_eq!(unlocked, Ok(true));
    }
}

impl SharedEvent {
    /// A new event, and the file that others open it by.
    pub(super) fn create() -> DeviceResult<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("millpond event", flags).map_err(system("memfd_create"))?;
        rustix::fs::ftruncate(&file, BYTES as u64).map_err(system("ftruncate"))?;
        exports::seal(&file)?;
        Ok((Self::open(&file)?, file))
    }

    /// The event of this file, which another process may have made.
    pub(super) fn open(file: &OwnedFd) -> DeviceResult<Self> {
        exports::check_file("open_event", file, BYTES as u64)?;
        let (recording, waiting) = (exports::reopen(file)?, exports::reopen(file)?);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the system chooses. Nobody can shorten the file.
        let at =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES, access, MapFlags::SHARED, &recording, 0) };
        let count = at.map_err(system("mmap"))?.cast_const().cast();
        Ok(Self { recording: Arc::new(Mutex::new(recording)), waiting, count })
    }

    fn count(&self) -> &AtomicU64 {
        // SAFETY: mapped as long as this lives, and aligned as a page is.
        unsafe { &*self.count }
    }

    /// The last record, to be [waited](Self::wait) for.
    pub(super) fn recorded(&self) -> u64 {
        // Acquire: pairs with the Release in `record`. Whoever sees a number sees its lock.
        self.count().load(Ordering::Acquire)
    }

    /// Lets the event stand for what is not done until the result is dropped.
    pub(super) fn record(&self) -> DeviceResult<Pending> {
        let file = self.recording.lock();
        loop {
            let last = self.recorded();
            let number = last.wrapping_add(1) & i64::MAX as u64;
            // Before anybody sees the number. Another process that locked it first is about to raise the count.
            if lock(&file, libc::F_WRLCK, number, libc::F_OFD_SETLK).map_err(system("fcntl(F_OFD_SETLK)"))? {
                let count = self.count();
                if count.compare_exchange(last, number, Ordering::Release, Ordering::Relaxed).is_ok() {
                    break Ok(Pending { file: self.recording.clone(), number });
                }
                lock(&file, libc::F_UNLCK, number, libc::F_OFD_SETLK)
                    .map_err(system("fcntl(F_OFD_SETLK)"))?;
            }
            std::thread::yield_now();
        }
    }

    /// Whether the work before the last record is done.
    pub(super) fn query(&self) -> DeviceResult<bool> {
        self.try_wait(self.recorded(), libc::F_OFD_SETLK).map_err(system("fcntl(F_OFD_SETLK)"))
    }

    /// Waits until the work before a record is done, or its process is gone.
    pub(super) fn wait(&self, number: u64) {
        if let Err(error) = self.try_wait(number, libc::F_OFD_SETLKW) {
            // A panic of the work on a stream is reported by the next call that waits for it.
            panic!("an event of another process cannot be waited for: {error}");
        }
    }

    fn try_wait(&self, number: u64, how: libc::c_int) -> Result<bool, Errno> {
        if number == 0 {
            return Ok(true);
        }
        let is_done = lock(&self.waiting, libc::F_RDLCK, number, how)?;
        if is_done {
            lock(&self.waiting, libc::F_UNLCK, number, libc::F_OFD_SETLK)?;
        }
        Ok(is_done)
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, and nobody has the pointer after this.
        let unmapped = unsafe { rustix::mm::munmap(self.count.cast_mut().cast(), BYTES) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// Locks or unlocks the byte of a number; `false` where another file has it, and this does not wait.
fn lock(file: &OwnedFd, kind: libc::c_int, number: u64, how: libc::c_int) -> Result<bool, Errno> {
    // SAFETY: numbers, of which zeros are valid.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    range.l_start = number as libc::off_t;
    range.l_len = 1;
    loop {
        // SAFETY: the descriptor is open, and the description readable.
        if unsafe { libc::fcntl(file.as_raw_fd(), how, &range) } == 0 {
            return Ok(true);
        }
        match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
            Errno::INTR => {}
            Errno::AGAIN | Errno::ACCESS => return Ok(false),
            error => return Err(error),
        }
    }
}
