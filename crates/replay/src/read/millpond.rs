//! Recordings that millpond itself writes (`millpond::record`). docs/recording.md has the format.
//!
//! The file has one thread's events after another; they are put into the order of their times first. What
//! follows a chunk that is torn or damaged is left out, and the trace says so.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::io::{BufRead, Read};

use millpond::record::format::Record;
use millpond::record::{ChunkError, Chunks, records};
use rustc_hash::{FxHashMap, FxHashSet};

use super::labels::Labels;
use super::{FormatError, Limits};
use crate::event::{Event, EventKind, StackId};
use crate::trace::{MAX_DEVICES, TraceBuilder};

/// An event with everything told relative to others resolved.
#[derive(Debug, Clone, Copy)]
struct RecordedRow {
    time: u64,
    address: u64,
    size: u64,
    stream: u64,
    pool: u32,
    tag: u32,
    site: u32,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Alloc,
    Free,
    Live,
    Reserved,
    OutOfMemory,
    Evicted,
    Restored,
}

/// What a row is counted as: the room that their table grows into, or that sorting takes, is as much again.
const ROW_BYTES: u64 = 2 * size_of::<RecordedRow>() as u64;

/// Errors of the program that are told.
const MOST_MESSAGES: usize = 5;

/// What a frame of a call stack is counted as.
const STACK_LINE_BYTES: u64 = 8;

/// What the next event is told relative to.
#[derive(Debug, Default)]
struct Cursor {
    time: u64,
    address: u64,
    pool: u32,
    stream: u64,
    tag: u32,
    site: u32,
}

#[derive(Debug)]
struct Pool {
    device: u32,
    /// Bytes held, as told last.
    reserved: u64,
}

/// What the file says before it is put in order.
#[derive(Debug, Default)]
struct Recording {
    rows: Vec<RecordedRow>,
    pools: FxHashMap<u32, Pool>,
    /// Of the pools.
    names: FxHashMap<u32, String>,
    /// The number that each device, by its key, has in the trace.
    devices: FxHashMap<u64, u32>,
    labels: Labels,
    dropped: u64,
    /// Where it rotated: the time of the last event of the parts before, and what is to be said of that.
    since: Option<(u64, String)>,
    /// What the program was told.
    messages: Vec<String>,
    /// The addresses of the blocks that live, of each pool that is ever evicted.
    live_of: FxHashMap<u32, BTreeSet<u64>>,
    ended: bool,
}

