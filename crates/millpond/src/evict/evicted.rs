//! What is known of a tag that is evicted: where its pages went, and where its bytes are.

use crate::budgets::Budget;
use crate::core::{Arenas, Core};
use crate::device::DeviceResult;
use crate::order::{Fence, ReusePolicies, Stream, Timelines};
use crate::physical::PageId;
use crate::physical::staging::PinnedMemory;
use crate::sleep::{Asleep, AsleepPage};

/// A page that passed to the pool that the tag is a part of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passed {
    /// Its id there, and its number.
    pub(super) there: (PageId, u64),
    /// Whether the page has its bytes where it is, behind the copies given to the device so far.
    pub(super) is_intact: bool,
}

/// The streams for copies to pinned memory, and back from there.
#[derive(Debug)]
pub(super) struct CopyStreams {
    pub(super) out: Stream,
    pub(super) back: Stream,
}

/// See the [module](self). Nothing while the tag's memory is its own.
#[derive(Debug, Default)]
pub(super) struct Evicted {
    /// The tag's pages, and their live bytes.
    pub(super) away: Asleep,
    /// Where each of them went.
    pub(super) passed: Vec<Passed>,
    pub(super) staging: PinnedMemory,
    /// Bytes of it that count against the limit.
    counted: u64,
    streams: Option<CopyStreams>,
}

impl Evicted {
    /// Bytes of the pages that are back, once all are that were not forgotten.
    pub(super) fn bytes_back(&self, arenas: &mut Arenas) -> u64 {
        let mut is_known = |page: &&AsleepPage| {
            arenas.named_mut(page.of).is_some_and(|arena| arena.pages.knows(page.page.home.id))
        };
        self.away.pages.iter().filter(&mut is_known).map(|page| page.page.home.bytes).sum()
    }

    /// All pages are back.
    pub(super) fn end(&mut self) {
        self.away = Asleep::default();
        self.passed.clear();
    }

    /// Ensures so much pinned memory, within the limit that the pool shares with its tags. `false` beyond that.
    pub(super) fn make_room(&mut self, core: &Core, limit: &Budget, bytes: u64) -> DeviceResult<bool> {
        let lacking = bytes.saturating_sub(self.staging.bytes());
        if lacking == 0 {
            return Ok(true);
        }
        if !limit.take(lacking) {
            return Ok(false);
        }
        _ = self
            .staging
            .add(core.timelines.device().as_ref(), lacking)
            .inspect_err(|_| limit.give_back(lacking))?;
        self.counted += lacking;
        core.counters.pinned.raise(lacking);
        Ok(true)
    }

    /// Gives the pinned memory back. Returns the bytes given back.
    pub(super) fn release(&mut self, core: &Core, limit: &Budget) -> DeviceResult<u64> {
        let released = self.staging.release();
        let left = self.counted.min(self.staging.bytes());
        limit.give_back(self.counted - left);
        core.counters.pinned.lower(self.counted - left);
        self.counted = left;
        released
    }

    /// The pool is gone: nothing of its pinned memory counts any more.
    pub(super) fn let_go(&mut self, limit: &Budget) {
        // What cannot be given back is tried once more when this is dropped.
        _ = self.staging.release();
        limit.give_back(std::mem::take(&mut self.counted));
    }

    /// The streams for copies, made at the first call.
    pub(super) fn streams(&mut self, core: &Core) -> DeviceResult<&CopyStreams> {
        if self.streams.is_none() {
            let [out, back] = [Stream::for_copies(&core.timelines)?, Stream::for_copies(&core.timelines)?];
            self.streams = Some(CopyStreams { out, back });
        }
        Ok(self.streams.as_ref().expect("they were made above"))
    }

    /// Waits on the host until no copy is under way.
    pub(super) fn wait(&self, core: &Core) -> DeviceResult<()> {
        let Some(CopyStreams { out, back }) = &self.streams else { return Ok(()) };
        for stream in [out, back] {
            // SAFETY: the stream is ours.
            unsafe { core.timelines.device().synchronize_stream(stream.handle()) }?;
        }
        Ok(())
    }

    /// The copies that were given to the device so far.
    pub(super) fn copies(&self) -> Fence {
        let mut fence = Fence::empty();
        if let Some(CopyStreams { out, back }) = &self.streams {
            fence.join(&out.fence());
            fence.join(&back.fence());
        }
        fence
    }
}

/// The work that streams were given so far, and that is not seen to be complete. `None` where the host has no memory for it.
pub(super) fn pending_work(timelines: &Timelines) -> DeviceResult<Option<Fence>> {
    let Some(mut fence) = timelines.work_so_far() else { return Ok(None) };
    timelines.poll(&fence)?;
    timelines.prune(&mut fence, ReusePolicies::ALL);
    Ok(Some(fence))
}
