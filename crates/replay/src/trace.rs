//! A trace in memory: events with addresses resolved to dense block numbers, so that a replay hashes nothing.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::event::{Event, EventKind, StackId, Stacks};
use crate::segments::{Segment, SegmentKind, SegmentOp, Segments};

/// A block of memory that the traced program held at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Bytes requested.
    pub size: u64,
    /// Where the recorded allocator put it.
    pub address: u64,
    /// Who allocated it.
    pub stack: StackId,
    /// The stream it was allocated for, as an index into [`Trace::streams`].
    pub stream: u16,
}

/// What an [`Op`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// The block begins to live.
    Alloc,
    /// The program let go of the block.
    FreeRequested,
    /// The block became reusable.
    FreeCompleted,
}

/// One step in the life of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// Microseconds since the trace began.
    pub time_us: u64,
    /// The block, as an index into [`Trace::blocks`].
    pub block: u32,
    /// The stream, as an index into [`Trace::streams`].
    pub stream: u16,
    /// What happens.
    pub kind: OpKind,
}

/// A request that the recorded allocator could not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedOom {
    /// How many ops of the trace came before it.
    pub before_op: usize,
    /// Bytes asked for.
    pub size: u64,
    /// Bytes that the device had free then.
    pub device_free: u64,
}

/// What one device's memory did, as recorded.
#[derive(Debug, Clone)]
pub struct Trace {
    /// The file's name, with the device's number where the file has several.
    pub name: String,
    /// The device's number in the file.
    pub device: u32,
    /// The streams, as the recorder named them.
    pub streams: Vec<u64>,
    /// Every block, in the order in which they were first seen.
    pub blocks: Vec<Block>,
    /// Blocks that were live before the recording began, by rising address.
    pub live_before: Vec<u32>,
    /// What happened to the blocks, in order.
    pub ops: Vec<Op>,
    /// Microseconds from the first event to the last.
    pub wall_us: u64,
    /// The most that the recorded allocator itself held at once, in bytes, where its segments were recorded.
    pub recorded_reserved: Option<u64>,
    /// What it held, where that was recorded.
    pub segments: Segments,
    /// Requests that the recorded allocator could not serve.
    pub recorded_ooms: Vec<RecordedOom>,
    /// The call stacks that [`Block::stack`] names.
    pub stacks: Arc<Stacks>,
    /// Frees of addresses that were allocated anew without a free between: the recording lost events.
    pub lost_frees: u64,
    /// The recorded allocator's settings, where the file has them.
    pub settings: String,
    /// What the reader of the file has to say about it: that its end is missing, or events in it.
    pub remarks: Vec<String>,
}

/// Turns [`Event`]s into [`Trace`]s, one for each device.
#[derive(Debug, Default)]
pub struct TraceBuilder {
    devices: Vec<Option<DeviceBuilder>>,
    /// The call stacks that events name.
    pub stacks: Stacks,
    /// The recorded allocator's settings.
    pub settings: String,
    /// What is to be said about the file.
    pub remarks: Vec<String>,
}

/// More devices than any machine has: a larger number is not a device's.
pub const MAX_DEVICES: u32 = 256;

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
    /// Adds the next event of its device.
    ///
    /// # Errors
    /// [`TraceError`] where the event names more devices, streams or blocks than there can be.
    pub fn push(&mut self, event: Event) -> Result<(), TraceError> {
        self.device(event.device)?.push(event)
    }

    /// Says that a block was live when the recording ended. One that the events do not know was live all the
    /// time. Called after all events.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn live_at_end(&mut self, block: Event) -> Result<(), TraceError> {
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

    /// The traces of the devices on which anything happened, named after the file.
    pub fn finish(self, name: &str) -> Vec<Trace> {
        let stacks = Arc::new(self.stacks);
        let (settings, remarks) = (self.settings, self.remarks);
        let eventful = |device: &DeviceBuilder| !device.ops.is_empty() || !device.live_before.is_empty();
        let built = self.devices.into_iter().enumerate();
        let built = built.filter_map(|(number, device)| Some((number as u32, device.filter(eventful)?)));
        let built: Vec<_> = built.collect();
        let several = built.len() > 1;
        let named = |number| if several { format!("{name}:{number}") } else { name.to_owned() };
        let trace = |(number, device): (u32, DeviceBuilder)| Trace {
            device: number,
            stacks: stacks.clone(),
            settings: settings.clone(),
            remarks: remarks.clone(),
            ..device.finish(named(number))
        };
        built.into_iter().map(trace).collect()
    }

    fn device(&mut self, number: u32) -> Result<&mut DeviceBuilder, TraceError> {
        if number >= MAX_DEVICES {
            return Err(TraceError::TooManyDevices { device: number });
        }
        let index = number as usize;
        if self.devices.len() <= index {
            self.devices.resize_with(index + 1, || None);
        }
        Ok(self.devices[index].get_or_insert_with(|| DeviceBuilder { number, ..Default::default() }))
    }
}

