//! What a pool notes of the time that memory would have saved, by which it is in [haste](super::haste) or not.

use std::time::Duration;

use crate::lock::MutexGuard;

use super::haste::Seen;
use super::inner::{PoolInner, State};

impl PoolInner {
    /// Pages that were taken from one place for another so far, or given back for others.
    pub(super) fn pages_moved(&self) -> u64 {
        self.counters.pages_stolen.get() + self.counters.calls.release.get()
    }

    /// The lock, for what found no block or no room in a magazine. What the thread waits for others is wasted: with
    /// memory to spare, few would come here.
    pub(super) fn lock_noting_waits(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.try_lock().unwrap_or_else(|| self.lock_waiting());
        if self.caches.any_ended() {
            self.collect_ended(&mut state);
        }
        state
    }

    #[cold]
    fn lock_waiting(&self) -> MutexGuard<'_, State> {
        let device = self.timelines.device();
        let began = device.now();
        let mut state = self.state.lock();
        let waited = device.now().saturating_sub(began);
        self.note_waste(&mut state, waited);
        state
    }

    pub(super) fn note_waste(&self, state: &mut State, wasted: Duration) {
        let look = || {
            let counted = self.counted();
            let (served, live) = (counted.allocations, counted.allocated.high);
            Seen { now: self.timelines.device().now(), served, live }
        };
        if state.haste.note(wasted, look) {
            tracing::debug!(pool = self.name, spare = state.haste.spare(), "haste");
            self.adapt(state);
        }
    }

    pub(super) fn adapt(&self, state: &State) {
        let (reserved, spare) = (self.counters.reserved.current(), state.haste.spare());
        let is_scarce = spare > 0 && reserved > self.counted().allocated.high + spare / 2;
        // What may be cached, by contrast, takes no memory: the pool grows by what is spare now only.
        self.caches.adapt(reserved, state.haste.most_spare(), is_scarce);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{Context, Pool};

    #[test]
    fn threads_that_wait_for_each_other_bring_the_pool_in_haste() {
        let context = Context::host().unwrap();
        let pool = Pool::builder(&context).build().unwrap();
        let stream = context.create_stream().unwrap();
        let inner = pool.inner();
        let (ask, asked) = mpsc::channel::<u64>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // A length that no magazine has yet.
                for mebibytes in asked {
                    let block = pool.alloc(mebibytes << 20, &stream).unwrap();
                    // SAFETY: nobody else has the block, and there is no work on it.
                    unsafe { pool.free(block, &stream) }.unwrap();
                }
            });
            let was_in_haste = (1..200).any(|mebibytes| {
                let state = inner.state.lock();
                if !state.haste.is_on() {
                    ask.send(mebibytes).unwrap();
                    std::thread::sleep(Duration::from_millis(15));
                }
                state.haste.is_on()
            });
            drop(ask);
            assert!(was_in_haste);
        });
    }
}
