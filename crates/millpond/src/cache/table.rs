//! A table that grows by chunks, each as long as all before it, and whose entries stay where they are. Reading takes no lock.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::{ptr, slice};

use crate::policy::caching::{CHUNKS, NEAR_THREADS};

/// What an entry is: an atomic that is 0 at first.
///
/// # Safety
/// Zeros are a value of the type, which needs no drop.
pub(super) unsafe trait Zeroed {}

// SAFETY: an integer.
unsafe impl Zeroed for AtomicU64 {}
// SAFETY: a null pointer.
unsafe impl<T> Zeroed for AtomicPtr<T> {}

/// See the [module](self). Indices begin at `NEAR_THREADS`.
#[derive(Debug)]
pub(super) struct Table<T>([AtomicPtr<T>; CHUNKS]);

/// The entries of a chunk. The chunk begins at the index of the same number.
const fn len(chunk: usize) -> usize {
    NEAR_THREADS << chunk
}

fn layout<T>(chunk: usize) -> Layout {
    Layout::array::<T>(len(chunk)).expect("a chunk is shorter than the addresses")
}

impl<T: Zeroed> Table<T> {
    pub(super) const fn new() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; _])
    }

    /// The chunk in which the index lies, and the place there.
    fn place(index: usize) -> (usize, usize) {
        let chunk = (index / NEAR_THREADS).ilog2() as usize;
        (chunk, index - len(chunk))
    }

    fn chunk(&self, chunk: usize) -> Option<&[T]> {
        // Acquire: pairs with the Release in `make`: zeros are seen.
        let start = self.0.get(chunk)?.load(Ordering::Acquire);
        // SAFETY: made by `make` with this length, and freed with the table only.
        (!start.is_null()).then(|| unsafe { slice::from_raw_parts(start, len(chunk)) })
    }

    /// The entry at this index, if there is one yet.
    pub(super) fn get(&self, index: usize) -> Option<&T> {
        let (chunk, at) = Self::place(index);
        self.chunk(chunk)?.get(at)
    }

    /// As [`get`](Self::get), made if need be; `None` where the table ends, or the host has no memory for it.
    pub(super) fn get_or_make(&self, index: usize) -> Option<&T> {
        let (chunk, at) = Self::place(index);
        // Those before it, too: a walk ends at the first that is missing.
        (0..=chunk).filter(|chunk| self.chunk(*chunk).is_none()).try_for_each(|chunk| self.make(chunk))?;
        self.chunk(chunk)?.get(at)
    }

    fn make(&self, chunk: usize) -> Option<()> {
        let place = self.0.get(chunk)?;
        // SAFETY: a chunk takes space.
        let made = unsafe { alloc_zeroed(layout::<T>(chunk)) }.cast::<T>();
        if made.is_null() {
            return None;
        }
        // Release: see `chunk`. Relaxed: another thread's is read anew.
        let taken = place.compare_exchange(ptr::null_mut(), made, Ordering::Release, Ordering::Relaxed);
        if taken.is_err() {
            // SAFETY: allocated above by this layout, and nobody else knows it.
            unsafe { dealloc(made.cast(), layout::<T>(chunk)) };
        }
        Some(())
    }

    /// All entries that there are, in the order of their indices. Takes no memory.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        (0..CHUNKS).map_while(|chunk| self.chunk(chunk)).flatten()
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for (chunk, place) in self.0.iter_mut().enumerate() {
            let start = *place.get_mut();
            if !start.is_null() {
                // SAFETY: allocated in `make` by this layout; the entries need no drop.
                unsafe { dealloc(start.cast(), layout::<T>(chunk)) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_stay_where_they_are_and_lie_in_order() {
        let table = Table::<AtomicU64>::new();
        assert!(table.get(NEAR_THREADS).is_none() && table.iter().next().is_none());
        let first = ptr::from_ref(table.get_or_make(NEAR_THREADS).unwrap());
        let all = NEAR_THREADS..NEAR_THREADS * 5;
        for index in all.clone() {
            table.get_or_make(index).unwrap().store(index as u64, Ordering::Relaxed);
        }
        assert_eq!(ptr::from_ref(table.get(NEAR_THREADS).unwrap()), first);
        let found: Vec<_> = table.iter().map(|entry| entry.load(Ordering::Relaxed)).collect();
        assert_eq!(found[..all.len()], all.map(|index| index as u64).collect::<Vec<_>>());
        assert!(found[NEAR_THREADS * 4..].iter().all(|entry| *entry == 0));
        assert!(table.get_or_make(NEAR_THREADS << CHUNKS).is_none());
    }

    #[test]
    fn a_late_entry_leaves_no_gap_before_it() {
        let table = Table::<AtomicU64>::new();
        let late = NEAR_THREADS * 4 + 3;
        table.get_or_make(late).unwrap().store(1, Ordering::Relaxed);
        let found = table.iter().position(|entry| entry.load(Ordering::Relaxed) == 1);
        assert_eq!(found, Some(late - NEAR_THREADS));
    }
}
