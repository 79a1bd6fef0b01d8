//! The indexes of all extents that have one: the free ones and the unmapped ones, each by zone.

use super::extent::{Extent, ExtentId, ExtentState, Extents};
use super::index::ExtentIndex;
use super::layout::Zone;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Indexes {
    free: [ExtentIndex; 2],
    unmapped: [ExtentIndex; 2],
}

impl Indexes {
    /// The free extents of a zone.
    #[inline]
    pub(super) fn free(&self, zone: Zone) -> &ExtentIndex {
        &self.free[zone as usize]
    }

    /// The unmapped extents of a zone.
    pub(super) fn unmapped(&self, zone: Zone) -> &ExtentIndex {
        &self.unmapped[zone as usize]
    }

    /// That of extents in this state.
    #[inline]
    fn of(&mut self, extent: &Extent) -> &mut ExtentIndex {
        debug_assert!(matches!(extent.state, ExtentState::Free | ExtentState::Unmapped), "{extent:?}");
        let of_state = if extent.state == ExtentState::Free { &mut self.free } else { &mut self.unmapped };
        &mut of_state[extent.zone as usize]
    }

    #[inline]
    pub(super) fn insert(&mut self, extent: &Extent, id: ExtentId) {
        self.of(extent).insert(extent, id);
    }

    #[inline]
    pub(super) fn remove(&mut self, extent: &Extent) {
        self.of(extent).remove(extent);
    }

    /// Whether one lacks extents, since the host refused memory.
    #[inline]
    pub(super) fn lack(&self) -> bool {
        self.free.iter().chain(&self.unmapped).any(ExtentIndex::lacks)
    }

    /// Inserts every extent that is missing, since the host refused memory. `false` where it still does. Called between requests,
    /// when none is missing for another reason.
    #[cold]
    pub(super) fn complete(&mut self, extents: &Extents) -> bool {
        if !self.lack() {
            return true;
        }
        self.free.iter_mut().chain(&mut self.unmapped).for_each(ExtentIndex::complete);
        for (id, extent) in extents.iter() {
            if matches!(extent.state, ExtentState::Free | ExtentState::Unmapped) {
                self.of(extent).insert_missing(extent, id);
            }
        }
        !self.lack()
    }
}
