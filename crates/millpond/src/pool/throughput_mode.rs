//! Throughput mode: when a pool spends memory to save time.
//!
//! A pool holds next to nothing beyond what its program needs. So a request that no magazine can serve moves pages,
//! and takes back what other threads cache. A program that asks every few microseconds pays little for that. One that
//! only allocates and frees pays with nearly all its time. In throughput mode a pool grows before it takes from
//! anybody, up to its *growth allowance* beyond the most that was ever live. It rounds large sizes to classes too, so
//! that what was freed serves what comes next. The allowance is small at first. Each look that still finds much
//! slow-path time doubles it, up to a limit.
//!
//! What counts is the share of time: of the time since the last look, how much went to work that memory would have
//! saved. The clock is the device's ([`Device::now`](crate::device::Device::now)), virtual on the simulated device, so
//! that a replay decides by the trace's own time.
//!
//! Throughput mode removes the slow-path time that began it. So it lasts, too, while requests come so fast that they
//! would cost as much if no magazine had their blocks.

use crate::policy::{Mechanism, without};
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct ThroughputMode {
    /// The most that the growth allowance may come to.
    most: u64,
    /// Bytes, as `growth_allowance` says; 0 while off.
    growth_allowance: u64,
    /// When the pool last looked.
    looked: Duration,
    /// Slow-path time since then.
    slow_path_time: Duration,
    /// Requests served until then.
    served: u64,
    /// Looks in a row, up to the last, that found much slow-path time.
    row: u32,
}

/// What a pool sees when it looks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observation {
    /// The device's clock.
    pub(super) now: Duration,
    /// Requests served so far.
    pub(super) served: u64,
    /// The most bytes that were ever live.
    pub(super) live: u64,
}

/// Slow-path time from which on the pool looks.
const LOOK_AFTER: Duration = Duration::from_millis(10);

/// Slow-path time is much if it is more than one part in so many. (At one in two, a thousand small blocks replaced at
/// random came to rest just below it on some machines, at two to four times what a step takes in throughput mode. At
/// one in four, a generated job whose streams ask for 450 GB a second held 14 % more than was live, not 5.)
const SHARE: u32 = 3;

/// Looks in a row with much slow-path time that begin throughput mode: a program that enters another phase moves much
/// memory once. (On the traces of training, up to 3 in a row were seen.)
const IN_A_ROW: u32 = 5;

/// The first growth allowance, as a part of what was live.
const FIRST_PART: u64 = 16;

/// The first growth allowance at least, in bytes.
const LEAST_FIRST: u64 = 32 << 20;

/// About what a block costs that goes through the arena instead of a magazine. An estimate: to measure it would cost as
/// much. (The time that a step of such a program saves in throughput mode, per block cut before: 520 ns on 2 cores of an
/// AMD EPYC, 1,100 on a busy machine with an H200.)
pub(super) const THROUGH_ARENA: Duration = Duration::from_nanos(600);

/// About what it costs, at least, to revoke what threads cache: a barrier in each of them, and their misses after it.
pub(super) const REVOCATION: Duration = Duration::from_micros(4);

impl ThroughputMode {
    /// Off; `most` bytes limit the growth allowance.
    pub(super) fn new(most: u64, now: Duration) -> Self {
        Self { most, growth_allowance: 0, looked: now, slow_path_time: Duration::ZERO, served: 0, row: 0 }
    }

    /// Whether the pool is in throughput mode.
    pub(super) fn is_on(&self) -> bool {
        self.growth_allowance > 0
    }

    /// Bytes that may be held, now, beyond the most that was ever live.
    pub(super) fn growth_allowance(&self) -> u64 {
        self.growth_allowance
    }

    /// Bytes that the allowance may come to.
    pub(super) fn most_growth_allowance(&self) -> u64 {
        if self.is_on() { self.most } else { 0 }
    }

    /// Notes slow-path time, and has the pool `look` if that is much by now. Returns whether the growth allowance has
    /// changed.
    pub(super) fn note(&mut self, slow_path_time: Duration, look: impl FnOnce() -> Observation) -> bool {
        self.slow_path_time += slow_path_time;
        self.slow_path_time >= LOOK_AFTER && self.look_slow(&look())
    }

