//! How much memory a trace needs with an allocator: found by replaying it on smaller and smaller devices.

use crate::replay::{Choose, Outcome, Program, ReplayError, on_sim};
use crate::trace::Trace;

/// Memory of the cards that people have, in GiB.
pub const CARDS_GIB: [u64; 10] = [8, 12, 16, 24, 32, 40, 48, 80, 96, 141];

/// What a process takes of a card before it allocates anything: the driver's context and the libraries' kernels.
/// An assumption, for where nobody says better: it depends on the card and on the libraries that a job loads.
pub const CONTEXT_BYTES: u64 = 512 << 20;

/// Capacities are tried in steps of this: the granularity of device memory.
const STEP: u64 = 2 << 20;

/// Whether a trace that needs `capacity` bytes fits on a card of `gib` GiB, of which the driver's context takes
/// `context` bytes.
pub fn fits(capacity: u64, gib: u64, context: u64) -> bool {
    capacity.saturating_add(context) <= gib << 30
}

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
