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

use std::time::Duration;

use crate::device::Device;

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
    /// Looks in a row, up to the last, that found much wasted.
    row: u32,
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

/// About what it costs, at least, to take back what other threads cache: a barrier in each of them.
pub(super) const REVOCATION: Duration = Duration::from_micros(4);

impl Haste {
    pub(super) fn new(spare: u64, device: &dyn Device) -> Self {
        Self { spare, is_on: false, looked: device.now(), wasted: Duration::ZERO, row: 0 }
    }

    /// Whether the pool is in haste.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Bytes that may be held, now, beyond the most that was ever live.
    pub(super) fn spare(&self) -> u64 {
        if self.is_on { self.spare } else { 0 }
    }

    /// Notes wasted time. Returns whether the pool is in haste, where that has changed.
    pub(super) fn note(&mut self, wasted: Duration, device: &dyn Device) -> Option<bool> {
        self.wasted += wasted;
        if self.wasted < LOOK_AFTER { None } else { self.look_slow(device) }
    }

    #[cold]
    fn look_slow(&mut self, device: &dyn Device) -> Option<bool> {
        let now = device.now();
        let passed = now.saturating_sub(self.looked);
        let was_on = self.is_on;
        self.row = if self.wasted * SHARE > passed { self.row.saturating_add(1) } else { 0 };
        self.is_on = self.spare > 0 && self.row >= if was_on { 1 } else { IN_A_ROW };
        (self.looked, self.wasted) = (now, Duration::ZERO);
        (self.is_on != was_on).then_some(self.is_on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::{SimDevice, SimOptions};

    const LOOK: Duration = LOOK_AFTER;

    /// Wastes enough for one look, of a time `per` times as long.
    fn waste(haste: &mut Haste, sim: &SimDevice, per: u32) -> Option<bool> {
        sim.advance_to(sim.now() + LOOK * per);
        haste.note(LOOK, sim)
    }

    #[test]
    fn much_waste_in_a_row_is_haste_and_one_look_with_little_ends_it() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let mut haste = Haste::new(1 << 20, &*sim);
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
            assert_eq!(haste.note(LOOK / 2, &*sim), None, "too little to look");
            assert_eq!(waste(&mut haste, &sim, 3), Some(false));
        }
    }

    #[test]
    fn a_pool_without_spare_bytes_is_never_in_haste() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let mut haste = Haste::new(0, &*sim);
        for _ in 0..3 * IN_A_ROW {
            assert_eq!(waste(&mut haste, &sim, 1), None);
        }
        assert!(!haste.is_on());
    }
}
