//! How much memory a trace needs with an allocator: found by replaying it on smaller and smaller devices.

use std::str::FromStr;

use millpond::device::DevicePtr;
use serde::Serialize;

use crate::replay::{Choose, Outcome, Program, ReplayError, Stage, on_sim};
use crate::trace::Trace;

/// A card that a job may have to fit on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Card {
    /// What people call it.
    pub name: String,
    /// Its memory in GiB, as its name or its maker says.
    pub gib: u64,
}

/// Memory of the cards that people have, in GiB.
const CARDS_GIB: [u64; 10] = [8, 12, 16, 24, 32, 40, 48, 80, 96, 141];

/// Cards by name, with their memory in GiB, after their makers' data sheets.
const NAMED: [(&str, u64); 20] = [
    ("3060", 12),
    ("3080", 10),
    ("3090", 24),
    ("4060", 8),
    ("4070", 12),
    ("4080", 16),
    ("4090", 24),
    ("5080", 16),
    ("5090", 32),
    ("T4", 16),
    ("V100", 32),
    ("A10", 24),
    ("A40", 48),
    ("A100-40", 40),
    ("A100", 80),
    ("L4", 24),
    ("L40S", 48),
    ("H100", 80),
    ("H200", 141),
    ("B200", 180),
];

impl Card {
    /// The sizes that cards have, by size.
    pub fn all() -> Vec<Self> {
        CARDS_GIB.map(|gib| Self { name: gib.to_string(), gib }).into()
    }

    /// Whether a trace that needs `capacity` bytes fits, where the driver's context takes `context` bytes.
    pub fn fits(&self, capacity: u64, context: u64) -> bool {
        capacity.saturating_add(context) <= self.gib << 30
    }
}

impl FromStr for Card {
    type Err = String;

    /// Reads a name such as "4090" or "A100-40", or a number of GiB such as "24GiB".
    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_ascii_lowercase();
        let size = lower.strip_suffix("gib").or(lower.strip_suffix("gb")).and_then(|gib| gib.parse().ok());
        let known = NAMED.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, gib)| *gib);
        match known.or(size).filter(|gib| (1..1 << 20).contains(gib)) {
            Some(gib) => Ok(Self { name: text.to_owned(), gib }),
            None => {
                let names = NAMED.map(|(name, _)| name).join(", ");
                Err(format!(
                    "'{text}' is no card that Millpond knows; give its size, such as 24GiB, or one of {names}"
                ))
            }
        }
    }
}

/// What a process takes of a card before it allocates anything: the driver's context and the libraries' kernels.
/// An assumption, for where nobody says better: it depends on the card and on the libraries that a job loads.
pub const CONTEXT_BYTES: u64 = 512 << 20;

/// Capacities are tried in steps of this: the granularity of device memory.
const STEP: u64 = 2 << 20;

/// What an allocator needs of a device for a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Need {
    /// The smallest capacity, in bytes, on which the whole trace runs; to one part in a thousand, or 2 MiB where that
    /// is more.
    pub bytes: u64,
    /// What the allocator holds at most where nothing limits it, in bytes.
    pub unlimited: u64,
    /// Allocations on that smallest capacity that found no memory at first: the allocator gave cache back to the device,
    /// and tried again.
    pub retries: u64,
}

impl Need {
    /// Looks for it on smaller and smaller devices. `unlimited` is the outcome without a limit. `None` where that
    /// ended early.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn of(
        trace: &Trace,
        program: &Program,
        choose: &Choose<'_>,
        unlimited: &Outcome,
    ) -> Result<Option<Self>, ReplayError> {
        if unlimited.oom.is_some() {
            return Ok(None);
        }
        let unlimited = unlimited.peak_reserved;
        let peak = program.peak_requested().0;
        // Nothing fits in less than what is requested; what was reserved without a limit is enough.
        let mut too_small = peak.saturating_sub(1) / STEP * STEP;
        let mut bytes = unlimited.next_multiple_of(STEP);
        while bytes.saturating_sub(too_small) > resolution(peak) {
            let middle = (too_small + (bytes - too_small) / 2).next_multiple_of(STEP);
            if middle >= bytes {
                break;
            }
            match on_sim(trace, program, choose, middle)?.oom {
                Some(_) => too_small = middle,
                None => bytes = middle,
            }
        }
        let retries = retries(program, choose, bytes)?;
        Ok(Some(Self { bytes, unlimited, retries }))
    }
}

/// How exactly a [`Need`] is known, in bytes, for a trace that requests `peak` at most.
pub fn resolution(peak: u64) -> u64 {
    (peak / 1000).next_multiple_of(STEP).max(STEP)
}

/// Allocations during which memory goes back to the device.
fn retries(program: &Program, choose: &Choose<'_>, capacity: u64) -> Result<u64, ReplayError> {
    let stage = Stage::sim(program, capacity)?;
    let allocator = choose(stage.context())?;
    let mut blocks = vec![DevicePtr::NULL; program.blocks];
    let (mut retries, mut before) = (0, 0);
    for step in &program.steps {
        stage.play(&*allocator, std::slice::from_ref(step), &mut blocks)?;
        let calls = allocator.usage().calls;
        let given_back = calls.release + calls.free;
        retries += u64::from(step.alloc && given_back > before);
        before = given_back;
    }
    stage.clear(&*allocator, program, &mut blocks)?;
    Ok(retries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_go_by_name_or_size() {
        let gib = |text: &str| text.parse::<Card>().map(|card| card.gib);
        assert_eq!((gib("4090"), gib("a100-40"), gib("20GiB")), (Ok(24), Ok(40), Ok(20)));
        assert!(gib("voodoo2").unwrap_err().contains("one of 3060"));
        assert!(gib("0GiB").is_err());
    }

    #[test]
    fn what_the_context_takes_is_not_the_job_s() {
        let card: Card = "24GiB".parse().unwrap();
        assert!(card.fits(23 << 30, 1 << 30));
        assert!(!card.fits((23 << 30) + 1, 1 << 30));
    }
}
