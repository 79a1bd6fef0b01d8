//! Sparse arrays: room for all that may ever be needed, but memory only for pages that were written.
//!
//! So an element never moves, and a look-up needs no test: what was never written reads as zeros. (As in a sparse
//! file.) Linux counts only what is written, unless it is told to promise no more memory than it has
//! (`vm.overcommit_memory` is 2). There the array is mapped for reading only, and elements are
//! [backed](Sparse::back) before anything is changed that will write them. So this can fail while nothing
//! has changed. Elements that are no longer needed [give](Sparse::let_go) their memory back.
//!
//! Where all is writable, arrays side by side are one mapping of the system's, of which a process has 65,530 at most: so many
//! pools have few.
//!
//! The pages are the smallest that the host has. On huge pages a few hundred blocks that lie far apart took as much as
//! all that the array has room for.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What an array can be made of.
///
/// # Safety
/// It is made of atomics only, and zeros are a value.
pub(in crate::extents) unsafe trait Blank {}

/// See the [module](self).
#[derive(Debug)]
pub(in crate::extents) struct Sparse<T> {
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
    pub(in crate::extents) fn new(len: usize) -> Option<Self> {
        const { assert!(align_of::<T>() <= 64) };
        let memory = Memory::reserve(len.checked_mul(size_of::<T>())?)?;
        Some(Self { memory, len, backed: AtomicUsize::new(0), elements: PhantomData })
    }

    /// The first element.
    #[inline]
    pub(in crate::extents) fn first(&self) -> NonNull<T> {
        self.memory.start.cast()
    }

    #[inline]
    pub(in crate::extents) fn get(&self, at: usize) -> Option<&T> {
        // SAFETY: there are so many, which stay as long as the array, and zeros are a value.
        (at < self.len).then(|| unsafe { self.first().add(at).as_ref() })
    }

    /// Lets the elements below `end` be written; `false` where the host has no memory for them, or there are fewer. Under the
    /// pool's lock.
    pub(in crate::extents) fn back(&self, end: usize) -> bool {
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
    pub(in crate::extents) fn let_go(&self, start: usize) {
        self.memory.let_go(start * size_of::<T>());
    }
}

/// A list in such an array: it grows without being copied, so that no request waits for that.
#[derive(Debug)]
pub(in crate::extents) struct Records<T> {
    memory: Memory,
    len: usize,
    /// How many have memory.
    backed: usize,
    most: usize,
    records: PhantomData<T>,
}

// SAFETY: the memory is this struct's own, as that of a `Vec`.
unsafe impl<T: Send> Send for Records<T> {}

impl<T> Records<T> {
    /// Room for so many, at least one. `None` where the process has not enough addresses left.
    pub(in crate::extents) fn new(most: usize) -> Option<Self> {
        const { assert!(align_of::<T>() <= 64 && size_of::<T>() > 0) };
        let memory = Memory::reserve(most.checked_mul(size_of::<T>())?)?;
        Some(Self { memory, len: 0, backed: 0, most, records: PhantomData })
    }

    /// How many there can be.
    pub(in crate::extents) fn most(&self) -> usize {
        self.most
    }

    /// How many there can be without more memory of the host's.
    #[inline]
    pub(in crate::extents) fn backed(&self) -> usize {
        self.backed
    }

    /// Reserves the host's memory for records below `end`, in steps that grow; `false` where it is refused, or there can be fewer.
    pub(in crate::extents) fn back(&mut self, end: usize) -> bool {
        if end > self.backed && end <= self.most {
            let ample = end.max(self.backed + self.backed / 4).min(self.most);
            let is_backed = |end| self.memory.back(self.backed * size_of::<T>()..end * size_of::<T>());
            self.backed = [ample, end].into_iter().find(|end| is_backed(*end)).unwrap_or(self.backed);
        }
        end <= self.backed
    }

    /// Adds one, for which there is memory.
    pub(in crate::extents) fn push(&mut self, record: T) {
        assert!(self.len < self.backed, "a record has memory before it is added");
        // SAFETY: the place has memory, and nothing is there.
        unsafe { self.memory.start.cast::<T>().add(self.len).write(record) };
        self.len += 1;
    }

    /// Forgets those from `len` on, and gives their memory back.
    pub(in crate::extents) fn truncate(&mut self, len: usize) {
        while self.len > len {
            self.len -= 1;
            // SAFETY: it was pushed, and is not reached any more.
            unsafe { self.memory.start.cast::<T>().add(self.len).drop_in_place() };
        }
        self.memory.let_go(self.len * size_of::<T>());
    }
}

impl<T> Deref for Records<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: so many were pushed.
        unsafe { std::slice::from_raw_parts(self.memory.start.cast().as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Records<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: so many were pushed.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start.cast().as_ptr(), self.len) }
    }
}

impl<T> Drop for Records<T> {
    fn drop(&mut self) {
        self.truncate(0);
    }
}

#[cfg(all(unix, not(miri)))]
use mapped::Memory;

