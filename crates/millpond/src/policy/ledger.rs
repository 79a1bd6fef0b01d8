//! The ledger: of the time that passes, how much goes to device calls and slow paths?
//!
//! Time buys memory, and memory buys time. Short pages leave less memory unused than long ones, and each costs as
//! much time. A pool that holds next to nothing beyond what is live moves pages and empties caches for each new
//! request. One that holds more need not. The ledger says what there is too much of. It has two accounts:
//!
//! - **Pages**, over the pool's life: the pool earns a small part of the time that passes, and some time for each byte that it
//!   comes to hold. It pays for its pages with it. While it can, new pages are short. The more it overspends, the longer they are.
//! - **Slow paths**, in recent time: what went to work that more memory would have saved.
//!
//! The clock is the device's ([`Device::now`](crate::device::Device::now)). The simulated device's is virtual, so a replay decides by
//! the trace's own time.
//!
//! An overdrawn pool is in *throughput mode*. It grows before it takes memory from anybody, up to its *growth
//! allowance* beyond the most that was ever live. The allowance is small at first. Each look that still finds much
//! slow-path time doubles it, up to a limit.

use std::time::Duration;

use super::Policy;
use super::size_classes::most_wasted;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Ledger {
    policy: Policy,
    /// When the pool was made.
    opened: Duration,
    /// What its pages took since then.
    paid: Duration,
    /// The most bytes that it held.
    most_held: u64,
    /// Time of slow paths since the last look.
    slow: Duration,
    /// At the last look.
    looked: Observation,
    /// Time of slow paths, and how many, since the last look that found little slow-path time.
    row: Duration,
    paths: u32,
    /// Bytes; 0 unless overdrawn.
    growth_allowance: u64,
    /// Bytes that the growth allowance may come to.
    most_growth: u64,
    /// Whether that is what the program asked for.
    is_asked: bool,
}

/// What a pool sees when it looks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observation {
    /// The device's clock.
    pub(crate) now: Duration,
    /// Requests served so far.
    pub(crate) served: u64,
    /// The most bytes that were ever in blocks.
    pub(crate) live: u64,
}

/// What is earned for each GiB that the pool comes to hold, once: whatever loads so much takes longer. All of it in pages of 2 MiB
/// takes 18 ms on an H200. (10, 15 and 18 ms come to 1.0044, 1.0040 and 1.0040 of what is needed, in the mean of 42 recordings,
/// for 5.0, 6.5 and 6.7 ms. A program that misses much overspends: device calls shall take no more than 20 ms and 1 % of the time.)
const EARNED_PER_GIB: Duration = Duration::from_millis(15);

/// How often pages double once they took twice what was earned. (Jobs whose sizes never come back spend 17.6 % of their time on pages
/// with 4, 15.2 % with 6, 8 and 12, and 23.2 % where pages do not double. What they need is the same. docs/lab/fit.md.)
const DOUBLINGS: u32 = 6;

/// The part of the time that is earned. (A 150th comes to 1.0042, a 100th to 1.0040.)
const EARNED_PART: u32 = 100;

/// The pool looks once slow paths took so much since the last look. (After 2 ms and after 4 give the same ratios.)
const LOOK_AFTER: Duration = Duration::from_millis(4);

/// Slow-path time is much if it is more than one part in so many. At one in two, a thousand small blocks replaced at
/// random stayed just below it on some machines. A step then took two to four times what it takes in throughput mode.
/// At one in four, a generated job whose streams ask for 450 GB a second held 14 % more than was live, not 5.
const MUCH_PART: u32 = 3;

/// Slow-path time that looks in a row find before the pool is overdrawn: a program that enters another phase moves much
/// memory once. (At 50 ms, generated jobs with long-lived blocks among short ones held up to 1.32 of what they requested.)
const MOST_TIME: Duration = Duration::from_millis(200);

/// Or as many slow paths. Those of training are fewer and longer. So many short ones come from a program that does
/// little but allocate, which is then served from magazines within its first milliseconds.
pub(super) const MOST_PATHS: u32 = 4096;

