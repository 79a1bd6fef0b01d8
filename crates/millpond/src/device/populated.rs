//! Memory of the process whose pages are all there when it is handed out, in huge pages where the system has them.
//!
//! The system sets a page to zero when it is touched first. A driver that locks memory does that with one thread. Here
//! several threads have it done before.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{ptr, thread};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The system's huge pages on x86-64, and on Arm with base pages of 4 KiB.
const HUGE_PAGE: usize = 2 << 20;

/// What one thread touches before it takes the next part: some milliseconds.
const PART: usize = 32 * HUGE_PAGE;

/// More threads do not help: the system's memory is slower than they are (see docs/lab/memory-kinds.md).
const MOST_THREADS: usize = 8;

/// A mapping of the process, from a multiple of a huge page on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Populated {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: it names memory, and hands out the address only. Who frees it promises that nobody uses it.
unsafe impl Send for Populated {}

impl Populated {
    /// Maps `bytes`, rounded up to whole pages, on a NUMA node if one is named, and touches all of it.
    ///
    /// # Errors
    /// The system's. Where it is short of memory, that is often an end of the process instead: ask what is free first.
    pub(super) fn map(bytes: usize, node: Option<u32>) -> Result<Self, Errno> {
        let mapped = Self::reserve(bytes)?;
        let ready = mapped.bind(node).and_then(|()| {
            // Without huge pages it is slower, and no less right.
            // SAFETY: our mapping, which nobody else knows.
            let _ = unsafe { rustix::mm::madvise(mapped.start, mapped.bytes, Advice::LinuxHugepage) };
            mapped.populate()
        });
        if let Err(error) = ready {
            // SAFETY: nobody knows it.
            let _ = unsafe { mapped.unmap() };
            return Err(error);
        }
        Ok(mapped)
    }

    pub(super) fn start(self) -> *mut c_void {
        self.start
    }

    pub(super) fn bytes(self) -> usize {
        self.bytes
    }

    /// Gives the memory back to the system.
    ///
    /// # Safety
    /// Nobody uses it, and nobody will.
    pub(super) unsafe fn unmap(self) -> Result<(), Errno> {
        // SAFETY: the caller's promise, of one whole mapping.
        unsafe { rustix::mm::munmap(self.start, self.bytes) }
    }

    /// Maps a range that begins at a multiple of a huge page.
    fn reserve(bytes: usize) -> Result<Self, Errno> {
        let whole_pages = bytes.checked_next_multiple_of(rustix::param::page_size());
        let bytes = whole_pages.ok_or(Errno::NOMEM)?;
        let padded = bytes.checked_add(HUGE_PAGE).ok_or(Errno::NOMEM)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at an address that the system chooses, touches nothing that exists.
        let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), padded, access, flags) }?;
        let before = start.align_offset(HUGE_PAGE);
        let whole = Self { start: start.wrapping_byte_add(before), bytes };
        let ends = [(start, before), (whole.start.wrapping_byte_add(bytes), HUGE_PAGE - before)];
        for (at, bytes) in ends.into_iter().filter(|(_, bytes)| *bytes > 0) {
            // SAFETY: a part of the mapping just made that is not handed out.
            unsafe { rustix::mm::munmap(at, bytes) }?;
        }
        Ok(whole)
    }

    /// Has the system take the pages from this node only.
    fn bind(self, node: Option<u32>) -> Result<(), Errno> {
        let Some(node) = node else { return Ok(()) };
        const BITS: usize = libc::c_ulong::BITS as usize;
        let mut mask = [0 as libc::c_ulong; 1024 / BITS];
        let word = mask.get_mut(node as usize / BITS).ok_or(Errno::INVAL)?;
        *word = 1 << (node as usize % BITS);
        // SAFETY: our mapping, which nobody else knows; the mask has as many bits as the call is told. The kernel reads one
        // bit less than that.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start,
                self.bytes,
                libc::MPOL_BIND,
                mask.as_ptr(),
                1024 + 1,
                0,
            )
        };
        if done == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(errno())) }
    }

    fn populate(self) -> Result<(), Errno> {
        let parts = self.bytes.div_ceil(PART);
        let next = AtomicUsize::new(0);
        let (start, bytes) = (self.start.expose_provenance(), self.bytes);
        let work = || {
            loop {
                // Relaxed: each part is taken once, and nothing else is concluded from it.
                let part = next.fetch_add(1, Ordering::Relaxed);
                if part >= parts {
                    return Ok(());
                }
                let from = part * PART;
                let at = ptr::with_exposed_provenance_mut(start + from);
                // SAFETY: a part of our mapping, which nobody else knows.
                match unsafe { rustix::mm::madvise(at, PART.min(bytes - from), Advice::LinuxPopulateWrite) } {
                    Ok(()) => {}
                    // Linux before 5.14 has no such call. Then the driver touches the pages.
                    Err(Errno::INVAL) => return Ok(()),
                    Err(error) => {
                        next.store(parts, Ordering::Relaxed);
                        return Err(error);
                    }
                }
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS).min(parts);
        thread::scope(|scope| {
            // Without a thread, the others do its part.
            let named = || thread::Builder::new().name("millpond-pages".to_owned());
            let others: Vec<_> =
                (1..threads).filter_map(|_| named().spawn_scoped(scope, work).ok()).collect();
            let own = work();
            others.into_iter().fold(own, |done, other| done.and(other.join().unwrap_or(Err(Errno::INTR))))
        })
    }
}

/// The error of the last call of the C library.
fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_there_and_zero() {
        let bytes = PART + 3 * HUGE_PAGE + 4096;
        let mapped = Populated::map(bytes, Some(0)).unwrap();
        assert_eq!((mapped.start().align_offset(HUGE_PAGE), mapped.bytes()), (0, bytes));
        let mut resident = vec![0_u8; bytes / 4096];
        // SAFETY: the mapping lives, and there is a byte for each page.
        assert_eq!(unsafe { libc::mincore(mapped.start(), bytes, resident.as_mut_ptr()) }, 0);
        assert!(resident.iter().all(|page| page & 1 == 1), "touched before it is handed out");
        // SAFETY: as above, and nobody writes.
        let content = unsafe { std::slice::from_raw_parts(mapped.start().cast::<u8>(), bytes) };
        assert!(content.iter().all(|byte| *byte == 0));
        // SAFETY: nobody uses it.
        unsafe { mapped.unmap() }.unwrap();
    }

    #[test]
    fn less_than_a_page_takes_a_page() {
        let mapped = Populated::map(512, None).unwrap();
        assert_eq!(mapped.bytes(), rustix::param::page_size());
        // SAFETY: nobody uses it.
        unsafe { mapped.unmap() }.unwrap();
    }

    #[test]
    fn a_node_that_is_not_there_is_refused() {
        assert_eq!(Populated::map(HUGE_PAGE, Some(1000)), Err(Errno::INVAL));
        assert_eq!(Populated::map(HUGE_PAGE, Some(100_000)), Err(Errno::INVAL));
    }

    #[test]
    fn more_than_there_can_be_is_refused() {
        assert_eq!(Populated::map(usize::MAX - 5, None), Err(Errno::NOMEM));
        assert_eq!(Populated::map(1 << 50, None), Err(Errno::NOMEM));
    }
}
