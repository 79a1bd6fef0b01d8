//! Tides: whether what is out falls back to the same low level again and again, as it does between the steps of a
//! training job.
//!
//! The level turns where it has come back from its last extreme by a good part of what the pool holds; smaller waves
//! are no tides. Of the last low waters the level is kept. Within one step there may be several, as where a layer takes
//! much for a moment: what counts is the lowest level that enough of them fell to.

/// Low waters that are kept.
const KEPT: usize = 64;

/// Of those, so many at one level are a habit: a job has repeated itself.
const HABIT: usize = 8;

/// A tide is more than this part of what is reserved.
const SWING_PART: u64 = 8;

/// Low waters within this part of what is reserved are at the same level. A step of training comes back to it by the
/// byte, but for what threads cache; where long-lived blocks come and go, the level is seldom the same twice.
const LEVEL_PART: u64 = 128;

/// The level is down from this part of what is reserved above that of low water on: threads may cache now what they did
/// not then.
const DOWN_PART: u64 = 64;

/// That the level has turned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It has left high water, where so much was pinned.
    High(u64),
    /// It has left the low water that it comes back to, where so much was pinned.
    Low(u64),
}

/// See the [module](self). Everything in units.
#[derive(Debug)]
pub(super) struct Tides {
    is_rising: bool,
    /// The highest since the level began to rise, or the lowest since it began to fall.
    extreme: u64,
    /// What was pinned there.
    pinned: u64,
    /// The last low waters, in a ring.
    lows: [u64; KEPT],
    /// How many there were.
    count: usize,
    /// The level that the last low waters come back to, if there is one.
    habit: Option<u64>,
}

impl Default for Tides {
    fn default() -> Self {
        Self { is_rising: false, extreme: 0, pinned: 0, lows: [0; KEPT], count: 0, habit: None }
    }
}

impl Tides {
    /// Notes how much is out, of what is reserved, and pinned, of what is free. Returns where the level turns out to
    /// have turned, but for low waters that it does not come back to.
    #[inline]
    pub(super) fn note(&mut self, out: u64, reserved: u64, pinned: u64) -> Option<Turn> {
        let goes_on = if self.is_rising { out >= self.extreme } else { out <= self.extreme };
        if goes_on {
            (self.extreme, self.pinned) = (out, pinned);
            None
        } else if out.abs_diff(self.extreme) > reserved / SWING_PART {
            self.turn(out, reserved, pinned)
        } else {
            None
        }
    }

    #[cold]
    fn turn(&mut self, out: u64, reserved: u64, pinned: u64) -> Option<Turn> {
        let (was_rising, last, last_pinned) = (self.is_rising, self.extreme, self.pinned);
        (self.is_rising, self.extreme, self.pinned) = (!was_rising, out, pinned);
        if was_rising {
            return Some(Turn::High(last_pinned));
        }
        self.lows[self.count % KEPT] = last;
        self.count += 1;
        self.habit = self.find_habit(reserved / LEVEL_PART);
        self.is_down(last, reserved).then_some(Turn::Low(last_pinned))
    }

    /// The lowest level with as many low waters as make a habit, none further than `near` from another.
    fn find_habit(&self, near: u64) -> Option<u64> {
        let mut lows = self.lows;
        let lows = &mut lows[..self.count.min(KEPT)];
        lows.sort_unstable();
        lows.windows(HABIT).find(|lows| lows[HABIT - 1] - lows[0] <= near).map(|lows| lows[0])
    }

    fn is_down(&self, out: u64, reserved: u64) -> bool {
        self.habit.is_some_and(|level| out <= level + reserved / DOWN_PART)
    }

    /// Whether the level, with so much out, is down where it comes back to.
    pub(super) fn is_low_water(&self, out: u64, reserved: u64) -> bool {
        !self.is_rising && self.is_down(out, reserved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After so many tides from `low` to 900 of 1000, and down to `low` again.
    fn after(tides: impl IntoIterator<Item = u64>) -> Tides {
        let mut all = Tides::default();
        for low in tides {
            for level in [low, 500, 900, 600, low] {
                all.note(level, 1000, 0);
            }
        }
        all
    }

    #[test]
    fn eight_low_waters_at_one_level_are_a_habit() {
        assert!(!after([100; 8]).is_low_water(100, 1000));
        let tides = after([100, 105, 100, 102, 100, 105, 100, 100, 104]);
        assert!(tides.is_low_water(100, 1000));
        assert!(!tides.is_low_water(200, 1000), "it is not down yet");
    }

    #[test]
    fn lows_that_rise_are_no_level() {
        assert!(!after((0..20).map(|at| 20 * at)).is_low_water(380, 1000));
    }

    #[test]
    fn lows_that_differ_are_no_habit() {
        assert!(!after((0..15).map(|at| 100 + 40 * (at % 5))).is_low_water(100, 1000));
    }

    #[test]
    fn where_much_stays_low_water_is_what_it_comes_back_to_all_the_same() {
        assert!(after([500; 20]).is_low_water(500, 1000));
    }

    #[test]
    fn leaving_high_or_low_water_tells_what_was_pinned_there() {
        let mut tides = after([100; 2 * HABIT]);
        assert_eq!(tides.note(90, 1000, 17), None, "it may fall further");
        assert_eq!(tides.note(150, 1000, 18), None, "no more than a wave");
        assert_eq!(tides.note(900, 1000, 19), Some(Turn::Low(17)));
        assert_eq!(tides.note(500, 1000, 20), Some(Turn::High(19)));
        assert_eq!(tides.note(900, 1000, 21), None, "that was not down there");
    }

    #[test]
    fn waves_are_no_tides() {
        let mut tides = Tides::default();
        for _ in 0..100 {
            [100, 200, 150, 210, 100].iter().for_each(|level| _ = tides.note(*level, 1000, 0));
        }
        assert!(!tides.is_low_water(100, 1000));
    }

    #[test]
    fn lows_within_a_step_are_passed_over() {
        let step = [100, 320, 100, 70, 320];
        let lows = || step.into_iter().cycle().take(KEPT);
        assert!(after(lows().chain([70])).is_low_water(70, 1000));
        assert!(!after(lows().chain([320])).is_low_water(320, 1000));
    }

    #[test]
    fn a_few_low_waters_at_the_start_are_no_habit() {
        let lows = [10; HABIT - 1].into_iter().chain([200; HABIT + 1]);
        assert!(after(lows).is_low_water(200, 1000));
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut lows = vec![20; KEPT];
        lows.extend([200; KEPT + 1]);
        assert!(after(lows).is_low_water(200, 1000));
    }
}
