//! A tag is restored: its pages get memory again, and its bytes are copied back.

use std::ops::Range;

use super::evicted::Evicted;
use super::lacking::Lacking;
use crate::budgets::Shortage;
use crate::core::making_room::{make_room, shortage_of, steps_of_others};
use crate::core::{Arenas, Core, HasCore};
use crate::device::{DeviceError, DeviceResult};
use crate::error::Result;
use crate::order::Fence;
use crate::physical::{Handover, Pages, Refusal, passing};
use crate::sleep::copies;

const STUCK: &str = "a mapping of a page that another pool has now could not be removed";

/// Why an attempt ended.
enum Stopped {
    Refused(Refusal),
    /// The old mapping of the page with this place in the list is in the way, and goes behind this fence. With it, what the device
    /// said where it refused to remove one.
    Behind(usize, Fence, DeviceResult<()>),
}

impl From<DeviceError> for Stopped {
    fn from(error: DeviceError) -> Self {
        Self::Refused(error.into())
    }
}

/// What memory pages may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// Any: new memory where free memory is lacking.
    Any,
    /// What the pool that the tag is a part of has free. Pages that lack it stay away, and the host never waits.
    Free,
}

impl Evicted {
    /// Has all pages come back that have not yet, and gives the copies to the device. If that fails, all leave again. What is
    /// short where there is no memory.
    pub(super) fn bring_back(&mut self, core: &Core) -> Result<std::result::Result<(), Shortage>> {
        let whole = core.whole();
        // The page whose mapping was in the way, though the fence was complete: it may have become so during the attempt.
        let mut was_in_the_way = None;
        let mut attempt = || loop {
            match self.attempt(core, whole.as_deref(), Memory::Any) {
                Ok(()) => return Ok(Ok(())),
                Err(Stopped::Refused(refusal)) => return Ok(Err(refusal)),
                Err(Stopped::Behind(page, fence, removed)) => {
                    if core.timelines.is_complete(&fence) && was_in_the_way.replace(page) == Some(page) {
                        let stuck = || DeviceError::Unavailable(STUCK.to_owned());
                        return Err(removed.err().unwrap_or_else(stuck).into());
                    }
                    // Without locks, as any wait.
                    core.timelines.wait_on_host(&fence)?;
                }
            }
        };
        let attempted = match attempt() {
            Ok(Err(first)) => {
                make_room(core, core.counters.asleep.current(), steps_of_others(), first, attempt)
            }
            Ok(Ok(())) => Ok(Ok(())),
            Err(error) => Err(error),
        };
        if !matches!(attempted, Ok(Ok(()))) {
            self.leave_again(core)?;
        }
        attempted
    }

    /// Has the pages come back for which the pool has free memory, and gives the copies to the device.
    pub(super) fn bring_back_part(&mut self, core: &Core) -> Result<std::result::Result<(), Shortage>> {
        let attempted = self.attempt(core, core.whole().as_deref(), Memory::Free);
        let Err(Stopped::Refused(refusal)) = attempted else { return Ok(Ok(())) };
        self.leave_again(core)?;
        Ok(Err(shortage_of(core, refusal)?.0))
    }

    /// Goes on where the last attempt ended.
    fn attempt(
        &mut self,
        core: &Core,
        whole: Option<&dyn HasCore>,
        memory: Memory,
    ) -> std::result::Result<(), Stopped> {
        let state = &mut *core.state.lock();
        if !state.is_asleep {
            // The tag came to its end meanwhile, with nothing live in it.
            self.end();
            return Ok(());
        }
        let attempted = self.come_back(core, whole, &mut state.arenas, memory);
        let back = self.streams(core)?.back.clone();
        // Blocks may be freed from now on, and the pool may end. Whoever is given a page next, on whatever stream, comes behind the
        // copies, and no page goes before. They come behind those of the eviction.
        if !state.arenas.record_use_of_all(&back) {
            self.wait(core)?;
        }
        attempted
    }

    /// Has pages come back batch by batch. Of each, the copies begin while the next one is mapped.
    fn come_back(
        &mut self,
        core: &Core,
        whole: Option<&dyn HasCore>,
        arenas: &mut Arenas,
        memory: Memory,
    ) -> std::result::Result<(), Stopped> {
        let removed = whole.map_or(Ok(()), |whole| whole.state.lock().arenas.own.reap_arriving());
        arenas.forget_gone();
        // The bytes are there behind the eviction's copies.
        let streams = self.streams(core)?;
        if !core.timelines.make_wait(&streams.out.fence(), streams.back.timeline())? {
            return Err(cannot_wait().into());
        }
        let mut next = 0;
        while next < self.away.pages.len() {
            let batch = self.away.batch_from(next);
            next = batch.end;
            if let Some(whole) = whole {
                self.find_memory(core, whole, arenas, batch.clone())?;
            }
            self.wake_pages(arenas, batch.clone(), memory, &removed)?;
            self.copy_back(core, arenas, batch)?;
        }
        Ok(())
    }

    /// Gives the pages of a batch free memory of the pool that the tag is a part of, where that has pages as long.
    fn find_memory(
        &mut self,
        core: &Core,
        whole: &Core,
        arenas: &mut Arenas,
        batch: Range<usize>,
    ) -> DeviceResult<()> {
        let back = self.streams(core)?.back.clone();
        let mut of_whole = whole.state.lock();
        let there = &mut of_whole.arenas.own.pages;
        let pages = (&self.away.pages[..], &mut self.passed[..]);
        let mut lacking = Lacking::after_own(there, pages, arenas, &back, batch)?;
        // What a pool that sleeps has free has no memory.
        if lacking.is_empty() || of_whole.is_asleep {
            return Ok(());
        }
        whole.empty_caches(&mut of_whole);
        lacking.take_from(&mut of_whole.arenas.own)
    }

