//! When a piece of work is complete, in virtual time.

/// A time, or a time that depends on holds that have yet to be released.
///
/// With holds, the work is complete at `at` or `delay` after the last of them is released, whichever is
/// later. Where work joins from several streams, `delay` is the longest of theirs: never too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct When {
    /// Nanoseconds of the virtual clock.
    at: u64,
    /// One bit for each hold.
    holds: u64,
    /// Nanoseconds of work that come after the holds.
    delay: u64,
}

impl When {
    pub(super) fn at(at: u64) -> Self {
        Self { at, holds: 0, delay: 0 }
    }

    /// The same, and a hold before it is complete.
    pub(super) fn held_by(self, hold: u64) -> Self {
        Self { holds: self.holds | hold, ..self }
    }

    /// When both are complete.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            at: self.at.max(other.at),
            holds: self.holds | other.holds,
            delay: self.delay.max(other.delay),
        }
    }

    /// When work of `duration` that starts then is complete.
    pub(super) fn then(self, duration: u64) -> Self {
        let delay = if self.holds == 0 { 0 } else { self.delay.saturating_add(duration) };
        Self { at: self.at.saturating_add(duration), delay, ..self }
    }

    pub(super) fn is_past(self, now: u64) -> bool {
        self.holds == 0 && self.at <= now
    }

    /// The time, unless it depends on a hold.
    pub(super) fn time(self) -> Option<u64> {
        (self.holds == 0).then_some(self.at)
    }

    /// `hold` was released at `now`.
    pub(super) fn release(&mut self, hold: u64, now: u64) {
        if self.holds & hold == 0 {
            return;
        }
        self.holds &= !hold;
        self.at = self.at.max(now.saturating_add(self.delay));
        if self.holds == 0 {
            self.delay = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_behind_a_hold_takes_its_time_after_the_release() {
        let mut when = When::at(10).held_by(1).then(5).then(6);
        assert_eq!(when.time(), None);
        when.release(2, 50);
        assert_eq!(when.time(), None, "another hold");
        when.release(1, 100);
        // 100, and 5 and 6 behind it.
        assert_eq!(when.time(), Some(111));
    }

    #[test]
    fn work_that_waits_for_two_holds_waits_for_the_later() {
        let mut when = When::at(0).held_by(1).and(When::at(3).held_by(2)).then(7);
        when.release(2, 20);
        when.release(1, 40);
        // 40, and 7 behind it.
        assert!(!when.is_past(46));
        assert!(when.is_past(47));
    }
}
