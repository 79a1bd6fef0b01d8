//! What a pool counts under its lock, read by anyone without it. What threads count themselves is in `cache/`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::figures::stats::{DeviceCalls, Level, Stats};

/// A count that only goes up.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        // Relaxed throughout: readers conclude nothing from one count about another.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A figure that moves, and its high-water mark. Written by one thread at a time, but for the reset.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    current: AtomicU64,
    high: AtomicU64,
}

impl Gauge {
    #[inline]
    pub(crate) fn raise(&self, by: u64) {
        let now = self.current.load(Ordering::Relaxed) + by;
        self.current.store(now, Ordering::Relaxed);
        if now > self.high.load(Ordering::Relaxed) {
            // A reset may come between; fetch_max keeps the higher of the two.
            self.high.fetch_max(now, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn lower(&self, by: u64) {
        self.current.store(self.current.load(Ordering::Relaxed) - by, Ordering::Relaxed);
    }

    pub(crate) fn current(&self) -> u64 {
        self.current.load(Ordering::Relaxed)
    }

    pub(crate) fn level(&self) -> Level {
        let current = self.current();
        Level { current, high: self.high.load(Ordering::Relaxed).max(current) }
    }

    pub(crate) fn reset_high(&self) {
        self.high.store(self.current(), Ordering::Relaxed);
    }
}

macro_rules! define_calls {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Device calls by kind; see [`DeviceCalls`].
        #[derive(Debug, Default)]
        pub(crate) struct CallCounts {
            $(pub(crate) $name: Count,)*
        }

        impl CallCounts {
            fn get(&self) -> DeviceCalls {
                DeviceCalls { $($name: self.$name.get(),)* }
            }
        }
    };
}

crate::list_of_device_calls!(define_calls);

/// See [`Stats`] for what each one means.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) reserved: Gauge,
    /// Reserved bytes in segments that leave, and that the driver does not have yet.
    pub(crate) leaving: Gauge,
    /// Bytes of pages that sleep.
    pub(crate) asleep: Gauge,
    /// Bytes of pinned memory that are kept for evictions.
    pub(crate) pinned: Gauge,
    pub(crate) misses: Count,
    pub(crate) stream_waits: Count,
    pub(crate) pages_remapped: Count,
    pub(crate) retries: Count,
    pub(crate) out_of_memory: Count,
    /// What finding, mapping and giving back pages took, by the device's clock.
    pub(crate) device_nanoseconds: Count,
    pub(crate) calls: CallCounts,
}

impl Counters {
    /// Reserved bytes, without those that leave.
    pub(crate) fn staying(&self) -> u64 {
        self.reserved.current().saturating_sub(self.leaving.current())
    }

    /// Pages that were taken from one place for another so far, or given back for others.
    pub(crate) fn pages_moved(&self) -> u64 {
        self.pages_remapped.get() + self.calls.release.get()
    }

    /// Notes that pages took so long. Whoever calls this has the pool's lock.
    pub(crate) fn note_device_time(&self, time: Duration) {
        self.device_nanoseconds.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The statistics, beside what threads count themselves.
    pub(crate) fn stats(&self, counted: Stats) -> Stats {
        let misses = self.misses.get();
        Stats {
            reserved: self.reserved.level(),
            hits: counted.allocations.saturating_sub(misses),
            misses,
            stream_waits: self.stream_waits.get(),
            pages_remapped: self.pages_remapped.get(),
            retries: self.retries.get(),
            out_of_memory: self.out_of_memory.get(),
            asleep: self.asleep.current(),
            pinned: self.pinned.current(),
            calls: self.calls.get(),
            ..counted
        }
    }
}
