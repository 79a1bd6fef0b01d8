//! One thread of a program: its streams, its blocks, and what it does with them.

use millpond::device::Device;
use millpond::{Error, Stream};

use crate::finding::{Finding, Kind, Verdict};
use crate::graphs::Captured;
use crate::order::Order;
use crate::refusing::refuse_within;
use crate::setup::{POOLS, SLOTS};
use crate::stage::{Block, EDGE, Parcel, Stage};

/// Blocks that a thread has at most.
const MOST_BLOCKS: usize = 48;

/// Tries of a call that has to succeed, while calls may fail.
const TRIES: usize = 100;

/// How a block is allocated.
#[derive(Debug, Clone, Copy)]
pub(crate) enum How {
    Plain,
    Zeroed,
    Aligned(u64),
}

/// Where the memory of a pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    Here,
    Asleep,
    Evicted,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct ProgramThread<'a> {
    pub(crate) stage: &'a Stage,
    pub(crate) streams: Vec<Stream>,
    pub(crate) order: Order,
    pub(crate) blocks: Vec<Block>,
    pub(crate) graphs: Vec<Captured>,
    /// Where the memory of each pool is.
    pub(crate) presence: [Presence; SLOTS],
    /// The allocation of the host's that is refused to the next call of a pool; 0 for none.
    pub(crate) refuse: u64,
    /// A block was shared. The pool learns only later that nobody has it any more.
    pub(crate) has_shared: bool,
    values: u8,
    read: Box<[u8]>,
}

impl<'a> ProgramThread<'a> {
    pub(crate) fn new(stage: &'a Stage) -> Verdict<Self> {
        let mut streams = Vec::new();
        while streams.len() < stage.setup.streams {
            streams.extend(stage.allow("making a stream", stage.context.create_stream())?);
        }
        Ok(Self {
            stage,
            streams,
            order: Order::default(),
            blocks: Vec::with_capacity(MOST_BLOCKS),
            graphs: Vec::new(),
            presence: [Presence::Here; SLOTS],
            refuse: 0,
            has_shared: false,
            values: 0,
            read: vec![0; EDGE as usize].into(),
        })
    }

    /// Makes a call of which the host's memory may be refused.
    pub(crate) fn call<T>(&mut self, call: impl FnOnce(&Stage, &[Stream]) -> T) -> T {
        let number = std::mem::take(&mut self.refuse);
        refuse_within(number, || call(self.stage, &self.streams))
    }

    /// A block, by a number that is taken modulo how many there are; none whose memory is away.
    pub(crate) fn pick(&self, block: u8) -> Option<usize> {
        let at = usize::from(block).checked_rem(self.blocks.len())?;
        (!self.blocks[at].is_away).then_some(at)
    }

    // ---- blocks ----------------------------------------------------------------------------------

    pub(crate) fn alloc(&mut self, slot: usize, stream: usize, bytes: u64, how: How) -> Verdict<bool> {
        if self.blocks.len() == MOST_BLOCKS || self.presence[slot] == Presence::Asleep {
            return Ok(false);
        }
        let made = self.call(|stage, streams| {
            let (slot, stream) = (stage.pools[slot].read(), &streams[stream]);
            let made = || match how {
                How::Plain => slot.pool.alloc(bytes, stream),
                How::Zeroed => slot.pool.alloc_zeroed(bytes, stream),
                How::Aligned(align) => slot.pool.alloc_aligned(bytes, align, stream),
            };
            (!slot.is_destroyed).then(|| (made(), slot.id))
        });
        let Some((made, id)) = made else { return Ok(false) };
        if self.presence[slot] == Presence::Evicted {
            let is_refused = matches!(made, Err(Error::Evicted { .. }));
            return if is_refused {
                Ok(true)
            } else {
                Err(Finding::wrong(format!("a tag that is evicted gave {made:?}")))
            };
        }
        let Some(at) = self.stage.allow("an allocation", made)? else { return Ok(true) };
        let align = if let How::Aligned(align) = how { align.max(512) } else { 512 };
        if at.is_null() || !at.raw().is_multiple_of(align) {
            return Err(Finding::wrong(format!("{bytes} bytes at {at}, no multiple of {align}")));
        }
        let checked = self.stage.checker.allocated(at, bytes, self.streams[stream].handle());
        let begun = self.order.submit(stream);
        let mut uses = [0; _];
        uses[stream] = begun;
        let pool = (slot, id);
        let mut block = Block {
            at,
            bytes,
            pool,
            stream,
            checked,
            begun,
            uses,
            recorded: 0,
            outlived: 0,
            value: 0,
            is_away: false,
        };
        if self.stage.keeps_bytes() {
            self.fill(&mut block)?;
        }
        self.blocks.push(block);
        Ok(true)
    }

