//! A table that grows by chunks, each as long as all before it, and whose entries stay where they are. Reading takes no lock.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::{ptr, slice};

use super::atomics::{AtomicPtr, Ordering, Zeroed, free, zeros};
use crate::policy::caching::{CHUNKS, NEAR_THREADS};

/// Where a value is that outlives the table; null at first. One thread at a time publishes. All read, without a lock.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Published<T>(AtomicPtr<T>);

impl<T> Default for Published<T> {
    fn default() -> Self {
        Self::new(ptr::null_mut())
    }
}

// SAFETY: a null pointer.
unsafe impl<T> Zeroed for Published<T> {}

impl<T> Published<T> {
    pub(super) fn new(value: *mut T) -> Self {
        Self(AtomicPtr::new(value))
    }

    pub(super) fn publish(&self, value: NonNull<T>) {
        // Release: see `get`.
        self.0.store(value.as_ptr(), Ordering::Release);
    }

    #[inline(always)]
    pub(super) fn get(&self) -> *mut T {
        // Acquire: pairs with the Release in `publish`; another thread may have made the value.
        self.0.load(Ordering::Acquire)
    }
}

/// See the [module](self). Indices begin at `NEAR_THREADS`.
#[derive(Debug)]
pub(super) struct Table<T>([AtomicPtr<T>; CHUNKS]);

/// The entries of a chunk. The chunk begins at the index of the same number.
const fn len(chunk: usize) -> usize {
    NEAR_THREADS << chunk
}

impl<T: Zeroed> Table<T> {
    pub(super) const fn new() -> Self {
        // SAFETY: zeros are a null pointer of the machine's.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    /// An empty one, of a model's atomics.
    #[cfg(loom)]
    pub(super) fn modelled() -> Self {
        Self(std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())))
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
        let made = zeros::<T>(len(chunk))?;
        // Release: see `chunk`. Relaxed: another thread's is read anew.
        let taken =
            place.compare_exchange(ptr::null_mut(), made.as_ptr(), Ordering::Release, Ordering::Relaxed);
        if taken.is_err() {
            // SAFETY: made above with this length, and nobody else knows it.
            unsafe { free(made, len(chunk)) };
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
        for (chunk, place) in self.0.iter().enumerate() {
            // Relaxed: nobody else has the table any more.
            if let Some(start) = NonNull::new(place.load(Ordering::Relaxed)) {
                // SAFETY: made in `make` with this length.
                unsafe { free(start, len(chunk)) };
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

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