#[cfg(all(unix, not(miri)))]
mod mapped {
    use std::ops::Range;
    use std::ptr::{self, NonNull};
    #[cfg(target_os = "linux")]
    use std::{io::Read, sync::OnceLock};

    #[cfg(target_os = "linux")]
    use rustix::mm::{Advice, madvise};
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    use rustix::param::page_size;

    #[cfg(target_os = "linux")]
    use crate::log::log;

    #[derive(Debug)]
    pub(in crate::extents) struct Memory {
        pub(in crate::extents) start: NonNull<u8>,
        bytes: usize,
        /// Whether all of it can be written, and counts only where it is.
        is_writable: bool,
    }

    /// Whether the system counts only what is written of memory that it was asked to promise nothing for.
    #[cfg(target_os = "linux")]
    fn counts_what_is_written() -> bool {
        static COUNTS: OnceLock<bool> = OnceLock::new();
        *COUNTS.get_or_init(|| {
            let mut rule = [0];
            let read = |mut file: std::fs::File| file.read(&mut rule);
            // Without memory of the host's, which may be refused: its name is short.
            let is_read = std::fs::File::open("/proc/sys/vm/overcommit_memory").and_then(read);
            is_read.is_ok() && matches!(rule, [b'0' | b'1'])
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn counts_what_is_written() -> bool {
        false
    }

    impl Memory {
        pub(in crate::extents) fn reserve(bytes: usize) -> Option<Self> {
            let bytes = bytes.checked_next_multiple_of(page_size())?;
            let map = |access, flags| {
                // SAFETY: a new mapping, at an address that the system chooses, touches nothing that exists.
                let map =
                    unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE | flags) };
                map.ok().and_then(NonNull::new)
            };
            // A limit of the process's data counts all that can be written.
            let writable = counts_what_is_written()
                .then(|| map(ProtFlags::READ | ProtFlags::WRITE, MapFlags::NORESERVE))
                .flatten();
            let start = writable.or_else(|| map(ProtFlags::READ, MapFlags::empty()))?;
            // Else a system that is set so puts a huge page where one element is written. An advice: where there are no
            // huge pages it may be refused.
            #[cfg(target_os = "linux")]
            // SAFETY: the mapping is new, and what is read there stays as it is.
            let _ = unsafe { madvise(start.as_ptr(), bytes, Advice::LinuxNoHugepage) };
            Some(Self { start: start.cast(), bytes, is_writable: writable.is_some() })
        }

        /// Makes the pages of a range writable; `false` where the system has no memory to promise for them.
        pub(in crate::extents) fn back(&self, Range { start, end }: Range<usize>) -> bool {
            if self.is_writable {
                return true;
            }
            let start = start / page_size() * page_size();
            // SAFETY: the range lies within what was asked for.
            let at = unsafe { self.start.add(start) }.as_ptr().cast();
            // SAFETY: the pages are this mapping's, and what is read there stays as it is.
            unsafe { mprotect(at, end - start, MprotectFlags::READ | MprotectFlags::WRITE) }.is_ok()
        }

        #[cfg(not(target_os = "linux"))]
        pub(in crate::extents) fn let_go(&self, _: usize) {}

        /// Gives the memory of whole pages from `start` on back to the system: they read as zeros.
        #[cfg(target_os = "linux")]
        pub(in crate::extents) fn let_go(&self, start: usize) {
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
    pub(in crate::extents) struct Memory {
        pub(in crate::extents) start: NonNull<u8>,
        layout: Layout,
    }

    impl Memory {
        pub(in crate::extents) fn reserve(bytes: usize) -> Option<Self> {
            let layout = Layout::from_size_align(bytes, 64).ok()?;
            // SAFETY: never of no bytes, since an array has elements.
            let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
            Some(Self { start, layout })
        }

        pub(in crate::extents) fn back(&self, _: std::ops::Range<usize>) -> bool {
            true
        }

        pub(in crate::extents) fn let_go(&self, _: usize) {}
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
    fn records_grow_where_they_are_and_end_once() {
        let mut records = Records::new(1 << 20).expect("there are addresses");
        let counted = std::rc::Rc::new(());
        assert!(records.back(1));
        records.push(counted.clone());
        let first: *const _ = &records[0];
        for _ in 1..5000 {
            let end = records.len() + 1;
            assert!(end <= records.backed() || records.back(end));
            records.push(counted.clone());
        }
        assert!(std::ptr::eq(first, &records[0]) && std::rc::Rc::strong_count(&counted) == 5001);
        records.truncate(3);
        assert_eq!((records.len(), std::rc::Rc::strong_count(&counted)), (3, 4));
        records.push(counted.clone());
        assert!(!records.back((1 << 20) + 1) && records.back(1 << 20));
        drop(records);
        assert_eq!(std::rc::Rc::strong_count(&counted), 1);
    }

    #[test]
    fn too_many_elements_are_refused() {
        // Miri would try.
        assert!(cfg!(miri) || Sparse::<AtomicU32>::new(usize::MAX / 8).is_none());
        assert!(Sparse::<AtomicU32>::new(usize::MAX).is_none());
    }
}
