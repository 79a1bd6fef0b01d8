//! Models of the table: loom tries every order in which threads may make chunks, publish in them and read them, and every
//! value that a load may see. `scripts/check-concurrency loom` runs them.
//!
//! **What is real** is `table.rs`, which is compiled here once more, with loom's atomics. **What is modelled** is memory:
//! loom notices an entry that a thread reaches without having seen it made, and a chunk that nobody frees.

use std::ptr::NonNull;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use self::table::{Published, Table};
use crate::policy::caching::NEAR_THREADS;

mod atomics {
    use std::alloc::Layout;
    use std::ptr::NonNull;

    use loom::alloc::{alloc, dealloc};

    pub(super) use loom::sync::atomic::{AtomicPtr, Ordering};

    pub(super) unsafe trait Zeroed: Default {}

    // SAFETY: `zeros` writes the default.
    unsafe impl Zeroed for loom::sync::atomic::AtomicU64 {}

    pub(super) fn zeros<T: Zeroed>(len: usize) -> Option<NonNull<T>> {
        // SAFETY: they take space.
        let start = NonNull::new(unsafe { alloc(Layout::array::<T>(len).unwrap()) }.cast::<T>())?;
        for at in 0..len {
            // SAFETY: it is long enough.
            unsafe { start.add(at).write(T::default()) };
        }
        Some(start)
    }

    pub(super) unsafe fn free<T>(start: NonNull<T>, len: usize) {
        for at in 0..len {
            // SAFETY: written in `zeros`.
            unsafe { start.add(at).drop_in_place() };
        }
        // SAFETY: allocated in `zeros` by this layout.
        unsafe { dealloc(start.as_ptr().cast(), Layout::array::<T>(len).unwrap()) };
    }
}

#[path = "table.rs"]
#[expect(dead_code, reason = "models use a part of it")]
mod table;

/// The indices of the first two chunks.
const FIRST: usize = NEAR_THREADS;
const LATE: usize = 2 * NEAR_THREADS;

fn new<T: atomics::Zeroed>() -> Arc<Table<T>> {
    Arc::new(Table::modelled())
}

/// Tries all runs in which threads are interrupted at most three times where they did not wait.
fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

#[test]
fn a_chunk_that_is_seen_has_its_entries() {
    model(|| {
        let table = new::<AtomicU64>();
        let maker = thread::spawn({
            let table = table.clone();
            move || table.get_or_make(FIRST).unwrap().store(5, Ordering::Relaxed)
        });
        let found = table.get(FIRST).map(|entry| entry.load(Ordering::Relaxed));
        assert!(matches!(found, None | Some(0 | 5)));
        maker.join().unwrap();
        assert_eq!(table.get(FIRST).unwrap().load(Ordering::Relaxed), 5);
        assert!(table.get(LATE).is_none());
    });
}

#[test]
fn threads_that_make_one_chunk_have_the_same_entries() {
    model(|| {
        let table = new::<AtomicU64>();
        let count = |table: &Table<AtomicU64>| {
            // Relaxed: sums are whole, if there is one entry.
            table.get_or_make(FIRST + 1).unwrap().fetch_add(1, Ordering::Relaxed);
        };
        let threads = [0, 1].map(|_| {
            let table = table.clone();
            thread::spawn(move || count(&table))
        });
        count(&table);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(table.get(FIRST + 1).unwrap().load(Ordering::Relaxed), 3);
    });
}

#[test]
fn a_walk_finds_each_entry_that_was_made_before() {
    model(|| {
        let table = new::<AtomicU64>();
        let is_made = Arc::new(AtomicU64::new(0));
        let maker = thread::spawn({
            let (table, is_made) = (table.clone(), is_made.clone());
            move || {
                table.get_or_make(LATE).unwrap().store(5, Ordering::Relaxed);
                is_made.store(1, Ordering::Release);
            }
        });
        let other = thread::spawn({
            let table = table.clone();
            move || table.get_or_make(FIRST).unwrap().store(6, Ordering::Relaxed)
        });
        let was_made = is_made.load(Ordering::Acquire) == 1;
        let found = table.iter().any(|entry| entry.load(Ordering::Relaxed) == 5);
        assert!(found || !was_made, "a walk ends before an entry that is there");
        maker.join().unwrap();
        other.join().unwrap();
        let values: Vec<_> = table.iter().map(|entry| entry.load(Ordering::Relaxed)).collect();
        assert_eq!(values[..3], [6, 0, 5]);
    });
}

/// What a thread publishes, whole before that.
struct Value(UnsafeCell<u64>);

#[test]
fn what_is_published_is_seen_whole() {
    model(|| {
        let table = new::<Published<Value>>();
        // Else the chunk's publication would order the value, too.
        table.get_or_make(FIRST).unwrap();
        let owner = thread::spawn({
            let table = table.clone();
            move || {
                let value = Box::leak(Box::new(Value(UnsafeCell::new(0))));
                // SAFETY: nobody else knows it yet.
                value.0.with_mut(|value| unsafe { *value = 7 });
                table.get_or_make(FIRST).unwrap().publish(NonNull::from(value));
            }
        });
        for entry in table.iter().chain(table.get(FIRST)) {
            // SAFETY: published values stay until the end of the model.
            if let Some(value) = unsafe { entry.get().as_ref() } {
                // SAFETY: what the model is there to prove: it is not written any more.
                assert_eq!(value.0.with(|value| unsafe { *value }), 7);
            }
        }
        owner.join().unwrap();
        let value = table.get(FIRST).unwrap().get();
        // SAFETY: from the box above, and nobody else has it now.
        drop(unsafe { Box::from_raw(value) });
    });
}
