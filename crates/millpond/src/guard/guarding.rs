//! The guard of one pool: it stands between the program and the pool's blocks.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::hash::BuildHasher;
use std::ops::Range;
use std::time::Instant;

use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use super::canaries::{Changed, Fill, Slot, Staging, changed};
use super::fenced::FencedMemory;
use super::finding::{Finding, GuardedCall, Mistake};
use super::options::Guard;
use crate::core::allocating::{alloc_block, check_request, hand_out};
use crate::core::freeing::{free_block, order_after_uses};
use crate::core::giving_back::{free_behind, trim, unlock_logging};
use crate::core::{Core, Wrapping};
use crate::device::{DevicePtr, DeviceResult, Kind, StreamHandle};
use crate::error::{Error, Result};
use crate::extents::MOST_UNITS;
use crate::log::{log, warn_in_any_case};
use crate::order::{Fence, Stream, Timelines};
use crate::policy::size_classes::EXACT_FROM;
use crate::policy::watching::{LONGEST_DELAY, MOST_FINDINGS, REDZONE};
use crate::record::WantedOfFrees;
use crate::system::lock::Mutex;
use crate::system::process::OfProcess;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Guarding {
    guard: Guard,
    began: Instant,
    blocks: OfProcess<Mutex<Blocks>>,
    /// Taken under no other lock of the guard's, nor the other way round.
    staging: OfProcess<Mutex<Staging>>,
    found: OfProcess<Mutex<Vec<Finding>>>,
    _wanted: WantedOfFrees,
}

#[derive(Debug, Default)]
struct Blocks {
    /// By the address that the program knows.
    live: FxHashMap<DevicePtr, GuardedBlock>,
    /// By the stream that they were freed to, whose work completes in the order of the frees. No queue is empty.
    quarantined: FxHashMap<u64, VecDeque<Quarantined>>,
    /// Bytes of all that are quarantined.
    bytes: u64,
    /// Blocks quarantined so far.
    frees: u64,
}

/// A block, a part of which the program has.
#[derive(Debug)]
struct GuardedBlock {
    /// Where the block starts, and the part.
    start: DevicePtr,
    ptr: DevicePtr,
    /// Of the part.
    bytes: u64,
    /// Bytes of the redzone behind it.
    behind: u64,
    /// Whether its redzones have what the guard wrote: a sleep may have dropped that.
    has_canaries: bool,
    allocated: GuardedCall,
}

/// A block that the program freed, and the pool did not.
#[derive(Debug)]
struct Quarantined {
    block: GuardedBlock,
    freed: GuardedCall,
    /// Its free, and the copies of its canaries.
    fence: Fence,
    canaries: Option<Slot>,
    /// The count of frees with its own, and the one from which on it may be used again.
    number: u64,
    until: u64,
}

impl GuardedBlock {
    fn range(&self) -> Range<DevicePtr> {
        self.ptr..self.ptr.offset(self.bytes)
    }

    /// Before it, and behind it.
    fn redzones(&self) -> [Range<DevicePtr>; 2] {
        let Range { start, end } = self.range();
        [DevicePtr::new(start.raw() - REDZONE)..start, end..end.offset(self.behind)]
    }
}

impl Quarantined {
    /// What was found in the block, so far from its first byte on.
    fn finding(&self, core: &Core, mistake: Mistake, from: i64, (first, changed, found): Changed) -> Finding {
        Finding {
            mistake,
            pool: core.name.clone(),
            ptr: self.block.ptr,
            bytes: self.block.bytes,
            offset: from + first as i64,
            changed,
            found,
            allocated: self.block.allocated.clone(),
            freed: self.freed.clone(),
            again: None,
        }
    }
}

impl Guarding {
    pub(crate) fn new(guard: Guard) -> Self {
        Self {
            guard,
            began: Instant::now(),
            blocks: OfProcess::default(),
            staging: OfProcess::default(),
            found: OfProcess::default(),
            _wanted: WantedOfFrees::new(),
        }
    }

