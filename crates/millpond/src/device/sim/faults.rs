//! Calls that fail because a test asked for it.

use super::call::{Call, PerCall};
use crate::device::{DeviceError, DeviceResult};

/// Which calls are to fail.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Nothing is to fail: the only test on the way of a replay.
    none: bool,
    planned: Vec<Planned>,
    /// The chance of each call to fail, out of 2³².
    chances: PerCall<u32>,
    random: u64,
}

#[derive(Debug)]
struct Planned {
    call: Call,
    /// How many calls of the kind still succeed.
    succeed: u64,
    error: DeviceError,
}

impl Faults {
    pub(super) fn new() -> Self {
        Self { none: true, ..Self::default() }
    }

    pub(super) fn plan(&mut self, call: Call, nth: u64, error: DeviceError) {
        self.planned.push(Planned { call, succeed: nth.saturating_sub(1), error });
        self.none = false;
    }

    pub(super) fn seed(&mut self, seed: u64) {
        self.random = seed;
    }

    pub(super) fn set_chance(&mut self, call: Call, chance: f64) {
        self.chances[call] = (chance.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
        self.none = false;
    }

    /// Fails if the call is to fail, and counts it.
    #[inline]
    pub(super) fn check(&mut self, call: Call) -> DeviceResult<()> {
        if self.none { Ok(()) } else { self.check_generic(call) }
    }

    fn check_generic(&mut self, call: Call) -> DeviceResult<()> {
        let mut due = None;
        for (index, planned) in self.planned.iter_mut().enumerate().filter(|(_, p)| p.call == call) {
            match planned.succeed.checked_sub(1) {
                Some(left) => planned.succeed = left,
                None => due = due.or(Some(index)),
            }
        }
        if let Some(index) = due {
            return Err(self.planned.remove(index).error);
        }
        let chance = self.chances[call];
        if chance > 0 && self.next_random() <= chance {
            return Err(usual_error(call));
        }
        Ok(())
    }

    /// SplitMix64 (Steele, Lea and Flood 2014), the upper half: two lines, no crate, the same everywhere.
    fn next_random(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 32) as u32
    }
}

/// What a driver is likely to say when this call fails.
fn usual_error(call: Call) -> DeviceError {
    match call {
        Call::Reserve | Call::CreatePage | Call::AllocSegment | Call::AllocAsync => {
            DeviceError::OutOfMemory { call: call.name(), requested: 0 }
        }
        _ => DeviceError::Driver {
            call: call.name(),
            code: 999,
            name: "SIM_INJECTED".to_owned(),
            text: "this call was made to fail by a test".to_owned(),
        },
    }
}
