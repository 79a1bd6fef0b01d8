//! An event that several processes record and wait for.
//!
//! Its file holds one number: how often it was recorded. Whoever records it locks the byte of that number, until the work
//! before is done, and whoever waits for it waits until the byte can be locked. The system drops the locks of a process that
//! dies, so nobody waits for it.
//!
//! Such locks belong to an open file. So each event opens its file twice: once to record it, and once to wait. Forked
//! children close both. Else a lock would last as long as a child does.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::exports;
use crate::device::error::system;
use crate::device::sealed::SharedNumber;
use crate::device::{DeviceError, DeviceResult};
use crate::system::close_on_fork::CloseOnFork;
use crate::system::lock::Mutex;

/// The largest number: a file has no byte beyond.
const LARGEST: u64 = i64::MAX as u64;

/// How long a record waits for another process that is recording: that takes microseconds, unless it is stopped.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct SharedEvent {
    /// Locked while the number is raised. Threads share the locks of a file, and so exclude each other here.
    recording: Arc<Mutex<CloseOnFork>>,
    waiting: CloseOnFork,
    /// How often it was recorded, in any process.
    count: SharedNumber,
}

/// One record. Dropped when the work before it is done.
#[derive(Debug)]
pub(super) struct Pending {
    file: Arc<Mutex<CloseOnFork>>,
    number: u64,
}

impl Drop for Pending {
    fn drop(&mut self) {
        let unlocked = lock(&self.file.lock(), libc::F_UNLCK, self.number);
        debug_assert_eq!(unlocked, Ok(true));
    }
}

impl SharedEvent {
    /// A new event, and the file that others open it by.
    pub(super) fn create() -> DeviceResult<(Self, OwnedFd)> {
        let (count, file) = SharedNumber::create("millpond event")?;
        Ok((Self::over(count, &file)?, file))
    }

    /// The event of this file, which another process may have made.
    pub(super) fn open(file: &OwnedFd) -> DeviceResult<Self> {
        Self::over(SharedNumber::open("open_event", file)?, file)
    }

    fn over(count: SharedNumber, file: &OwnedFd) -> DeviceResult<Self> {
        let [recording, waiting] =
            CloseOnFork::open(|| DeviceResult::Ok([exports::reopen(file)?, exports::reopen(file)?]))?;
        Ok(Self { recording: Arc::new(Mutex::new(recording)), waiting, count })
    }

    /// The last record, to be [waited](Self::wait) for.
    pub(super) fn recorded(&self) -> u64 {
        // Acquire: pairs with the Release in `try_record`. Whoever sees a number sees its lock. Another process may have
        // written any number.
        self.count.load(Ordering::Acquire) & LARGEST
    }

    /// Lets the event stand for what is not done until the result is dropped.
    pub(super) fn record(&self) -> DeviceResult<Pending> {
        let began = Instant::now();
        loop {
            if let Some(pending) = self.try_record().map_err(system("fcntl(F_OFD_SETLK)"))? {
                return Ok(pending);
            }
            if began.elapsed() > PATIENCE {
                return Err(DeviceError::Driver {
                    call: "record_event",
                    code: Errno::AGAIN.raw_os_error(),
                    name: "EVENT_LOCKED".to_owned(),
                    text: "another process keeps the event locked, or stopped while it recorded it: end that process, \
                           or share the memory anew"
                        .to_owned(),
                });
            }
            // Without the lock of this process: work that is done must be able to say so.
            thread::sleep(Duration::from_micros(10));
        }
    }

    /// `None` where another process is recording.
    fn try_record(&self) -> Result<Option<Pending>, Errno> {
        let file = self.recording.lock();
        let last = self.count.load(Ordering::Acquire);
        let number = last.wrapping_add(1) & LARGEST;
        // Before anybody sees the number. Another process that locked it first is about to raise the count.
        if !lock(&file, libc::F_WRLCK, number)? {
            return Ok(None);
        }
        if self.count.compare_exchange(last, number, Ordering::Release, Ordering::Relaxed).is_ok() {
            return Ok(Some(Pending { file: self.recording.clone(), number }));
        }
        lock(&file, libc::F_UNLCK, number)?;
        Ok(None)
    }

    /// Whether the work before the last record is done.
    pub(super) fn query(&self) -> DeviceResult<bool> {
        self.try_wait(self.recorded()).map_err(system("fcntl(F_OFD_SETLK)"))
    }

    /// Waits until the work before a record is done, or its process is gone. It asks again and again: valgrind keeps all
    /// threads of the process waiting while one waits for such a lock (3.19). No error ends it: what comes behind the event
    /// would come before.
    pub(super) fn wait(&self, number: u64) {
        let mut pause = Duration::from_micros(10);
        while !self.try_wait(number).unwrap_or(false) {
            thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(1));
        }
    }

    fn try_wait(&self, number: u64) -> Result<bool, Errno> {
        if number == 0 {
            return Ok(true);
        }
        let is_done = lock(&self.waiting, libc::F_RDLCK, number)?;
        if is_done {
            lock(&self.waiting, libc::F_UNLCK, number)?;
        }
        Ok(is_done)
    }
}

/// Locks or unlocks the byte of a number, without waiting; `false` where another file has it.
fn lock(file: &CloseOnFork, kind: libc::c_int, number: u64) -> Result<bool, Errno> {
    // A forked child has no locks: those of the parent stay.
    let Some(file) = file.here() else { return Ok(true) };
    // SAFETY: numbers, of which zeros are valid.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    range.l_start = number as libc::off_t;
    range.l_len = 1;
    loop {
        // SAFETY: the descriptor is open, and the description readable.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &range) } == 0 {
            return Ok(true);
        }
        match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
            Errno::INTR => {}
            Errno::AGAIN | Errno::ACCESS => return Ok(false),
            error => return Err(error),
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs::File;
    use std::os::fd::RawFd;

    use super::*;
    use crate::fixtures::alone;

    fn put(file: &impl AsRawFd, at: RawFd) {
        // SAFETY: the number is that of a descriptor which the test has.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), at) }, at);
    }

    #[test]
    fn a_wait_outlasts_errors_of_the_system() {
        alone("device::host::shared_event::tests::a_wait_outlasts_errors_of_the_system", || {
            let (own, file) = SharedEvent::create().unwrap();
            let event = SharedEvent::open(&file).unwrap();
            let pending = own.record().unwrap();
            let waiting = event.waiting.here().unwrap();
            let (at, whole) = (waiting.as_raw_fd(), waiting.try_clone().unwrap());
            // What cannot be read cannot be locked.
            put(&File::options().write(true).open("/dev/null").unwrap(), at);
            assert!(event.query().is_err());
            thread::scope(|scope| {
                let waits = scope.spawn(|| event.wait(event.recorded()));
                thread::sleep(Duration::from_millis(20));
                let goes_on = !waits.is_finished();
                put(&whole, at);
                thread::sleep(Duration::from_millis(20));
                assert!(goes_on && !waits.is_finished(), "the work before is not done");
                drop(pending);
            });
        });
    }
}