    /// What was found, up to a thousand.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        self.found.lock().clone()
    }

    fn call(&self, stream: &Stream) -> GuardedCall {
        GuardedCall::new(stream.id().0, self.began.elapsed())
    }

    // ---- sleep -------------------------------------------------------------------------------------

    /// Before the pool's pages go: what was freed is looked at, and the redzones of live blocks are not watched if their bytes will
    /// not come back.
    pub(crate) fn before_sleep(&self, core: &Core, keeps_bytes: bool) {
        // Late writes are found, too. While a graph is captured, which the wait would end, no pool sleeps.
        if !matches!(core.timelines.synchronize_device_unless_capturing(), Ok(true)) {
            return;
        }
        self.give_back(core, true);
        if !keeps_bytes {
            self.blocks.lock().live.values_mut().for_each(|block| block.has_canaries = false);
        }
    }

    /// After a sleep that failed and changed nothing.
    pub(crate) fn did_not_sleep(&self) {
        self.blocks.lock().live.values_mut().for_each(|block| block.has_canaries = true);
    }

    /// After the wake: redzones whose bytes did not come back are written anew, and watched from here on.
    pub(crate) fn after_wake(&self, core: &Core) -> Result<()> {
        let mut blocks = self.blocks.lock();
        let mut lost: Vec<_> = blocks.live.values_mut().filter(|block| !block.has_canaries).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let _awake = core.stay_awake()?;
        if self.guard.has_redzones {
            let redzones = lost.iter().flat_map(|block| block.redzones());
            self.staging.lock().fill(core, redzones, Fill::Canary)?;
        }
        lost.iter_mut().for_each(|block| block.has_canaries = true);
        Ok(())
    }

    // ---- where a block lies ----------------------------------------------------------------------

    /// Bytes that a block has before the program's part. Also where redzones are not watched: so no address that the program knows
    /// is a block's first, and one that is freed again frees no block.
    fn before(core: &Core, align: u64) -> u64 {
        align.max(core.caches.sizes().bytes(1)).max(REDZONE)
    }

    fn fences_block(&self, core: &Core, bytes: u64) -> bool {
        self.guard.fences && FencedMemory::may_be_over(&*core.device) && bytes >= EXACT_FROM
    }

    /// A block in a segment of its own, with a part at its end: where each starts, and the bytes behind the part. `None` where
    /// there is to be none, or there is no room for it.
    fn alloc_fenced(
        &self,
        core: &Core,
        bytes: u64,
        align: u64,
    ) -> Result<Option<(DevicePtr, DevicePtr, u64)>> {
        if !self.fences_block(core, bytes) {
            return Ok(None);
        }
        let before = Self::before(core, align);
        let mut state = core.state.lock();
        core.check_allocates(&state)?;
        let sizes = core.caches.sizes();
        let units = state.arenas.own.whole_pages(sizes.units(before + bytes));
        if units >= MOST_UNITS {
            return Ok(None);
        }
        let take = || core.device.alloc_segment(sizes.bytes(units));
        let Ok(found) = state.arenas.own.alloc_as_segment(units, take) else {
            unlock_logging(core, state);
            return Ok(None);
        };
        let start = hand_out(core, &mut state, &found, before + bytes);
        let end = start.raw() + sizes.bytes(units);
        let last = end - bytes;
        let ptr = last - last % align.max(core.caches.sizes().bytes(1));
        Ok(Some((start, DevicePtr::new(ptr), REDZONE.min(end - ptr - bytes))))
    }

    // ---- one block -----------------------------------------------------------------------------------

    /// Fills a block that the program is about to get.
    fn fill(&self, core: &Core, block: &GuardedBlock, stream: StreamHandle) -> DeviceResult<()> {
        let fill = |Range { start, end }: Range<DevicePtr>, fill: Fill| {
            // SAFETY: the range lies in the block, which was allocated for work on this stream just now.
            unsafe { core.device.memset(start, fill as u8, end.raw() - start.raw(), stream) }
        };
        if self.guard.has_redzones {
            block.redzones().into_iter().try_for_each(|redzone| fill(redzone, Fill::Canary))?;
        }
        if self.guard.poisons { fill(block.range(), self.guard.poison_of(Fill::Fresh)) } else { Ok(()) }
    }

    /// Reads a block's canaries and fills it with poison, behind all work that uses it.
    fn empty(&self, core: &Core, block: &GuardedBlock, stream: &Stream) -> Result<Option<Slot>> {
        order_after_uses(core, block.start, Some(stream))?;
        let handle = stream.handle_here()?;
        let device = &*core.device;
        let reads = self.guard.has_redzones && block.has_canaries && device.properties().kind != Kind::Sim;
        let canaries =
            reads.then(|| self.staging.lock().copy(device, block.redzones(), handle)).transpose()?;
        if self.guard.poisons {
            // SAFETY: the program freed the block to this stream, which comes after its other work.
            unsafe {
                device.memset(block.ptr, self.guard.poison_of(Fill::Freed) as u8, block.bytes, handle)
            }?;
        }
        Ok(canaries)
    }

    fn put_into_quarantine(&self, block: GuardedBlock, canaries: Option<Slot>, stream: &Stream) {
        let (freed, fence) = (self.call(stream), stream.fence());
        let mut blocks = self.blocks.lock();
        blocks.frees += 1;
        blocks.bytes += block.bytes;
        let random = self.guard.seed.map(|seed| FxBuildHasher.hash_one((seed, blocks.frees)));
        let delay = random.map_or(0, |random| random % (LONGEST_DELAY + 1));
        let (number, until) = (blocks.frees, blocks.frees + delay);
        let queue = blocks.quarantined.entry(stream.id().0).or_default();
        queue.push_back(Quarantined { block, freed, fence, canaries, number, until });
    }

    /// The blocks that it is time for, once their copies are complete; or all of them.
    fn due(&self, core: &Core, all: bool) -> Vec<Quarantined> {
        let mut blocks = self.blocks.lock();
        let Blocks { quarantined, bytes, frees, .. } = &mut *blocks;
        // Of one stream, only the first few can be due: where one is not complete, none behind it is.
        let first_of = |queue: &VecDeque<Quarantined>, frees: u64| {
            let mut complete = queue
                .iter()
                .take(LONGEST_DELAY as usize + 1)
                .take_while(|next| all || is_complete(&core.timelines, &next.fence));
            complete.position(|next| all || next.until <= frees)
        };
        let mut due = Vec::new();
        while all || *bytes > self.guard.quarantine {
            // The block that was freed first.
            let first = quarantined.iter().filter_map(|(stream, queue)| {
                first_of(queue, *frees).map(|at| (queue[at].number, *stream, at))
            });
            let Some((_, stream, at)) = first.min() else { break };
            let Entry::Occupied(mut queue) = quarantined.entry(stream) else { break };
            due.extend(queue.get_mut().remove(at));
            if queue.get().is_empty() {
                queue.remove();
            }
            *bytes -= due.last().map_or(0, |gone| gone.block.bytes);
        }
        due
    }

    /// Compares the canaries of all blocks whose copies are complete.
    fn look_at_canaries(&self, core: &Core) {
        let mut found = Vec::new();
        let mut blocks = self.blocks.lock();
        for queue in blocks.quarantined.values_mut() {
            // In the order of their frees, those that were compared come first.
            let first = queue.partition_point(|quarantined| quarantined.canaries.is_none());
            for quarantined in queue.range_mut(first..) {
                if !is_complete(&core.timelines, &quarantined.fence) {
                    break;
                }
                found.extend(self.compare_canaries(core, quarantined));
            }
        }
        drop(blocks);
        found.into_iter().for_each(|finding| self.report(core, finding));
    }

    /// What is wrong with a block's canaries, whose copies are complete; nothing where they were compared before.
    fn compare_canaries(&self, core: &Core, quarantined: &mut Quarantined) -> Vec<Finding> {
        let Some(canaries) = quarantined.canaries.take() else { return Vec::new() };
        let (bytes, behind) = (quarantined.block.bytes as i64, quarantined.block.behind);
        let redzones = self.staging.lock().read(canaries, REDZONE + behind, |bytes| {
            <[_; 2]>::from(bytes.split_at(REDZONE as usize)).map(|redzone| changed(redzone, Fill::Canary))
        });
        let places = [(Mistake::Before, -(REDZONE as i64)), (Mistake::Behind, bytes)];
        let found = places.into_iter().zip(redzones);
        found
            .filter_map(|((mistake, from), changed)| Some(quarantined.finding(core, mistake, from, changed?)))
            .collect()
    }

    /// Looks at all of a block that is about to be used again, once its fence is complete.
    fn look_at_whole(&self, core: &Core, quarantined: &mut Quarantined) {
        for finding in self.compare_canaries(core, quarantined) {
            self.report(core, finding);
        }
        if !self.guard.poisons || core.device.properties().kind == Kind::Sim {
            return;
        }
        let (range, poison) = (quarantined.block.range(), self.guard.poison_of(Fill::Freed));
        let compared = self.staging.lock().compare(core, range, poison);
        match compared {
            Ok(None) => {}
            Ok(Some(changed)) => {
                self.report(core, quarantined.finding(core, Mistake::AfterFree, 0, changed));
            }
            Err(error) => log!(WARN, "a freed block could not be looked at", error, pool = core.name),
        }
    }

    #[cold]
    fn report(&self, core: &Core, finding: Finding) {
        let text = finding.to_string();
        core.recording.say(&text);
        if !self.guard.only_counts {
            use std::io::Write;
            // Where that is closed, there is nobody to be told.
            writeln!(std::io::stderr(), "millpond: guard: {text}").ok();
            std::process::abort();
        }
        warn_in_any_case(&format!("guard: {text}"));
        let mut found = self.found.lock();
        if found.len() < MOST_FINDINGS {
            found.push(finding);
        }
    }

    /// Whether blocks for this stream are not watched: they are a capture's, or its work does not run now.
    fn leaves_alone(core: &Core, stream: &Stream) -> bool {
        stream.check_not_captured("Guard", "be guarded").is_err() || core.routes.of(stream).is_some()
    }

    /// What is wrong with a free of a block that is quarantined.
    fn freed_again(&self, core: &Core, ptr: DevicePtr) -> Option<Finding> {
        let blocks = self.blocks.lock();
        let freed = blocks.quarantined.values().flatten().find(|quarantined| quarantined.block.ptr == ptr)?;
        Some(freed.finding(core, Mistake::DoubleFree, 0, (0, 0, Vec::new())))
    }
}

