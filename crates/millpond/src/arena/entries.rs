//! The memory of a table's entries: one stretch of the host's addresses with room for all of a region, of which only
//! those pages of the host have memory in which blocks started.
//!
//! So a look-up is a shift and an addition, and needs no test: what was never written reads as zeros, which is no block.
//! (As in a sparse file.) Nothing here is reserved or counted by the system before it is made writable: until then the
//! stretch is mapped for reading only. That is done for a place before pages are put there, so that it can fail while
//! nothing has changed; a block that starts there later takes a page of the host's at most.
//!
//! These pages are the smallest that the host has: each holds the entries of 64 places, 32 KiB of small blocks or 64 MiB
//! of large ones. On huge pages a few hundred blocks of 512 KiB took as much as their entries could ever take. Where a
//! region has no memory of the device's any more, its entries [give theirs](Entries::let_go) back.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use super::table::Entry;

/// What is made writable together, but for the last.
const PART: usize = 2 << 20;

/// Entries in one.
const IN_PART: usize = PART / size_of::<Entry>();

/// No shorter than a page of the host's.
const HOST_PAGE: usize = 64 << 10;

/// What a part is: for reading only, writable and as good as empty, or with entries of blocks.
const BARE: u8 = 0;
const WRITABLE: u8 = 1;
const USED: u8 = 2;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Entries {
    first: NonNull<Entry>,
    memory: Memory,
    /// What each part is. Written under the pool's lock.
    parts: Box<[AtomicU8]>,
}

// SAFETY: entries are made of atomics, and the memory is this struct's own.
unsafe impl Send for Entries {}
// SAFETY: as above.
unsafe impl Sync for Entries {}

impl Entries {
    /// `count` entries, all of no block. `None` where the process has not enough addresses left.
    pub(super) fn new(count: usize) -> Option<Self> {
        let bytes = count.checked_mul(size_of::<Entry>())?.checked_next_multiple_of(HOST_PAGE)?;
        let mut parts = Vec::new();
        parts.try_reserve_exact(bytes.div_ceil(PART)).ok()?;
        parts.extend(std::iter::repeat_with(AtomicU8::default).take(bytes.div_ceil(PART)));
        let memory = Memory::reserve(bytes)?;
        Some(Self { first: memory.start().cast(), memory, parts: parts.into_boxed_slice() })
    }

    /// The first of them.
    #[inline]
    pub(super) fn first(&self) -> NonNull<Entry> {
        self.first
    }

    /// Has entries with these numbers backed, so that they may be written; `false` where the host has no memory for
    /// them. Under the pool's lock.
    pub(super) fn back(&self, numbers: Range<usize>) -> bool {
        (numbers.start / IN_PART..numbers.end.div_ceil(IN_PART)).all(|part| {
            // Relaxed, here and below: written and read under the lock.
            let is_backed = self.parts[part].load(Ordering::Relaxed) != BARE;
            is_backed || self.back_slow(part)
        })
    }

    #[cold]
    fn back_slow(&self, part: usize) -> bool {
        let backed = self.memory.back(part);
        if backed {
            self.parts[part].store(WRITABLE, Ordering::Relaxed);
        }
        backed
    }

    /// Notes that the entry with this number is about to be written. It is backed. Under the pool's lock.
    #[inline]
    pub(super) fn note_used(&self, number: usize) {
        let part = &self.parts[number / IN_PART];
        let was = part.load(Ordering::Relaxed);
        if was != USED {
            assert_ne!(was, BARE, "a place is backed before a block starts there");
            part.store(USED, Ordering::Relaxed);
        }
    }

    /// Gives back the host's memory of entries with these numbers, all of no block: they read as zeros again. Under the
    /// pool's lock.
    pub(super) fn let_go(&self, numbers: Range<usize>) {
        for part in numbers.start / IN_PART..numbers.end.div_ceil(IN_PART) {
            if self.parts[part].load(Ordering::Relaxed) != USED {
                continue;
            }
            let first = part * IN_PART;
            let within = numbers.start.max(first)..numbers.end.min(first + IN_PART);
            if within.len() == IN_PART {
                self.parts[part].store(WRITABLE, Ordering::Relaxed);
            }
            self.memory.let_go(within.start * size_of::<Entry>()..within.end * size_of::<Entry>());
        }
    }

    /// Bytes in parts that may hold entries of blocks.
    #[cfg(test)]
    pub(super) fn used_parts(&self) -> usize {
        self.parts.iter().filter(|part| part.load(Ordering::Relaxed) == USED).count()
    }
}

#[cfg(all(unix, not(miri)))]
use mapped::Memory;

#[cfg(all(unix, not(miri)))]
mod mapped {
    use std::ffi::c_void;
    use std::ops::Range;
    use std::ptr::{self, NonNull};

    #[cfg(target_os = "linux")]
    use rustix::mm::{Advice, madvise};
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::PART;

    /// A mapping that is longer by [`PART`] than what was asked for, so that it can be aligned to that.
    #[derive(Debug)]
    pub(super) struct Memory {
        map: NonNull<c_void>,
        bytes: usize,
    }

