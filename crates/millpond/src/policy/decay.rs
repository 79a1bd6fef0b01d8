//! When memory that a program no longer uses goes back to the device. Allocators call it decay, or purge delay (jemalloc, mimalloc).
//!
//! A pool without requests uses nothing of what is free: all of it is due after the delay. While there are requests, what a program
//! needs between two of its peaks is worth keeping. The bytes in use are only looked at now and then. So where they seem to be few,
//! the pool is asked for their exact peak over one more delay, before anything goes.

use std::time::Duration;

use super::options::LARGEST_PAGE;

/// What `millpond run` waits for: a program's pause between two passes is shorter, and who looks at an idle card waits longer.
pub const DELAY: Duration = Duration::from_secs(1);

/// Looks in a delay, while there are requests. So the delay is kept to a quarter.
const LOOKS: u32 = 4;

/// While there are requests, memory is due where more than this part of the peak is beyond it, and half as much is kept: a job's
/// peaks differ from step to step, and free memory is in pieces. It has to be more than two of the longest pages, too: less is not
/// worth emptying the threads' caches.
const UNUSED_PART: u64 = 4;

/// Where nothing could be given back, say because of work that is pending, the pool is asked again after twice the time, and up to
/// so many delays later.
const MOST_DELAYS: u32 = 64;

/// How long the end of the process waits for a look that is under way. A trim of 10 GiB takes some 30 ms.
pub(crate) const AT_EXIT: Duration = Duration::from_millis(100);

/// What a pool sees when it looks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observation {
    /// The device's clock.
    pub(crate) now: Duration,
    /// Allocations and frees so far.
    pub(crate) requests: u64,
    /// Bytes in live blocks now.
    pub(crate) used: u64,
    /// The most that they were since the pool was last asked to [`Mark`](Due::Mark) it.
    pub(crate) peak: u64,
    /// Bytes held.
    pub(crate) reserved: u64,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// The peak of what is in use is to start again from now.
    Mark,
    /// Free memory goes back until so many bytes are held.
    Trim(u64),
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Decay {
    delay: Duration,
    /// When the last look was that saw new requests, and how many it saw.
    quiet_since: Duration,
    requests: u64,
    /// When the present observation of a busy pool began, the most bytes in use that it saw, and whether it sees all.
    began: Duration,
    most: u64,
    is_marked: bool,
    /// For a quiet pool: when it may be asked next, and the delays until then.
    next: Duration,
    delays: u32,
}

impl Decay {
    pub(crate) fn new(delay: Duration, now: Duration) -> Self {
        let (most, requests, is_marked) = (0, 0, false);
        Self { delay, quiet_since: now, requests, began: now, most, is_marked, next: now, delays: 1 }
    }

    /// What is due by what the pool sees.
    pub(crate) fn look(&mut self, seen: &Observation) -> Due {
        let Observation { now, used, reserved, .. } = *seen;
        if seen.requests != self.requests {
            (self.requests, self.quiet_since) = (seen.requests, now);
            (self.next, self.delays) = (now, 1);
        }
        self.most = self.most.max(if self.is_marked { seen.peak } else { used });
        if self.is_quiet(now) {
            self.observe_from(now, false);
            return if reserved > used && now >= self.next { Due::Trim(used) } else { Due::Nothing };
        }
        if now.saturating_sub(self.began) < self.delay {
            return Due::Nothing;
        }
        let (most, was_marked) = (self.most, self.is_marked);
        let unused = reserved.saturating_sub(most);
        let is_much = unused > (most / UNUSED_PART).max(2 * LARGEST_PAGE);
        self.observe_from(now, is_much && !was_marked);
        match (is_much, was_marked) {
            (false, _) => Due::Nothing,
            (true, false) => Due::Mark,
            (true, true) => Due::Trim(most + most / (2 * UNUSED_PART)),
        }
    }

