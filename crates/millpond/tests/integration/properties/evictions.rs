//! Random programs whose tags leave and come back over many steps, while their pool and another one allocate, sleep, trim and
//! are destroyed, and while device calls fail. Nobody gets memory too early, and each block holds its bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{Device, DeviceError, DevicePtr};
use millpond::testing::checker::{BlockId, CheckerDevice};
use millpond::{Context, Error, Keep, Pool, Result, Stream};
use proptest::prelude::*;

use super::checks::ensure;
use super::options::GRANULARITY;
use super::world::Verdict;
use crate::shared::{Freeing, are_all};
use crate::sleep::Failing;

/// The pool, its two tags, and another pool.
const POOLS: usize = 4;
const TAGS: std::ops::Range<usize> = 1..3;
const STREAMS: usize = 3;

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Alloc {
        pool: usize,
        stream: usize,
        bytes: u64,
    },
    /// Fills a block with another value.
    Write {
        block: usize,
        stream: usize,
    },
    Free {
        block: usize,
        stream: usize,
    },
    Evict {
        tag: usize,
        stream: usize,
    },
    Restore {
        tag: usize,
        stream: usize,
    },
    RestoreEarly {
        tag: usize,
        is_whole: bool,
    },
    /// The pool sleeps, with those of its tags that are not evicted.
    Sleep,
    Wake,
    Trim {
        pool: usize,
        pages: u64,
    },
    Synchronize,
    /// The pool's last handle goes, or it is destroyed. Its tags stay.
    End {
        is_destroyed: bool,
    },
    /// The device call after so many others fails.
    Fail {
        after: i64,
    },
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (stream, any_tag, block) = (0..STREAMS, TAGS, any::<u8>().prop_map(usize::from));
    let bytes = prop_oneof![
        1..20_000_u64,
        (GRANULARITY / 2..5 * GRANULARITY),
        (1..5_u64).prop_map(|n| n * GRANULARITY)
    ];
    let step = prop_oneof![
        24 => (0..POOLS, stream.clone(), bytes).prop_map(|(pool, stream, bytes)| Step::Alloc { pool, stream, bytes }),
        8 => (block.clone(), stream.clone()).prop_map(|(block, stream)| Step::Write { block, stream }),
        12 => (block, stream.clone()).prop_map(|(block, stream)| Step::Free { block, stream }),
        8 => (any_tag.clone(), stream.clone()).prop_map(|(tag, stream)| Step::Evict { tag, stream }),
        6 => (any_tag.clone(), stream).prop_map(|(tag, stream)| Step::Restore { tag, stream }),
        4 => (any_tag, any::<bool>()).prop_map(|(tag, is_whole)| Step::RestoreEarly { tag, is_whole }),
        1 => Just(Step::Sleep),
        2 => Just(Step::Wake),
        2 => (0..POOLS, 0..8_u64).prop_map(|(pool, pages)| Step::Trim { pool, pages }),
        2 => Just(Step::Synchronize),
        1 => any::<bool>().prop_map(|is_destroyed| Step::End { is_destroyed }),
        3 => (0..40_i64).prop_map(|after| Step::Fail { after }),
    ];
    prop::collection::vec(step, 1..80)
}

/// Where a pool's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Here,
    Asleep,
    Evicted,
}

struct Block {
    at: DevicePtr,
    bytes: u64,
    pool: usize,
    value: u8,
    /// The stream that is ordered after all its work.
    stream: usize,
    /// `None` while its memory is away.
    checked: Option<BlockId>,
}

pub(crate) struct World {
    checker: Arc<CheckerDevice>,
    failing: Arc<Failing>,
    context: Context,
    /// The first one may have ended.
    pools: [Option<Pool>; POOLS],
    is_destroyed: bool,
    presence: [Presence; POOLS],
    streams: Vec<Stream>,
    blocks: Vec<Block>,
    has_bytes: bool,
    has_failed: bool,
    value: u8,
}

/// Bytes of the device: so few that programs run out of them, or enough.
fn capacity(is_tight: bool) -> u64 {
    GRANULARITY * if is_tight { 16 } else { 256 }
}

pub(crate) fn on_sim(is_tight: bool, steps: Vec<Step>) -> Verdict {
    let options = SimOptions::default().capacity(capacity(is_tight));
    World::over(SimDevice::new(options).expect("it has the options"), false).run(steps)
}

pub(crate) fn on_host(is_tight: bool, steps: Vec<Step>) -> Verdict {
    let options = HostOptions::default().capacity(capacity(is_tight));
    World::over(HostDevice::with_options(options).expect("it has the options"), true).run(steps)
}

