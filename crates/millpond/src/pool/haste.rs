//! When memory is spent to save time: a pool whose slow paths take much of the program's time is *in haste*.
//!
//! A pool holds next to nothing beyond what its program needs, so that a request which no magazine can serve moves
//! pages, and takes back what other threads cache. A program that asks every few microseconds pays little for
//! that. One that does nothing but allocate and free pays with nearly all of its time, and gets more for it from
//! some memory: in haste, a pool rather grows than takes from anybody, up to its *spare* bytes beyond the most that
//! was ever live, and rounds large sizes to classes too, so that what was freed serves what comes next. It has few
//! spare bytes at first, and twice as many at each look that finds much wasted all the same, up to the most that it may
//! have: so it spends what takes effect and little more.
//!
//! It is a matter of the share of time, not of speed: of the time since it last looked, how much went to work
//! that memory would have saved. Looking takes a clock, which is the device's ([`Device::now`](crate::device::Device::now)): virtual on the
//! simulated device, so that a replay decides by the trace's own time.
//!
//! Haste takes away the waste that it was begun for. So it goes on, too, as long as requests come so fast that they
//! would waste as much if none of them found its block in a magazine.

use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Haste {
    /// Bytes that may be held, at most, beyond the most that was ever live.
    most: u64,
    /// Bytes that may be, now; 0 while it is not on.
    spare: u64,
    /// When the pool last looked.
    looked: Duration,
    /// Time since then that memory would have saved.
    wasted: Duration,
    /// Requests served until then.
    served: u64,
    /// Looks in a row, up to the last, that found much wasted.
    row: u32,
}

/// What a pool sees when it looks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// The device's clock.
    pub(super) now: Duration,
    /// Requests served so far.
    pub(super) served: u64,
    /// The most bytes that were ever live.
    pub(super) live: u64,
}

/// Wasted time from which on the pool looks.
const LOOK_AFTER: Duration = Duration::from_millis(10);

/// Much is wasted where it is more than one part in so many. (At one in two, a thousand small blocks replaced at random
/// came to rest just below it on some machines, at two to four times what a step takes in haste. At one in four, a
/// generated job whose streams ask for 450 GB a second held 14 % more than was live, not 5.)
const SHARE: u32 = 3;

/// Looks in a row that find much wasted before the pool is in haste: a program that enters another phase moves much
/// memory once. (On the traces of training, up to 3 in a row were seen.)
const IN_A_ROW: u32 = 5;

/// The part of what was live that may be spare at first.
const FIRST_PART: u64 = 16;

/// Bytes that may be spare at first, where that is less.
const LEAST_FIRST: u64 = 32 << 20;

/// About what a block costs that goes to the arena and is cut from it again, rather than through a magazine. An
/// estimate: to measure it would cost as much. (What a step of such a program takes less in haste, over the blocks cut
/// before: 520 ns on 2 cores of an AMD EPYC, 1,100 on a busy machine with an H200.)
pub(super) const THROUGH_ARENA: Duration = Duration::from_nanos(600);

/// About what it costs, at least, to take back what threads cache: a barrier in each of them, and their misses after it.
pub(super) const REVOCATION: Duration = Duration::from_micros(4);

impl Haste {
    /// Not in haste; `most` bytes may be spare if it comes to that.
    pub(super) fn new(most: u64, now: Duration) -> Self {
        Self { most, spare: 0, looked: now, wasted: Duration::ZERO, served: 0, row: 0 }
    }

    /// Whether the pool is in haste.
    pub(super) fn is_on(&self) -> bool {
        self.spare > 0
    }

    /// Bytes that may be held, now, beyond the most that was ever live.
    pub(super) fn spare(&self) -> u64 {
        self.spare
    }

    /// Bytes that it may come to.
    pub(super) fn most_spare(&self) -> u64 {
        if self.is_on() { self.most } else { 0 }
    }

    /// Notes wasted time, and has the pool `look` if that is much by now. Returns whether its spare bytes are others
    /// than before.
    pub(super) fn note(&mut self, wasted: Duration, look: impl FnOnce() -> Seen) -> bool {
        self.wasted += wasted;
        self.wasted >= LOOK_AFTER && self.look_slow(&look())
    }