    /// Fills the block's edges.
    fn fill(&mut self, block: &mut Block) -> Verdict {
        let handle = self.streams[block.stream].handle();
        self.values = self.values % 255 + 1;
        for (at, length) in block.edges() {
            // SAFETY: the block is live, and its stream is ordered after its allocation.
            let filled = unsafe { self.stage.capturing.memset(at, self.values, length, handle) };
            if self.stage.allow("a fill", filled)?.is_none() {
                return Ok(());
            }
        }
        block.value = self.values;
        Ok(())
    }

    /// Reads the block's edges back, on a stream that is ordered after its uses.
    fn verify(&mut self, block: usize, stream: usize) -> Verdict {
        let Block { at, bytes, value, .. } = self.blocks[block];
        let handle = self.streams[stream].handle();
        for (from, length) in self.blocks[block].edges() {
            let to = self.read.as_mut_ptr();
            // SAFETY: the block is live; the thread keeps where it is read to until the stream is synchronised.
            let copied = unsafe { self.stage.capturing.copy_to_host(to, from, length, handle) };
            if self.stage.allow("a copy to the host", copied)?.is_none() {
                return Ok(());
            }
            self.synchronize(stream)?;
            if self.read[..length as usize].iter().any(|byte| *byte != value) {
                let what = format!("{bytes} bytes at {at} were overwritten: byte {value} is gone at {from}");
                return Err(Finding::new(Kind::Overlapping, what));
            }
        }
        Ok(())
    }

    /// Waits for a stream, as often as it takes.
    fn synchronize(&mut self, stream: usize) -> Verdict {
        for _ in 0..TRIES {
            let done = self.streams[stream].synchronize();
            if self.stage.allow("synchronising a stream", done)?.is_some() {
                self.order.complete(stream);
                return Ok(());
            }
        }
        Err(Finding::wrong("a stream could not be synchronised"))
    }

    pub(crate) fn use_block(
        &mut self,
        block: u8,
        stream: usize,
        micros: u16,
        recorded: bool,
    ) -> Verdict<bool> {
        let Some(at) = self.pick(block) else { return Ok(false) };
        let Block { stream: of, begun, .. } = self.blocks[at];
        if !self.order_after(of, begun, stream)? {
            return Ok(true);
        }
        if recorded && self.blocks[at].outlived & (1 << stream) == 0 {
            self.record_use(at, stream)?;
        }
        let launched = self.stage.launch(&self.blocks[at], self.streams[stream].handle(), micros);
        if self.stage.allow("a kernel", launched)?.is_some() {
            self.blocks[at].uses[stream] = self.order.submit(stream);
        }
        Ok(true)
    }

    fn record_use(&mut self, block: usize, stream: usize) -> Verdict {
        let (at, (slot, id)) = (self.blocks[block].at, self.blocks[block].pool);
        let recorded = self.call(|stage, streams| {
            let slot = stage.pools[slot].read();
            (slot.id == id).then(|| slot.pool.record_use(at, &streams[stream]))
        });
        match recorded {
            Some(Ok(())) => {
                let block = &mut self.blocks[block];
                if block.recorded & (1 << stream) == 0 {
                    block.recorded |= 1 << stream;
                    self.stage.checker.use_recorded(block.checked, self.streams[stream].handle());
                }
                Ok(())
            }
            None | Some(Err(Error::HostMemory { .. })) => Ok(()),
            // Where no event can be recorded, the pool waits longer.
            Some(Err(error)) => Err(Finding::wrong(format!("record_use failed: {error}"))),
        }
    }

    /// Frees a block, whose memory may be away.
    pub(crate) fn free(&mut self, block: u8, stream: usize) -> Verdict<bool> {
        let Some(at) = usize::from(block).checked_rem(self.blocks.len()) else { return Ok(false) };
        self.free_at(at, stream)?;
        Ok(true)
    }

    /// `false` where a call failed, and the block is live as before.
    fn free_at(&mut self, at: usize, stream: usize) -> Verdict<bool> {
        if !self.order_uses(at, stream)? {
            return Ok(false);
        }
        let Block { value, is_away, pool: (slot, _), .. } = self.blocks[at];
        // What came back is of a tag.
        if value > 0 && !is_away && (at.is_multiple_of(4) || slot >= POOLS) {
            self.verify(at, stream)?;
        }
        let block = self.blocks.swap_remove(at);
        let end = || self.stage.checker.freed(block.checked, self.streams[stream].handle());
        let freeing = (!is_away).then(end);
        self.order.submit(stream);
        let freed = self.call(|stage, streams| stage.free(&block, &streams[stream]));
        let done = self.stage.allow("a free", freed)?.is_some();
        if !done {
            freeing.into_iter().for_each(|freeing| self.stage.checker.free_refused(freeing));
            self.blocks.push(block);
        }
        Ok(done)
    }

    // ---- order -----------------------------------------------------------------------------------

    /// Makes later work on `stream` come after one piece of work. `false` where a call failed.
    pub(crate) fn order_after(&mut self, of: usize, tick: u32, stream: usize) -> Verdict<bool> {
        if self.order.is_before(of, tick, stream) { Ok(true) } else { self.wait_for(stream, of) }
    }

