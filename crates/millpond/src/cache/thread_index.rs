//! Small numbers for threads, so that a thread finds what belongs to it in a table; given back when it ends.

use std::cell::RefCell;
use std::sync::Weak;

use parking_lot::Mutex;

/// Who wants to know that a thread ended. Called on that thread, without locks held.
pub(crate) trait ThreadEnd: Send + Sync {
    /// The thread with this index will not come back; another may get its index afterwards.
    fn thread_ended(&self, index: usize);
}

/// Threads that can have an index at the same time. The others allocate under the pool's lock.
pub(crate) const MOST_THREADS: usize = 1024;

/// The index of a thread that has none. Those of the others follow, up to `MOST_THREADS`.
pub(super) const NO_THREAD: usize = 0;

thread_local! {
    static VISITS: RefCell<Visits> = const { RefCell::new(Visits { pools: Vec::new() }) };
}

/// The calling thread's index, where it is read in two instructions, also in a shared library.
///
/// `thread_local!` calls the loader's `__tls_get_addr` there, at each look: 44 instructions of a pair made through the
/// C interface. The *initial-exec* model costs a load at an offset that the loader wrote down, and is what mimalloc's
/// shared library takes (`MI_TLS_MODEL`); rustc has it on nightly only (`-Z tls-model`), so it is spelled out. What it
/// asks for are 8 bytes of the room that the loader keeps for libraries opened late. glibc only: musl keeps none.
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu", not(miri)))]
mod index {
    use std::arch::{asm, global_asm};

    /// With the version, since a program may contain two.
    macro_rules! symbol {
        () => {
            concat!(
                "millpond_thread_index_",
                env!("CARGO_PKG_VERSION_MAJOR"),
                "_",
                env!("CARGO_PKG_VERSION_MINOR"),
                "_",
                env!("CARGO_PKG_VERSION_PATCH")
            )
        };
    }

    // 8 bytes a thread, zero at first: `NO_THREAD`.
    global_asm!(
        ".pushsection .tbss.millpond_thread_index,\"awT\",@nobits",
        concat!(".globl ", symbol!()),
        concat!(".hidden ", symbol!()),
        concat!(".type ", symbol!(), ",@object"),
        concat!(".size ", symbol!(), ",8"),
        ".p2align 3",
        concat!(symbol!(), ":"),
        ".zero 8",
        ".popsection",
    );

    #[inline(always)]
    pub(super) fn get() -> usize {
        let index;
        // SAFETY: reads the calling thread's own word, as it is laid out above, and nothing else.
        unsafe {
            asm!(
                concat!("mov {index}, qword ptr [rip + ", symbol!(), "@GOTTPOFF]"),
                "mov {index}, qword ptr fs:[{index}]",
                index = out(reg) index,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        index
    }

    pub(super) fn set(index: usize) {
        // SAFETY: writes the calling thread's own word.
        unsafe {
            asm!(
                concat!("mov {at}, qword ptr [rip + ", symbol!(), "@GOTTPOFF]"),
                "mov qword ptr fs:[{at}], {index}",
                at = out(reg) _,
                index = in(reg) index,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// The calling thread's index.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu", not(miri))))]
mod index {
    use std::cell::Cell;

    thread_local! {
        // Not dropped, and constant at first: reading it is one load, where no shared library is in the way.
        static INDEX: Cell<usize> = const { Cell::new(super::NO_THREAD) };
    }

    #[inline]
    pub(super) fn get() -> usize {
        INDEX.get()
    }

    pub(super) fn set(index: usize) {
        INDEX.set(index);
    }
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
    index::get()
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
            if index::get() == NO_THREAD {
                index::set(take_index()?);
            }
            visits.pools.retain(|pool| pool.strong_count() > 0);
            visits.pools.push(pool);
            Some(index::get())
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
        let index = index::get();
        index::set(NO_THREAD);
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

    #[test]
    fn ten_thousand_threads_one_after_the_other_use_few_indices_and_all_say_goodbye() {
        let pool = Arc::new(Goodbyes::default());
        let listener: Arc<dyn ThreadEnd> = pool.clone();
        let count = if cfg!(miri) { 20 } else { 10_000 };
        for _ in 0..count {
            let listener = Arc::downgrade(&listener);
            let index = std::thread::spawn(move || visit(listener)).join().unwrap();
            // Other tests run beside this one.
            assert!(index.expect("an index is free") < 256);
        }
        assert_eq!(pool.0.load(Ordering::Relaxed), count);
    }
}
