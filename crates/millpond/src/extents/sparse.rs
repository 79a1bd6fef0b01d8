//! Sparse arrays: room for all that may ever be needed, but memory only for pages that were written.
//!
//! So an element never moves, and a look-up needs no test: what was never written reads as zeros. (As in a sparse
//! file.) The system counts nothing before it is writable: until then the array is mapped for reading only. Elements
//! are [backed](Sparse::back) before anything is changed that will write them, so that this can fail while nothing
//! has changed. Elements that are no longer needed [give](Sparse::let_go) their memory back.
//!
//! The pages are the smallest that the host has. On huge pages a few hundred blocks that lie far apart took as much as
//! all that the array has room for.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What an array can be made of.
///
/// # Safety
/// It is made of atomics only, and zeros are a value.
pub(super) unsafe trait Blank {}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Sparse<T> {
    memory: Memory,
    len: usize,
    /// How many may be written, from the first on. Written under the pool's lock.
    backed: AtomicUsize,
    elements: PhantomData<T>,
}

// SAFETY: elements are atomics, and the memory is this struct's own.
unsafe impl<T: Blank> Send for Sparse<T> {}
// SAFETY: as above.
unsafe impl<T: Blank> Sync for Sparse<T> {}

impl<T: Blank> Sparse<T> {
    /// So many elements, at least one, all zeros. `None` where the process has not enough addresses left.
    pub(super) fn new(len: usize) -> Option<Self> {
        const { assert!(align_of::<T>() <= 64) };
        let memory = Memory::reserve(len.checked_mul(size_of::<T>())?)?;
        Some(Self { memory, len, backed: AtomicUsize::new(0), elements: PhantomData })
    }

    /// The first element.
    #[inline]
    pub(super) fn first(&self) -> NonNull<T> {
        self.memory.start.cast()
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&T> {
        // SAFETY: there are so many, which stay as long as the array, and zeros are a value.
        (at < self.len).then(|| unsafe { self.first().add(at).as_ref() })
    }

    /// Lets the elements below `end` be written; `false` where the host has no memory for them, or there are fewer. Under the
    /// pool's lock.
    pub(super) fn back(&self, end: usize) -> bool {
        // Relaxed, here and below: written and read under the lock.
        let backed = self.backed.load(Ordering::Relaxed);
        let is_backed = end <= backed
            || end <= self.len && self.memory.back(backed * size_of::<T>()..end * size_of::<T>());
        if is_backed {
            self.backed.store(end.max(backed), Ordering::Relaxed);
        }
        is_backed
    }

    /// Gives back the host's memory of the elements from `start` on, which nobody needs. Those on pages of their own read as
    /// zeros again, if the system can do that. Under the pool's lock.
    pub(super) fn let_go(&self, start: usize) {
        self.memory.let_go(start * size_of::<T>());
    }
}

#[cfg(all(unix, not(miri)))]
use mapped::Memory;

#[cfg(all(unix, not(miri)))]
mod mapped {
    use std::ops::Range;
    use std::ptr::{self, NonNull};

    #[cfg(target_os = "linux")]
    use rustix::mm::{Advice, madvise};
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    use rustix::param::page_size;

    #[cfg(target_os = "linux")]
    use crate::log::log;

    #[derive(Debug)]
    pub(super) struct Memory {
        pub(super) start: NonNull<u8>,
        bytes: usize,
    }

    impl Memory {
        pub(super) fn reserve(bytes: usize) -> Option<Self> {
            let bytes = bytes.checked_next_multiple_of(page_size())?;
            // SAFETY: a new mapping, at an address that the system chooses, touches nothing that exists.
            let map = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::PRIVATE) };
            let start = NonNull::new(map.ok()?)?;
            // Else a system that is set so puts a huge page where one element is written. An advice: where there are no
            // huge pages it may be refused.
            #[cfg(target_os = "linux")]
            // SAFETY: the mapping is new, and what is read there stays as it is.
            let _ = unsafe { madvise(start.as_ptr(), bytes, Advice::LinuxNoHugepage) };
            Some(Self { start: start.cast(), bytes })
        }

