//! Parked pages: held, mapped nowhere in use, and the first to be used again.
//!
//! They are linked through their records, by length: to park one, or to take any, costs the same however many there are, and
//! takes no memory of the host's.

use super::page::{LENGTHS, PageId};
use super::pages::Pages;
use crate::device::DeviceResult;

/// Parked pages as one plan takes them. It changes nothing.
#[derive(Debug)]
pub(crate) struct ParkedCursor<'a> {
    pages: &'a Pages,
    next: [Option<PageId>; LENGTHS],
}

impl<'a> ParkedCursor<'a> {
    /// Of these pages.
    pub(crate) fn of(pages: &'a Pages) -> Self {
        Self { pages, next: pages.parked.first }
    }

    /// Of these pages, those that arrive ([`passing`](super::passing)).
    pub(crate) fn of_arriving(pages: &'a Pages) -> Self {
        Self { pages, next: pages.parked_arriving.first }
    }

    /// Those of so many base pages.
    pub(super) fn of_length(self, base_pages: u32) -> impl Iterator<Item = PageId> + 'a {
        let behind = |id: &PageId| self.pages.get(*id).parked.and_then(|link| link.behind);
        std::iter::successors(self.next[base_pages.ilog2() as usize], behind)
    }

    /// The longest that was not taken yet, of at most so many base pages.
    pub(crate) fn take(&mut self, most: u64) -> Option<PageId> {
        let fit = most.checked_ilog2().map_or(0, |most| LENGTHS.min(most as usize + 1));
        let next = self.next[..fit].iter_mut().rev().find(|next| next.is_some())?;
        let page = (*next)?;
        *next = self.pages.get(page).parked.and_then(|link| link.behind);
        Some(page)
    }
}

/// Releases parked pages that `goes` names and no old mapping keeps, the longest first, until at most `keep` bytes are
/// reserved. One that cannot be released stays parked, and is no reason to keep the others. Returns the first error.
pub(crate) fn release_parked(
    pages: &mut Pages,
    keep: u64,
    goes: impl Fn(&Pages, PageId) -> bool,
) -> DeviceResult<()> {
    let mut done = Ok(());
    for length in (0..LENGTHS).rev() {
        let mut next = pages.parked.first[length];
        while let Some(id) = next
            && pages.counters.staying() > keep
        {
            next = pages.get(id).parked.and_then(|link| link.behind);
            if pages.get(id).mappings == 0 && goes(pages, id) {
                pages.unpark(id);
                done = done.and(pages.release(id).map(drop));
            }
        }
    }
    done
}
