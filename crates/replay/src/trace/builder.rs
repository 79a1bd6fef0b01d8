//! Events in, traces out: addresses become blocks, each let go of once and before it becomes reusable.

use std::sync::Arc;

use millpond::HumanBytes;
use rustc_hash::FxHashMap;

use super::phase::PhaseBuilder;
use super::{Block, Moves, Op, OpKind, RecordedOom, Trace};
use crate::event::{Event, EventKind, Stacks, one_line};
use crate::segments::{Segment, SegmentKind, SegmentOp, Segments};

/// Turns [`Event`]s into [`Trace`]s, one for each device.
#[derive(Debug)]
pub struct TraceBuilder {
    devices: Vec<Option<DeviceBuilder>>,
    /// Events that may still come.
    left: u64,
    limit: u64,
    /// The call stacks that events name.
    pub stacks: Stacks,
    /// Whether the file is a snapshot of PyTorch's.
    pub is_pytorchs: bool,
    /// Whether it is a log of RMM's.
    pub is_rmms: bool,
    /// The recorded allocator's settings.
    pub settings: String,
    /// What is to be said about the file.
    pub remarks: Vec<String>,
    /// What of the history is not in the file, as far as the reader knows.
    pub lacks: Option<String>,
    /// How to record a history from its beginning.
    pub from_the_start: &'static str,
}

impl Default for TraceBuilder {
    fn default() -> Self {
        Self::within(u64::MAX)
    }
}

/// Bytes that an event takes at most, on average: its op, its block, the address that it lives at, and the room that
/// tables grow into.
const EVENT_BYTES: u64 = 128;

/// More devices than any machine has: a larger number is not a device's.
pub const MAX_DEVICES: u32 = 256;

/// More bytes than any device has, and few enough that sums of them do not overflow.
const MOST_LIVE: u64 = 1 << 60;

/// Why a trace cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// A device's number that cannot be one.
    #[error("device {device}: a trace may name devices 0 to {}", MAX_DEVICES - 1)]
    TooManyDevices {
        /// The number.
        device: u32,
    },
    /// More streams than can be replayed.
    #[error("device {device} has more than {} streams; a replay makes each of them", MAX_STREAMS)]
    TooManyStreams {
        /// The device's number.
        device: u32,
    },
    /// More events than the reader's limits allow, as of a file that says the same thing again and again.
    #[error(
        "more than {limit} events, more than a file of this size should have; it is damaged, or made to fill memory. If you trust it, decompress it first"
    )]
    TooManyEvents {
        /// The limit.
        limit: u64,
    },
    /// More bytes at once than any device has.
    #[error("the blocks of device {device} come to more than any device has; the file is damaged")]
    TooMuchLive {
        /// The device's number.
        device: u32,
    },
    /// More blocks than can be numbered.
    #[error("device {device} has more than {} blocks; record a shorter stretch", u32::MAX)]
    TooManyBlocks {
        /// The device's number.
        device: u32,
    },
}

/// Streams of one device at most.
const MAX_STREAMS: usize = 4096;

impl TraceBuilder {
    /// A builder that takes no more events than fit into `memory` bytes.
    pub fn within(memory: u64) -> Self {
        let limit = memory / EVENT_BYTES;
        let (devices, stacks) = (Vec::new(), Stacks::default());
        Self {
            devices,
            left: limit,
            limit,
            stacks,
            is_pytorchs: false,
            is_rmms: false,
            settings: String::new(),
            remarks: Vec::new(),
            lacks: None,
            from_the_start: "record from the start of the program",
        }
    }

    /// Adds the next event of its device.
    ///
    /// # Errors
    /// [`TraceError`] where the event names more devices, streams or blocks than there can be, or is one too many.
    pub fn push(&mut self, mut event: Event) -> Result<(), TraceError> {
        if event.kind == EventKind::OutOfMemory {
            event.stack = self.stacks.refused(event.stack);
        }
        self.device(event.device)?.push(event)
    }