/// The most that the growth allowance comes to if the program does not say: this part of the device's memory, and this part of what
/// was ever live. (Programs that only allocate and free blocks of any size come to rest with a sixth of what was live. Three streams
/// with batches of any size spend 127 ms a GiB on pages with a half, and hold 1.50 of what they request. With a quarter they spend 125
/// and hold 1.24, with an eighth 127 and 1.12.)
const MOST_OF_DEVICE: u64 = 32;
const MOST_OF_LIVE: u64 = 4;

/// What the growth allowance is at first: a few pages. (With a 32nd of what was ever live, and 64 MiB at most, 86 recordings need and
/// hold the same. docs/lab/fit.md.)
const FIRST_GROWTH: u64 = 8 << 20;

/// About what a block costs that is cut from free memory instead of taken from a magazine. An estimate: to measure it
/// would cost as much. In throughput mode, a step of such a program saved 520 ns a block on 2 cores of an AMD EPYC. It
/// saved 1,100 ns on a busy machine with an H200.
pub(crate) const CUT: Duration = Duration::from_nanos(600);

impl Ledger {
    /// For a pool that is made `now` on a device with `total` bytes. The growth allowance is at most what is `asked` for.
    pub(crate) fn new(policy: Policy, asked: Option<u64>, total: u64, now: Duration) -> Self {
        Self {
            policy,
            opened: now,
            paid: Duration::ZERO,
            most_held: 0,
            slow: Duration::ZERO,
            looked: Observation { now, served: 0, live: 0 },
            row: Duration::ZERO,
            paths: 0,
            growth_allowance: 0,
            most_growth: asked.unwrap_or(total / MOST_OF_DEVICE),
            is_asked: asked.is_some(),
        }
    }

    /// How often new pages are to double: the longer they are, the fewer have to be paid for. 0 while they took no more than was
    /// earned, and `u32::MAX` where they are to be as long as may be.
    pub(crate) fn page_doublings(&self, now: Duration) -> u32 {
        if self.is_overdrawn() || !self.policy.short_pages {
            return u32::MAX;
        }
        let by_byte = EARNED_PER_GIB.mul_f64(self.most_held as f64 / (1u64 << 30) as f64);
        let earned = by_byte + now.saturating_sub(self.opened) / EARNED_PART;
        // A pool that has earned nothing yet has paid nothing: `as` makes 0 of that.
        let beyond = self.paid.saturating_sub(earned).div_duration_f64(earned);
        (beyond * f64::from(DOUBLINGS)) as u32
    }