impl Wrapping<Core> for Guarding {
    fn alloc(&self, core: &Core, bytes: u64, align: u64, stream: &Stream) -> Result<DevicePtr> {
        check_request(core, bytes, align, stream)?;
        if bytes == 0 || Self::leaves_alone(core, stream) {
            return alloc_block(core, bytes, align, stream);
        }
        let (start, ptr, behind) = match self.alloc_fenced(core, bytes, align)? {
            Some(place) => place,
            None => {
                let before = Self::before(core, align);
                let start = alloc_block(core, before + bytes + REDZONE, align, stream)?;
                (start, start.offset(before), REDZONE)
            }
        };
        let block =
            GuardedBlock { start, ptr, bytes, behind, has_canaries: true, allocated: self.call(stream) };
        let filled = core.stay_awake().and_then(|_awake| {
            self.fill(core, &block, stream.handle_here()?)?;
            let live = &mut self.blocks.lock().live;
            if live.try_reserve(1).is_err() {
                return Err(core.no_host_memory("a list of blocks", size_of::<GuardedBlock>() as u64));
            }
            live.insert(ptr, block);
            Ok(())
        });
        if let Err(error) = filled {
            free_block(core, start, stream)?;
            return Err(error);
        }
        self.give_back(core, false);
        Ok(ptr)
    }