    /// Says that a block is live, before all events or after them. One that the events so far do not know was live
    /// before them.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn live_before(&mut self, block: Event) -> Result<(), TraceError> {
        let device = self.device(block.device)?;
        if !device.live.contains_key(&block.address) {
            device.begin(block, true)?;
        }
        Ok(())
    }

    /// The stream that was named first on a device.
    pub fn first_stream(&self, device: u32) -> Option<u64> {
        self.devices.get(device as usize)?.as_ref()?.streams.first().copied()
    }

    /// Says that the recorded allocator held a segment when the recording ended.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn segment_at_end(&mut self, device: u32, segment: Segment) -> Result<(), TraceError> {
        self.device(device)?.segments.at_end.get_or_insert_default().push(segment);
        Ok(())
    }

    /// Says that a phase of this name began or ended on a device.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn phase(&mut self, device: u32, name: &str, begins: bool, time_us: u64) -> Result<(), TraceError> {
        let (phases, name) = (&mut self.device(device)?.phases, one_line(name));
        if begins {
            phases.begin(&name, time_us)
        } else {
            phases.end(&name, time_us)
        }
        Ok(())
    }

    /// Says that a pool, by its number and name, was evicted, or restored: with these of its blocks, of as many bytes as the event has.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn moved(
        &mut self,
        event: Event,
        pool: (u32, &str),
        leaves: bool,
        blocks: impl Iterator<Item = u64>,
    ) -> Result<(), TraceError> {
        let device = self.device(event.device)?;
        let first = *device.first_us.get_or_insert(event.time_us);
        device.last_us = device.last_us.max(event.time_us.saturating_sub(first));
        let blocks = blocks.filter_map(|address| Some(device.live.get(&address)?.block));
        let moment = (device.ops.len(), device.last_us);
        let moved = device.moves.add(pool, moment, (leaves, event.size), blocks);
        self.left = self.left.checked_sub(moved).ok_or(TraceError::TooManyEvents { limit: self.limit })?;
        Ok(())
    }

    /// The traces of the devices on which anything happened, named after the file.
    pub fn finish(self, name: &str) -> Vec<Trace> {
        let stacks = Arc::new(self.stacks);
        let (is_pytorchs, is_rmms) = (self.is_pytorchs, self.is_rmms);
        let (settings, remarks) = (self.settings, self.remarks);
        let (lacks, from_the_start) = (self.lacks, self.from_the_start);
        let eventful = |device: &DeviceBuilder| !device.ops.is_empty() || !device.live_before.is_empty();
        let built = self.devices.into_iter().enumerate();
        let built = built.filter_map(|(number, device)| Some((number as u32, device.filter(eventful)?)));
        let built: Vec<_> = built.collect();
        let several = built.len() > 1;
        let named = |number| if several { format!("{name}:{number}") } else { name.to_owned() };
        let trace = |(number, device): (u32, DeviceBuilder)| Trace {
            device: number,
            stacks: stacks.clone(),
            is_pytorchs,
            is_rmms,
            settings: settings.clone(),
            remarks: remarks.clone(),
            lacks: lacks.clone().or_else(|| device.lacks(from_the_start)),
            ..device.finish(named(number))
        };
        built.into_iter().map(trace).collect()
    }

    fn device(&mut self, number: u32) -> Result<&mut DeviceBuilder, TraceError> {
        if number >= MAX_DEVICES {
            return Err(TraceError::TooManyDevices { device: number });
        }
        self.left = self.left.checked_sub(1).ok_or(TraceError::TooManyEvents { limit: self.limit })?;
        let index = number as usize;
        if self.devices.len() <= index {
            self.devices.resize_with(index + 1, || None);
        }
        Ok(self.devices[index].get_or_insert_with(|| DeviceBuilder { number, ..Default::default() }))
    }
}

/// A block that is not reusable yet.
#[derive(Debug, Clone, Copy)]
struct LiveBlock {
    block: u32,
    /// Whether it was live before the recording began.
    before: bool,
    /// Whether the program let go of it.
    let_go: bool,
}

#[derive(Debug, Default)]
struct DeviceBuilder {
    number: u32,
    streams: Vec<u64>,
    stream_index: FxHashMap<u64, u16>,
    blocks: Vec<Block>,
    live_before: Vec<u32>,
    /// The block at each address that is allocated or waits for its free to complete.
    live: FxHashMap<u64, LiveBlock>,
    /// Bytes of these, and of all blocks that were live before.
    live_bytes: u64,
    ops: Vec<Op>,
    first_us: Option<u64>,
    last_us: u64,
    segments: Segments,
    phases: PhaseBuilder,
    moves: Moves,
    ooms: Vec<RecordedOom>,
    lost_frees: u64,
}