    impl Memory {
        pub(super) fn reserve(bytes: usize) -> Option<Self> {
            let all = bytes.checked_add(PART)?;
            // SAFETY: a new mapping, at an address that the system chooses, touches nothing that exists.
            let map = unsafe { mmap_anonymous(ptr::null_mut(), all, ProtFlags::READ, MapFlags::PRIVATE) };
            let map = NonNull::new(map.ok()?)?;
            // Else a system that is set so puts a huge page where one entry is written. An advice: where there are no
            // huge pages it may be refused.
            #[cfg(target_os = "linux")]
            // SAFETY: the mapping is new, and what is read there stays as it is.
            let _ = unsafe { madvise(map.as_ptr(), all, Advice::LinuxNoHugepage) };
            Some(Self { map, bytes })
        }

        pub(super) fn start(&self) -> NonNull<u8> {
            let to_align = self.map.align_offset(PART);
            // SAFETY: the mapping is longer by `PART` than what was asked for.
            unsafe { self.map.cast::<u8>().add(to_align) }
        }

        /// Makes a part writable; `false` where the system has no memory to promise for it.
        pub(super) fn back(&self, part: usize) -> bool {
            let at = part * PART;
            let bytes = PART.min(self.bytes - at);
            // SAFETY: parts lie within what was asked for.
            let start = unsafe { self.start().add(at) }.as_ptr().cast();
            // SAFETY: the pages are this mapping's, and what is read there stays as it is.
            unsafe { mprotect(start, bytes, MprotectFlags::READ | MprotectFlags::WRITE) }.is_ok()
        }

        #[cfg(not(target_os = "linux"))]
        pub(super) fn let_go(&self, _: Range<usize>) {}

        /// Gives the memory of whole pages in a range back to the system: they read as zeros.
        #[cfg(target_os = "linux")]
        pub(super) fn let_go(&self, Range { start, end }: Range<usize>) {
            let page = rustix::param::page_size();
            let (start, end) = (start.next_multiple_of(page), end.min(self.bytes) / page * page);
            if start < end {
                // SAFETY: within what was asked for.
                let at = unsafe { self.start().add(start) }.as_ptr().cast();
                // SAFETY: the pages are this mapping's. Entries are atomics, and those that are zeroed here are of no block.
                let let_go = unsafe { madvise(at, end - start, Advice::LinuxDontNeed) };
                if let Err(error) = let_go {
                    tracing::debug!(%error, "the host's memory for entries of no block is kept");
                }
            }
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: the mapping is this struct's own, and entries are not used after their table.
            let unmapped = unsafe { munmap(self.map.as_ptr(), self.bytes + PART) };
            debug_assert_eq!(unmapped, Ok(()));
        }
    }
}

#[cfg(not(all(unix, not(miri))))]
use allocated::Memory;

/// Where there are no such mappings, zeroed memory from the allocator.
#[cfg(not(all(unix, not(miri))))]
mod allocated {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    #[derive(Debug)]
    pub(super) struct Memory {
        start: NonNull<u8>,
        layout: Layout,
    }

    impl Memory {
        pub(super) fn reserve(bytes: usize) -> Option<Self> {
            let layout = Layout::from_size_align(bytes, align_of::<super::Entry>()).ok()?;
            // SAFETY: never of no bytes, since parts are not.
            let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
            Some(Self { start, layout })
        }

        pub(super) fn start(&self) -> NonNull<u8> {
            self.start
        }

        pub(super) fn back(&self, _: usize) -> bool {
            true
        }

        pub(super) fn let_go(&self, _: std::ops::Range<usize>) {}
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: from `alloc_zeroed` with this layout.
            unsafe { dealloc(self.start.as_ptr(), self.layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::BlockId;

    #[test]
    fn entries_are_far_apart_without_what_lies_between() {
        let count = if cfg!(miri) { 1 << 17 } else { 1 << 24 };
        let entries = Entries::new(count).expect("there are addresses");
        // SAFETY: among those asked for.
        let entry = |number| unsafe { entries.first().add(number).as_ref() };
        assert_eq!((entry(0).id(), entry(count - 1).id()), (BlockId(0), BlockId(0)));
        for number in [0, count / 2, count - 1] {
            assert!(entries.back(number..number + 1));
            entries.note_used(number);
            entry(number).set_label(7);
            assert_eq!(entry(number).label(), 7);
        }
        assert_eq!(entries.used_parts(), 3);
        assert_eq!(entry(count / 4).label(), 0);
    }

    #[test]
    fn entries_that_were_let_go_read_as_no_block_and_can_be_used_again() {
        let entries = Entries::new(2 * IN_PART).expect("there are addresses");
        // SAFETY: among those asked for.
        let entry = |number| unsafe { entries.first().add(number).as_ref() };
        assert!(entries.back(0..2 * IN_PART));
        for number in [0, IN_PART - 1, IN_PART, IN_PART + 2048] {
            entries.note_used(number);
            entry(number).set_label(7);
        }
        entries.let_go(0..IN_PART + 1024);
        assert_eq!(entries.used_parts(), 1, "of the second part only some went");
        let is_given_back = cfg!(all(target_os = "linux", not(miri)));
        for number in [0, IN_PART - 1, IN_PART] {
            assert_eq!(entry(number).label() == 0, is_given_back, "{number}");
        }
        assert_eq!(entry(IN_PART + 2048).label(), 7);
        entries.note_used(0);
        entry(0).set_label(9);
        assert_eq!((entry(0).label(), entries.used_parts()), (9, 2));
    }

    #[test]
    fn too_many_entries_are_refused() {
        assert!(Entries::new(usize::MAX / 128).is_none());
        assert!(Entries::new(usize::MAX).is_none());
    }
}
