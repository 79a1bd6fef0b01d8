//! Parked pages: held, mapped nowhere in use, and the first to be used again.
//!
//! They are linked through their records, by length: to park one, or to take any, costs the same however many there are, and
//! takes no memory of the host's.

use super::{Page, PageId, Pages};
use crate::device::DeviceResult;

/// A page's length is a power of two in base pages, of fewer than 2^32.
const LENGTHS: usize = u32::BITS as usize;

/// Where a parked page is linked.
#[derive(Debug, Clone, Copy)]
pub(super) struct ParkedLink {
    before: Option<PageId>,
    behind: Option<PageId>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Parked {
    /// By the binary logarithm of the length: the one that was parked last.
    first: [Option<PageId>; LENGTHS],
}

impl Parked {
    /// Those of so many base pages.
    pub(super) fn of_length<'a>(
        &self,
        base_pages: u32,
        pages: &'a Pages,
    ) -> impl Iterator<Item = PageId> + 'a {
        let first = self.first[base_pages.ilog2() as usize];
        std::iter::successors(first, |id| pages.get(*id).parked.and_then(|link| link.behind))
    }
}

/// Parked pages as one plan takes them. It changes nothing.
#[derive(Debug)]
pub(crate) struct ParkedCursor<'a> {
    pages: &'a Pages,
    next: [Option<PageId>; LENGTHS],
}

impl ParkedCursor<'_> {
    /// The longest that was not taken yet, of at most so many base pages.
    pub(crate) fn take(&mut self, most: u64) -> Option<PageId> {
        let fit = most.checked_ilog2().map_or(0, |most| LENGTHS.min(most as usize + 1));
        let next = self.next[..fit].iter_mut().rev().find(|next| next.is_some())?;
        let page = (*next)?;
        *next = self.pages.get(page).parked.and_then(|link| link.behind);
        Some(page)
    }
}

impl Pages {
    /// The parked pages, to be planned with.
    pub(crate) fn parked(&self) -> ParkedCursor<'_> {
        ParkedCursor { pages: self, next: self.parked.first }
    }

    /// The parked pages that are mapped elsewhere, too, to be planned with.
    pub(crate) fn parked_arriving(&self) -> ParkedCursor<'_> {
        ParkedCursor { pages: self, next: self.parked_arriving.first }
    }

    /// Whether the page is parked.
    pub(crate) fn is_parked(&self, id: PageId) -> bool {
        self.get(id).parked.is_some()
    }

    /// Parks a page that lies nowhere.
    pub(crate) fn park(&mut self, id: PageId) {
        debug_assert!(self.get(id).home.is_none() && !self.is_parked(id));
        let first = self.first_parked(id);
        let behind = first.replace(id);
        self.get_mut(id).parked = Some(ParkedLink { before: None, behind });
        if let Some(link) = behind.and_then(|behind| self.get_mut(behind).parked.as_mut()) {
            link.before = Some(id);
        }
    }

    /// Takes this page, if it is parked.
    pub(crate) fn unpark(&mut self, id: PageId) {
        let Some(ParkedLink { before, behind }) = self.get_mut(id).parked.take() else { return };
        match before.and_then(|before| self.get_mut(before).parked.as_mut()) {
            Some(link) => link.behind = behind,
            None => *self.first_parked(id) = behind,
        }
        if let Some(link) = behind.and_then(|behind| self.get_mut(behind).parked.as_mut()) {
            link.before = before;
        }
    }

    fn first_parked(&mut self, id: PageId) -> &mut Option<PageId> {
        let Page { base_pages, elsewhere, .. } = self.get(id);
        debug_assert!(base_pages.is_power_of_two());
        let (length, is_arriving) = (base_pages.ilog2() as usize, elsewhere.is_some());
        let list = if is_arriving { &mut self.parked_arriving } else { &mut self.parked };
        &mut list.first[length]
    }

    /// Releases parked pages that `goes` names and no old mapping keeps, the longest first, until at most `keep` bytes are
    /// reserved. One that cannot be released stays parked, and is no reason to keep the others. Returns the first error.
    pub(crate) fn release_parked(
        &mut self,
        keep: u64,
        goes: impl Fn(&Self, PageId) -> bool,
    ) -> DeviceResult<()> {
        let mut done = Ok(());
        for length in (0..LENGTHS).rev() {
            let mut next = self.parked.first[length];
            while let Some(id) = next
                && self.counters.reserved.current() > keep
            {
                next = self.get(id).parked.and_then(|link| link.behind);
                if self.get(id).mappings == 0 && goes(self, id) {
                    self.unpark(id);
                    done = done.and(self.release(id).map(drop));
                }
            }
        }
        done
    }
}
