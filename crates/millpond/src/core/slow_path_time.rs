//! What a pool tells its ledger of slow paths, and what the threads' caches may hold by its answer.

use std::time::Duration;

use super::pool_core::{Core, PoolState};
use crate::log::log;
use crate::policy::ledger::Observation;
use crate::system::lock::MutexGuard;

impl Core {
    /// The lock, for what found no block or no room in a magazine. The thread's wait counts as slow-path time: with
    /// more memory, few would come here.
    pub(super) fn lock_noting_waits(&self) -> MutexGuard<'_, PoolState> {
        let mut state = self.state.try_lock().unwrap_or_else(|| self.lock_waiting());
        self.collect_ended(&mut state);
        state
    }

    #[cold]
    fn lock_waiting(&self) -> MutexGuard<'_, PoolState> {
        let began = self.now();
        let mut state = self.state.lock();
        let waited = self.since(began);
        // More memory would not have spared the wait for a sleep.
        if !state.is_asleep {
            self.note_slow_path(&mut state, waited);
        }
        state
    }

    pub(super) fn note_slow_path(&self, state: &mut PoolState, took: Duration) {
        let look = || {
            let counted = self.counted();
            Observation { now: self.now(), served: counted.allocations, live: counted.allocated.high }
        };
        if state.ledger.note(took, look) {
            log!(DEBUG, "throughput mode", pool = self.name);
            self.caches.set_throughput_mode(state.ledger.is_overdrawn());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use std::time::Duration;

    use crate::fixtures::Freeing;
    use crate::pool::{Context, Pool};

    #[test]
    fn threads_that_wait_for_each_other_start_throughput_mode() {
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
                    pool.free_block(block, &stream).unwrap();
                }
            });
            let was_on = (1..200).any(|mebibytes| {
                let state = inner.state.lock();
                if !state.ledger.is_overdrawn() {
                    ask.send(mebibytes).unwrap();
                    std::thread::sleep(Duration::from_millis(15));
                }
                let is_on = state.ledger.is_overdrawn();
                drop(state);
                // The lock is not fair: the thread that waits needs a moment to get it.
                std::thread::sleep(Duration::from_millis(1));
                is_on
            });
            drop(ask);
            assert!(was_on);
        });
    }
}