    fn free(&self, core: &Core, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        core.check_stream(stream)?;
        // In a statement of its own, so that the lock is not held any more.
        let known = self.blocks.lock().live.remove(&ptr);
        let Some(block) = known else {
            if let Some(found) = self.freed_again(core, ptr) {
                self.report(core, Finding { again: Some(self.call(stream)), ..found });
                return Err(Error::DoubleFree { ptr, pool: core.name_of() });
            }
            return free_block(core, ptr, stream);
        };
        let awake = core.stay_awake_for(stream);
        if awake.is_err() || Self::leaves_alone(core, stream) {
            return free_block(core, block.start, stream);
        }
        match self.empty(core, &block, stream) {
            Ok(canaries) => self.put_into_quarantine(block, canaries, stream),
            Err(error) => {
                self.blocks.lock().live.insert(ptr, block);
                return Err(error);
            }
        }
        drop(awake);
        let is_last = core.is_destroyed();
        self.give_back(core, is_last);
        Ok(())
    }

    fn part_at(&self, ptr: DevicePtr) -> Option<(DevicePtr, u64)> {
        self.blocks.lock().live.get(&ptr).map(|block| (block.start, block.bytes))
    }

    fn parts(&self, blocks: Vec<(DevicePtr, u64)>) -> Vec<(DevicePtr, u64)> {
        let known = self.blocks.lock();
        let live: FxHashMap<_, _> = known.live.values().map(|block| (block.start, block)).collect();
        let freed: FxHashSet<_> =
            known.quarantined.values().flatten().map(|quarantined| quarantined.block.start).collect();
        let blocks = blocks.into_iter().filter(|(start, _)| !freed.contains(start));
        blocks.map(|block| live.get(&block.0).map_or(block, |known| (known.ptr, known.bytes))).collect()
    }