pub(super) fn read(source: &mut dyn BufRead, limits: Limits) -> Result<TraceBuilder, FormatError> {
    let mut recording = Recording::default();
    let (mut remarks, mut cut) = (Vec::new(), None);
    let mut chunks = Chunks::new(source.take(limits.bytes))?;
    loop {
        let at = chunks.position();
        match chunks.next_chunk() {
            Ok(Some(payload)) => recording.chunk(payload, at, limits)?,
            Ok(None) => break,
            Err(error @ (ChunkError::Torn { .. } | ChunkError::Damaged { .. })) => {
                cut = Some(format!(
                    "{error}; what follows is left out. Copy the file again, if there is more of it"
                ));
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if !recording.ended && cut.is_none() {
        remarks.push("the recording has no end: the process was killed, or still records".to_owned());
    }
    let dropped = (recording.dropped > 0).then(|| {
        format!(
            "{} event{} dropped while recording: more waited for the disk than may",
            recording.dropped,
            if recording.dropped == 1 { " was" } else { "s were" }
        )
    });
    let earlier = recording.since.as_ref().map(|(_, remark)| remark.clone());
    // The rest are remarks, where there are several.
    let mut lacks = cut.into_iter().chain(earlier).chain(dropped);
    let first = lacks.next();
    remarks.splice(0..0, lacks);
    remarks.extend(
        std::mem::take(&mut recording.messages)
            .into_iter()
            .map(|text| format!("the program was told: {text}")),
    );
    let mut builder = recording.in_order(limits)?;
    (builder.remarks, builder.lacks) = (remarks, first);
    Ok(builder)
}

impl Recording {
    fn chunk(&mut self, payload: &[u8], at: u64, limits: Limits) -> Result<(), FormatError> {
        let mut cursor = Cursor::default();
        for record in records(payload) {
            // The checksum was right, so this was written by something else than millpond.
            let Some(record) = record else {
                return wrong(at, "a chunk with a record that cannot be read");
            };
            self.record(record, &mut cursor).or_else(|what| wrong(at, what))?;
            let memory = (self.rows.len() + self.pools.len()) as u64 * ROW_BYTES + self.labels.bytes();
            if self.rows.len() + self.labels.len() + self.pools.len() > limits.values {
                return wrong(at, "more events than this reader takes; record a shorter stretch");
            }
            if memory > limits.memory {
                return wrong(
                    at,
                    "more events than a file of this size should have; if you trust it, decompress it first",
                );
            }
        }
        Ok(())
    }

    fn record(&mut self, record: Record<'_>, cursor: &mut Cursor) -> Result<(), &'static str> {
        match record {
            Record::Pool { pool, name, ordinal, device_key, .. } => {
                self.names.insert(pool, name.to_owned());
                return self.pool(pool, ordinal, device_key);
            }
            Record::Tag { tag, inside, text } => return self.labels.tag(tag, inside, text),
            Record::Frame { frame, name, file, line } => return self.labels.frame(frame, name, file, line),
            Record::Site { site, frames } => return self.labels.site(site, frames),
            Record::Thread { time, .. } => (cursor.time, cursor.address) = (time, 0),
            Record::At { pool, stream } => (cursor.pool, cursor.stream) = (pool, stream),
            Record::Under { tag, site } => (cursor.tag, cursor.site) = (tag, site),
            Record::Alloc { after, address, size } => self.block(cursor, Kind::Alloc, (after, address, size)),
            Record::Free { after, address, size } => self.block(cursor, Kind::Free, (after, address, size)),
            Record::Live { after, address, size } => self.block(cursor, Kind::Live, (after, address, size)),
            Record::Use { after, address } => {
                cursor.pass(after);
                cursor.address = cursor.address.wrapping_add_signed(address);
            }
            Record::Reserved { after, bytes } => {
                cursor.pass(after);
                self.rows.push(cursor.row(Kind::Reserved, 0, bytes));
            }
            Record::OutOfMemory { after, size, device_free } => {
                cursor.pass(after);
                self.rows.push(cursor.row(Kind::OutOfMemory, device_free, size));
            }
            Record::Evicted { after, bytes } => self.moved(cursor, Kind::Evicted, (after, bytes)),
            Record::Restored { after, bytes } => self.moved(cursor, Kind::Restored, (after, bytes)),
            Record::Trim { after, .. } | Record::PoolEnd { after } => cursor.pass(after),
            Record::Dropped { events } => self.dropped = self.dropped.saturating_add(events),
            Record::Message { text } if self.messages.len() < MOST_MESSAGES => {
                self.messages.push(text.to_owned())
            }
            Record::Part { part, events, time } => self.since = Some((time, earlier(part, events, time))),
            Record::End => self.ended = true,
            // `Start`, and what later versions add at the end.
            _ => {}
        }
        Ok(())
    }

    /// A pool's device has its driver's number, unless another device has that in this file.
    fn pool(&mut self, pool: u32, ordinal: u32, key: u64) -> Result<(), &'static str> {
        let device = match self.devices.get(&key) {
            Some(&known) => known,
            None if self.devices.len() == MAX_DEVICES as usize => {
                return Err("pools of more devices than any machine has");
            }
            // No device's number: the first event is refused.
            None if ordinal >= MAX_DEVICES => ordinal,
            None => {
                let free = |number: &u32| self.devices.values().all(|taken| taken != number);
                (ordinal..MAX_DEVICES).chain(0..ordinal).find(free).unwrap_or(ordinal)
            }
        };
        self.devices.insert(key, device);
        self.pools.insert(pool, Pool { device, reserved: 0 });
        Ok(())
    }

    /// A tag that can be evicted is a pool of its own, whose name is that of the whole pool and the tag.
    fn label_tags_of_pools(&mut self) {
        let all: FxHashSet<&str> = self.names.values().map(String::as_str).collect();
        for (&pool, name) in &self.names {
            if let Some((_, tag)) = name.rsplit_once('/').filter(|(whole, _)| all.contains(whole)) {
                self.labels.pool(pool, tag);
            }
        }
    }

    fn moved(&mut self, cursor: &mut Cursor, kind: Kind, (after, bytes): (u64, u64)) {
        cursor.pass(after);
        self.live_of.entry(cursor.pool).or_default();
        self.rows.push(cursor.row(kind, 0, bytes));
    }

    fn block(&mut self, cursor: &mut Cursor, kind: Kind, (after, address, size): (u64, i64, u64)) {
        cursor.pass(after);
        cursor.address = cursor.address.wrapping_add_signed(address);
        self.rows.push(cursor.row(kind, cursor.address, size));
    }

    /// Builds the trace from the events in the order of their times.
    fn in_order(mut self, limits: Limits) -> Result<TraceBuilder, FormatError> {
        // Where a clock is too coarse to tell, an address is freed before it is allocated anew. (One thread's
        // own times all differ.)
        self.label_tags_of_pools();
        self.rows.sort_by_key(|row| (row.time, row.kind != Kind::Free));
        let mut builder = TraceBuilder::within(limits.memory);
        let mut known = Known::default();
        let mut left = limits.values.min((limits.memory / STACK_LINE_BYTES) as usize);
        let mut stack = |labels: &mut Labels, builder: &mut TraceBuilder, row: &RecordedRow| {
            labels
                .stack(&mut builder.stacks, (row.tag, row.site, row.pool), &mut left)
                .or_else(|what| wrong(0, what))
        };
        let since = self.since.take().map(|(since, _)| since);
        for row in since.map_or(Vec::new(), |since| live_at(since, &mut self.rows)) {
            let event = Event { stack: stack(&mut self.labels, &mut builder, &row)?, ..self.event(&row)? };
            known.alloc(&event);
            self.follow(&row);
            builder.live_before(event)?;
        }
        for mut row in std::mem::take(&mut self.rows) {
            row.time = row.time.max(since.unwrap_or(0));
            let event = self.event(&row)?;
            self.follow(&row);
            match row.kind {
                Kind::Alloc => {
                    let stack = stack(&mut self.labels, &mut builder, &row)?;
                    known.alloc(&event);
                    builder.push(Event { stack, ..event })?;
                }
                Kind::Free => {
                    known.free(&event);
                    builder.push(Event { kind: EventKind::FreeRequested, ..event })?;
                    builder.push(Event { kind: EventKind::FreeCompleted, ..event })?;
                }
                Kind::Live => known.live(event),
                Kind::Reserved => {
                    let pool = self.pools.get_mut(&row.pool);
                    let before = pool.map_or(0, |pool| std::mem::replace(&mut pool.reserved, row.size));
                    let (kind, size) = match row.size.checked_sub(before) {
                        Some(more) => (EventKind::SegmentAlloc, more),
                        None => (EventKind::SegmentFree, before - row.size),
                    };
                    builder.push(Event { kind, size, ..event })?;
                }
                Kind::OutOfMemory => builder.push(Event { kind: EventKind::OutOfMemory, ..event })?,
                Kind::Evicted | Kind::Restored => {
                    let live = self.live_of.get(&row.pool).into_iter().flatten();
                    for address in live.clone() {
                        known.tell_of((event.device, *address), &mut builder)?;
                    }
                    let name = self.names.get(&row.pool).map_or("", String::as_str);
                    builder.moved(event, (row.pool, name), row.kind == Kind::Evicted, live.copied())?;
                }
            }
        }
        known.finish(&mut builder)?;
        Ok(builder)
    }

    /// Keeps which blocks live of a pool that is ever evicted.
    fn follow(&mut self, row: &RecordedRow) {
        let Some(live) = self.live_of.get_mut(&row.pool) else { return };
        match row.kind {
            Kind::Alloc | Kind::Live => _ = live.insert(row.address),
            Kind::Free => _ = live.remove(&row.address),
            Kind::Reserved | Kind::OutOfMemory | Kind::Evicted | Kind::Restored => {}
        }
    }

    /// An allocation as the row tells of it, without its labels.
    fn event(&self, row: &RecordedRow) -> Result<Event, FormatError> {
        let Some(pool) = self.pools.get(&row.pool) else {
            return wrong(0, "an event of a pool that is not defined");
        };
        if row.size > LARGEST {
            return wrong(0, "a size beyond what any device has");
        }
        Ok(Event {
            kind: EventKind::Alloc,
            device: pool.device,
            stream: row.stream,
            time_us: row.time / 1000,
            address: row.address,
            size: row.size,
            stack: StackId::NONE,
        })
    }
}

/// What a file lacks that begins as a later part of a recording that rotates.
fn earlier(part: u32, events: u64, time: u64) -> String {
    let seconds = time as f64 / 1e9;
    format!(
        "the recording rotates, and this is its part {part}: of the first {seconds:.1} s, with {events} events, it has only \
         what was live at their end"
    )
}

/// The blocks that were live at this time, each as the row that told of it. Takes the events of blocks until then out of the
/// rows, which are in order.
fn live_at(time: u64, rows: &mut Vec<RecordedRow>) -> Vec<RecordedRow> {
    let until = rows.partition_point(|row| row.time <= time);
    let is_block = |row: &RecordedRow| matches!(row.kind, Kind::Alloc | Kind::Free | Kind::Live);
    let mut live: FxHashMap<_, RecordedRow> = FxHashMap::default();
    for row in rows[..until].iter().filter(|row| is_block(row)) {
        let key = (row.pool, row.address);
        match row.kind {
            Kind::Free => drop(live.remove(&key)),
            _ => drop(live.insert(key, *row)),
        }
    }
    // On which stream a block was allocated that lived before the recording, the recorder does not know.
    let first = rows.iter().find(|row| row.stream != 0).map_or(0, |row| row.stream);
    let mut at = 0..until;
    rows.retain(|row| at.next().is_none() || !is_block(row));
    let mut live: Vec<_> = live.into_values().collect();
    live.sort_unstable_by_key(|row| (row.time, row.pool, row.address));
    live.iter_mut().filter(|row| row.stream == 0).for_each(|row| row.stream = first);
    live
}

impl Cursor {
    fn pass(&mut self, after: u64) {
        self.time = self.time.saturating_add(after);
    }

    fn row(&self, kind: Kind, address: u64, size: u64) -> RecordedRow {
        let Self { time, pool, stream, tag, site, .. } = *self;
        RecordedRow { time, address, size, stream, pool, tag, site, kind }
    }
}

/// What is known of an address.
#[derive(Debug, Clone, Copy)]
enum State {
    /// Events of the file allocated it.
    Allocated,
    /// It was listed as live when recording began, and no event named it since.
    Listed(Event),
    /// An event freed it, and none had allocated it.
    FreedOnly,
}

/// Tells blocks that were live when recording began from those that other threads allocated or freed while
/// the list of them was made: their events, and the list, may tell of the same block.
#[derive(Debug, Default)]
struct Known(FxHashMap<(u32, u64), State>);

impl Known {
    fn alloc(&mut self, event: &Event) {
        self.0.insert((event.device, event.address), State::Allocated);
    }

    fn free(&mut self, event: &Event) {
        match self.0.entry((event.device, event.address)) {
            Entry::Occupied(entry) => {
                entry.remove();
            }
            Entry::Vacant(entry) => {
                entry.insert(State::FreedOnly);
            }
        }
    }

    fn live(&mut self, event: Event) {
        self.0.entry((event.device, event.address)).or_insert(State::Listed(event));
    }

    /// Tells the builder of a listed block, if it is one, before an event that is of it.
    fn tell_of(&mut self, of: (u32, u64), builder: &mut TraceBuilder) -> Result<(), FormatError> {
        let Some(state) = self.0.get_mut(&of) else { return Ok(()) };
        if let State::Listed(event) = std::mem::replace(state, State::Allocated) {
            let stream = builder.first_stream(event.device).unwrap_or(0);
            builder.live_before(Event { stream, ..event })?;
        }
        Ok(())
    }

    /// Listed blocks that no event named were live all the time. On which stream, the recorder does not know:
    /// on the first.
    fn finish(self, builder: &mut TraceBuilder) -> Result<(), FormatError> {
        for state in self.0.into_values() {
            if let State::Listed(event) = state {
                let stream = builder.first_stream(event.device).unwrap_or(0);
                builder.live_before(Event { stream, ..event })?;
            }
        }
        Ok(())
    }
}

/// More than any device has: what is larger came from a damaged file.
const LARGEST: u64 = 1 << 48;

fn wrong<T>(at: u64, what: &'static str) -> Result<T, FormatError> {
    Err(FormatError::Recording(format!("byte {at}: {what}")))
}