        /// Makes the pages of a range writable; `false` where the system has no memory to promise for them.
        pub(super) fn back(&self, Range { start, end }: Range<usize>) -> bool {
            let start = start / page_size() * page_size();
            // SAFETY: the range lies within what was asked for.
            let at = unsafe { self.start.add(start) }.as_ptr().cast();
            // SAFETY: the pages are this mapping's, and what is read there stays as it is.
            unsafe { mprotect(at, end - start, MprotectFlags::READ | MprotectFlags::WRITE) }.is_ok()
        }

        #[cfg(not(target_os = "linux"))]
        pub(super) fn let_go(&self, _: usize) {}

        /// Gives the memory of whole pages from `start` on back to the system: they read as zeros.
        #[cfg(target_os = "linux")]
        pub(super) fn let_go(&self, start: usize) {
            let start = start.next_multiple_of(page_size());
            if start < self.bytes {
                // SAFETY: within what was asked for.
                let at = unsafe { self.start.add(start) }.as_ptr().cast();
                // SAFETY: the pages are this mapping's. Elements are atomics, and nobody needs those that are zeroed
                // here.
                let let_go = unsafe { madvise(at, self.bytes - start, Advice::LinuxDontNeed) };
                if let Err(error) = let_go {
                    log!(DEBUG, "the host's memory for blocks that are gone is kept", error);
                }
            }
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: the mapping is this struct's own, and elements are not used after it.
            let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
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
        pub(super) start: NonNull<u8>,
        layout: Layout,
    }

    impl Memory {
        pub(super) fn reserve(bytes: usize) -> Option<Self> {
            let layout = Layout::from_size_align(bytes, 64).ok()?;
            // SAFETY: never of no bytes, since an array has elements.
            let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
            Some(Self { start, layout })
        }

        pub(super) fn back(&self, _: std::ops::Range<usize>) -> bool {
            true
        }

        pub(super) fn let_go(&self, _: usize) {}
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
    use std::sync::atomic::AtomicU32;

    use super::*;

    // SAFETY: an atomic.
    unsafe impl Blank for AtomicU32 {}

    fn of(len: usize) -> Sparse<AtomicU32> {
        Sparse::new(len).expect("there are addresses")
    }

    fn value(array: &Sparse<AtomicU32>, at: usize) -> u32 {
        array.get(at).expect("there are so many").load(Ordering::Relaxed)
    }

    fn set(array: &Sparse<AtomicU32>, at: usize, to: u32) {
        assert!(array.back(at + 1));
        array.get(at).expect("there are so many").store(to, Ordering::Relaxed);
    }

    #[test]
    fn elements_are_far_apart_without_what_lies_between() {
        let len = if cfg!(miri) { 1 << 21 } else { 1 << 28 };
        let array = of(len);
        assert_eq!((value(&array, 0), value(&array, len - 1)), (0, 0));
        for at in [0, 5, len / 4] {
            set(&array, at, 7);
            assert_eq!(value(&array, at), 7);
        }
        assert_eq!(value(&array, len / 2), 0);
        assert!(array.get(len).is_none() && !array.back(len + 1));
        set(&array, len - 1, 7);
    }

    #[test]
    fn elements_let_go_read_as_zeros_and_can_be_reused() {
        let array = of(1 << 20);
        let (half, last) = (1 << 19, (1 << 19) + (64 << 10));
        for at in [last, 0, half - 1, half] {
            set(&array, at, 7);
        }
        array.let_go(half);
        let is_given_back = cfg!(all(target_os = "linux", not(miri)));
        for at in [half, last] {
            assert_eq!(value(&array, at) == 0, is_given_back, "{at}");
        }
        assert_eq!([0, half - 1].map(|at| value(&array, at)), [7; 2]);
        set(&array, last, 9);
        assert_eq!(value(&array, last), 9);
    }

    #[test]
    fn too_many_elements_are_refused() {
        // Miri would try.
        assert!(cfg!(miri) || Sparse::<AtomicU32>::new(usize::MAX / 8).is_none());
        assert!(Sparse::<AtomicU32>::new(usize::MAX).is_none());
    }
}
