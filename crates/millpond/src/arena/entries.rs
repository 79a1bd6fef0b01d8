//! The memory of a table's entries: one stretch of the host's addresses with room for all of a region, of which only
//! those parts are backed in which blocks started.
//!
//! So a look-up is a shift and an addition, and needs no test: what was never backed reads as zeros, which is no block.
//! (As in a sparse file.) Nothing here is reserved or counted by the system
//! before it is backed: until then the stretch is mapped for reading only.
//!
//! Parts are put on huge pages, where the system has them: else a thousand blocks have their entries on nearly as many
//! pages, each of which costs a fault when it is first touched, and a step of a program that replaces them at random
//! waits for the processor to find two of these. One holds the entries of 16 MiB of small blocks, or of 32 GiB of large ones.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use super::table::Entry;

/// What is backed together, but for the last: a huge page.
const PART: usize = 2 << 20;

/// No shorter than a page of the host's.
const HOST_PAGE: usize = 64 << 10;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Entries {
    first: NonNull<Entry>,
    memory: Memory,
    on_huge_pages: bool,
    /// Per part: whether it is backed. Written under the pool's lock.
    backed: Box<[AtomicBool]>,
}

// SAFETY: entries are made of atomics, and the memory is this struct's own.
unsafe impl Send for Entries {}
// SAFETY: as above.
unsafe impl Sync for Entries {}

impl Entries {
    /// `count` entries, all of no block. `None` where the process has not enough addresses left.
    pub(super) fn new(count: usize, on_huge_pages: bool) -> Option<Self> {
        let bytes = count.checked_mul(size_of::<Entry>())?.checked_next_multiple_of(HOST_PAGE)?;
        let memory = Memory::reserve(bytes)?;
        let backed = std::iter::repeat_with(AtomicBool::default).take(bytes.div_ceil(PART)).collect();
        Some(Self { first: memory.start().cast(), memory, on_huge_pages, backed })
    }

    /// The first of them.
    #[inline]
    pub(super) fn first(&self) -> NonNull<Entry> {
        self.first
    }

    /// Has the entry with this number backed, so that it may be written. Under the pool's lock.
    #[inline]
    pub(super) fn back(&self, number: usize) {
        let part = number / (PART / size_of::<Entry>());
        // Relaxed: written and read under the lock.
        if !self.backed[part].load(Ordering::Relaxed) {
            self.back_slow(part);
        }
    }

    #[cold]
    fn back_slow(&self, part: usize) {
        self.memory.back(part, self.on_huge_pages);
        self.backed[part].store(true, Ordering::Relaxed);
    }
}

#[cfg(all(unix, not(miri)))]
use mapped::Memory;

#[cfg(all(unix, not(miri)))]
mod mapped {
    use std::alloc::{Layout, handle_alloc_error};
    use std::ffi::c_void;
    use std::ptr::{self, NonNull};

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
            Some(Self { map: NonNull::new(map.ok()?)?, bytes })
        }

        pub(super) fn start(&self) -> NonNull<u8> {
            let to_align = self.map.align_offset(PART);
            // SAFETY: the mapping is longer by `PART` than what was asked for.
            unsafe { self.map.cast::<u8>().add(to_align) }
        }

        /// Makes a part writable.
        pub(super) fn back(&self, part: usize, on_huge_page: bool) {
            let at = part * PART;
            let bytes = PART.min(self.bytes - at);
            // SAFETY: parts lie within what was asked for.
            let start = unsafe { self.start().add(at) }.as_ptr().cast();
            // SAFETY: the pages are this mapping's, and what is read there stays as it is.
            let backed = unsafe { mprotect(start, bytes, MprotectFlags::READ | MprotectFlags::WRITE) };
            if backed.is_err() {
                // As wherever else the host has no memory for what describes the device's.
                handle_alloc_error(Layout::new::<[u8; PART]>());
            }
            #[cfg(target_os = "linux")]
            if on_huge_page && bytes == PART {
                // SAFETY: as above. An advice: a system that has no huge pages may refuse it.
                let _ = unsafe { rustix::mm::madvise(start, bytes, rustix::mm::Advice::LinuxHugepage) };
            }
            #[cfg(not(target_os = "linux"))]
            let _ = on_huge_page;
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

        pub(super) fn back(&self, _: usize, _: bool) {}
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
        let entries = Entries::new(count, true).expect("there are addresses");
        // SAFETY: among those asked for.
        let entry = |number| unsafe { entries.first().add(number).as_ref() };
        assert_eq!((entry(0).id(), entry(count - 1).id()), (BlockId(0), BlockId(0)));
        for number in [0, count / 2, count - 1] {
            entries.back(number);
            entry(number).set_label(7);
            assert_eq!(entry(number).label(), 7);
        }
        assert_eq!(entries.backed.iter().filter(|backed| backed.load(Ordering::Relaxed)).count(), 3);
        assert_eq!(entry(count / 4).label(), 0);
    }

    #[test]
    fn too_many_entries_are_refused() {
        assert!(Entries::new(usize::MAX / 128, false).is_none());
        assert!(Entries::new(usize::MAX, false).is_none());
    }
}