    /// Orders everything that was done with the block before what comes next on the stream, except what the pool was told of.
    fn order_uses(&mut self, block: usize, stream: usize) -> Verdict<bool> {
        let Block { uses, recorded, stream: of, begun, .. } = self.blocks[block];
        if !self.order_after(of, begun, stream)? {
            return Ok(false);
        }
        for (of, tick) in uses.into_iter().enumerate() {
            if tick > 0 && recorded & (1 << of) == 0 && !self.order_after(of, tick, stream)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes one stream wait for another. `false` where a call failed.
    pub(crate) fn wait_for(&mut self, stream: usize, other: usize) -> Verdict<bool> {
        let waits = self.call(|_, streams| streams[stream].wait_for(&streams[other]));
        let done = self.stage.allow("wait_for", waits)?.is_some();
        if done {
            self.order.wait(stream, other);
        }
        Ok(done)
    }

    pub(crate) fn synchronize_stream(&mut self, stream: usize) -> Verdict {
        let done = self.call(|_, streams| streams[stream].synchronize());
        if self.stage.allow("synchronising a stream", done)?.is_some() {
            self.order.complete(stream);
        }
        Ok(())
    }

    /// `false` where the call failed.
    pub(crate) fn synchronize_device(&mut self) -> Verdict<bool> {
        let done = self.call(|stage, _| stage.context.synchronize());
        let done = self.stage.allow("synchronising the device", done)?.is_some();
        if done {
            self.order.complete_all();
        }
        Ok(done)
    }

    /// Replaces a stream by a new one, which goes on after it.
    pub(crate) fn new_stream(&mut self, stream: usize) -> Verdict {
        let made = self.call(|stage, _| stage.context.create_stream());
        let Some(new) = self.stage.allow("making a stream", made)? else { return Ok(()) };
        let waits = new.wait_for(&self.streams[stream]);
        if self.stage.allow("wait_for", waits)?.is_some() {
            self.streams[stream] = new;
            for block in self.blocks.iter_mut().filter(|block| block.uses[stream] > 0) {
                block.recorded &= !(1 << stream);
                block.outlived |= 1 << stream;
            }
        }
        Ok(())
    }

    // ---- other threads -----------------------------------------------------------------------------

    pub(crate) fn hand_over(&mut self, block: u8, stream: usize) -> Verdict<bool> {
        let Some(at) = self.pick(block) else { return Ok(false) };
        if !self.order_uses(at, stream)? {
            return Ok(true);
        }
        let recorded = self.call(|_, streams| streams[stream].record());
        let Some(event) = self.stage.allow("recording an event", recorded)? else { return Ok(true) };
        let block = self.blocks.swap_remove(at);
        self.stage.parcels.lock().push(Parcel { block, event });
        Ok(true)
    }

    /// Takes what another thread handed over. `false` where there is nothing.
    pub(crate) fn take(&mut self, stream: usize) -> Verdict<bool> {
        let Some(Parcel { block, event }) = self.stage.parcels.lock().pop() else { return Ok(false) };
        let waits = self.call(|_, streams| streams[stream].wait(&event));
        if self.stage.allow("waiting for an event", waits)?.is_none() {
            self.stage.parcels.lock().push(Parcel { block, event });
            return Ok(true);
        }
        let begun = self.order.submit(stream);
        let mut uses = [0; _];
        uses[stream] = begun;
        self.blocks.push(Block { stream, begun, uses, recorded: 0, outlived: 0, ..block });
        Ok(true)
    }

    // ---- figures ---------------------------------------------------------------------------------

    /// What the pools say of live blocks is what this thread has, which has them for itself.
    pub(crate) fn check_figures(&self) -> Verdict {
        for (at, slot) in self.stage.pools.iter().enumerate() {
            let slot = slot.read();
            let live = || self.blocks.iter().filter(|block| block.pool == (at, slot.id));
            let (blocks, bytes) = (live().count() as u64, live().map(|block| block.bytes).sum::<u64>());
            let stats = slot.pool.stats();
            if (stats.blocks.current, stats.requested.current) != (blocks, bytes) && !self.has_shared {
                return Err(Finding::wrong(format!("{blocks} blocks of {bytes} bytes are live: {stats:?}")));
            }
        }
        Ok(())
    }

    // ---- the end ---------------------------------------------------------------------------------

    /// Frees all blocks. A call may fail where other threads are not done yet.
    pub(crate) fn free_all(&mut self) -> Verdict {
        while let Some(last) = self.blocks.len().checked_sub(1) {
            let stream = last % self.streams.len();
            if !(0..TRIES)
                .try_fold(false, |done, _| if done { Ok(true) } else { self.free_at(last, stream) })?
            {
                return Err(Finding::wrong("a block could not be freed at the end"));
            }
        }
        Ok(())
    }
}
