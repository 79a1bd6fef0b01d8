//! The pages of a tag that need memory, while it comes from the pool that the tag is a part of.

use std::ops::Range;

use super::evicted::Passed;
use crate::core::Arenas;
use crate::device::{DeviceError, DeviceResult};
use crate::extents::{Arena, Receiver, give_free};
use crate::order::{Fence, Stream};
use crate::physical::{PageId, Pages, Passing, passing};
use crate::sleep::AsleepPage;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Lacking<'a> {
    away: &'a [AsleepPage],
    passed: &'a mut [Passed],
    arenas: &'a mut Arenas,
    /// The stream for copies, which is to come behind the work on what is received.
    back: &'a Stream,
    /// Which of them are lacking, each with its base pages.
    lacking: Vec<(usize, u32)>,
}

impl<'a> Lacking<'a> {
    /// Has pages of a batch come back that nobody has mapped since they went. All others that have no memory are lacking.
    pub(super) fn after_own(
        there: &mut Pages,
        (away, passed): (&'a [AsleepPage], &'a mut [Passed]),
        arenas: &'a mut Arenas,
        back: &'a Stream,
        batch: Range<usize>,
    ) -> DeviceResult<Self> {
        let mut lacking = Vec::new();
        let bytes = (batch.len() * size_of::<(usize, u32)>()) as u64;
        let no_memory = DeviceError::HostMemory { what: "a list of pages", bytes };
        lacking.try_reserve_exact(batch.len()).map_err(|_| no_memory)?;
        for at in batch {
            let Some((pages, id)) = page_without(arenas, &away[at]) else { continue };
            // Access belongs to a mapping. One with other access goes first, once the work on it is complete.
            let is_of_use = pages.get(id).left_for_its_peers();
            match passing::give_back(there, passed[at].there, is_of_use) {
                Some(given) => passing::return_home(pages, id, given),
                // Another page cannot be mapped where its old mapping is.
                None if pages.get(id).leaves_behind().is_some() => {}
                None => lacking.push((at, pages.get(id).base_pages)),
            }
        }
        Ok(Self { away, passed, arenas, back, lacking })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lacking.is_empty()
    }

    /// Takes pages that are parked, then free ones, then those that arrive.
    pub(super) fn take_from(&mut self, whole: &mut Arena) -> DeviceResult<()> {
        for at in (0..self.lacking.len()).rev() {
            if let Some(page) = passing::give_parked(&mut whole.pages, self.lacking[at].1) {
                self.receive(page);
            }
        }
        if !self.is_empty() {
            give_free(whole, self)?;
        }
        for at in (0..self.lacking.len()).rev() {
            let Some((page, work)) = passing::find_arriving(&whole.pages, self.lacking[at].1) else {
                continue;
            };
            if self.come_behind(work)? {
                self.receive(passing::give(&mut whole.pages, page));
            }
        }
        Ok(())
    }
}

impl Receiver for Lacking<'_> {
    fn needs(&self, base_pages: u32) -> bool {
        self.lacking.iter().any(|(_, lacking)| *lacking == base_pages)
    }

    fn come_behind(&mut self, work: &Fence) -> DeviceResult<bool> {
        self.back.timelines().make_wait(work, self.back.timeline())
    }

    fn receive(&mut self, page: Passing) {
        // The last one: who goes through the list from its end sees each once.
        let at = self.lacking.iter().rposition(|(_, lacking)| *lacking == page.base_pages);
        let (at, _) = self.lacking.swap_remove(at.expect("a page is received where one is needed"));
        let (pages, id) = page_without(self.arenas, &self.away[at]).expect("it is lacking");
        self.passed[at].is_intact = false;
        passing::return_home(pages, id, page);
    }
}

/// The page, and those of its arena, if it has no memory, and was not forgotten.
fn page_without<'a>(arenas: &'a mut Arenas, page: &AsleepPage) -> Option<(&'a mut Pages, PageId)> {
    let (id, arena) = (page.page.home.id, arenas.named_mut(page.of)?);
    (arena.pages.knows(id) && arena.pages.get(id).has_gone()).then_some((&mut arena.pages, id))
}