    /// A trim gave back so many bytes.
    pub(crate) fn gave_back(&mut self, bytes: u64, now: Duration) {
        self.delays = if bytes > 0 { 1 } else { (self.delays * 2).min(MOST_DELAYS) };
        self.next = now + self.delay * self.delays;
    }

    /// How long until the next look.
    pub(crate) fn pause(&self, now: Duration) -> Duration {
        if self.is_quiet(now) { self.delay } else { self.delay / LOOKS }
    }

    fn is_quiet(&self, now: Duration) -> bool {
        now.saturating_sub(self.quiet_since) >= self.delay
    }

    fn observe_from(&mut self, now: Duration, is_marked: bool) {
        (self.began, self.most, self.is_marked) = (now, 0, is_marked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A pool that holds 10 GiB, and looks four times a second.
    struct Books {
        decay: Decay,
        now: Duration,
        requests: u64,
    }

    impl Books {
        fn new() -> Self {
            let now = Duration::from_secs(100);
            Self { decay: Decay::new(DELAY, now), now, requests: 0 }
        }

        /// What each look of a second says, in which so many requests come between two looks.
        fn second(&mut self, requests: u64, used: u64, peak: u64) -> Vec<Due> {
            let look = |_| {
                self.now += DELAY / LOOKS;
                self.requests += requests;
                let (now, requests) = (self.now, self.requests);
                self.decay.look(&Observation { now, requests, used, peak, reserved: 10 * GIB })
            };
            (0..LOOKS).map(look).filter(|due| *due != Due::Nothing).collect()
        }
    }

    #[test]
    fn a_quiet_pool_keeps_what_is_live() {
        let mut books = Books::new();
        assert_eq!(books.second(1, 9 * GIB, 9 * GIB), []);
        // The last look saw requests.
        assert_eq!(books.second(0, GIB, 5 * GIB), [Due::Trim(GIB)]);
        // What could not be given back is asked for ever later.
        let mut asked = 0;
        for _ in 0..1000 {
            if !books.second(0, GIB, 5 * GIB).is_empty() {
                asked += 1;
                books.decay.gave_back(0, books.now);
            }
        }
        assert!((15..25).contains(&asked), "{asked}");
        assert_eq!(books.second(1, 9 * GIB, 9 * GIB), []);
        assert_eq!(books.second(0, GIB, 5 * GIB), [Due::Trim(GIB)], "new requests begin anew");
    }

    #[test]
    fn a_busy_pool_keeps_its_peak() {
        let mut books = Books::new();
        for _ in 0..10 {
            // Looks see what is in use near its peak.
            assert_eq!(books.second(1000, 9 * GIB, 9 * GIB), []);
        }
        for _ in 0..5 {
            // They never do: it is marked, and found to be high.
            assert_eq!(books.second(1000, GIB, 9 * GIB), [Due::Mark]);
            assert_eq!(books.second(1000, GIB, 9 * GIB), []);
        }
    }

    #[test]
    fn a_busy_pool_gives_back_what_is_far_beyond_its_peak() {
        let mut books = Books::new();
        assert_eq!(books.second(1, GIB, 10 * GIB), [Due::Mark]);
        assert_eq!(books.second(1, GIB, 2 * GIB), [Due::Trim(2 * GIB + GIB / 4)]);
        assert_eq!(books.second(1, 8 * GIB + 2 * LARGEST_PAGE, 0), [], "a quarter stays");
    }

    #[test]
    fn a_clock_that_stands_still_makes_nothing_due() {
        let (mut decay, now) = (Decay::new(DELAY, Duration::ZERO), Duration::ZERO);
        let seen = Observation { now, requests: 0, used: 0, peak: 0, reserved: GIB };
        assert!((0..100).all(|_| decay.look(&seen) == Due::Nothing));
        assert_eq!(decay.pause(now), DELAY / LOOKS);
        assert_eq!(decay.pause(DELAY), DELAY);
    }
}