#[derive(Debug, Default)]
struct DeviceBuilder {
    number: u32,
    streams: Vec<u64>,
    stream_index: FxHashMap<u64, u16>,
    blocks: Vec<Block>,
    live_before: Vec<u32>,
    /// The block at each address that is allocated or waits for its free to complete.
    live: FxHashMap<u64, u32>,
    ops: Vec<Op>,
    first_us: Option<u64>,
    last_us: u64,
    segments: Segments,
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
            EventKind::OutOfMemory => {
                let before_op = self.ops.len();
                self.ooms.push(RecordedOom { before_op, size: event.size, device_free: event.address });
                Ok(())
            }
            EventKind::Snapshot => Ok(()),
        }
    }

    fn alloc(&mut self, event: Event) -> Result<(), TraceError> {
        if let Some(lost) = self.live.remove(&event.address) {
            self.lost_frees += 1;
            let stream = self.blocks[lost as usize].stream;
            self.op(lost, stream, OpKind::FreeRequested);
            self.op(lost, stream, OpKind::FreeCompleted);
        }
        let block = self.begin(event, false)?;
        self.op(block, self.blocks[block as usize].stream, OpKind::Alloc);
        Ok(())
    }

    /// A free of an address that nobody allocated frees a block that was live before the recording began.
    fn free(&mut self, event: Event, kind: OpKind) -> Result<(), TraceError> {
        let block = match self.live.get(&event.address) {
            Some(&block) => block,
            None => self.begin(event, true)?,
        };
        let stream = self.stream(event.stream)?;
        if kind == OpKind::FreeCompleted {
            self.live.remove(&event.address);
        }
        self.op(block, stream, kind);
        Ok(())
    }

    fn segment(&mut self, event: Event, kind: SegmentKind) -> Result<(), TraceError> {
        let Event { address, size, stream, .. } = event;
        let segment = Segment { address, bytes: size, stream };
        let op = SegmentOp { before_op: self.ops.len(), time_us: self.last_us, kind, segment };
        self.segments.ops.push(op);
        Ok(())
    }

    fn begin(&mut self, event: Event, before: bool) -> Result<u32, TraceError> {
        let Ok(block) = u32::try_from(self.blocks.len()) else {
            return Err(TraceError::TooManyBlocks { device: self.number });
        };
        let stream = self.stream(event.stream)?;
        self.blocks.push(Block { size: event.size, address: event.address, stack: event.stack, stream });
        self.live.insert(event.address, block);
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
            recorded_ooms: self.ooms,
            stacks: Arc::default(),
            lost_frees: self.lost_frees,
            settings: String::new(),
            remarks: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, address: u64, size: u64) -> Event {
        Event { kind, device: 0, stream: 7, time_us: address, address, size, stack: StackId::NONE }
    }

    fn only(builder: TraceBuilder) -> Trace {
        let mut traces = builder.finish("t");
        assert_eq!(traces.len(), 1);
        traces.remove(0)
    }

    #[test]
    fn a_free_without_an_allocation_means_that_the_block_was_live_before() {
        let mut builder = TraceBuilder::default();
        builder.push(event(EventKind::FreeRequested, 64, 10)).unwrap();
        builder.push(event(EventKind::FreeCompleted, 64, 10)).unwrap();
        let trace = only(builder);
        assert_eq!(trace.live_before, [0]);
        assert_eq!(trace.blocks[0].size, 10);
        assert_eq!(trace.ops.len(), 2);
    }

    #[test]
    fn a_block_that_is_live_at_the_end_and_unknown_to_the_events_was_live_all_the_time() {
        let mut builder = TraceBuilder::default();
        builder.push(event(EventKind::Alloc, 64, 10)).unwrap();
        builder.live_at_end(event(EventKind::Alloc, 64, 10)).unwrap();
        builder.live_at_end(event(EventKind::Alloc, 32, 20)).unwrap();
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
        let kinds: Vec<_> = trace.ops.iter().map(|op| op.kind).collect();
        assert_eq!(kinds, [OpKind::Alloc, OpKind::FreeRequested, OpKind::FreeCompleted, OpKind::Alloc]);
    }

    #[test]
    fn what_the_recorder_held_at_most_counts_from_what_it_held_at_the_end() {
        let mut builder = TraceBuilder::default();
        builder.push(event(EventKind::Alloc, 1, 1)).unwrap();
        builder.push(event(EventKind::SegmentAlloc, 64, 100)).unwrap();
        builder.push(event(EventKind::SegmentFree, 64, 100)).unwrap();
        builder.segment_at_end(0, Segment { address: 256, bytes: 20, stream: 7 }).unwrap();
        assert_eq!(only(builder).recorded_reserved, Some(120));
    }

    #[test]
    fn a_device_number_that_cannot_be_one_is_refused() {
        let mut builder = TraceBuilder::default();
        let wrong = Event { device: 1 << 30, ..event(EventKind::Alloc, 64, 10) };
        assert_eq!(builder.push(wrong), Err(TraceError::TooManyDevices { device: 1 << 30 }));
    }
}
