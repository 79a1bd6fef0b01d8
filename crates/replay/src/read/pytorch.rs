//! Memory snapshots as `torch.cuda.memory._dump_snapshot` writes them.
//!
//! A dict of `segments` (what the allocator held when the snapshot was taken, with the blocks in it) and
//! `device_traces` (a list of events for each device). docs/trace-format.md has the fields.

use std::io::BufRead;

use rustc_hash::FxHashMap;

use super::{FormatError, Limits};
use crate::event::{Event, EventKind, Frame, FrameId, StackId};
use crate::pickle::{self, Dict, Fold, Heap, ListId, Texts, Value, integer};
use crate::segments::Segment;
use crate::trace::{MAX_DEVICES, TraceBuilder};

/// An event as the snapshot has it, kept while the pickle is read: in few bytes, since a snapshot may have millions.
#[derive(Debug, Clone, Copy)]
struct EventRow {
    /// `None` for an action that means nothing to a replay.
    kind: Option<EventKind>,
    /// Whether the address and the size are integers. They are 0 else.
    has_address: bool,
    has_size: bool,
    address: u64,
    size: u64,
    stream: u64,
    time_us: u64,
    /// The list of frames; [`NO_LIST`] for none.
    frames: u32,
}

const NO_LIST: u32 = u32::MAX;

const _: () = assert!(size_of::<EventRow>() == 40);

/// Turns the dict of each event into a [`EventRow`] as soon as it is complete.
#[derive(Default)]
struct Rows(Vec<EventRow>);

impl Fold for Rows {
    fn dict(&mut self, texts: &Texts, pairs: &[(Value, Value)]) -> Option<u32> {
        let mut row = EventRow {
            kind: None,
            has_address: false,
            has_size: false,
            address: 0,
            size: 0,
            stream: 0,
            time_us: 0,
            frames: NO_LIST,
        };
        let mut is_event = false;
        for &(key, value) in pairs {
            let Value::Text(key) = key else { return None };
            match texts.get(key) {
                "action" => {
                    let Value::Text(action) = value else { return None };
                    row.kind = kind(texts.get(action));
                    is_event = true;
                }
                "addr" | "device_free" => {
                    (row.has_address, row.address) = known(integer(value));
                }
                "size" => (row.has_size, row.size) = known(integer(value)),
                "stream" => row.stream = integer(value).unwrap_or(0),
                "time_us" => row.time_us = integer(value).unwrap_or(0),
                "frames" => row.frames = if let Value::Items(list) = value { list } else { NO_LIST },
                _ => {}
            }
        }
        is_event.then(|| {
            self.0.push(row);
            self.0.len() as u32 - 1
        })
    }
}

fn known(number: Option<u64>) -> (bool, u64) {
    (number.is_some(), number.unwrap_or(0))
}

fn kind(action: &str) -> Option<EventKind> {
    Some(match action {
        "alloc" => EventKind::Alloc,
        "free_requested" => EventKind::FreeRequested,
        "free_completed" => EventKind::FreeCompleted,
        "segment_alloc" => EventKind::SegmentAlloc,
        "segment_free" => EventKind::SegmentFree,
        "segment_map" => EventKind::SegmentMap,
        "segment_unmap" => EventKind::SegmentUnmap,
        "oom" => EventKind::OutOfMemory,
        "snapshot" => EventKind::Snapshot,
        // "user_defined" and what later versions add.
        _ => return None,
    })
}

pub(super) fn read(source: &mut dyn BufRead, limits: Limits) -> Result<TraceBuilder, FormatError> {
    let mut rows = Rows::default();
    let (heap, root) = pickle::load(source, limits, &mut rows)?;
    let reader =
        Reader { heap: &heap, rows: &rows.0, frames: FxHashMap::default(), stacks: FxHashMap::default() };
    reader.read(root, limits)
}

struct Reader<'a> {
    heap: &'a Heap,
    rows: &'a [EventRow],
    /// The frame of each dict, and the stack of each list, that were looked at already.
    frames: FxHashMap<u32, Option<FrameId>>,
    stacks: FxHashMap<ListId, StackId>,
}

