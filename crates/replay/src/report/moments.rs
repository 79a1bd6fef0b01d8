//! What lies where in the course of a replay: maps at moments that are evenly apart, and the largest blocks in them by name.

use serde_json::json;

use super::map::{cell_bytes, runs};
use crate::deciding::Deciding;
use crate::owners::Owners;
use crate::replay::{Choose, Map, Program, ReplayError, Waste, maps_at};
use crate::trace::Trace;

/// Moments that are shown, beside the one that decides.
const MOMENTS: usize = 48;

/// What is said of the moment to begin with.
const DECIDES: &str = "when the request is served that decides what is needed";
const HOLDS_MOST: &str = "when it holds the most";

/// Blocks of a moment that have names.
const MOST_NAMED: usize = 128;

/// The arguments of the page's `mapped`, but for the figure: cells and largest blocks at each moment, the number of the moment to
/// begin with, and whose the blocks are.
#[derive(Debug)]
pub(super) struct Moments(serde_json::Value);

impl Moments {
    /// Replays a program on the device of its deciding moment, which is the one to begin with.
    pub(super) fn of(
        (trace, program): (&Trace, &Program),
        owners: &Owners,
        choose: &Choose<'_>,
        deciding: &Deciding,
    ) -> Result<Self, ReplayError> {
        let last = program.steps.len().saturating_sub(1);
        let mut events: Vec<usize> = (1..=MOMENTS).map(|moment| last * moment / MOMENTS).collect();
        let Deciding { waste: Waste { event: first, .. }, map, capacity, .. } = deciding;
        events.push(*first.min(&last));
        events.sort_unstable();
        events.dedup();
        let times: Vec<u64> = program.times(trace).collect();
        let each = cell_bytes(map);
        let (mut moments, mut names) = (Vec::new(), Vec::new());
        maps_at(program, choose, (*capacity, &events), |event, map, reserved| {
            let requested: u64 = map.live.iter().map(|(_, bytes)| bytes).sum();
            let blocks = named(map, owners, &mut names);
            moments.push(json!({
                "event": event,
                "seconds": times.get(event).copied().unwrap_or_default() as f64 / 1e6,
                "reserved": reserved,
                "requested": requested,
                "cells": runs(map, each),
                "blocks": blocks,
            }));
        })?;
        let first = events.iter().position(|event| event == first).unwrap_or_default();
        let names: Vec<String> = names.iter().map(|owner| owners.all[*owner as usize].name()).collect();
        let decides = if deciding.is_most { HOLDS_MOST } else { DECIDES };
        Ok(Self(
            json!({ "each": each, "first": first, "decides": decides, "moments": moments, "owners": names }),
        ))
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0["moments"].as_array().map_or(0, Vec::len)
    }

    /// The number of the one to begin with.
    pub(super) fn first(&self) -> u64 {
        self.0["first"].as_u64().unwrap_or_default()
    }

    /// As a script has it.
    pub(super) fn script(&self) -> String {
        // No text in it can end the script.
        self.0.to_string().replace('<', "\\u003c")
    }
}

/// The largest blocks: how far behind the first page each begins, its bytes, and the place of its owner in `names`, which grows.
fn named(map: &Map, owners: &Owners, names: &mut Vec<u32>) -> Vec<(u64, u64, usize)> {
    let mut largest: Vec<usize> = (0..map.live.len()).collect();
    largest.sort_unstable_by_key(|at| (std::cmp::Reverse(map.live[*at].1), *at));
    largest.truncate(MOST_NAMED);
    let mut before = 0;
    let starts: Vec<(u64, u64)> = map
        .backing
        .iter()
        .map(|(address, bytes)| {
            before += bytes;
            (*address, before - bytes)
        })
        .collect();
    let place = |(address, bytes): (u64, u64)| {
        let behind = starts.partition_point(|(start, _)| *start <= address);
        let (start, before) = *starts.get(behind.checked_sub(1)?)?;
        Some((before + address - start, bytes))
    };
    let each = largest.into_iter().filter_map(|at| {
        let (from, bytes) = place(map.live[at])?;
        let owner = owners.of_block[map.blocks[at] as usize];
        let known = names.iter().position(|known| *known == owner).unwrap_or_else(|| {
            names.push(owner);
            names.len() - 1
        });
        Some((from, bytes, known))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::Need;
    use crate::fixtures::{GNN, named as allocator, recorded};
    use crate::replay::{FreeWhen, UNLIMITED, on_sim};

    #[test]
    fn moments_begin_at_the_deciding_one_and_name_the_largest_blocks() {
        let trace = recorded(GNN);
        let program = Program::new(&trace, FreeWhen::Completed);
        let choose = allocator("millpond");
        let unlimited = on_sim(&trace, &program, &choose, UNLIMITED).unwrap();
        let need = Need::of(&program, &choose, &unlimited).unwrap();
        let deciding = Deciding::of(&program, &choose, need, u64::MAX).unwrap();
        let owners = Owners::of(&trace);
        let moments = Moments::of((&trace, &program), &owners, &choose, &deciding).unwrap();
        let Deciding { waste, map, .. } = deciding;
        assert!((MOMENTS..=MOMENTS + 1).contains(&moments.count()));
        let first = &moments.0["moments"][moments.first() as usize];
        assert_eq!(first["event"], waste.event);
        assert_eq!(first["reserved"], waste.reserved);
        assert_eq!(first["requested"], waste.requested);
        assert_eq!(first["cells"], runs(&map, cell_bytes(&map)));
        let blocks = first["blocks"].as_array().unwrap();
        let sizes: Vec<u64> = blocks.iter().map(|block| block[1].as_u64().unwrap()).collect();
        assert!(sizes.is_sorted_by(|one, next| one >= next) && sizes.len() <= MOST_NAMED);
        assert_eq!(sizes[0], map.live.iter().map(|(_, bytes)| *bytes).max().unwrap());
        let owner = blocks[0][2].as_u64().unwrap() as usize;
        assert!(moments.0["owners"][owner].as_str().unwrap().contains("t3.py"));
    }
}