impl World {
    fn over(device: Arc<dyn Device>, has_bytes: bool) -> Self {
        let failing = Failing::over(device);
        let checker = CheckerDevice::new(failing.clone());
        let context = Context::new(checker.clone());
        let pool = |name: &str| Pool::builder(&context).name(name).live(false).build().expect("a pool");
        let (whole, other) = (pool("whole"), pool("other"));
        let tags = ["one", "two"].map(|tag| whole.tagged(tag).expect("a tag"));
        let [one, two] = tags;
        let streams = (0..STREAMS).map(|_| context.create_stream().expect("a stream")).collect();
        Self {
            checker,
            failing,
            context,
            pools: [whole, one, two, other].map(Some),
            is_destroyed: false,
            presence: [Presence::Here; POOLS],
            streams,
            blocks: Vec::new(),
            has_bytes,
            has_failed: false,
            value: 0,
        }
    }

    fn run(mut self, steps: Vec<Step>) -> Verdict {
        for (at, step) in steps.into_iter().enumerate() {
            let done = self.take(&step).and_then(|()| self.check());
            done.map_err(|why| format!("step {at}, {step:?}: {why}"))?;
        }
        self.end().map_err(|why| format!("at the end: {why}"))
    }

    fn check(&self) -> Verdict {
        self.checker.verify().map_err(|report| report.to_string())?;
        self.pools.iter().flatten().try_for_each(|pool| pool.check().map_err(|error| error.to_string()))
    }

