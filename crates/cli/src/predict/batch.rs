//! The largest batch that fits: a few predictions, each where the line through the last two would just fit.

use std::collections::BTreeMap;
use std::str::FromStr;

use millpond_baselines::{Caching, MILLPOND};
use serde::Serialize;

use super::rank::Rank;
use crate::error::Result;

/// What `--batch` may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Batch {
    Auto,
    Of(u64),
}

impl FromStr for Batch {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.parse() {
            _ if text == "auto" => Ok(Self::Auto),
            Ok(batch) if batch > 0 => Ok(Self::Of(batch)),
            _ => Err(format!("'{text}' should be a number above 0, or auto")),
        }
    }
}

/// The largest batch with one allocator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Largest {
    pub(super) allocator: &'static str,
    /// `None` if a batch of 1 does not fit.
    pub(super) batch: Option<u64>,
    /// Whether the next larger one is known not to fit.
    pub(super) is_exact: bool,
}

/// Where a search begins.
const FIRST: u64 = 8;

/// Predictions for one allocator until a batch does not fit, and from then on.
const MOST_LARGER: usize = 8;
const MOST_BETWEEN: usize = 16;

/// Finds the largest batches that need no more than `room` bytes on each rank, with PyTorch's allocator and with the pool.
pub(super) fn search(room: u64, mut predict: impl FnMut(u64) -> Result<Vec<Rank>>) -> Result<Vec<Largest>> {
    let mut runs: BTreeMap<u64, Vec<Rank>> = BTreeMap::new();
    let mut largest = Vec::new();
    for allocator in [Caching::NAME, MILLPOND] {
        let need = |ranks: &[Rank]| ranks.iter().map(|rank| rank.needs(allocator)).max().unwrap_or(u64::MAX);
        // What ran for the one before is known for the next.
        let known = runs.iter().map(|(batch, ranks)| (*batch, need(ranks))).collect();
        let needs = |batch: u64| Ok(need(runs.entry(batch).insert_entry(predict(batch)?).get()));
        let (batch, is_exact) = largest_within(room, known, needs)?;
        largest.push(Largest { allocator, batch, is_exact });
    }
    Ok(largest)
}

/// The largest batch that fits, and whether the next one does not.
fn largest_within(
    room: u64,
    mut known: BTreeMap<u64, u64>,
    mut needs: impl FnMut(u64) -> Result<u64>,
) -> Result<(Option<u64>, bool)> {
    let (mut larger, mut between, mut width) = (0, 0, u64::MAX);
    loop {
        let fits = known.iter().filter(|(_, need)| **need <= room).map(|(batch, _)| *batch).max();
        let fails = known.iter().filter(|(_, need)| **need > room).map(|(batch, _)| *batch).min();
        let least = fits.unwrap_or(0);
        let next = match fails {
            Some(fails) if fails <= least + 1 => return Ok((fits, true)),
            None if known.is_empty() => FIRST,
            None if larger == MOST_LARGER => return Ok((fits, false)),
            None => {
                larger += 1;
                // Where small batches need all the same, no line leads anywhere.
                let most = least.saturating_mul(16);
                let flat = if known.len() == 1 { least.saturating_mul(2) } else { most };
                guess(&known, room).unwrap_or(flat).clamp(least + 1, most)
            }
            Some(_) if between == MOST_BETWEEN => return Ok((fits, false)),
            Some(fails) => {
                between += 1;
                let half = least + (fails - least) / 2;
                // A line that is none comes no nearer.
                let is_slow = fails - least > width / 2;
                width = fails - least;
                let next = if is_slow { half } else { guess(&known, room).unwrap_or(half) };
                next.clamp(least + 1, fails - 1)
            }
        };
        known.insert(next, needs(next)?);
    }
}

/// Where the line through the two points nearest to the room comes to it.
fn guess(known: &BTreeMap<u64, u64>, room: u64) -> Option<u64> {
    let mut points: Vec<(f64, f64)> =
        known.iter().map(|(batch, need)| (*batch as f64, *need as f64)).collect();
    let room = room as f64;
    points.sort_by(|one, other| (one.1 - room).abs().total_cmp(&(other.1 - room).abs()));
    let [one, other] = points.get(..2)?.try_into().ok()?;
    let slope = (other.1 - one.1) / (other.0 - one.0);
    (slope > 0.0).then(|| (one.0 + (room - one.1) / slope).max(0.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_batch_is_found_in_few_predictions() {
        for (fixed, each, room) in [(100, 7, 1000), (100, 7, 108), (100, 7, 100_000), (0, 1, 8)] {
            let mut tries = 0;
            let found = largest_within(room, BTreeMap::new(), |batch| {
                tries += 1;
                // Not quite a line.
                Ok(fixed + each * batch + batch % 3)
            });
            let truth = (1..).take_while(|batch| fixed + each * batch + batch % 3 <= room).last();
            assert_eq!(found.unwrap(), (truth, true));
            assert!(tries <= 8, "{tries}");
        }
        let none = largest_within(100, BTreeMap::new(), |batch| Ok(200 * batch)).unwrap();
        assert_eq!(none, (None, true));
    }

    #[test]
    fn small_batches_that_need_all_the_same_lead_on_to_larger_ones() {
        const FLAT: u64 = 4 << 30;
        let mut tries = 0;
        let needs = |batch: u64| FLAT.max((batch * 100_000).next_multiple_of(20 << 20));
        let found = largest_within(20 << 30, BTreeMap::new(), |batch| {
            tries += 1;
            Ok(needs(batch))
        });
        let batch = found.unwrap().0.unwrap();
        assert!(needs(batch) <= 20 << 30 && needs(batch * 101 / 100) > 20 << 30, "{batch}");
        assert!(tries <= 24, "{tries}");
        // One that grows with nothing ends, too.
        let (batch, is_exact) = largest_within(20 << 30, BTreeMap::new(), |_| Ok(FLAT)).unwrap();
        assert!(!is_exact && batch > Some(1 << 30), "{batch:?}");
    }

    #[test]
    fn what_is_known_is_not_predicted_again() {
        let known = BTreeMap::from([(8, 80), (71, 710), (72, 720)]);
        let found = largest_within(715, known, |batch| unreachable!("{batch}"));
        assert_eq!(found.unwrap(), (Some(71), true));
    }

    #[test]
    fn a_batch_is_a_number_or_auto() {
        assert_eq!("auto".parse(), Ok(Batch::Auto));
        assert_eq!("12".parse(), Ok(Batch::Of(12)));
        assert!("0".parse::<Batch>().unwrap_err().contains("above 0"));
    }
}
