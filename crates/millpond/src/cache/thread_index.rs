//! Small numbers for threads, so that a thread finds what belongs to it in a table; given back when it ends.

use std::cell::{Cell, RefCell};
use std::sync::Weak;

use parking_lot::Mutex;

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

/// Who is told on each thread that ends, if it had an index.
static TOLD: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Has `tell` called on each thread that ends and had an index, before another one may get that. As often as it is named
/// here: whether two functions are the same cannot be told from their addresses.
pub(crate) fn on_thread_end(tell: fn()) {
    TOLD.lock().push(tell);
}

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
        if index != NO_THREAD {
            // Before another thread may get the index.
            let told = TOLD.lock().clone();
            told.into_iter().for_each(|tell| tell());
        }
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

    use super::*;

    #[derive(Default)]
    struct Goodbyes(AtomicUsize);

    impl ThreadEnd for Goodbyes {
        fn thread_ended(&self, _: usize) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    thread_local! {
        static IS_TOLD: Cell<bool> = const { Cell::new(false) };
    }
    static TOLD_IN_TIME: AtomicUsize = AtomicUsize::new(0);

    struct AsksWhetherTold;

    impl ThreadEnd for AsksWhetherTold {
        fn thread_ended(&self, _: usize) {
            TOLD_IN_TIME.fetch_add(usize::from(IS_TOLD.get()), Ordering::Relaxed);
        }
    }

    #[test]
    fn who_wants_to_know_of_a_threads_end_is_told_once_and_before_its_pools() {
        on_thread_end(|| assert!(!IS_TOLD.replace(true), "once"));
        let listener: Arc<dyn ThreadEnd> = Arc::new(AsksWhetherTold);
        let weak = Arc::downgrade(&listener);
        std::thread::spawn(move || visit(weak)).join().unwrap();
        assert_eq!(TOLD_IN_TIME.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn ten_thousand_threads_one_after_the_other_use_few_indices_and_all_say_goodbye() {
        let pool = Arc::new(Goodbyes::default());
        let listener: Arc<dyn ThreadEnd> = pool.clone();
        let count = if cfg!(miri) { 20 } else { 10_000 };
        for _ in 0..count {
            let listener = Arc::downgrade(&listener);
            let thread = std::thread::spawn(move || {
                assert_eq!(thread_index(), NO_THREAD);
                let index = visit(listener);
                assert_eq!(Some(thread_index()), index);
                index
            });
            let index = thread.join().unwrap();
            // Other tests run beside this one.
            assert!(index.expect("an index is free") < 256);
        }
        assert_eq!(pool.0.load(Ordering::Relaxed), count);
    }
}
