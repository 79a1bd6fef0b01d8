//! Atomics and barriers of the asymmetric lock: the real ones, or loom's.

#[cfg(not(loom))]
pub(super) use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(loom)]
pub(super) use loom::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence,
};

use std::time::Duration;

#[cfg(not(loom))]
pub(super) use real::{full_barrier, heavy_barrier, is_asymmetric, light_barrier, pause};

#[cfg(loom)]
pub(super) use modelled::{full_barrier, heavy_barrier, is_asymmetric, light_barrier, pause};

/// Waits for a thread that is about to do something, longer each time. So a suspended thread gets the processor back,
/// even from a waiting one of higher real-time priority. No processor is kept busy meanwhile.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    steps: u32,
}

/// What to do while waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BackoffStep {
    /// Who runs needs a few instructions.
    Spin,
    /// Who was suspended waits for a processor, maybe this one.
    Yield,
    /// A thread of lower priority gets none while this one would run.
    Sleep(Duration),
}

/// Steps that spin: less than a microsecond.
const SPINS: u32 = 64;

/// Steps after them that yield.
const YIELDS: u32 = 16;

/// The first sleep, which doubles from then on.
const FIRST_SLEEP: Duration = Duration::from_micros(10);

/// Sleeps are at most the first one, doubled so many times: 1.28 ms.
const MOST_DOUBLINGS: u32 = 7;

impl Backoff {
    pub(super) fn wait(&mut self) {
        pause(self.next());
    }

    fn next(&mut self) -> BackoffStep {
        let step = self.steps;
        self.steps = step.saturating_add(1);
        match step.checked_sub(SPINS) {
            None => BackoffStep::Spin,
            Some(after) if after < YIELDS => BackoffStep::Yield,
            Some(after) => BackoffStep::Sleep(FIRST_SLEEP * (1 << (after - YIELDS).min(MOST_DOUBLINGS))),
        }
    }
}

#[cfg(not(loom))]
mod real {
    use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

    use super::BackoffStep;

    /// Whether the kernel issues barriers in all threads for us.
    pub(crate) fn is_asymmetric() -> bool {
        const UNKNOWN: u8 = 2;
        // No `OnceLock`: a fork may come in between, and the child would wait for ever. A child is registered as its
        // parent was.
        static REGISTERED: AtomicU8 = AtomicU8::new(UNKNOWN);
        // Relaxed: the answer is always the same, and nothing else is concluded from it.
        match REGISTERED.load(Ordering::Relaxed) {
            UNKNOWN => {
                let registered = register();
                REGISTERED.store(u8::from(registered), Ordering::Relaxed);
                registered
            }
            known => known == 1,
        }
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    fn register() -> bool {
        use rustix::thread::{MembarrierCommand, membarrier};
        // The second asks for a barrier, once, to see that it is granted: a sandbox may refuse.
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }

    /// Under Miri the owner issues full barriers, so that lock entries open there too.
    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn register() -> bool {
        cfg!(miri)
    }

    /// The owner's barrier where the other side has a heavy one: for the compiler only.
    #[inline]
    pub(crate) fn light_barrier() {
        if cfg!(miri) {
            full_barrier();
        }
        compiler_fence(Ordering::SeqCst);
    }

    /// The owner's barrier without it.
    pub(crate) fn full_barrier() {
        fence(Ordering::SeqCst);
    }

    /// The other side's barrier: in this thread, and in every other that runs.
    #[cold]
    pub(crate) fn heavy_barrier() {
        fence(Ordering::SeqCst);
        #[cfg(all(target_os = "linux", not(miri)))]
        if is_asymmetric() {
            use rustix::thread::{MembarrierCommand, membarrier};
            // It was granted before, and fails for no other reason than that. Without it, nothing that follows
            // would be sound.
            membarrier(MembarrierCommand::PrivateExpedited).expect("membarrier was granted before");
        }
    }

    /// Does what a step of a wait is.
    pub(crate) fn pause(step: BackoffStep) {
        match step {
            BackoffStep::Spin => std::hint::spin_loop(),
            BackoffStep::Yield => std::thread::yield_now(),
            BackoffStep::Sleep(time) => std::thread::sleep(time),
        }
    }
}

/// Both barriers as full fences, which is what they amount to together.
#[cfg(loom)]
mod modelled {
    use loom::sync::atomic::{Ordering, fence};

    use super::BackoffStep;

    pub(crate) fn is_asymmetric() -> bool {
        true
    }

    pub(crate) fn light_barrier() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn full_barrier() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy_barrier() {
        fence(Ordering::SeqCst);
    }

    /// A model has no time: every step lets another thread run.
    pub(crate) fn pause(_: BackoffStep) {
        loom::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_spins_and_yields_briefly_then_sleeps() {
        let mut backoff = Backoff::default();
        let steps: Vec<_> = (0..200).map(|_| backoff.next()).collect();
        let count = |step| steps.iter().filter(|other| **other == step).count() as u32;
        assert_eq!((count(BackoffStep::Spin), count(BackoffStep::Yield)), (SPINS, YIELDS));
        let mut sleeps = steps.iter().skip_while(|step| !matches!(step, BackoffStep::Sleep(_)));
        assert!(
            sleeps.clone().all(|step| matches!(step, BackoffStep::Sleep(_))),
            "a wait does not become busy again"
        );
        assert_eq!(sleeps.next(), Some(&BackoffStep::Sleep(FIRST_SLEEP)));
        assert_eq!(steps.last(), Some(&BackoffStep::Sleep(FIRST_SLEEP * (1 << MOST_DOUBLINGS))));
        assert_eq!(Backoff { steps: u32::MAX }.next(), *steps.last().unwrap());
    }
}