    #[cold]
    fn look_slow(&mut self, seen: &Seen) -> bool {
        let passed = seen.now.saturating_sub(self.looked);
        let is_much = |time: Duration| time * SHARE > passed;
        let before = self.spare;
        if self.is_on() {
            let saved = through_arena(seen.served.saturating_sub(self.served));
            if is_much(self.wasted) {
                self.spare = self.spare.saturating_mul(2).min(self.most);
            } else if !is_much(self.wasted + saved) {
                (self.spare, self.row) = (0, 0);
            }
        } else {
            self.row = if is_much(self.wasted) { self.row + 1 } else { 0 };
            if self.row >= IN_A_ROW {
                (self.spare, self.row) = ((seen.live / FIRST_PART).max(LEAST_FIRST).min(self.most), 0);
            }
        }
        (self.looked, self.wasted, self.served) = (seen.now, Duration::ZERO, seen.served);
        self.spare != before
    }
}

/// About what so many blocks cost through the arena.
fn through_arena(blocks: u64) -> Duration {
    let each = THROUGH_ARENA.as_nanos() as u64;
    Duration::from_nanos(blocks.saturating_mul(each))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::{SimDevice, SimOptions};

    const LOOK: Duration = LOOK_AFTER;

    /// Wastes enough for one look, of a time `per` times as long, in which no request was served.
    fn waste(haste: &mut Haste, sim: &SimDevice, per: u32) -> bool {
        look(haste, sim, (per, 0))
    }

    /// The same, when so many requests were served so far.
    fn look(haste: &mut Haste, sim: &SimDevice, (per, served): (u32, u64)) -> bool {
        sim.advance_to(sim.now() + LOOK * per);
        haste.note(LOOK, || Seen { now: sim.now(), served, live: 1 << 30 })
    }

    #[test]
    fn much_waste_in_a_row_is_haste_and_one_look_with_little_ends_it() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let mut haste = Haste::new(1 << 20, sim.now());
        for _ in 0..2 {
            assert_eq!((haste.is_on(), haste.spare()), (false, 0));
            for _ in 1..IN_A_ROW {
                assert!(!waste(&mut haste, &sim, 1));
            }
            // A pause between begins the row again.
            assert!(!waste(&mut haste, &sim, SHARE + 1));
            for _ in 1..IN_A_ROW {
                assert!(!waste(&mut haste, &sim, 1));
            }
            assert!(waste(&mut haste, &sim, 1));
            assert_eq!((haste.is_on(), haste.spare()), (true, 1 << 20));
            let look = || unreachable!("too little to look");
            assert!(!haste.note(LOOK / 2, look));
            assert!(waste(&mut haste, &sim, 2 * SHARE));
            assert!(!haste.is_on());
        }
    }

    #[test]
    fn spare_bytes_double_while_much_is_wasted_all_the_same() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let mut haste = Haste::new(200 << 20, sim.now());
        for _ in 0..IN_A_ROW {
            waste(&mut haste, &sim, 1);
        }
        assert_eq!(haste.spare(), 64 << 20, "a part of what was live");
        // Little is wasted, and would be much without haste: enough is spare.
        let enough = (LOOK * 2 * SHARE).div_duration_f64(THROUGH_ARENA) as u64;
        assert!(!look(&mut haste, &sim, (2 * SHARE, enough)));
        assert!(waste(&mut haste, &sim, 1));
        assert_eq!(haste.spare(), 128 << 20);
        assert!(waste(&mut haste, &sim, 1));
        assert_eq!(haste.spare(), 200 << 20);
        assert!(!waste(&mut haste, &sim, 1), "no more than that");
    }

    #[test]
    fn haste_goes_on_while_requests_come_so_fast_that_they_would_waste_much_without_it() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let mut haste = Haste::new(1 << 20, sim.now());
        // Too long for what is wasted to be much, and so many requests that it would be.
        let per = 2 * SHARE;
        let requests = (LOOK * per).div_duration_f64(THROUGH_ARENA * SHARE) as u64;
        for looks in 1..2 * u64::from(IN_A_ROW) {
            assert!(!look(&mut haste, &sim, (per, looks * requests)), "requests alone are no haste");
        }
        for _ in 0..IN_A_ROW {
            waste(&mut haste, &sim, 1);
        }
        assert!(haste.is_on());
        for looks in 1..2 * u64::from(IN_A_ROW) {
            assert!(!look(&mut haste, &sim, (per, looks * requests)));
        }
        let so_far = 2 * u64::from(IN_A_ROW) * requests;
        assert!(!look(&mut haste, &sim, (per, so_far)));
        assert!(look(&mut haste, &sim, (per, so_far)), "none since");
        assert!(!haste.is_on());
    }

    #[test]
    fn a_pool_without_spare_bytes_is_never_in_haste() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let mut haste = Haste::new(0, sim.now());
        for _ in 0..3 * IN_A_ROW {
            assert!(!waste(&mut haste, &sim, 1));
        }
        assert!(!haste.is_on());
    }
}
