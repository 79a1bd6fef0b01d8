//! What is known of a pool that sleeps: its pages, and where their live bytes are.

use std::ops::Range;

use super::pages::PlacedPage;
use crate::core::{ArenaId, Arenas};
use crate::device::{DeviceError, DevicePtr, DeviceResult};
use crate::extents::Arena;
use crate::policy::sleeping::{BATCH, GAP, PAGE_TO_MOVE};

/// What becomes of the bytes of a pool that [sleeps](crate::Pool::sleep).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Keep {
    /// Those in live blocks are copied to pinned memory of the host, and back by [`Pool::wake`](crate::Pool::wake).
    InPinnedMemory,
    /// They are dropped. After [`Pool::wake`](crate::Pool::wake), live blocks have no defined content.
    Nothing,
}

/// A pool that sleeps: its pages, and where their bytes are.
#[derive(Debug, Default)]
pub(crate) struct Asleep {
    pub(crate) pages: Vec<AsleepPage>,
    /// How many of them, from the first on, have what is to be kept in pinned memory. No other page may go.
    pub(crate) kept: usize,
    pieces: Vec<Piece>,
}

#[derive(Debug)]
pub(crate) struct AsleepPage {
    /// The memory of a capture that it belongs to; `None` for the pool's own.
    pub(crate) of: Option<ArenaId>,
    pub(crate) page: PlacedPage,
    pieces: Range<usize>,
}

/// Live bytes of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) at: DevicePtr,
    pub(crate) bytes: u64,
    /// How far into the pinned memory.
    pub(crate) offset: u64,
}

impl Piece {
    /// Whether the other one begins where this one ends, in both places.
    fn is_followed_by(&self, next: &Self) -> bool {
        self.at.offset(self.bytes) == next.at && self.offset + self.bytes == next.offset
    }
}

impl Asleep {
    /// Adds the pages of an arena that `goes` names, with their live bytes behind those that are there.
    pub(crate) fn add(
        &mut self,
        arena: &mut Arena,
        of: Option<ArenaId>,
        keep: Keep,
        goes: impl Fn(&Arena, &PlacedPage) -> bool,
    ) -> DeviceResult<()> {
        let mut pages = PlacedPage::all_of(arena)?;
        pages.retain(|page| goes(arena, page));
        let live = match keep {
            Keep::InPinnedMemory => arena.live_ranges(GAP)?,
            Keep::Nothing => Vec::new(),
        };
        // A range and a page each end at most one piece.
        let no_memory = || DeviceError::HostMemory {
            what: "a list of pages",
            bytes: (pages.len() * size_of::<AsleepPage>() + live.len() * size_of::<Piece>()) as u64,
        };
        self.pages.try_reserve(pages.len()).map_err(|_| no_memory())?;
        self.pieces.try_reserve(pages.len() + live.len()).map_err(|_| no_memory())?;
        for page in pages {
            let (start, end) = (page.home.at, page.home.at.offset(page.home.bytes));
            let first = self.pieces.len();
            let before = live.partition_point(|(at, bytes)| at.offset(*bytes) <= start);
            for (at, bytes) in live[before..].iter().take_while(|(at, _)| *at < end) {
                let (from, to) = (start.max(*at), end.min(at.offset(*bytes)));
                let piece = Piece { at: from, bytes: to.raw() - from.raw(), offset: self.bytes() };
                self.pieces.push(piece);
            }
            self.pages.push(AsleepPage { of, page, pieces: first..self.pieces.len() });
        }
        Ok(())
    }

    /// These pages go, as far as they have not: what is to be kept of them is in pinned memory. A page that cannot go is no
    /// reason to keep the others.
    pub(crate) fn go(&mut self, pages: Range<usize>, arenas: &mut Arenas) -> DeviceResult<()> {
        self.kept = pages.end;
        let mut gone = Ok(());
        for page in &mut self.pages[pages] {
            let Some(arena) = arenas.named_mut(page.of) else { continue };
            gone = gone.and(page.page.put_to_sleep(arena));
        }
        gone
    }

    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.offset + piece.bytes)
    }

    /// The live bytes of these pages. Bytes side by side are one piece.
    pub(crate) fn pieces_of(&self, pages: Range<usize>) -> impl Iterator<Item = Piece> {
        let pages = &self.pages[pages];
        let [first, last] = [pages.first(), pages.last()].map(|page| page.map(|page| page.pieces.clone()));
        let pieces = first.zip(last).map_or(0..0, |(first, last)| first.start..last.end);
        let runs = self.pieces[pieces].chunk_by(Piece::is_followed_by);
        runs.map(|run| Piece { bytes: run.iter().map(|piece| piece.bytes).sum(), ..run[0] })
    }

    /// Joins short pages that follow each other, and have gone: the fewer there are, the faster they wake.
    pub(crate) fn join(&mut self, arenas: &mut Arenas) {
        let mut left = 0;
        for at in 0..self.pages.len() {
            self.pages.swap(left, at);
            left += 1;
            // Two that were joined may be half of a longer one.
            while let [.., first, next] = &mut self.pages[..left]
                && first.of == next.of
                && first.page.others.count() + next.page.others.count() == 0
                && let Some(arena) = arenas.named_mut(first.of)
                && arena.join_pages(&mut first.page.home, &next.page.home, PAGE_TO_MOVE)
            {
                first.pieces.end = next.pieces.end;
                left -= 1;
                self.kept -= 1;
            }
        }
        self.pages.truncate(left);
    }

    /// The pages from one on whose bytes are copied at once.
    pub(crate) fn batch_from(&self, first: usize) -> Range<usize> {
        let mut bytes = 0;
        let batch = self.pages[first..].iter().take_while(|page| {
            let has_room = bytes < BATCH;
            bytes += page.page.home.bytes;
            has_room
        });
        first..first + batch.count()
    }
}
