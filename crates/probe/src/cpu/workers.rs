//! Threads that stay on one core each.

use std::sync::Barrier;
use std::time::Instant;

use core_affinity::CoreId;

use crate::{Error, Result};

/// The cores that this process may use.
#[derive(Debug)]
pub(crate) struct Cores(Vec<CoreId>);

impl Cores {
    pub(crate) fn new() -> Self {
        Self(core_affinity::get_core_ids().unwrap_or_default())
    }

    pub(super) fn count(&self) -> usize {
        self.0.len().max(1)
    }

    /// Keeps the calling thread on a core. Where the system does not let it, it runs where it is put.
    fn pin(&self, number: usize) {
        if let Some(&core) = self.0.get(number) {
            core_affinity::set_for_current(core);
        }
    }

    /// Runs `work` on a thread that stays on the first core.
    pub(crate) fn on_one(&self, work: impl FnOnce() -> Result<()> + Send) -> Result<()> {
        std::thread::scope(|scope| {
            let measuring = scope.spawn(|| {
                self.pin(0);
                work()
            });
            measuring.join().map_err(|_| Error::Thread)?
        })
    }

    /// One part of memory for each of `threads` cores, made and touched by it.
    pub(super) fn parts(&self, threads: usize, words: usize) -> Result<Vec<Vec<u64>>> {
        std::thread::scope(|scope| {
            let makers: Vec<_> = (0..threads)
                .map(|number| {
                    scope.spawn(move || {
                        self.pin(number);
                        vec![1_u64; words]
                    })
                })
                .collect();
            makers.into_iter().map(|maker| maker.join().map_err(|_| Error::Thread)).collect()
        })
    }

    /// Runs `work` on each part by its core, all at once. Nanoseconds from the first one's begin to the last one's end.
    pub(super) fn at_once(&self, parts: &mut [Vec<u64>], work: impl Fn(&mut [u64]) + Sync) -> Result<f64> {
        let (barrier, work, origin) = (Barrier::new(parts.len()), &work, Instant::now());
        std::thread::scope(|scope| {
            let barrier = &barrier;
            let threads: Vec<_> = parts
                .iter_mut()
                .enumerate()
                .map(|(number, part)| {
                    scope.spawn(move || {
                        self.pin(number);
                        barrier.wait();
                        let began = origin.elapsed();
                        work(part);
                        [began, origin.elapsed()]
                    })
                })
                .collect();
            let mut times = Vec::with_capacity(threads.len());
            for thread in threads {
                times.push(thread.join().map_err(|_| Error::Thread)?);
            }
            let began = times.iter().map(|[began, _]| *began).min().unwrap_or_default();
            let ended = times.iter().map(|[_, ended]| *ended).max().unwrap_or_default();
            Ok((ended - began).as_nanos() as f64)
        })
    }
}