    /// Whether the pool is in throughput mode.
    #[inline]
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.growth_allowance > 0
    }

    /// Bytes that may be held beyond the most that was ever live, before memory is taken from anybody.
    pub(crate) fn growth_allowance(&self) -> u64 {
        self.growth_allowance
    }

    /// Notes what pages took: to create, map, unmap and search for them. So many bytes are held now.
    pub(crate) fn pay_for_pages(&mut self, time: Duration, held: u64) {
        self.paid += time;
        self.most_held = self.most_held.max(held);
    }

    /// Notes a slow path that more memory would have saved, and the time that it took: [`CUT`] where it cut a block from free
    /// memory, or grew. Has the pool `look` if they took much by now. Returns whether the growth allowance has changed.
    pub(crate) fn note(&mut self, time: Duration, look: impl FnOnce() -> Observation) -> bool {
        self.slow += time;
        self.row += time;
        self.paths += 1;
        self.slow >= LOOK_AFTER && self.look_slow(&look())
    }

    #[cold]
    fn look_slow(&mut self, observed: &Observation) -> bool {
        if !self.policy.throughput {
            return false;
        }
        let passed = observed.now.saturating_sub(self.looked.now);
        let is_much = |time: Duration| time * MUCH_PART > passed;
        let before = self.growth_allowance;
        let of_live =
            if self.is_asked { u64::MAX } else { (observed.live / MOST_OF_LIVE).max(most_wasted()) };
        let most = self.most_growth.min(of_live);
        let goes_on = !self.is_overdrawn() && is_much(self.slow);
        if self.is_overdrawn() {
            // Throughput mode removes the slow paths that began it. So it lasts, too, while requests come so fast
            // that they would take much time if each were cut from free memory.
            let saved = CUT.saturating_mul(
                observed.served.saturating_sub(self.looked.served).try_into().unwrap_or(u32::MAX),
            );
            if is_much(self.slow) {
                self.growth_allowance = self.growth_allowance.saturating_mul(2).min(most).max(before);
            } else if !is_much(self.slow + saved) {
                self.growth_allowance = 0;
            }
        } else if goes_on && (self.row >= MOST_TIME || self.paths >= MOST_PATHS) {
            self.growth_allowance = FIRST_GROWTH.min(most);
        }
        if !goes_on {
            (self.row, self.paths) = (Duration::ZERO, 0);
        }
        (self.looked, self.slow) = (*observed, Duration::ZERO);
        self.growth_allowance != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = LOOK_AFTER;

    const LIVE: u64 = 4 << 30;

    /// Looks that find much before the pool is overdrawn, where slow paths are long.
    const IN_A_ROW: u32 = MOST_TIME.as_millis().div_ceil(LOOK.as_millis()) as u32;

    /// A ledger and the clock that it is asked by.
    struct Books {
        ledger: Ledger,
        now: Duration,
    }

    impl Books {
        fn new(most_growth: u64) -> Self {
            let now = Duration::from_secs(100);
            Self { ledger: Ledger::new(Policy::ALL, Some(most_growth), 0, now), now }
        }

        /// Spends enough for one look, of a time `per` times as long, in which no request was served.
        fn spend(&mut self, per: u32) -> bool {
            self.look(per, 0)
        }

        /// The same, when so many requests were served so far.
        fn look(&mut self, per: u32, served: u64) -> bool {
            self.now += LOOK * per;
            let now = self.now;
            self.ledger.note(LOOK, || Observation { now, served, live: LIVE })
        }
    }

    #[test]
    fn pages_earn_part_of_time_and_once_by_the_byte() {
        let Books { mut ledger, .. } = Books::new(0);
        let (at, millis) = (Duration::from_secs, Duration::from_millis);
        assert_eq!(ledger.page_doublings(at(100)), 0, "nothing was paid yet");
        // A hundredth of the time: 20 ms for two seconds. And 30 ms for 2 GiB.
        ledger.pay_for_pages(millis(50), 2 << 30);
        assert_eq!(ledger.page_doublings(at(102)), 0);
        // Once for each sixth beyond that.
        ledger.pay_for_pages(millis(9), 2 << 30);
        assert_eq!([102, 103].map(|now| ledger.page_doublings(at(now))), [1, 0]);
        ledger.pay_for_pages(millis(41), 2 << 30);
        assert_eq!([102, 104, 107].map(|now| ledger.page_doublings(at(now))), [6, 2, 0]);
        // Only what is more than ever was earns.
        ledger.pay_for_pages(Duration::ZERO, 1 << 30);
        assert_eq!(ledger.page_doublings(at(102)), 6);
        ledger.pay_for_pages(Duration::ZERO, 4 << 30);
        assert_eq!(ledger.page_doublings(at(102)), 1);
    }

    #[test]
    fn who_paid_before_anything_was_earned_has_the_longest_pages() {
        let Books { mut ledger, now } = Books::new(0);
        ledger.pay_for_pages(Duration::from_millis(1), 0);
        assert_eq!(ledger.page_doublings(now), u32::MAX);
    }

    #[test]
    fn an_overdrawn_pool_saves_nothing_on_pages() {
        let mut books = Books::new(1 << 20);
        (0..IN_A_ROW).for_each(|_| _ = books.spend(1));
        assert_eq!(books.ledger.page_doublings(books.now), u32::MAX);
    }

    #[test]
    fn much_slow_path_time_overdraws_and_little_ends_it() {
        let mut books = Books::new(1 << 20);
        for _ in 0..2 {
            assert_eq!((books.ledger.is_overdrawn(), books.ledger.growth_allowance()), (false, 0));
            for _ in 1..IN_A_ROW {
                assert!(!books.spend(1));
            }
            // A pause between begins the row again.
            assert!(!books.spend(MUCH_PART + 1));
            for _ in 1..IN_A_ROW {
                assert!(!books.spend(1));
            }
            assert!(books.spend(1));
            assert_eq!((books.ledger.is_overdrawn(), books.ledger.growth_allowance()), (true, 1 << 20));
            let look = || unreachable!("too little to look");
            assert!(!books.ledger.note(LOOK / 2, look));
            assert!(books.spend(2 * MUCH_PART));
            assert!(!books.ledger.is_overdrawn());
        }
    }

    #[test]
    fn many_short_slow_paths_overdraw_at_once() {
        let Books { mut ledger, mut now } = Books::new(1 << 20);
        let mut note = |_| {
            now += CUT * 2;
            ledger.note(CUT, || Observation { now, served: 0, live: LIVE })
        };
        let paths = (0..2 * MOST_PATHS).position(&mut note).expect("it is overdrawn at last");
        assert!(CUT * (paths as u32) < MOST_TIME / 10, "{paths}");
    }

    #[test]
    fn the_growth_allowance_doubles_while_slow_paths_take_much() {
        let mut books = Books::new(200 << 20);
        (0..IN_A_ROW).for_each(|_| _ = books.spend(1));
        assert_eq!(books.ledger.growth_allowance(), 8 << 20);
        // Little time, which would be much without throughput mode: the allowance is enough.
        let enough = (LOOK * 2 * MUCH_PART).div_duration_f64(CUT) as u64;
        assert!(!books.look(2 * MUCH_PART, enough));
        for expected in [16, 32, 64, 128, 200] {
            assert!(books.spend(1));
            assert_eq!(books.ledger.growth_allowance(), expected << 20);
        }
        assert!(!books.spend(1), "no more than that");
    }

    #[test]
    fn it_lasts_while_requests_would_cost_much_without_it() {
        let mut books = Books::new(1 << 20);
        // Too long for the slow-path time to be much, and so many requests that it would be.
        let per = 2 * MUCH_PART;
        let requests = (LOOK * per).div_duration_f64(CUT * MUCH_PART) as u64;
        for looks in 1..2 * u64::from(IN_A_ROW) {
            assert!(!books.look(per, looks * requests), "requests alone do not begin it");
        }
        (0..IN_A_ROW).for_each(|_| _ = books.spend(1));
        assert!(books.ledger.is_overdrawn());
        for looks in 1..2 * u64::from(IN_A_ROW) {
            assert!(!books.look(per, looks * requests));
        }
        let so_far = 2 * u64::from(IN_A_ROW) * requests;
        assert!(!books.look(per, so_far));
        assert!(books.look(per, so_far), "none since");
        assert!(!books.ledger.is_overdrawn());
    }

    #[test]
    fn what_a_policy_leaves_out_never_comes() {
        let policy = Policy { throughput: false, short_pages: false, ..Policy::ALL };
        let mut books =
            Books { ledger: Ledger::new(policy, Some(1 << 20), 0, Duration::ZERO), now: Duration::ZERO };
        assert!((0..3 * IN_A_ROW).all(|_| !books.spend(1)));
        assert_eq!(books.ledger.page_doublings(books.now), u32::MAX);
    }

    #[test]
    fn the_growth_allowance_is_a_part_of_what_is_live_unless_asked_for() {
        let (mut ledger, mut now) =
            (Ledger::new(Policy::ALL, None, 128 << 30, Duration::ZERO), Duration::ZERO);
        let mut allowance = |live| {
            now += LOOK;
            ledger.note(LOOK, || Observation { now, served: 0, live });
            ledger.growth_allowance()
        };
        (1..IN_A_ROW).for_each(|_| assert_eq!(allowance(64 << 20), 0));
        assert_eq!([allowance(64 << 20), allowance(64 << 20)], [8 << 20, 16 << 20]);
        (0..10).for_each(|_| _ = allowance(64 << 20));
        assert_eq!(allowance(64 << 20), 64 << 20, "however little is live");
        assert_eq!(allowance(260 << 20), 65 << 20);
        (0..10).for_each(|_| _ = allowance(64 << 30));
        assert_eq!(allowance(64 << 30), 4 << 30, "a 32nd of the device");
    }

    #[test]
    fn a_pool_without_growth_allowance_is_never_overdrawn() {
        let mut books = Books::new(0);
        for _ in 0..3 * IN_A_ROW {
            assert!(!books.spend(1));
        }
        assert!(!books.ledger.is_overdrawn());
    }
}
