//! Free stretches beside live blocks when an allocator holds the most: how long they are, and whose blocks keep their pages.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::owners::Owners;
use crate::replay::Map;
use crate::trace::Trace;

/// The holes at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Holes {
    /// Bytes by the power of two that the hole's length is not below.
    #[serde(rename = "holes_by_size")]
    pub by_size: BTreeMap<u64, u64>,
    /// By tag and call site of the block beside them, or by its size where neither was recorded; the most bytes first.
    #[serde(rename = "holes_beside")]
    pub beside: Vec<Beside>,
}

/// The holes beside the blocks of one call site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Beside {
    /// Tag and call site, or sizes.
    pub site: String,
    /// How long the holes are, together.
    pub bytes: u64,
    /// How many there are.
    pub holes: u64,
}

/// What every block is rounded up to, in bytes.
const UNIT: u64 = 512;

/// Call sites that are listed.
const MOST_SITES: usize = 20;

impl Holes {
    /// The holes of a map of this trace. Each is told of the block in front of it on its page or segment, else of the one behind.
    pub fn of(trace: &Trace, map: &Map) -> Self {
        Self::among(trace, &found(map, true))
    }

    /// The same where one page or segment does not go on in the next: a request is served by one of them.
    pub(crate) fn apart(trace: &Trace, map: &Map) -> Self {
        Self::among(trace, &found(map, false))
    }

    /// The longest free stretch of one page or segment, be it beside a live block or not.
    pub(crate) fn longest_free(map: &Map) -> u64 {
        let beside = found(map, false).into_iter().map(|(_, bytes, _)| bytes);
        let is_free = |&&(start, bytes): &&(u64, u64)| {
            let first = map.first_on(start);
            map.live.get(first).is_none_or(|(address, _)| *address >= start + bytes)
        };
        let whole = map.backing.iter().filter(is_free).map(|(_, bytes)| *bytes);
        beside.chain(whole).max().unwrap_or(0)
    }

    fn among(trace: &Trace, found: &[(u64, u64, u32)]) -> Self {
        let mut holes = Self::default();
        for (_, bytes, _) in found {
            *holes.by_size.entry(1 << bytes.ilog2()).or_default() += bytes;
        }
        let owners = Owners::of(trace);
        let mut by_owner: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for (_, bytes, block) in found {
            let sum = by_owner.entry(owners.of_block[*block as usize]).or_default();
            *sum = (sum.0 + bytes, sum.1 + 1);
        }
        let named = by_owner.into_iter().map(|(owner, (bytes, holes))| {
            let site = owners.all[owner as usize].name();
            Beside { site, bytes, holes }
        });
        holes.beside = named.collect();
        holes.beside.sort_by(|one, other| (other.bytes, &one.site).cmp(&(one.bytes, &other.site)));
        holes.beside.truncate(MOST_SITES);
        holes
    }

    /// The size class with most bytes: from, to, and how many bytes.
    pub fn largest_class(&self) -> Option<(u64, u64, u64)> {
        let (from, bytes) = self.by_size.iter().max_by_key(|(_, bytes)| **bytes)?;
        Some((*from, from.saturating_mul(2), *bytes))
    }
}

impl Map {
    /// The first live block that ends behind this address.
    fn first_on(&self, start: u64) -> usize {
        self.live.partition_point(|(address, bytes)| (address + bytes).next_multiple_of(UNIT) <= start)
    }
}

/// Address and bytes of each hole, and the block beside it. Where `joins`, holes that touch, on pages next to each other, are one.
fn found(map: &Map, joins: bool) -> Vec<(u64, u64, u32)> {
    let mut holes: Vec<(u64, u64, u32)> = Vec::new();
    for &(start, bytes) in &map.backing {
        let end = start + bytes;
        let first = map.first_on(start);
        let on_it = first..first + map.live[first..].partition_point(|(address, _)| *address < end);
        let Some(mut beside) = map.blocks.get(on_it.start).copied().filter(|_| !on_it.is_empty()) else {
            continue;
        };
        let mut at = start;
        let mut add = |from: u64, to: u64, block: u32| match holes.last_mut() {
            _ if from >= to => {}
            Some((address, bytes, _)) if (joins || from > start) && *address + *bytes == from => {
                *bytes += to - from
            }
            _ => holes.push((from, to - from, block)),
        };
        for block in on_it {
            let (address, bytes) = map.live[block];
            add(at, address, beside);
            beside = map.blocks[block];
            at = (address + bytes).next_multiple_of(UNIT);
        }
        add(at, end, beside);
    }
    holes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_cut_by_live_blocks_and_joined_over_pages() {
        let page = 2 << 20;
        let map = Map {
            // Two pages that touch, one that is free, and one with a block in its middle.
            backing: vec![(0, page), (page, page), (2 * page, page), (4 * page, page)],
            live: vec![(0, 1000), (2 * page - 512, 512), (4 * page + 4096, 4096)],
            blocks: vec![7, 8, 9],
        };
        let ends = 4 * page + 8192;
        assert_eq!(
            found(&map, true),
            [(1024, 2 * page - 1536, 7), (4 * page, 4096, 9), (ends, page - 8192, 9)]
        );
    }

    #[test]
    fn segments_that_touch_have_holes_of_their_own() {
        let segment = 20 << 20;
        let map = Map {
            backing: vec![(0, segment), (segment, segment), (2 * segment, segment)],
            live: vec![(0, 512), (2 * segment - 512, 512)],
            blocks: vec![3, 4],
        };
        assert_eq!(found(&map, false), [(512, segment - 512, 3), (segment, segment - 512, 4)]);
        assert_eq!(Holes::longest_free(&map), segment);
    }

    #[test]
    fn a_block_across_pages_leaves_no_hole_between_them() {
        let page = 2 << 20;
        let map = Map { backing: vec![(0, page), (page, page)], live: vec![(0, 2 * page)], blocks: vec![0] };
        assert_eq!(found(&map, true), []);
    }
}
