//! When memory is spent to save time: a pool whose slow paths take much of the program's time is *in haste*.
//!
//! A pool holds next to nothing beyond what its program needs, so that a request which no magazine can serve moves
//! pages, and takes back what other threads cache. A program that asks every few microseconds pays little for
//! that. One that does nothing but allocate and free pays with nearly all of its time, and gets more for it from
//! some memory: in haste, a pool rather grows than takes from anybody, up to its *spare* bytes beyond the most that
//! was ever live, and rounds large sizes to classes too, so that what was freed serves what comes next.
//!
//! It is a matter of the share of time, not of speed: of the time since it last looked, how much went to work
//! that memory would have saved. Looking takes a clock, which is the device's ([`Device::now`]): virtual on the
//! simulated device, so that a replay decides by the trace's own time.
//!
//! Haste takes away the waste that it was begun for. So it goes on, too, as long as requests come so fast that they
//! would waste as much if none of them found its block in a magazine.

use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Haste {
    /// Bytes that may be held beyond the most that was ever live.
    spare: u64,
    is_on: bool,
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
}

/// Wasted time from which on the pool looks.
const LOOK_AFTER: Duration = Duration::from_millis(10);

/// Much is wasted where it is more than one part in so many.
const SHARE: u32 = 2;

/// Looks in a row that find much wasted before the pool is in haste: a program that enters another phase moves much
/// memory once. (On the traces of training, up to 3 in a row were seen.)
const IN_A_ROW: u32 = 5;

/// About what a block costs that goes to the arena and is cut from it again, rather than through a magazine. An
/// estimate: to measure it would cost as much.
pub(super) const THROUGH_ARENA: Duration = Duration::from_nanos(400);

/// About what it costs, at least, to take back what threads cache: a barrier in each of them, and their misses after it.
pub(super) const REVOCATION: Duration = Duration::from_micros(4);

impl Haste {
    pub(super) fn new(spare: u64, now: Duration) -> Self {
        Self { spare, is_on: false, looked: now, wasted: Duration::ZERO, served: 0, row: 0 }
    }

    /// Whether the pool is in haste.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Bytes that may be held, now, beyond the most that was ever live.
    pub(super) fn spare(&self) -> u64 {
        if self.is_on { self.spare } else { 0 }
    }

    /// Notes wasted time, and has the pool `look` if that is much by now. Returns whether the pool is in haste, where
    /// that has changed.
    pub(super) fn note(&mut self, wasted: Duration, look: impl FnOnce() -> Seen) -> Option<bool> {
        self.wasted += wasted;
        if self.wasted < LOOK_AFTER { None } else { self.look_slow(look()) }
    }

    #[cold]
    fn look_slow(&mut self, Seen { now, served }: Seen) -> Option<bool> {
        let passed = now.saturating_sub(self.looked);
        let was_on = self.is_on;
        let saved = if was_on { through_arena(served.saturating_sub(self.served)) } else { Duration::ZERO };
        let is_much = (self.wasted + saved) * SHARE > passed;
        self.row = if is_much { self.row.saturating_add(1) } else { 0 };
        self.is_on = self.spare > 0 && self.row >= if was_on { 1 } else { IN_A_ROW };
        (self.looked, self.wasted, self.served) = (now, Duration::ZERO, served);
        (self.is_on != was_on).then_some(self.is_on)
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
    fn waste(haste: &mut Haste, sim: &SimDevice, per: u32) -> Option<bool> {
        look(haste, sim, (per, 0))
    }

    /// The same, when so many requests were served so far.
    fn look(haste: &mut Haste, sim: &SimDevice, (per, served): (u32, u64)) -> Option<bool> {
        sim.advance_to(sim.now() + LOOK * per);
        haste.note(LOOK, || Seen { now: sim.now(), served })
    }

    #[test]
    fn much_waste_in_a_row_is_haste_and_one_look_with_little_ends_it() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let mut haste = Haste::new(1 << 20, sim.now());
        for _ in 0..2 {
            assert_eq!((haste.is_on(), haste.spare()), (false, 0));
            for _ in 1..IN_A_ROW {
                assert_eq!(waste(&mut haste, &sim, 1), None);
            }
            // A pause between begins the row again.
            assert_eq!(waste(&mut haste, &sim, 3), None);
            for _ in 1..IN_A_ROW {
                assert_eq!(waste(&mut haste, &sim, 1), None);
            }
            assert_eq!(waste(&mut haste, &sim, 1), Some(true));
            assert_eq!((haste.is_on(), haste.spare()), (true, 1 << 20));
            let look = || unreachable!("too little to look");
            assert_eq!(haste.note(LOOK / 2, look), None);
            assert_eq!(waste(&mut haste, &sim, 3), Some(false));
        }
    }

    #[test]
    fn haste_goes_on_while_requests_come_so_fast_that_they_would_waste_much_without_it() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let mut haste = Haste::new(1 << 20, sim.now());
        // Too long for what is wasted to be much, and so many requests that it would be.
        let per = 4;
        let requests = (LOOK * per).div_duration_f64(THROUGH_ARENA * SHARE) as u64;
        for looks in 1..2 * u64::from(IN_A_ROW) {
            assert_eq!(look(&mut haste, &sim, (per, looks * requests)), None, "requests alone are no haste");
        }
        for _ in 1..IN_A_ROW {
            assert_eq!(waste(&mut haste, &sim, 1), None);
        }
        assert_eq!(waste(&mut haste, &sim, 1), Some(true));
        for looks in 1..2 * u64::from(IN_A_ROW) {
            assert_eq!(look(&mut haste, &sim, (per, looks * requests)), None);
        }
        let so_far = 2 * u64::from(IN_A_ROW) * requests;
        assert_eq!(look(&mut haste, &sim, (per, so_far)), None);
        assert_eq!(look(&mut haste, &sim, (per, so_far)), Some(false), "none since");
    }

    #[test]
    fn a_pool_without_spare_bytes_is_never_in_haste() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let mut haste = Haste::new(0, sim.now());
        for _ in 0..3 * IN_A_ROW {
            assert_eq!(waste(&mut haste, &sim, 1), None);
        }
        assert!(!haste.is_on());
    }
}
