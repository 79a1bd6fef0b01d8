//! A tag is restored: its pages get memory again, and its bytes are copied back.

use super::evicted::{Evicted, whole_of};
use crate::core::making_room::{make_room, out_of_memory_awaking, steps_of_others};
use crate::core::{Arenas, Core, PoolState};
use crate::device::{DeviceError, DeviceResult};
use crate::error::Result;
use crate::extents::{Arena, Refusal, park_free};
use crate::order::Fence;
use crate::physical::{Handover, Pages, passing};
use crate::sleep::{AsleepPage, copies};

const STUCK: &str = "a mapping of a page that another pool has now could not be removed";

/// Numbers of pages, by the binary logarithm of their length in base pages.
type PagesByLength = [u64; u32::BITS as usize];

/// Why an attempt ended.
enum Stopped {
    Refused(Refusal),
    /// A page's old mapping is in the way, and goes behind this fence.
    Behind(Fence),
    /// Pages are lacking, and the pool has free ones that work uses until then.
    Free(Fence),
}

impl Evicted {
    /// Has all pages come back, and gives the copies to the device. If that fails, all leave again.
    pub(super) fn bring_back(&mut self, core: &Core) -> Result<()> {
        let whole = whole_of(core);
        let mut waits = true;
        let mut attempt = || loop {
            let attempted = self.attempt(core, whole.as_deref(), &mut core.state.lock(), waits);
            match attempted {
                Ok(()) => return Ok(Ok(())),
                Err(Stopped::Refused(refusal)) => return Ok(Err(refusal)),
                Err(Stopped::Behind(fence)) => {
                    if core.timelines.is_complete(&fence) {
                        return Err(DeviceError::Unavailable(STUCK.to_owned()).into());
                    }
                    // Without locks, as any wait.
                    core.timelines.wait_on_host(&fence)?;
                }
                // Once: better than to hold more memory than both need.
                Err(Stopped::Free(fence)) => {
                    waits = false;
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
        if let Ok(Ok(())) = attempted {
            self.is_coming = true;
            return Ok(());
        }
        self.leave_again(core)?;
        attempted?.map_err(|what| out_of_memory_awaking(core, what))
    }

    /// Goes on where the last attempt ended.
    fn attempt(
        &mut self,
        core: &Core,
        whole: Option<&Core>,
        state: &mut PoolState,
        waits: bool,
    ) -> std::result::Result<(), Stopped> {
        if !state.is_asleep {
            // The tag came to its end meanwhile, with nothing live in it.
            self.end();
            return Ok(());
        }
        if let Some(whole) = whole {
            let mut of_whole = whole.state.lock();
            of_whole.arenas.own.reap_arriving();
            state.arenas.forget_gone();
            let lacks_pages = self.take_back(&mut of_whole.arenas.own.pages, &mut state.arenas);
            // What a pool that sleeps has free has no memory.
            if lacks_pages.iter().any(|pages| *pages > 0) && !of_whole.is_asleep {
                whole.empty_caches(&mut of_whole);
                let lacks_pages = self.take_others(&mut of_whole.arenas.own, &mut state.arenas, lacks_pages);
                let lacks_pages = lacks_pages.map_err(|error| Stopped::Refused(error.into()))?;
                let free = of_whole.arenas.fence_of_all_free();
                if waits && lacks_pages && !free.is_empty() {
                    return Err(Stopped::Free(free));
                }
            }
        } else {
            state.arenas.forget_gone();
        }
        self.wake_pages(&mut state.arenas)?;
        self.copy_back(core, &mut state.arenas).map_err(|error| Stopped::Refused(error.into()))
    }

    /// Takes the tag's own pages back where nobody has mapped them since. Returns how many others are lacking, of each length, by
    /// its binary logarithm.
    fn take_back(&mut self, there: &mut Pages, arenas: &mut Arenas) -> PagesByLength {
        let mut lacking = [0; u32::BITS as usize];
        for (page, passed) in self.away.pages.iter().zip(&mut self.passed) {
            let Some(pages) = pages_without(arenas, page) else { continue };
            let id = page.page.0.id;
            match passing::give_back(there, passed.there) {
                Some(given) => passing::return_home(pages, id, given),
                None => lacking[pages.get(id).base_pages.ilog2() as usize] += 1,
            }
        }
        lacking
    }

    /// Takes pages that are parked or free in the pool that the tag is a part of, as long as those that are lacking. Returns
    /// whether that is not enough.
    fn take_others(
        &mut self,
        whole: &mut Arena,
        arenas: &mut Arenas,
        mut lacking: PagesByLength,
    ) -> DeviceResult<bool> {
        park_free(whole, &mut lacking)?;
        let mut lacks_pages = false;
        for (page, passed) in self.away.pages.iter().zip(&mut self.passed) {
            let Some(pages) = pages_without(arenas, page) else { continue };
            let id = page.page.0.id;
            let is_vacant = pages.get(id).leaves_behind().is_none();
            let base_pages = pages.get(id).base_pages;
            match is_vacant.then(|| passing::give_parked(&mut whole.pages, base_pages)).flatten() {
                Some(given) => {
                    passed.is_intact = false;
                    passing::return_home(pages, id, given);
                }
                None => lacks_pages = true,
            }
        }
        Ok(lacks_pages)
    }

    /// Gives each page memory, where it has none, and maps it where it was.
    fn wake_pages(&mut self, arenas: &mut Arenas) -> std::result::Result<(), Stopped> {
        for (page, passed) in self.away.pages.iter().zip(&mut self.passed) {
            let (id, at) = (page.page.0.id, page.page.0.at);
            let Some(arena) = arenas.named_mut(page.of).filter(|arena| arena.pages.knows(id)) else {
                continue;
            };
            if let Some(handover) = arena.pages.get(id).leaves_behind() {
                let mut fence = Fence::empty();
                _ = fence.try_join(&handover.fence);
                return Err(Stopped::Behind(fence));
            }
            passed.is_intact &= !arena.pages.get(id).has_gone();
            // SAFETY: the page's home is there: nothing moves in a tag that is evicted. Its old mapping has gone, or is that page's.
            unsafe { arena.pages.wake(id, at) }.map_err(Stopped::Refused)?;
        }
        Ok(())
    }

    /// Gives the copies of all live bytes that are not in place to the device.
    fn copy_back(&mut self, core: &Core, arenas: &mut Arenas) -> DeviceResult<()> {
        let device = core.timelines.device();
        let back = self.streams(core)?.back.handle();
        for (at, passed) in self.passed.iter().enumerate() {
            let page = &self.away.pages[at];
            let is_there = arenas.named_mut(page.of).is_some_and(|arena| arena.pages.knows(page.page.0.id));
            if passed.is_intact || !is_there {
                continue;
            }
            for piece in self.away.pieces_of(at..at + 1) {
                // SAFETY: the page is mapped, and nobody else uses it while the gate is closed. The pinned memory stays.
                unsafe { copies::copy((device.as_ref(), back), &self.staging, piece, true) }?;
            }
        }
        Ok(())
    }

    /// Has all pages that are back leave once more: their bytes are in the pinned memory.
    pub(super) fn leave_again(&mut self, core: &Core) -> Result<()> {
        self.is_coming = false;
        let mut state = core.state.lock();
        let left = self.pass_again(core, &mut state.arenas);
        drop(state);
        left.map_err(|error| core.error_of(error))
    }

    fn pass_again(&mut self, core: &Core, arenas: &mut Arenas) -> DeviceResult<()> {
        let whole = whole_of(core);
        let mut of_whole = whole
            .as_ref()
            .map(|whole| whole.state.lock())
            .filter(|of_whole| !of_whole.destroyed && !of_whole.is_asleep);
        let there = of_whole.as_mut().map(|of_whole| &mut of_whole.arenas.own.pages);
        let has_room = |there: &mut Pages| passing::make_room(there, self.passed.len()).is_ok();
        let mut taker = there.and_then(|there| has_room(there).then_some(there));
        if taker.is_none() {
            // The device takes them, once no copy uses them.
            self.wait(core)?;
        }
        let (handover, mut left) = (Handover::behind(self.copies()), Ok(()));
        for (page, passed) in self.away.pages.iter().zip(&mut self.passed) {
            let (id, at) = (page.page.0.id, page.page.0.at);
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
        left
    }
}

/// Where the page is, if it has no memory, and was not forgotten.
fn pages_without<'a>(arenas: &'a mut Arenas, page: &AsleepPage) -> Option<&'a mut Pages> {
    let (id, arena) = (page.page.0.id, arenas.named_mut(page.of)?);
    (arena.pages.knows(id) && arena.pages.get(id).has_gone()).then_some(&mut arena.pages)
}

/// What is said of a stream that cannot wait.
pub(super) fn cannot_wait() -> DeviceError {
    let what = "the stream is being captured, and cannot wait for copies: end the capture first".to_owned();
    DeviceError::Invalid { call: "Pool::restore", what }
}
