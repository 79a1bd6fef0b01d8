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
}

/// Where a search begins.
const FIRST: u64 = 8;

/// Predictions for one allocator.
const MOST_TRIES: usize = 12;

/// Finds the largest batches that need no more than `room` bytes on each rank, with PyTorch's allocator and with the pool.
pub(super) fn search(room: u64, mut predict: impl FnMut(u64) -> Result<Vec<Rank>>) -> Result<Vec<Largest>> {
    let mut known: BTreeMap<u64, Vec<Rank>> = BTreeMap::new();
    let mut largest = Vec::new();
    for allocator in [Caching::NAME, MILLPOND] {
        let needs = |batch: u64| {
            if let std::collections::btree_map::Entry::Vacant(new) = known.entry(batch) {
                new.insert(predict(batch)?);
            }
            Ok(known[&batch].iter().map(|rank| rank.needs(allocator)).max().unwrap_or(u64::MAX))
        };
        largest.push(Largest { allocator, batch: largest_within(room, needs)? });
    }
    Ok(largest)
}

fn largest_within(room: u64, mut needs: impl FnMut(u64) -> Result<u64>) -> Result<Option<u64>> {
    let mut known: BTreeMap<u64, u64> = BTreeMap::new();
    let mut next = FIRST;
    for _ in 0..MOST_TRIES {
        known.insert(next, needs(next)?);
        let fits = known.iter().filter(|(_, need)| **need <= room).map(|(batch, _)| *batch).max();
        let fails = known.iter().filter(|(_, need)| **need > room).map(|(batch, _)| *batch).min();
        next = match (fits.unwrap_or(0), fails) {
            (fits, Some(fails)) if fails <= fits + 1 => break,
            (fits, None) => guess(&known, room).unwrap_or(fits * 2).clamp(fits + 1, fits * 16),
            (fits, Some(fails)) => guess(&known, room).unwrap_or(fails / 2).clamp(fits + 1, fails - 1),
        };
    }
    Ok(known.into_iter().filter(|(_, need)| *need <= room).map(|(batch, _)| batch).max())
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
            let found = largest_within(room, |batch| {
                tries += 1;
                // Not quite a line.
                Ok(fixed + each * batch + batch % 3)
            });
            let truth = (1..).take_while(|batch| fixed + each * batch + batch % 3 <= room).last();
            assert_eq!(found.unwrap(), truth);
            assert!(tries <= 8, "{tries}");
        }
        assert_eq!(largest_within(100, |batch| Ok(200 * batch)).unwrap(), None);
    }

    #[test]
    fn a_batch_is_a_number_or_auto() {
        assert_eq!("auto".parse(), Ok(Batch::Auto));
        assert_eq!("12".parse(), Ok(Batch::Of(12)));
        assert!("0".parse::<Batch>().unwrap_err().contains("above 0"));
    }
}
