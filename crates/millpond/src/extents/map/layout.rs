//! The sizes that an arena is built with: lengths in bytes, units and base pages, and the zone of a block.
//!
//! Small blocks and large ones lie in different zones: a small block that lives long pins a page of the smallest length only.

use crate::policy::Policy;
use crate::policy::size_classes::EXACT_FROM;

/// Which of the two kinds of region an extent lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Zone {
    Small = 0,
    Large = 1,
}

/// What an arena is built with. All sizes are powers of two, and each divides the next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    /// Bytes in a unit: the pool's minimum alignment.
    pub(crate) unit_bytes: u64,
    /// Bytes in a base page, which is as long as the smallest page.
    pub(crate) base_page_bytes: u64,
    /// Base pages in the largest page.
    pub(crate) largest_page: u32,
    /// Base pages in the shortest page that a long block gets, where it has room.
    pub(crate) least_page: u32,
    /// What decides how many old mappings stay, and whether pages are exchanged.
    pub(in crate::extents) policy: Policy,
    /// Binary logarithms of a unit's bytes and of a base page's units. Every search converts lengths: a shift costs
    /// much less than a division, and a stored one less than a computed one.
    pub(in crate::extents) unit_shift: u32,
    pub(in crate::extents) base_page_shift: u32,
}

impl Layout {
    /// All sizes are in bytes, and powers of two; `unit` divides `base_page`, which divides `largest_page`.
    pub(crate) fn new(unit: u64, base_page: u64, largest_page: u64, policy: Policy) -> Self {
        Self {
            unit_bytes: unit,
            base_page_bytes: base_page,
            largest_page: u32::try_from(largest_page / base_page).unwrap_or(u32::MAX),
            least_page: 1,
            policy,
            unit_shift: unit.ilog2(),
            base_page_shift: base_page.ilog2() - unit.ilog2(),
        }
    }

    pub(crate) fn units_per_base_page(&self) -> u64 {
        1 << self.base_page_shift
    }

    /// The units in a range of base pages: the first, and the first behind them.
    pub(in crate::extents) fn units_of(&self, (first, end): (u64, u64)) -> (u64, u64) {
        (first << self.base_page_shift, end << self.base_page_shift)
    }

    /// The base page that holds a unit.
    pub(in crate::extents) fn base_page_of(&self, unit: u64) -> u64 {
        unit >> self.base_page_shift
    }

    /// Base pages that so many units need; also the first base page that starts at or behind a unit.
    pub(in crate::extents) fn base_pages_for(&self, units: u64) -> u64 {
        (units + self.units_per_base_page() - 1) >> self.base_page_shift
    }

    pub(in crate::extents) fn zone_of(&self, units: u64) -> Zone {
        if units * self.unit_bytes < EXACT_FROM { Zone::Small } else { Zone::Large }
    }
}
