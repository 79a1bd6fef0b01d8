//! The clock of recordings: what it reads must be cheap, and must not go back from one processor to the next.
//!
//! Linux may keep time by the processor's counter (the clock source `tsc`). It has then checked that the processors'
//! counters agree, and we read the counter, too. That is half the price of `clock_gettime`. Elsewhere we ask the
//! system.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// `Some` where the counter is read, once it was asked. `quanta` measures how fast it runs, which takes some milliseconds.
/// Leaked. No `OnceLock`: a fork may come in between, and the child would wait for ever.
static COUNTER: AtomicPtr<Option<quanta::Clock>> = AtomicPtr::new(ptr::null_mut());

/// When something happened, in ticks of the clock. Means nothing but in relation to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    #[inline]
    pub(crate) fn now() -> Self {
        match counter() {
            Some(_) => Self(read_counter()),
            None => Self(system_ns()),
        }
    }

    /// On the clock, which began at any time.
    pub(super) fn ticks(self) -> u64 {
        self.0
    }

    /// Ticks since `origin`; 0 where that is later.
    #[inline]
    pub(super) fn since(self, origin: Self) -> u64 {
        self.0.saturating_sub(origin.0)
    }
}

/// Ticks in nanoseconds.
pub(super) fn nanoseconds(ticks: u64) -> u64 {
    match counter() {
        Some(counter) => counter.delta_as_nanos(0, ticks),
        None => ticks,
    }
}

#[inline]
fn counter() -> Option<&'static quanta::Clock> {
    // Acquire: pairs with the Release of `measure_slow`.
    // SAFETY: null, or leaked there.
    unsafe { COUNTER.load(Ordering::Acquire).as_ref() }.unwrap_or_else(measure_slow).as_ref()
}

#[cold]
fn measure_slow() -> &'static Option<quanta::Clock> {
    let new = Box::into_raw(Box::new(is_kernels_clock().then(quanta::Clock::new)));
    // Release: whoever sees the clock sees what is in it. Of threads that come here at once the first one's stays.
    match COUNTER.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: leaked above.
        Ok(_) => unsafe { &*new },
        Err(first) => {
            // SAFETY: nobody else knows it.
            drop(unsafe { Box::from_raw(new) });
            // SAFETY: not null, and leaked by the thread that was first.
            unsafe { &*first }
        }
    }
}

/// The processor's counter, no earlier than what comes before in the program. Without it, a processor may read the
/// counter before earlier loads. One of these may have seen that a lock is free, and the time would be before the last
/// holder released it.
#[cfg(target_arch = "x86_64")]
#[inline]
fn read_counter() -> u64 {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: instructions without operands, which every x86-64 processor has; that programs may use the second
    // one is what `COUNTER` says.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

/// Not used: see [`is_kernels_clock`].
#[cfg(not(target_arch = "x86_64"))]
fn read_counter() -> u64 {
    system_ns()
}

fn is_kernels_clock() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    // Miri knows no counter.
    cfg!(all(target_arch = "x86_64", not(miri)))
        && std::fs::read_to_string(SOURCE).is_ok_and(|source| source.trim() == "tsc")
}

fn system_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_clock_runs_as_fast_as_the_system_s() {
        let (origin, instant) = (Moment::now(), Instant::now());
        std::thread::sleep(Duration::from_millis(200));
        let (ours, theirs) = (nanoseconds(Moment::now().since(origin)), instant.elapsed().as_nanos() as u64);
        // The two were not read at the same time, and the thread may have been held up in between.
        assert!(ours.abs_diff(theirs) < 20_000_000, "{ours} and {theirs}");
        assert_eq!(origin.since(Moment::now()), 0);
    }
}