    fn give_back(&self, core: &Core, all: bool) -> bool {
        self.give_back_due(core, all, false)
    }

    fn give_back_before_leaving(&self, core: &Core) {
        self.give_back_due(core, true, true);
    }
}

impl Guarding {
    /// Looks at blocks and frees them: those that are due, or all of them. `is_leaving`: the caller has closed the gate, and the pages
    /// are still there.
    fn give_back_due(&self, core: &Core, all: bool, is_leaving: bool) -> bool {
        self.look_at_canaries(core);
        let mut due = self.due(core, all);
        let mut freed = Vec::new();
        for quarantined in &mut due {
            match core.timelines.wait_on_host(&quarantined.fence) {
                Ok(()) => {
                    // While a pool sleeps, its free blocks have no memory. What was taken out before is not looked at then.
                    let awake = core.gate.enter();
                    if is_leaving || awake.is_some() {
                        self.look_at_whole(core, quarantined);
                    }
                }
                Err(error) => {
                    log!(WARN, "a freed block could not be waited for", error, pool = core.name)
                }
            }
            freed.push((quarantined.block.start, std::mem::take(&mut quarantined.fence)));
        }
        let any = free_behind(core, freed);
        if due.iter().any(|quarantined| self.fences_block(core, quarantined.block.bytes))
            && let Err(error) = trim(core, 0)
        {
            log!(WARN, "a freed block is still mapped", error, pool = core.name);
        }
        any
    }
}

/// Whether the fence's work is complete, by what the device says now.
fn is_complete(timelines: &Timelines, fence: &Fence) -> bool {
    timelines.is_complete(fence) || timelines.poll(fence).is_ok() && timelines.is_complete(fence)
}