    /// Maps each page of a batch where it was. Those without memory get new memory, if they may. `removed` is what the device said
    /// when old mappings were removed.
    fn wake_pages(
        &mut self,
        arenas: &mut Arenas,
        batch: Range<usize>,
        memory: Memory,
        removed: &DeviceResult<()>,
    ) -> std::result::Result<(), Stopped> {
        for at in batch {
            let page = &self.away.pages[at];
            let (id, home) = (page.page.home.id, page.page.home.at);
            let Some(arena) = arenas.named_mut(page.of).filter(|arena| arena.pages.knows(id)) else {
                continue;
            };
            let record = arena.pages.get(id);
            if record.has_gone() && memory == Memory::Free {
                continue;
            }
            if let Some(handover) = record.leaves_behind() {
                let mut fence = Fence::empty();
                _ = fence.try_join(&handover.fence);
                return Err(Stopped::Behind(at, fence, removed.clone()));
            }
            self.passed[at].is_intact &= !record.has_gone();
            // SAFETY: the page's home is there: nothing moves in a tag that is evicted. Its old mapping has gone, or is that page's.
            unsafe { arena.pages.wake(id, home) }.map_err(Stopped::Refused)?;
        }
        Ok(())
    }

    /// Gives the copies of the live bytes of a batch to the device, as far as its pages are back without them.
    fn copy_back(&mut self, core: &Core, arenas: &mut Arenas, batch: Range<usize>) -> DeviceResult<()> {
        let device = core.timelines.device();
        let back = self.streams(core)?.back.handle();
        let mut next = batch.start;
        while next < batch.end {
            let mut lacks_bytes = |at: &usize| {
                let (page, passed) = (&self.away.pages[*at], &self.passed[*at]);
                let pages = arenas.named_mut(page.of).map(|arena| &arena.pages);
                let id = page.page.home.id;
                !passed.is_intact && pages.is_some_and(|pages| pages.knows(id) && !pages.sleeps(id))
            };
            let run = next..next + (next..batch.end).take_while(&mut lacks_bytes).count();
            for piece in self.away.pieces_of(run.clone()) {
                // SAFETY: the pages are mapped, and nobody else uses them while the gate is closed. The pinned memory stays.
                unsafe { copies::copy((device.as_ref(), back), &self.staging, piece, true) }?;
            }
            // They have their bytes behind the copies, which whoever gets the pages comes behind.
            self.passed[run.clone()].iter_mut().for_each(|passed| passed.is_intact = true);
            next = run.end + 1;
        }
        Ok(())
    }

    /// Has all pages that are back leave once more: their bytes are in the pinned memory.
    pub(super) fn leave_again(&mut self, core: &Core) -> Result<()> {
        let mut is_waited_for = false;
        loop {
            let mut state = core.state.lock();
            if !state.is_asleep {
                // The tag came to its end meanwhile.
                self.end();
                return Ok(());
            }
            let left = self.pass_again(core, &mut state.arenas, is_waited_for);
            drop(state);
            if let Some(left) = left {
                return left.map_err(|error| core.error_of(error));
            }
            // Without locks: the copies may come behind a function of the host that uses the pool.
            self.wait(core)?;
            is_waited_for = true;
        }
    }

    /// `None`, and nothing done, where the copies have to be waited for before.
    fn pass_again(
        &mut self,
        core: &Core,
        arenas: &mut Arenas,
        is_waited_for: bool,
    ) -> Option<DeviceResult<()>> {
        let whole = core.whole();
        let locked = whole.as_ref().map(|whole| (whole, whole.state.lock()));
        let mut usable = locked.filter(|(whole, state)| !whole.is_destroyed() && !state.is_asleep);
        let there = usable.as_mut().map(|(_, state)| &mut state.arenas.own.pages);
        let has_room = |there: &mut Pages| passing::make_room(there, self.passed.len()).is_ok();
        let mut taker = there.and_then(|there| has_room(there).then_some(there));
        if taker.is_none() && !is_waited_for {
            // The device takes them, once no copy uses them.
            return None;
        }
        let (handover, mut left) = (Handover::behind(self.copies()), Ok(()));
        for (page, passed) in self.away.pages.iter().zip(&mut self.passed) {
            let (id, at) = (page.page.home.id, page.page.home.at);
            let Some(arena) = arenas.named_mut(page.of).filter(|arena| arena.pages.knows(id)) else {
                continue;
            };
            let pages = &mut arena.pages;
            if pages.get(id).has_gone() {
                continue;
            }
            match &mut taker {
                Some(there) if pages.get(id).may_pass() => {
                    // SAFETY: it lies there, and only copies have used it since it came.
                    let mut passing = unsafe { passing::pass_on(pages, id, at, &handover) };
                    passing.is_intact = passed.is_intact;
                    passed.there = passing::receive(there, passing);
                }
                // SAFETY: it lies there. Copies come when all pages are whole, and were waited for where nobody takes those.
                _ => left = left.and(unsafe { pages.put_to_sleep(id, at) }),
            }
        }
        Some(left)
    }
}

/// What is said of a stream that cannot wait.
pub(super) fn cannot_wait() -> DeviceError {
    let what = "the stream is being captured, and cannot wait for copies: end the capture first".to_owned();
    DeviceError::Invalid { call: "Pool::restore", what }
}