impl Reader<'_> {
    fn read(mut self, root: Value, limits: Limits) -> Result<TraceBuilder, FormatError> {
        let mut builder = TraceBuilder::within(limits.memory);
        if self.heap.items(root).is_some() {
            return wrong(
                "snapshot",
                "a list, as torch.cuda.memory_snapshot() returns: it has no history. torch.cuda.memory._dump_snapshot \
                 writes a snapshot with one",
            );
        }
        let Some(traces) = self.heap.look_up(root, "device_traces") else {
            return wrong(
                "snapshot",
                "no 'device_traces': this is no memory snapshot, or one without history",
            );
        };
        let Some(traces) = self.heap.items(traces) else {
            return wrong("snapshot['device_traces']", "expected a list of lists of events");
        };
        // One list may stand in a file many times: what it comes to is bounded, not only what it is.
        let mut left = limits.values;
        for (device, &trace) in traces.iter().enumerate() {
            let Some(events) = self.heap.items(trace) else {
                return wrong(format!("device_traces[{device}]"), "expected a list of events");
            };
            left = spend(left, events.len())?;
            for (index, &event) in events.iter().enumerate() {
                let place = || format!("device_traces[{device}][{index}]");
                if let Some(event) = self.event(&mut builder, event, device as u32, place)? {
                    builder.push(event)?;
                }
            }
        }
        self.segments(&mut builder, root, left)?;
        self.phases(&mut builder, root)?;
        builder.is_pytorchs = true;
        builder.settings = self.settings(root);
        builder.lacks = self.overflowed(root);
        builder.from_the_start =
            "call torch.cuda.memory._record_memory_history() before the first allocation";
        Ok(builder)
    }

    fn event(
        &mut self,
        builder: &mut TraceBuilder,
        event: Value,
        device: u32,
        place: impl Fn() -> String,
    ) -> Result<Option<Event>, FormatError> {
        let row = match event {
            Value::Dict(id) => match self.heap.dict(id) {
                Dict::Row(row) => self.rows[*row as usize],
                Dict::Pairs(_) => return wrong(place(), "an event without an 'action'"),
            },
            _ => return wrong(place(), "expected an event, which is a dict"),
        };
        let Some(kind) = row.kind else { return Ok(None) };
        let about_block = !matches!(kind, EventKind::OutOfMemory | EventKind::Snapshot);
        if about_block && !(row.has_address && row.has_size) {
            return wrong(place(), "an event without an integer 'addr' and 'size'");
        }
        let EventRow { address, size, stream, time_us, .. } = row;
        if size > LARGEST {
            return wrong(place(), "a 'size' beyond what any device has");
        }
        let stack = match kind {
            EventKind::Alloc if row.frames != NO_LIST => self.stack(builder, Value::Items(row.frames)),
            _ => StackId::NONE,
        };
        Ok(Some(Event { kind, device, stream, time_us, address, size, stack }))
    }

    /// Blocks that are live when the snapshot is taken, and what was held then.
    fn segments(
        &mut self,
        builder: &mut TraceBuilder,
        root: Value,
        mut left: usize,
    ) -> Result<(), FormatError> {
        let segments = self.heap.look_up(root, "segments").and_then(|list| self.heap.items(list));
        for (index, &segment) in segments.unwrap_or_default().iter().enumerate() {
            let number = |value, key| self.heap.look_up(value, key).and_then(integer);
            let place = || format!("segments[{index}]");
            let (Some(start), Some(bytes)) = (number(segment, "address"), number(segment, "total_size"))
            else {
                return wrong(place(), "a segment without an integer 'address' and 'total_size'");
            };
            let device = number(segment, "device").unwrap_or(0).min(u64::from(u32::MAX)) as u32;
            let stream = number(segment, "stream").unwrap_or(0);
            builder.segment_at_end(device, Segment { address: start, bytes, stream })?;
            let blocks = self.heap.look_up(segment, "blocks").and_then(|list| self.heap.items(list));
            let blocks = blocks.unwrap_or_default();
            left = spend(left, blocks.len())?;
            // Older snapshots have no addresses of blocks: they lie one behind the other.
            let mut next = start;
            for &block in blocks {
                let number = |key| self.heap.look_up(block, key).and_then(integer);
                let Some(rounded) = number("size") else {
                    return wrong(place(), "a block without an integer 'size'");
                };
                let address = number("address").unwrap_or(next);
                next = address.saturating_add(rounded);
                let state = self.heap.look_up(block, "state").and_then(|state| self.heap.text(state));
                if !matches!(state, Some("active_allocated" | "active_pending_free" | "active_awaiting_free"))
                {
                    continue;
                }
                let size = number("requested_size").unwrap_or(rounded);
                if size > LARGEST {
                    return wrong(place(), "a block's size beyond what any device has");
                }
                let frames = self.heap.look_up(block, "frames").unwrap_or(Value::None);
                let stack = self.stack(builder, frames);
                let (kind, time_us) = (EventKind::Alloc, 0);
                builder.live_before(Event { kind, device, stream, time_us, address, size, stack })?;
            }
        }
        Ok(())
    }

    /// What `torch.profiler.record_function` and optimizers name while memory is recorded. Those of another shape are
    /// passed over: they are no part of a replay.
    fn phases(&self, builder: &mut TraceBuilder, root: Value) -> Result<(), FormatError> {
        let all = self.heap.look_up(root, "external_annotations").and_then(|list| self.heap.items(list));
        for &phase in all.unwrap_or_default() {
            let text = |key| self.heap.look_up(phase, key).and_then(|value| self.heap.text(value));
            let number = |key| self.heap.look_up(phase, key).and_then(integer);
            let device = number("device").and_then(|device| u32::try_from(device).ok());
            let (Some(name), Some(stage), Some(device), Some(time_us)) = (
                text("name"),
                text("stage"),
                device.filter(|&device| device < MAX_DEVICES),
                number("time_us"),
            ) else {
                continue;
            };
            match stage {
                "START" => builder.phase(device, name, true, time_us)?,
                "END" => builder.phase(device, name, false, time_us)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn stack(&mut self, builder: &mut TraceBuilder, frames: Value) -> StackId {
        let Value::Items(list) = frames else { return StackId::NONE };
        let list = self.heap.list_id(list);
        if let Some(&known) = self.stacks.get(&list) {
            return known;
        }
        let frames = self.heap.items(frames).unwrap_or_default();
        let frames: Vec<_> = frames.iter().filter_map(|&frame| self.frame(builder, frame)).collect();
        let stack = builder.stacks.add_stack(&frames);
        self.stacks.insert(list, stack);
        stack
    }

    fn frame(&mut self, builder: &mut TraceBuilder, frame: Value) -> Option<FrameId> {
        let Value::Dict(id) = frame else { return None };
        let heap = self.heap;
        *self.frames.entry(id).or_insert_with(|| {
            let text = |key| heap.look_up(frame, key).and_then(|value| heap.shared_text(value));
            let line = heap.look_up(frame, "line").and_then(integer).unwrap_or(0);
            let line = u32::try_from(line).unwrap_or(0);
            Some(builder.stacks.add_frame(Frame { name: text("name")?, file: text("filename")?, line }))
        })
    }

    /// The history is a ring: PyTorch says whether its oldest events were overwritten, from 2.12 on.
    fn overflowed(&self, root: Value) -> Option<String> {
        let settings = self.heap.look_up(root, "allocator_settings")?;
        let number = |key| self.heap.look_up(settings, key).and_then(integer);
        if number("trace_alloc_overflowed")? == 0 {
            return None;
        }
        let kept = number("trace_alloc_max_entries").map_or_else(String::new, |most| format!(" {most}"));
        Some(format!(
            "the history overflowed: older events were overwritten, and only the last{kept} are in the file. Pass a larger \
             max_entries to torch.cuda.memory._record_memory_history()"
        ))
    }

    fn settings(&self, root: Value) -> String {
        let settings = self.heap.look_up(root, "allocator_settings");
        // The name that PyTorch had first, and the one that stands beside it since 2.9.
        let text = |key| {
            settings.and_then(|all| self.heap.look_up(all, key)).and_then(|value| self.heap.text(value))
        };
        let either = text("PYTORCH_CUDA_ALLOC_CONF").filter(|text| !text.is_empty());
        either.or_else(|| text("PYTORCH_ALLOC_CONF")).unwrap_or_default().to_owned()
    }
}

/// More than any device has: what is larger came from a damaged file.
const LARGEST: u64 = 1 << 48;

fn spend(left: usize, values: usize) -> Result<usize, FormatError> {
    match left.checked_sub(values) {
        Some(left) => Ok(left),
        None => {
            wrong("snapshot", "one list of events or blocks stands in it many times; the file is damaged")
        }
    }
}

fn wrong<T>(place: impl Into<String>, what: &'static str) -> Result<T, FormatError> {
    Err(FormatError::Snapshot { place: place.into(), what })
}
