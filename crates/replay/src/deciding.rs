//! The moment that decides what an allocator needs: the request that finds no memory on a device that has less.

use crate::fit::Need;
use crate::replay::{Choose, Map, Program, ReplayError, UNLIMITED, Waste, map_at_peak, map_at_step};

/// What an allocator holds at that moment, on a device of what it needs.
#[derive(Debug, Clone, Default)]
pub struct Deciding {
    /// Its memory once the request is served.
    pub waste: Waste,
    /// What lies where then.
    pub map: Map,
    /// Bytes of the device.
    pub capacity: u64,
    /// Whether nobody knows what is needed. Then it is the moment at which it first holds the most, without a limit.
    pub is_most: bool,
}

impl Deciding {
    /// By replays. `most` is what is held at most without a limit, in bytes; `u64::MAX` where that is not known.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn of(
        program: &Program,
        choose: &Choose<'_>,
        need: Option<Need>,
        most: u64,
    ) -> Result<Self, ReplayError> {
        if let Some(Need { bytes: capacity, decided_at, .. }) = need
            && let Some((waste, map)) = map_at_step(program, choose, (capacity, decided_at))?
        {
            return Ok(Self { waste, map, capacity, is_most: false });
        }
        let (waste, map) = map_at_peak(program, choose, most)?;
        Ok(Self { waste, map, capacity: UNLIMITED, is_most: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{PIPELINE, named, recorded};
    use crate::replay::{FreeWhen, on_sim};

    #[test]
    fn a_device_with_less_refuses_the_request_that_decides() {
        let trace = recorded(PIPELINE);
        let program = Program::new(&trace, FreeWhen::Completed);
        for name in ["millpond", "caching", "expandable"] {
            let choose = named(name);
            let unlimited = on_sim(&trace, &program, &choose, UNLIMITED).unwrap();
            let need = Need::of(&program, &choose, &unlimited).unwrap().unwrap();
            let deciding = Deciding::of(&program, &choose, Some(need), u64::MAX).unwrap();
            let step = program.steps[need.decided_at];
            assert!(!deciding.is_most && step.alloc, "{name}");
            let waste = deciding.waste;
            assert_eq!((waste.event, waste.asked), (need.decided_at, step.size), "{name}");
            // What is held then is what is needed, and a device with less has no room for it.
            assert!(waste.reserved <= need.bytes, "{name}: {waste:?}");
            assert!(
                waste.reserved > need.bytes - crate::fit::resolution(waste.requested) * 2,
                "{name}: {waste:?}"
            );
            let less = need.bytes - crate::fit::resolution(program.peak_requested().0);
            let refused = on_sim(&trace, &program, &choose, less).unwrap().oom.unwrap();
            assert_eq!(refused.event, need.decided_at, "{name}");
        }
    }
}
