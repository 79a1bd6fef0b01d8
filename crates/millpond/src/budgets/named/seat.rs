//! Locks on the register's file, by which the system says who is still there.
//!
//! A process with a slot holds a lock on one byte, its *seat*. Memory that it shares is a range that is locked, too: by
//! all who have it open. Such locks belong to open file descriptions (`F_OFD_SETLK`, fcntl(2)). A forked child has those of
//! its parent, as it has the driver's descriptors. They end with the last process that has one, also by `kill -9`, and are
//! never left behind.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use nix::fcntl::{FcntlArg, fcntl};

use crate::log::log;
use crate::policy::budgets::ROUND;
use crate::system::open_file::{OpenFile, keep_open};

/// Addresses that one process can share: no device has more (x86-64 has 47 or 56 bits, of which Linux gives 47 unless it is asked
/// for more; aarch64 has 52, CUDA 49). All windows together end before the longest file.
const WINDOW: u64 = 1 << 52;

/// The byte of a seat.
fn byte(slot: usize) -> Range<u64> {
    slot as u64..slot as u64 + 1
}

/// Where in the file the addresses of a process are locked: behind all seats. Nothing is ever written there.
fn window(slot: usize) -> Range<u64> {
    let from = (slot as u64 + 1) * WINDOW;
    from..from + WINDOW
}

/// What keeps a slot its process's.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) slot: usize,
    _kept: OpenFile,
}

/// A lock on a seat, for an instant: nobody else takes the slot, or clears it.
#[derive(Debug)]
pub(super) struct Claim {
    slot: usize,
    /// `None` once it is a seat.
    file: Option<File>,
}

impl Claim {
    /// `None` where somebody has the seat.
    pub(super) fn take(register: &File, slot: usize) -> io::Result<Option<Self>> {
        let file = reopen(register, true)?;
        match lock(&file, libc::F_WRLCK, byte(slot)) {
            Ok(()) => Ok(Some(Self { slot, file: Some(file) })),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Keeps it until the process and all that it forks have ended.
    pub(super) fn keep(mut self) -> io::Result<Seat> {
        let file = self.file.as_ref().expect("it is no seat yet");
        let kept = keep_open(file)?;
        // By its kind, a seat is told from a claim.
        lock(file, libc::F_RDLCK, byte(self.slot))?;
        self.file = None;
        Ok(Seat { slot: self.slot, _kept: kept })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Said, not only closed: a child that was forked meanwhile has the descriptor.
        if let Some(file) = &self.file
            && let Err(error) = lock(file, libc::F_UNLCK, byte(self.slot))
        {
            log!(WARN, "a slot of a budget could not be unlocked", error);
        }
    }
}

/// Whether somebody has the seat: the process that took it, or a child that it forked. Waits for who only claims it.
pub(super) fn is_taken(register: &File, slot: usize) -> bool {
    let began = Instant::now();
    loop {
        match first_lock(register, byte(slot)) {
            Ok(None) => return false,
            Ok(Some((libc::F_WRLCK, _))) if began.elapsed() < ROUND => std::thread::yield_now(),
            // If the system cannot say, nobody is taken for gone.
            _ => return true,
        }
    }
}

/// Locks a range of the process's addresses. Whoever has the descriptor, or the same file, keeps it locked. It cannot be
/// written to.
pub(super) fn lend(register: &File, slot: usize, addresses: Range<u64>) -> io::Result<OwnedFd> {
    let file = reopen(register, false)?;
    let Range { start, end } = window(slot);
    let within = |address: u64| start.checked_add(address).filter(|at| *at <= end);
    let Some((from, to)) = within(addresses.start).zip(within(addresses.end)).filter(|(from, to)| from < to)
    else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    lock(&file, libc::F_RDLCK, from..to)?;
    Ok(file.into())
}

/// Bytes of the process's memory that somebody has open. What several have counts once. All of it, where it takes longer than `until`
/// to ask.
pub(super) fn lent_bytes(register: &File, slot: usize, until: Option<Instant>) -> u64 {
    let mut bytes = 0;
    let mut parts = vec![window(slot)];
    while let Some(part) = parts.pop() {
        if until.is_some_and(|until| Instant::now() >= until) {
            return u64::MAX;
        }
        match first_lock(register, part.clone()) {
            Ok(None) => {}
            Ok(Some((_, found))) => {
                let found = found.start.max(part.start)..found.end.min(part.end);
                bytes += found.end - found.start;
                let beside = [part.start..found.start, found.end..part.end];
                parts.extend(beside.into_iter().filter(|part| !part.is_empty()));
            }
            Err(_) => return u64::MAX,
        }
    }
    bytes
}

/// The register's file, opened anew: what others lock is not locked by this.
fn reopen(register: &File, writable: bool) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", register.as_raw_fd());
    File::options().read(true).write(writable).open(path)
}

fn request(kind: libc::c_int, range: &Range<u64>) -> libc::flock {
    let (l_type, l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    let (l_start, l_len) = (range.start as libc::off_t, (range.end - range.start) as libc::off_t);
    libc::flock { l_type, l_whence, l_start, l_len, l_pid: 0 }
}

/// Locks or unlocks a range. Does not wait.
fn lock(file: &File, kind: libc::c_int, range: Range<u64>) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&request(kind, &range)))?;
    Ok(())
}