    /// What a call gave, if the program can go on without it.
    fn allow<T>(&mut self, what: &str, done: Result<T>) -> Verdict<Option<T>> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(Error::OutOfMemory(_) | Error::Device(DeviceError::OutOfMemory { .. })) => Ok(None),
            Err(Error::Device(DeviceError::Unavailable(_))) if self.has_failed => Ok(None),
            Err(error) => Err(format!("{what} failed: {error}")),
        }
    }

    /// From now on no call fails.
    fn works(&self) {
        self.failing.left.store(-1, Ordering::Relaxed);
    }

    /// Whether a pool has its memory, and gives blocks.
    fn allocates(&self, pool: usize) -> bool {
        let ends = self.is_destroyed && pool < TAGS.end;
        self.pools[pool].is_some() && !ends && self.presence[pool] == Presence::Here
    }

    fn take(&mut self, step: &Step) -> Verdict {
        match *step {
            Step::Alloc { pool, stream, bytes } => self.alloc(pool, stream, bytes),
            Step::Write { block, stream } => match self.pick(block) {
                Some(block) if self.blocks[block].checked.is_some() && self.order(block, stream)? => {
                    self.write(block)
                }
                _ => Ok(()),
            },
            Step::Free { block, stream } => match self.pick(block) {
                Some(block) if self.order(block, stream)? => self.free(block),
                _ => Ok(()),
            },
            Step::Evict { tag, stream } => self.evict(tag, stream),
            Step::Restore { tag, stream } => self.restore(tag, stream),
            Step::RestoreEarly { tag, is_whole } => self.restore_early(tag, is_whole),
            Step::Sleep => self.sleep(),
            Step::Wake => self.wake(),
            Step::Trim { pool, pages } => {
                let trimmed = self.pools[pool].as_ref().map(|pool| pool.trim_to(pages * GRANULARITY));
                trimmed.map_or(Ok(()), |trimmed| self.allow("a trim", trimmed).map(drop))
            }
            Step::Synchronize => {
                let done = self.context.synchronize();
                self.allow("a synchronise", done).map(drop)
            }
            Step::End { is_destroyed } => self.end_pool(is_destroyed),
            Step::Fail { after } => {
                self.has_failed = true;
                self.failing.left.store(after, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    // ---- blocks --------------------------------------------------------------------------------------

    fn pick(&self, block: usize) -> Option<usize> {
        block.checked_rem(self.blocks.len())
    }

    fn alloc(&mut self, pool: usize, stream: usize, bytes: u64) -> Verdict {
        let Some(of) = self.pools[pool].as_ref().filter(|_| self.blocks.len() < 12) else { return Ok(()) };
        let made = of.alloc(bytes, &self.streams[stream]);
        if self.presence[pool] == Presence::Evicted && !self.is_destroyed {
            ensure!(matches!(made, Err(Error::Evicted { .. })), "a tag that is evicted gave {made:?}");
        }
        if !self.allocates(pool) {
            ensure!(made.is_err(), "a pool without memory gave a block");
            return Ok(());
        }
        let Some(at) = self.allow("an allocation", made)? else { return Ok(()) };
        let checked = Some(self.checker.allocated(at, bytes, self.streams[stream].handle()));
        self.blocks.push(Block { at, bytes, pool, value: 0, stream, checked });
        self.write(self.blocks.len() - 1)
    }

    /// Has a stream use the block after its last one. `false` where a call failed.
    fn order(&mut self, block: usize, stream: usize) -> Verdict<bool> {
        if self.blocks[block].stream == stream {
            return Ok(true);
        }
        let waits = self.streams[stream].wait_for(&self.streams[self.blocks[block].stream]);
        let waits = self.allow("wait_for", waits)?.is_some();
        if waits {
            self.blocks[block].stream = stream;
        }
        Ok(waits)
    }

    fn write(&mut self, block: usize) -> Verdict {
        self.value = self.value % 255 + 1;
        let Block { at, bytes, stream, .. } = self.blocks[block];
        // SAFETY: the block is live, and the stream is ordered after its work.
        unsafe { self.checker.memset(at, self.value, bytes, self.streams[stream].handle()) }
            .map_err(|error| error.to_string())?;
        self.blocks[block].value = self.value;
        Ok(())
    }

    fn read(&self, block: &Block) -> Verdict {
        let Block { at, bytes, value, stream, .. } = *block;
        let (len, handle) = (bytes as usize, self.streams[stream].handle());
        // The simulated device writes nothing.
        let mut found = if self.has_bytes { vec![!value; len] } else { Vec::with_capacity(len) };
        // SAFETY: `found` has room for the bytes, and is not touched before the stream is synchronised; the block is live and ordered.
        let copied = unsafe {
            let copied = self.checker.copy_to_host(found.as_mut_ptr(), at, bytes, handle);
            copied.and_then(|()| self.checker.synchronize_stream(handle))
        };
        copied.map_err(|error| error.to_string())?;
        ensure!(are_all(&found, value), "{bytes} bytes at {at} are not all {value}");
        Ok(())
    }

    fn free(&mut self, block: usize) -> Verdict {
        let block = self.blocks.swap_remove(block);
        if block.checked.is_some() {
            // What the program itself asks for works.
            let left = self.failing.left.swap(-1, Ordering::Relaxed);
            self.read(&block)?;
            self.failing.left.store(left, Ordering::Relaxed);
        }
        let stream = &self.streams[block.stream];
        let freeing = block.checked.map(|checked| self.checker.freed(checked, stream.handle()));
        let freed = self.context.free_block(block.at, stream);
        if self.allow("a free", freed)?.is_none() {
            freeing.into_iter().for_each(|freeing| self.checker.free_refused(freeing));
            self.blocks.push(block);
        }
        Ok(())
    }

    /// The memory of a pool's blocks is back, for work on this stream or that of each.
    fn begin(&mut self, pool: usize, stream: Option<usize>) {
        for block in self.blocks.iter_mut().filter(|block| block.pool == pool) {
            block.stream = stream.unwrap_or(block.stream);
            let handle = self.streams[block.stream].handle();
            block.checked = Some(self.checker.allocated(block.at, block.bytes, handle));
        }
    }

    // ---- away and back -------------------------------------------------------------------------------

    fn evict(&mut self, tag: usize, stream: usize) -> Verdict {
        let Some(pool) = self.pools[tag].clone() else { return Ok(()) };
        let handle = self.streams[stream].handle();
        if self.presence[tag] == Presence::Evicted {
            let again = pool.evict(&self.streams[stream]);
            let again = self.allow("an eviction of what is evicted", again)?;
            ensure!(again.is_none_or(|bytes| bytes == 0), "it left twice");
            return Ok(());
        }
        if !self.allocates(tag) {
            return Ok(());
        }
        let mut ended = Vec::new();
        for (at, block) in self.blocks.iter_mut().enumerate().filter(|(_, block)| block.pool == tag) {
            let Some(checked) = block.checked.take() else { continue };
            // The pool orders it behind all work of all streams.
            self.streams.iter().for_each(|stream| self.checker.use_recorded(checked, stream.handle()));
            ended.push((at, checked, self.checker.freed(checked, handle)));
        }
        let whole_is_here = self.pools[0].is_some() && self.presence[0] == Presence::Here;
        let evicted = match pool.evict(&self.streams[stream]) {
            Err(Error::CannotEvict { .. }) if self.has_failed || !whole_is_here => None,
            evicted => self.allow("an eviction", evicted)?,
        };
        ensure!(evicted.is_some() == pool.is_evicted(), "a tag is not where its eviction said");
        if evicted.is_some() {
            self.presence[tag] = Presence::Evicted;
            return Ok(());
        }
        // What was to be its end counts as work, which all others come behind.
        self.works();
        self.context.synchronize().map_err(|error| error.to_string())?;
        for (at, checked, freeing) in ended {
            self.checker.free_refused(freeing);
            (self.blocks[at].checked, self.blocks[at].stream) = (Some(checked), stream);
        }
        Ok(())
    }

    fn restore(&mut self, tag: usize, stream: usize) -> Verdict {
        let Some(pool) = self.pools[tag].clone().filter(|_| self.presence[tag] == Presence::Evicted) else {
            return Ok(());
        };
        let restored = pool.restore(&self.streams[stream]);
        let restored = self.allow("a restore", restored)?.is_some();
        ensure!(restored != pool.is_evicted(), "a tag is not where its restore said");
        if restored {
            self.presence[tag] = Presence::Here;
            self.begin(tag, Some(stream));
        }
        Ok(())
    }

    fn restore_early(&mut self, tag: usize, is_whole: bool) -> Verdict {
        let Some(pool) = self.pools[tag].clone().filter(|_| self.presence[tag] == Presence::Evicted) else {
            return Ok(());
        };
        let begun = if is_whole { pool.restore_ahead() } else { pool.restore_free().map(drop) };
        self.allow("the beginning of a restore", begun)?;
        ensure!(pool.is_evicted(), "a restore that only begins has ended");
        Ok(())
    }

    /// The pool, and its tags that are where they say.
    fn with_tags(&self, presence: Presence) -> Vec<usize> {
        (0..TAGS.end).filter(|pool| self.presence[*pool] == presence && self.pools[*pool].is_some()).collect()
    }

    fn sleep(&mut self) -> Verdict {
        let Some(pool) = self.pools[0].clone().filter(|_| self.allocates(0)) else { return Ok(()) };
        self.works();
        self.context.synchronize().map_err(|error| error.to_string())?;
        let all = self.with_tags(Presence::Here);
        for block in self.blocks.iter_mut().filter(|block| all.contains(&block.pool)) {
            if let Some(checked) = block.checked.take() {
                let _ended = self.checker.freed(checked, self.streams[block.stream].handle());
            }
        }
        let slept = pool.sleep(Keep::InPinnedMemory);
        self.allow("a sleep", slept)?;
        all.iter().for_each(|pool| self.presence[*pool] = Presence::Asleep);
        self.begin_where_awake(&all);
        Ok(())
    }

    fn wake(&mut self) -> Verdict {
        for pool in self.with_tags(Presence::Asleep) {
            let Some(of) = self.pools[pool].clone() else { continue };
            let woken = of.wake();
            self.allow("a wake", woken)?;
            let all = self.with_tags(Presence::Asleep);
            self.begin_where_awake(&all);
        }
        Ok(())
    }

    fn begin_where_awake(&mut self, all: &[usize]) {
        for pool in all {
            if self.pools[*pool].as_ref().is_some_and(|pool| !pool.is_asleep()) {
                self.presence[*pool] = Presence::Here;
                self.begin(*pool, None);
            }
        }
    }

    // ---- the end -------------------------------------------------------------------------------------

    fn end_pool(&mut self, is_destroyed: bool) -> Verdict {
        // Of one that sleeps, blocks would never be awake.
        if self.with_tags(Presence::Asleep).is_empty()
            && let Some(pool) = self.pools[0].take()
        {
            self.works();
            if is_destroyed {
                self.is_destroyed = true;
                match pool.destroy() {
                    Ok(()) | Err(Error::LiveBlocks { .. }) => {}
                    Err(error) => return Err(format!("a pool was not destroyed: {error}")),
                }
            }
            drop(pool);
        }
        Ok(())
    }

    /// Everything comes back with its bytes, one pool after another, and goes.
    fn end(mut self) -> Verdict {
        self.works();
        // Of what came back early, another may need the memory.
        for tag in TAGS.filter(|tag| self.presence[*tag] == Presence::Evicted).collect::<Vec<_>>() {
            self.evict(tag, 0)?;
        }
        loop {
            while let Some(here) = self.blocks.iter().position(|block| block.checked.is_some()) {
                self.free(here)?;
            }
            self.context.synchronize().map_err(|error| error.to_string())?;
            for pool in self.pools.iter().flatten() {
                pool.trim_to(0).map_err(|error| error.to_string())?;
            }
            let Some(away) = (0..POOLS).find(|pool| self.presence[*pool] != Presence::Here) else { break };
            match self.presence[away] {
                Presence::Evicted => self.restore(away, 0)?,
                _ => self.wake()?,
            }
            ensure!(self.presence[away] == Presence::Here, "pool {away} did not come back at the end");
            self.check()?;
        }
        ensure!(self.blocks.is_empty(), "{} blocks did not come back", self.blocks.len());
        self.check()?;
        for pool in self.pools.iter().flatten() {
            let left = pool.reserved().current;
            ensure!(left == 0, "{left} bytes of {} were not released", pool.name());
        }
        let Self { checker, pools, streams, context, failing, .. } = self;
        drop((pools, streams, context, failing));
        checker.verify_nothing_left().map_err(|report| report.to_string())
    }
}
