//! Small numbers for threads, so that a thread finds what belongs to it in a table; given back when it ends.

use std::cell::{Cell, RefCell};
use std::sync::Weak;

use parking_lot::Mutex;

use super::thread_pointer;

/// Who wants to know that a thread ended. Called on that thread, without locks held.
pub(crate) trait ThreadEnd: Send + Sync {
    /// The thread with this index will not come back; another may get its index afterwards.
    fn thread_ended(&self, index: usize);
}

/// Threads that can have an index at the same time. The others allocate under the pool's lock.
pub(crate) const MOST_THREADS: usize = if cfg!(miri) { 16 } else { 1024 };

/// The index of a thread that has none. Those of the others follow, up to `MOST_THREADS`.
pub(super) const NO_THREAD: usize = 0;

thread_local! {
    // Not dropped, and constant at first: reading it is one load, or a call of the loader in a shared library.
    static INDEX: Cell<usize> = const { Cell::new(NO_THREAD) };
    static VISITS: RefCell<Visits> = const { RefCell::new(Visits { pools: Vec::new() }) };
}

/// Indices that are free: those given back, and all from `next` on.
struct Indices {
    back: Vec<usize>,
    next: usize,
}

static INDICES: Mutex<Indices> = Mutex::new(Indices { back: Vec::new(), next: NO_THREAD + 1 });

/// The calling thread's index, at most `MOST_THREADS`; [`NO_THREAD`] where it has none.
#[inline(always)]
pub(crate) fn thread_index() -> usize {
    INDEX.get()
}

/// Where the calling thread has been, to say goodbye.
struct Visits {
    pools: Vec<Weak<dyn ThreadEnd>>,
}

/// Sees to it that `pool` is told when the calling thread ends. Returns the thread's index; `None` where there
/// is none left, or the thread is ending already.
#[cold]
pub(super) fn visit(pool: Weak<dyn ThreadEnd>) -> Option<usize> {
    VISITS
        .try_with(|visits| {
            let mut visits = visits.try_borrow_mut().ok()?;
            if INDEX.get() == NO_THREAD {
                INDEX.set(take_index()?);
                thread_pointer::enter(INDEX.get());
            }
            visits.pools.retain(|pool| pool.strong_count() > 0);
            visits.pools.push(pool);
            Some(INDEX.get())
        })
        .ok()
        .flatten()
}

fn take_index() -> Option<usize> {
    let mut indices = INDICES.lock();
    if let Some(index) = indices.back.pop() {
        return Some(index);
    }
    let fresh = indices.next;
    (fresh <= MOST_THREADS).then(|| {
        indices.next += 1;
        fresh
    })
}

impl Drop for Visits {
    fn drop(&mut self) {
        let index = INDEX.replace(NO_THREAD);
        // Before another thread may get the index.
        thread_pointer::leave();
        for pool in std::mem::take(&mut self.pools) {
            if let Some(pool) = pool.upgrade() {
                pool.thread_ended(index);
            }
        }
        if index != NO_THREAD {
            INDICES.lock().back.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::thread_pointer::index_by_pointer;
    use super::*;

    #[derive(Default)]
    struct Goodbyes(AtomicUsize);

    impl ThreadEnd for Goodbyes {
        fn thread_ended(&self, _: usize) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn ten_thousand_threads_one_after_the_other_use_few_indices_and_all_say_goodbye() {
        let pool = Arc::new(Goodbyes::default());
        let listener: Arc<dyn ThreadEnd> = pool.clone();
        let count = if cfg!(miri) { 20 } else { 10_000 };
        for _ in 0..count {
            let listener = Arc::downgrade(&listener);
            let thread = std::thread::spawn(move || {
                assert_eq!(index_by_pointer(), NO_THREAD, "a new thread has no index, whatever its pointer");
                let index = visit(listener);
                assert_eq!(Some(index_by_pointer()), index);
                index
            });
            let index = thread.join().unwrap();
            // Other tests run beside this one.
            assert!(index.expect("an index is free") < 256);
        }
        assert_eq!(pool.0.load(Ordering::Relaxed), count);
    }
}