/// One of the locks on a range that are not this file's own: its kind, and what it is on.
fn first_lock(file: &File, range: Range<u64>) -> io::Result<Option<(libc::c_int, Range<u64>)>> {
    let mut found = request(libc::F_WRLCK, &range);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    if i32::from(found.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let start = found.l_start.cast_unsigned();
    // No length is up to the end of all files.
    let length = if found.l_len == 0 { i64::MAX } else { found.l_len };
    Ok(Some((found.l_type.into(), start..start.saturating_add(length.cast_unsigned()))))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::fixtures::nobody_begins;
    use crate::system::lock::RwLockReadGuard;

    /// A file, and who has it is not changed by other tests meanwhile.
    fn file() -> (RwLockReadGuard<'static, ()>, File) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        (nobody_begins(), file)
    }

    #[test]
    fn a_seat_is_one_processes_until_it_is_dropped() {
        let (_still, file) = file();
        let seat = Claim::take(&file, 5).unwrap().unwrap().keep().unwrap();
        assert!(is_taken(&file, 5) && !is_taken(&file, 4) && !is_taken(&file, 6));
        assert!(Claim::take(&file, 5).unwrap().is_none());
        drop(seat);
        assert!(!is_taken(&file, 5));
        let claim = Claim::take(&file, 5).unwrap().unwrap();
        // As a child that was forked here.
        let _copy = claim.file.as_ref().unwrap().try_clone().unwrap();
        assert!(is_taken(&file, 5));
        drop(claim);
        assert!(!is_taken(&file, 5));
    }

    #[test]
    fn who_only_claims_a_seat_is_waited_for() {
        let (_still, file) = file();
        let claim = Claim::take(&file, 5).unwrap().unwrap();
        assert!(is_taken(&file, 5), "its holder is stopped, maybe");
        // Until then, whoever asks waits; and a process that is there is not waited for.
        let seat = claim.keep().unwrap();
        let (kind, _) = first_lock(&file, byte(5)).unwrap().unwrap();
        assert_eq!(kind, libc::F_RDLCK);
        assert!(is_taken(&file, 5) && Claim::take(&file, 5).unwrap().is_none());
        drop(seat);
        assert!(!is_taken(&file, 5));
    }

    #[test]
    fn what_several_have_open_counts_once_and_as_long_as_one_has_it() {
        let (_still, file) = file();
        assert_eq!(lent_bytes(&file, 3, None), 0);
        let first = lend(&file, 3, 0x1000..0x5000).unwrap();
        let second = lend(&file, 3, 0x3000..0x8000).unwrap();
        let far = lend(&file, 3, 0x7f00_0000_0000..0x7f00_0000_1000).unwrap();
        let _of_another = lend(&file, 4, 0..0x1000).unwrap();
        assert_eq!(
            (lent_bytes(&file, 3, None), lent_bytes(&file, 4, None), lent_bytes(&file, 2, None)),
            (0x8000, 0x1000, 0)
        );
        let copy = first.try_clone().unwrap();
        drop((first, far));
        assert_eq!(lent_bytes(&file, 3, None), 0x7000);
        let kept = keep_open(&copy).unwrap();
        drop((copy, second));
        assert_eq!(lent_bytes(&file, 3, None), 0x4000);
        drop(kept);
        assert_eq!(lent_bytes(&file, 3, None), 0);
    }

    #[test]
    fn locks_of_any_kind_are_counted_within_their_process_only() {
        let (_still, file) = file();
        let other = reopen(&file, false).unwrap();
        lock(&other, libc::F_RDLCK, 0..0).unwrap(); // to the end of all files
        assert!(is_taken(&file, 7));
        assert_eq!((lent_bytes(&file, 0, None), lent_bytes(&file, 62, None)), (WINDOW, WINDOW));
        drop(other);
        let other = reopen(&file, false).unwrap();
        for piece in 0..3000_u64 {
            let at = window(1).start + piece * 16;
            lock(&other, libc::F_RDLCK, at..at + 1).unwrap();
        }
        assert_eq!(lent_bytes(&file, 1, None), 3000);
        assert_eq!(lent_bytes(&file, 2, None), 0);
    }

    #[test]
    fn addresses_that_no_device_has_are_refused() {
        let (_still, file) = file();
        for addresses in [u64::MAX - 10..u64::MAX, WINDOW - 1..WINDOW + 1, 7..7] {
            assert!(lend(&file, 1, addresses).is_err());
        }
    }
}