impl DeviceBuilder {
    fn push(&mut self, event: Event) -> Result<(), TraceError> {
        let first = *self.first_us.get_or_insert(event.time_us);
        // Threads take the time before they take the allocator's lock, so times may step back a little.
        self.last_us = self.last_us.max(event.time_us.saturating_sub(first));
        match event.kind {
            EventKind::Alloc => self.alloc(event),
            EventKind::FreeRequested => self.free(event, OpKind::FreeRequested),
            EventKind::FreeCompleted => self.free(event, OpKind::FreeCompleted),
            EventKind::SegmentAlloc => self.segment(event, SegmentKind::Alloc),
            EventKind::SegmentFree => self.segment(event, SegmentKind::Free),
            EventKind::SegmentMap => self.segment(event, SegmentKind::Map),
            EventKind::SegmentUnmap => self.segment(event, SegmentKind::Unmap),
            EventKind::OutOfMemory => self.refused(event),
            EventKind::Snapshot => Ok(()),
        }
    }

    fn alloc(&mut self, event: Event) -> Result<(), TraceError> {
        if let Some(lost) = self.live.get(&event.address) {
            self.lost_frees += 1;
            let stream = self.blocks[lost.block as usize].stream;
            self.let_go(event.address, stream);
            self.complete(event.address, stream);
        }
        let block = self.begin(event, false)?;
        self.op(block, self.blocks[block as usize].stream, OpKind::Alloc);
        Ok(())
    }

    /// A free of an address that nobody allocated frees a block that was live before the recording began.
    fn free(&mut self, event: Event, kind: OpKind) -> Result<(), TraceError> {
        if !self.live.contains_key(&event.address) {
            self.begin(event, true)?;
        }
        let stream = self.stream(event.stream)?;
        // What became reusable was let go of, be it before the recording began.
        self.let_go(event.address, stream);
        if kind == OpKind::FreeCompleted {
            self.complete(event.address, stream);
        }
        Ok(())
    }

    /// The program lets go of the block at an address, once.
    fn let_go(&mut self, address: u64, stream: u16) {
        if let Some(live) = self.live.get_mut(&address).filter(|live| !live.let_go) {
            live.let_go = true;
            let block = live.block;
            self.op(block, stream, OpKind::FreeRequested);
        }
    }

    /// The block at an address becomes reusable.
    fn complete(&mut self, address: u64, stream: u16) {
        if let Some(live) = self.live.remove(&address) {
            self.op(live.block, stream, OpKind::FreeCompleted);
            // Those that were live before count to the end: how many were at once is not known here.
            if !live.before {
                self.live_bytes -= self.blocks[live.block as usize].size;
            }
        }
    }

    fn segment(&mut self, event: Event, kind: SegmentKind) -> Result<(), TraceError> {
        let Event { address, size, stream, .. } = event;
        let segment = Segment { address, bytes: size, stream };
        let op = SegmentOp { before_op: self.ops.len(), time_us: self.last_us, kind, segment };
        self.segments.ops.push(op);
        Ok(())
    }

    /// What a job needs is what serves all of its requests. So one that was refused counts as served, and as freed at once: what
    /// the program would have done with it, nobody knows.
    fn refused(&mut self, event: Event) -> Result<(), TraceError> {
        // No memory is needed for it.
        if event.size == 0 {
            return Ok(());
        }
        let Event { size, address: device_free, .. } = event;
        let before_op = self.ops.len();
        let block = self.block(Event { address: 0, ..event })?;
        self.live_bytes -= size;
        self.ooms.push(RecordedOom { before_op, block, size, device_free });
        let stream = self.blocks[block as usize].stream;
        for kind in [OpKind::Alloc, OpKind::FreeRequested, OpKind::FreeCompleted] {
            self.op(block, stream, kind);
        }
        Ok(())
    }

    fn block(&mut self, event: Event) -> Result<u32, TraceError> {
        let Ok(block) = u32::try_from(self.blocks.len()) else {
            return Err(TraceError::TooManyBlocks { device: self.number });
        };
        let stream = self.stream(event.stream)?;
        self.live_bytes += event.size;
        if self.live_bytes > MOST_LIVE {
            return Err(TraceError::TooMuchLive { device: self.number });
        }
        self.blocks.push(Block { size: event.size, address: event.address, stack: event.stack, stream });
        Ok(block)
    }

    fn begin(&mut self, event: Event, before: bool) -> Result<u32, TraceError> {
        let block = self.block(event)?;
        self.live.insert(event.address, LiveBlock { block, before, let_go: false });
        if before {
            self.live_before.push(block);
        }
        Ok(block)
    }

    fn op(&mut self, block: u32, stream: u16, kind: OpKind) {
        self.ops.push(Op { time_us: self.last_us, block, stream, kind });
    }

