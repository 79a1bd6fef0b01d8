//! Threads that stay on one core each, so that a figure is not of the scheduler.

use core_affinity::CoreId;

/// The cores that this process may use.
#[derive(Debug)]
pub(crate) struct Cores(Vec<CoreId>);

impl Cores {
    pub(crate) fn new() -> Self {
        Self(core_affinity::get_core_ids().unwrap_or_default())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len().max(1)
    }

    /// Keeps the calling thread on the core of this number, counted round. Where the system does not let it, it
    /// runs where it is put.
    pub(crate) fn pin(&self, number: usize) {
        if let Some(&core) = self.0.get(number % self.count()) {
            core_affinity::set_for_current(core);
        }
    }

    /// Runs `work` on a thread of its own that stays on one core. Threads that a device starts meanwhile would stay
    /// there too: streams are made before.
    pub(crate) fn on_one<R: Send>(&self, work: impl FnOnce() -> R + Send) -> crate::Result<R> {
        std::thread::scope(|scope| {
            let measuring = scope.spawn(|| {
                self.pin(0);
                work()
            });
            measuring.join().map_err(|_| crate::Error::Thread)
        })
    }
}