    #[cold]
    fn look_slow(&mut self, observed: &Observation) -> bool {
        if without(Mechanism::Throughput) {
            return false;
        }
        let passed = observed.now.saturating_sub(self.looked);
        let is_much = |time: Duration| time * SHARE > passed;
        let before = self.growth_allowance;
        if self.is_on() {
            let saved = through_arena(observed.served.saturating_sub(self.served));
            if is_much(self.slow_path_time) {
                self.growth_allowance = self.growth_allowance.saturating_mul(2).min(self.most);
            } else if !is_much(self.slow_path_time + saved) {
                (self.growth_allowance, self.row) = (0, 0);
            }
        } else {
            self.row = if is_much(self.slow_path_time) { self.row + 1 } else { 0 };
            if self.row >= IN_A_ROW {
                (self.growth_allowance, self.row) =
                    ((observed.live / FIRST_PART).max(LEAST_FIRST).min(self.most), 0);
            }
        }
        (self.looked, self.slow_path_time, self.served) = (observed.now, Duration::ZERO, observed.served);
        self.growth_allowance != before
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

    /// Spends enough for one look, of a time `per` times as long, in which no request was served.
    fn spend(throughput_mode: &mut ThroughputMode, sim: &SimDevice, per: u32) -> bool {
        look(throughput_mode, sim, (per, 0))
    }

    /// The same, when so many requests were served so far.
    fn look(throughput_mode: &mut ThroughputMode, sim: &SimDevice, (per, served): (u32, u64)) -> bool {
        sim.advance_to(sim.now() + LOOK * per);
        throughput_mode.note(LOOK, || Observation { now: sim.now(), served, live: 1 << 30 })
    }

    #[test]
    fn much_slow_path_time_in_a_row_begins_it_and_little_ends_it() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let mut throughput_mode = ThroughputMode::new(1 << 20, sim.now());
        for _ in 0..2 {
            assert_eq!((throughput_mode.is_on(), throughput_mode.growth_allowance()), (false, 0));
            for _ in 1..IN_A_ROW {
                assert!(!spend(&mut throughput_mode, &sim, 1));
            }
            // A pause between begins the row again.
            assert!(!spend(&mut throughput_mode, &sim, SHARE + 1));
            for _ in 1..IN_A_ROW {
                assert!(!spend(&mut throughput_mode, &sim, 1));
            }
            assert!(spend(&mut throughput_mode, &sim, 1));
            assert_eq!((throughput_mode.is_on(), throughput_mode.growth_allowance()), (true, 1 << 20));
            let look = || unreachable!("too little to look");
            assert!(!throughput_mode.note(LOOK / 2, look));
            assert!(spend(&mut throughput_mode, &sim, 2 * SHARE));
            assert!(!throughput_mode.is_on());
        }
    }

    #[test]
    fn the_growth_allowance_doubles_while_slow_paths_take_much() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let mut throughput_mode = ThroughputMode::new(200 << 20, sim.now());
        for _ in 0..IN_A_ROW {
            spend(&mut throughput_mode, &sim, 1);
        }
        assert_eq!(throughput_mode.growth_allowance(), 64 << 20, "a part of what was live");
        // Little time, which would be much without throughput mode: the allowance is enough.
        let enough = (LOOK * 2 * SHARE).div_duration_f64(THROUGH_ARENA) as u64;
        assert!(!look(&mut throughput_mode, &sim, (2 * SHARE, enough)));
        assert!(spend(&mut throughput_mode, &sim, 1));
        assert_eq!(throughput_mode.growth_allowance(), 128 << 20);
        assert!(spend(&mut throughput_mode, &sim, 1));
        assert_eq!(throughput_mode.growth_allowance(), 200 << 20);
        assert!(!spend(&mut throughput_mode, &sim, 1), "no more than that");
    }

    #[test]
    fn it_lasts_while_requests_would_cost_much_without_it() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let mut throughput_mode = ThroughputMode::new(1 << 20, sim.now());
        // Too long for the slow-path time to be much, and so many requests that it would be.
        let per = 2 * SHARE;
        let requests = (LOOK * per).div_duration_f64(THROUGH_ARENA * SHARE) as u64;
        for looks in 1..2 * u64::from(IN_A_ROW) {
            assert!(
                !look(&mut throughput_mode, &sim, (per, looks * requests)),
                "requests alone do not begin it"
            );
        }
        for _ in 0..IN_A_ROW {
            spend(&mut throughput_mode, &sim, 1);
        }
        assert!(throughput_mode.is_on());
        for looks in 1..2 * u64::from(IN_A_ROW) {
            assert!(!look(&mut throughput_mode, &sim, (per, looks * requests)));
        }
        let so_far = 2 * u64::from(IN_A_ROW) * requests;
        assert!(!look(&mut throughput_mode, &sim, (per, so_far)));
        assert!(look(&mut throughput_mode, &sim, (per, so_far)), "none since");
        assert!(!throughput_mode.is_on());
    }

    #[test]
    fn a_pool_without_growth_allowance_never_begins_it() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let mut throughput_mode = ThroughputMode::new(0, sim.now());
        for _ in 0..3 * IN_A_ROW {
            assert!(!spend(&mut throughput_mode, &sim, 1));
        }
        assert!(!throughput_mode.is_on());
    }
}