    fn stream(&mut self, stream: u64) -> Result<u16, TraceError> {
        if let Some(&index) = self.stream_index.get(&stream) {
            return Ok(index);
        }
        if self.streams.len() == MAX_STREAMS {
            return Err(TraceError::TooManyStreams { device: self.number });
        }
        let index = self.streams.len() as u16;
        self.streams.push(stream);
        self.stream_index.insert(stream, index);
        Ok(index)
    }

    fn finish(mut self, name: String) -> Trace {
        self.live_before.sort_by_key(|&block| self.blocks[block as usize].address);
        Trace {
            name,
            device: self.number,
            streams: self.streams,
            blocks: self.blocks,
            live_before: self.live_before,
            ops: self.ops,
            wall_us: self.last_us,
            recorded_reserved: self.segments.most_held(),
            segments: self.segments,
            phases: self.phases.finish(self.first_us.unwrap_or(0), self.last_us),
            moves: self.moves,
            recorded_ooms: self.ooms,
            stacks: Arc::default(),
            lost_frees: self.lost_frees,
            is_pytorchs: false,
            is_rmms: false,
            settings: String::new(),
            lacks: None,
            remarks: Vec::new(),
        }
    }

    /// What of the history is not in the events.
    fn lacks(&self, from_the_start: &str) -> Option<String> {
        if self.lost_frees > 0 {
            let times = if self.lost_frees == 1 { "time" } else { "times" };
            return Some(format!(
                "an address was allocated twice without a free between, {} {times}: the recording lost events",
                self.lost_frees
            ));
        }
        if self.live_before.is_empty() {
            return None;
        }
        let bytes: u64 = self.live_before.iter().map(|&block| self.blocks[block as usize].size).sum();
        let (blocks, bytes) = (self.live_before.len(), HumanBytes(bytes));
        let (blocks, were) =
            if blocks == 1 { ("1 block".to_owned(), "was") } else { (format!("{blocks} blocks"), "were") };
        Some(if self.ops.is_empty() {
            format!(
                "there is no history, only what was live when the file was written, {bytes} in {blocks}: {from_the_start}"
            )
        } else {
            format!("the history began late, when {blocks} of {bytes} {were} live already: {from_the_start}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::StackId;

    fn event(kind: EventKind, address: u64, size: u64) -> Event {
        Event { kind, device: 0, stream: 7, time_us: address, address, size, stack: StackId::NONE }
    }

    fn only(builder: TraceBuilder) -> Trace {
        let mut traces = builder.finish("t");
        assert_eq!(traces.len(), 1);
        traces.remove(0)
    }

    #[test]
    fn a_free_without_an_allocation_tells_of_an_earlier_block() {
        let mut builder = TraceBuilder::default();
        builder.push(event(EventKind::FreeRequested, 64, 10)).unwrap();
        builder.push(event(EventKind::FreeCompleted, 64, 10)).unwrap();
        let trace = only(builder);
        assert_eq!(trace.live_before, [0]);
        assert!(
            trace
                .lacks
                .unwrap()
                .starts_with("the history began late, when 1 block of 10 B was live already: ")
        );
        assert_eq!(trace.blocks[0].size, 10);
        assert_eq!(trace.ops.len(), 2);
    }

    #[test]
    fn a_live_block_without_events_was_live_all_the_time() {
        let mut builder = TraceBuilder::default();
        builder.push(event(EventKind::Alloc, 64, 10)).unwrap();
        builder.live_before(event(EventKind::Alloc, 64, 10)).unwrap();
        builder.live_before(event(EventKind::Alloc, 32, 20)).unwrap();
        let trace = only(builder);
        assert_eq!(trace.live_before.len(), 1);
        assert_eq!(trace.blocks[trace.live_before[0] as usize].size, 20);
    }

    #[test]
    fn an_address_allocated_twice_counts_as_a_lost_free() {
        let mut builder = TraceBuilder::default();
        builder.push(event(EventKind::Alloc, 64, 10)).unwrap();
        builder.push(event(EventKind::Alloc, 64, 30)).unwrap();
        let trace = only(builder);
        assert_eq!(trace.lost_frees, 1);
        assert!(trace.lacks.as_ref().unwrap().ends_with("1 time: the recording lost events"));
        let kinds: Vec<_> = trace.ops.iter().map(|op| op.kind).collect();
        assert_eq!(kinds, [OpKind::Alloc, OpKind::FreeRequested, OpKind::FreeCompleted, OpKind::Alloc]);
    }

    #[test]
    fn a_block_is_freed_once_and_then_becomes_reusable() {
        let kinds = |kinds: &[EventKind]| {
            let mut builder = TraceBuilder::default();
            kinds.iter().for_each(|&kind| builder.push(event(kind, 64, 10)).unwrap());
            only(builder).ops.iter().map(|op| op.kind).collect::<Vec<_>>()
        };
        use EventKind as E;
        let whole = [OpKind::Alloc, OpKind::FreeRequested, OpKind::FreeCompleted];
        assert_eq!(kinds(&[E::Alloc, E::FreeRequested, E::FreeRequested, E::FreeCompleted]), whole);
        assert_eq!(kinds(&[E::Alloc, E::FreeCompleted]), whole);
        // Let go of before the recording began.
        assert_eq!(kinds(&[E::FreeCompleted]), whole[1..]);
        // Its completion was lost, and the address allocated anew.
        assert_eq!(kinds(&[E::Alloc, E::FreeRequested, E::Alloc]), [&whole[..], &[OpKind::Alloc]].concat());
    }

    #[test]
    fn a_refused_request_is_asked_for_and_freed_at_once() {
        let mut builder = TraceBuilder::default();
        builder.push(event(EventKind::Alloc, 64, 10)).unwrap();
        builder.push(event(EventKind::SegmentAlloc, 64, 100)).unwrap();
        builder.push(event(EventKind::OutOfMemory, 0, 30)).unwrap();
        builder.push(event(EventKind::OutOfMemory, 0, 0)).unwrap();
        builder.push(event(EventKind::SegmentFree, 64, 100)).unwrap();
        let trace = only(builder);
        assert_eq!(trace.recorded_ooms, [RecordedOom { before_op: 1, block: 1, size: 30, device_free: 0 }]);
        assert_eq!([0, 1].map(|block| trace.is_refused(block)), [false, true]);
        let ops: Vec<_> = trace.ops.iter().map(|op| (op.block, op.kind)).collect();
        let (alloc, let_go) = (OpKind::Alloc, OpKind::FreeRequested);
        assert_eq!(ops, [(0, alloc), (1, alloc), (1, let_go), (1, OpKind::FreeCompleted)]);
        assert_eq!(trace.segments.ops.iter().map(|op| op.before_op).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(crate::replay::Program::new(&trace, Default::default()).peak_requested().0, 40);
    }

    #[test]
    fn the_recorders_peak_counts_back_from_its_end() {
        let mut builder = TraceBuilder::default();
        builder.push(event(EventKind::Alloc, 1, 1)).unwrap();
        builder.push(event(EventKind::SegmentAlloc, 64, 100)).unwrap();
        builder.push(event(EventKind::SegmentFree, 64, 100)).unwrap();
        builder.segment_at_end(0, Segment { address: 256, bytes: 20, stream: 7 }).unwrap();
        assert_eq!(only(builder).recorded_reserved, Some(120));
    }

    #[test]
    fn no_more_events_are_taken_than_fit_into_the_memory() {
        let mut builder = TraceBuilder::within(3 * EVENT_BYTES);
        for address in [64, 128, 192] {
            builder.push(event(EventKind::Alloc, address, 10)).unwrap();
        }
        let refused = TraceError::TooManyEvents { limit: 3 };
        assert_eq!(builder.push(event(EventKind::FreeRequested, 64, 10)), Err(refused.clone()));
        assert_eq!(builder.live_before(event(EventKind::Alloc, 32, 20)), Err(refused));
    }

    #[test]
    fn too_many_live_bytes_are_refused_before_sums_overflow() {
        let mut builder = TraceBuilder::default();
        for _ in 0..3 * 4096 {
            builder.push(event(EventKind::Alloc, 64, 1 << 48)).unwrap();
            builder.push(event(EventKind::FreeCompleted, 64, 1 << 48)).unwrap();
        }
        for address in 1..=4096 {
            builder.push(event(EventKind::Alloc, 64 * address, 1 << 48)).unwrap();
        }
        let refused = TraceError::TooMuchLive { device: 0 };
        assert_eq!(builder.push(event(EventKind::FreeCompleted, 1, 1)), Err(refused));
    }

    #[test]
    fn a_device_number_that_cannot_be_one_is_refused() {
        let mut builder = TraceBuilder::default();
        let wrong = Event { device: 1 << 30, ..event(EventKind::Alloc, 64, 10) };
        assert_eq!(builder.push(wrong), Err(TraceError::TooManyDevices { device: 1 << 30 }));
    }
}
