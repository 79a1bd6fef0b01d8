//! How exact high-water marks are, and what that may cost: see `cache/totals.rs`.

/// The part of a peak by which all threads together may be below their ceilings.
pub(crate) const TOLERANCE: i64 = 128;

/// Collisions after which the slack doubles once more, less the changes without one since then: so a thread that
/// collides at one change in so many keeps its slack.
const PER_DOUBLING: u32 = 16;

/// Doublings at most: a thread's slack is then twice its share of the peak.
const MOST_DOUBLINGS: u32 = 8;

/// What a thread notes of its collisions after one more change.
pub(crate) fn note(collisions: u32, collided: bool) -> u32 {
    if collided {
        (collisions + PER_DOUBLING).min(PER_DOUBLING * MOST_DOUBLINGS)
    } else {
        collisions.saturating_sub(1)
    }
}

/// The slack of a thread that noted so many collisions.
pub(crate) fn widened(slack: i64, collisions: u32) -> i64 {
    slack << collisions.div_ceil(PER_DOUBLING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collisions_double_the_slack_and_their_absence_takes_it_back() {
        let mut collisions = 0;
        assert_eq!(widened(10, collisions), 10);
        for doubled in [20, 40, 80] {
            collisions = note(collisions, true);
            assert_eq!(widened(10, collisions), doubled);
        }
        for _ in 0..3 * PER_DOUBLING {
            assert!(widened(10, collisions) > 10);
            collisions = note(collisions, false);
        }
        assert_eq!(widened(10, collisions), 10);
        let most = (0..1000).fold(0, |collisions, _| note(collisions, true));
        assert_eq!(widened(10, most), 10 << MOST_DOUBLINGS);
    }
}
