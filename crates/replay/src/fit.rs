//! How much memory a trace needs with an allocator: found by replaying it on smaller and smaller devices.

use std::str::FromStr;

use serde::Serialize;

use crate::replay::{Choose, Outcome, Program, ReplayError, on_sim};
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
                Err(format!("expected a size such as 24GiB, or one of {names}"))
            }
        }
    }
}

/// What a process takes of a card before it allocates anything: the driver's context and the libraries' kernels.
/// An assumption, for where nobody says better: it depends on the card and on the libraries that a job loads.
pub const CONTEXT_BYTES: u64 = 512 << 20;

/// Capacities are tried in steps of this: the granularity of device memory.
const STEP: u64 = 2 << 20;

/// The smallest capacity, in bytes, on which the whole trace could be replayed; to one part in a thousand, or
/// 2 MiB where that is more. `unlimited` is the outcome without a limit. `None` where that ended early.
///
/// # Errors
/// [`ReplayError`].
pub fn smallest_capacity(
    trace: &Trace,
    program: &Program,
    choose: &Choose<'_>,
    unlimited: &Outcome,
) -> Result<Option<u64>, ReplayError> {
    if unlimited.oom.is_some() {
        return Ok(None);
    }
    let peak = program.peak_requested().0;
    let step = (peak / 1000).next_multiple_of(STEP).max(STEP);
    // Nothing fits in less than what is requested; what was reserved without a limit is enough.
    let mut too_small = peak.saturating_sub(1) / STEP * STEP;
    let mut enough = unlimited.peak_reserved.next_multiple_of(STEP);
    while enough.saturating_sub(too_small) > step {
        let middle = (too_small + (enough - too_small) / 2).next_multiple_of(STEP);
        if middle >= enough {
            break;
        }
        match on_sim(trace, program, choose, middle)?.oom {
            Some(_) => too_small = middle,
            None => enough = middle,
        }
    }
    Ok(Some(enough))
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
