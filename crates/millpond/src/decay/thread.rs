//! The thread that has each pool with a delay look, one for the process.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fmt, io};

use nix::sys::signal::SigSet;

use crate::core::{Core, HasCore};
use crate::log::log;
use crate::policy::decay::AT_EXIT;
use crate::system::lock::Mutex;
use crate::system::process::{OfProcess, Process, WhileHeld};

/// One look at a pool, and the time until the next; `None` for one that is looked at no more.
pub(super) type Look = dyn Fn(&Core) -> Option<Duration> + Send + Sync;

/// Whether the process ends by `exit`: then the driver goes, too, while this thread goes on.
static EXITS: AtomicBool = AtomicBool::new(false);

/// The process whose thread looks at pools now, and one more; 0 while none does.
static LOOKS: AtomicU64 = AtomicU64::new(0);

/// Comes before the driver's own end, which was registered earlier. No lock: the thread that ends the process may hold any. So it
/// waits for a look that is under way, but not for long.
extern "C" fn at_exit() {
    // Sequentially consistent, as where they are looked at: this writes the one and reads the other, and the thread does it the
    // other way round.
    EXITS.store(true, Ordering::SeqCst);
    let (began, own) = (Instant::now(), Process::here().number() + 1);
    while LOOKS.load(Ordering::SeqCst) == own && began.elapsed() < AT_EXIT {
        std::thread::sleep(AT_EXIT / 100);
    }
}

/// See the [module](self). Each pool with a delay has it; it ends with the last one.
#[derive(Debug)]
pub(super) struct DecayThread {
    inside: Arc<Inside>,
    thread: Option<JoinHandle<()>>,
    process: Process,
}

/// What the thread has, too.
#[derive(Debug)]
struct Inside {
    pools: OfProcess<Mutex<Vec<Looked>>>,
    /// Locked while one of them looks: see [`DecayThread::leave`]. Not `pools`: a trim calls functions of the program, which may
    /// build a pool.
    looking: OfProcess<Mutex<()>>,
    ends: AtomicBool,
}

/// A pool that is looked at.
#[derive(Clone)]
struct Looked {
    number: u64,
    pool: Weak<dyn HasCore>,
    look: Arc<Look>,
}

impl fmt::Debug for Looked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Looked").field("number", &self.number).finish_non_exhaustive()
    }
}

impl DecayThread {
    /// The process's.
    pub(super) fn get() -> io::Result<Arc<Self>> {
        static THREAD: WhileHeld<(), DecayThread> = WhileHeld::new();
        THREAD.get((), || Self::new().map(Arc::new))
    }

    fn new() -> io::Result<Self> {
        let inside = Arc::new(Inside {
            pools: OfProcess::default(),
            looking: OfProcess::default(),
            ends: AtomicBool::new(false),
        });
        let of_thread = inside.clone();
        static TOLD: Once = Once::new();
        // SAFETY: a function of this library, which the C library forgets when this one is unloaded.
        TOLD.call_once(|| _ = unsafe { libc::atexit(at_exit) });
        let builder = std::thread::Builder::new().name("millpond-decay".to_owned());
        let thread = builder.spawn(move || of_thread.look_at_all())?;
        Ok(Self { inside, thread: Some(thread), process: Process::here() })
    }

    /// Has the thread look at a pool from now on.
    pub(super) fn enter(&self, number: u64, pool: Weak<dyn HasCore>, look: Arc<Look>) {
        let mut pools = self.inside.pools.lock();
        pools.retain(|looked| looked.pool.strong_count() > 0);
        pools.push(Looked { number, pool, look });
        drop(pools);
        self.wake();
    }

    /// Has it look at the pool no more, and waits for a look that is under way.
    pub(super) fn leave(&self, core: &Core) {
        self.inside.pools.lock().retain(|looked| looked.number != core.number);
        // A look may drop a pool itself, and would wait for its own end.
        if !self.is_this_thread() {
            drop(self.inside.looking.lock());
        }
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    fn is_this_thread(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| thread.thread().id() == std::thread::current().id())
    }
}

impl Drop for DecayThread {
    fn drop(&mut self) {
        if !self.process.is_here() {
            // The thread is the parent's. Its handle would detach one that may be another's by now.
            std::mem::forget(self.thread.take());
            return;
        }
        // Release: the thread sees it after the `unpark` in any case.
        self.inside.ends.store(true, Ordering::Release);
        self.wake();
        // The last pool may end on the thread itself, where a look had it. Else the thread is waited for, so that a program which
        // ends its pools has none of ours left.
        if !self.is_this_thread()
            && let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log!(ERROR, "the thread that gives back what pools no longer use panicked");
        }
    }
}

impl Inside {
    fn look_at_all(&self) {
        // Signals of the program go to its own threads.
        SigSet::all().thread_block().ok();
        // Acquire: pairs with the Release of the drop.
        while !self.ends.load(Ordering::Acquire) {
            LOOKS.store(Process::here().number() + 1, Ordering::SeqCst);
            let pause = {
                let _looking = self.looking.lock();
                let pools = self.pools.lock().clone();
                // One that left meanwhile is looked at once more: whoever had it leave waits for that.
                let look = |looked: &Looked| (looked.look)(&*looked.pool.upgrade()?);
                pools.iter().take_while(|_| !EXITS.load(Ordering::SeqCst)).filter_map(look).min()
            };
            LOOKS.store(0, Ordering::SeqCst);
            if EXITS.load(Ordering::SeqCst) {
                return;
            }
            match pause {
                Some(pause) => std::thread::park_timeout(pause),
                None => std::thread::park(),
            }
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::fixtures::alone;
    use crate::pool::{Context, Pool};

    #[test]
    fn the_end_of_the_process_waits_for_a_look_and_ends_all() {
        alone("decay::thread::tests::the_end_of_the_process_waits_for_a_look_and_ends_all", || {
            /// Takes a while, and is not ended in its midst.
            static IS_INSIDE: AtomicBool = AtomicBool::new(false);
            fn look(_: &Core) -> Option<Duration> {
                IS_INSIDE.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
                IS_INSIDE.store(false, Ordering::SeqCst);
                Some(Duration::from_micros(1))
            }
            let pool = Pool::builder(&Context::host().unwrap()).build().unwrap();
            let thread = DecayThread::new().unwrap();
            thread.enter(0, Arc::downgrade(pool.inner()) as _, Arc::new(look));
            while !IS_INSIDE.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            at_exit();
            assert!(!IS_INSIDE.load(Ordering::SeqCst));
            while !thread.thread.as_ref().unwrap().is_finished() {
                std::thread::yield_now();
            }
        });
    }
}
