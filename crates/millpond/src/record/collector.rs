//! Where the threads' rings come together and become chunks.

use rtrb::{Consumer, Producer, RingBuffer};

use super::clock::nanoseconds;
use super::encoder::{Encoder, Event, Sealed};
use super::format::Record;
use super::labels::WrittenTags;
use super::note::{Note, Noted};
use super::parts::Parts;

/// Notes in a thread's ring: 384 KiB. With 4,096, a thread that did nothing else filled it before the writer had come,
/// and encoded nearly as many events itself (docs/recording.md).
pub(super) const RING: usize = 16384;

/// Encoded bytes that may wait for the disk. Events beyond that are dropped and counted: a disk that hangs
/// must not take the program with it.
const MOST_WAITING: usize = 64 << 20;

/// The recorder's end of a thread's ring.
#[derive(Debug)]
struct Ring {
    thread: u32,
    notes: Consumer<Note>,
    /// Pool and stream of the notes that follow.
    at: (u32, u64),
    /// Tag and call site of the notes that follow.
    under: (u32, u32),
}

impl Ring {
    /// The event that a note tells of, if it is one.
    #[inline]
    fn read(&mut self, note: Note) -> Option<Event> {
        match note.read() {
            Noted::Event { kind, ticks, address, size } => {
                let ((pool, stream), (tag, site)) = (self.at, self.under);
                Some(Event { time: nanoseconds(ticks), address, size, stream, pool, tag, site, kind })
            }
            Noted::At { pool, stream } => {
                self.at = (pool, stream);
                None
            }
            Noted::Under { tag, site } => {
                self.under = (tag, site);
                None
            }
        }
    }
}

/// See the [module](self). Used under the recorder's lock.
#[derive(Debug)]
pub(super) struct Collector {
    pub(super) encoder: Encoder,
    rings: Vec<Ring>,
    threads: u32,
    pools: u32,
    tags: WrittenTags,
    events: u64,
    dropped: u64,
    /// Dropped events that the file does not tell of yet.
    untold: u64,
    most_waiting: usize,
    /// Bytes that went to the file, and how many may.
    written: u64,
    most_written: u64,
    /// Of a recording that rotates: nothing is too much for that.
    parts: Option<Parts>,
    ended: bool,
}

impl Collector {
    /// Of a file that has so many bytes at most, or of two that rotate.
    pub(super) fn new(start: &Record<'_>, most_written: u64, rotates: bool) -> Self {
        let mut encoder = Encoder::new();
        encoder.define(start);
        let parts = rotates.then(|| Parts::within(most_written, start));
        Self {
            encoder,
            rings: Vec::new(),
            threads: 0,
            pools: 0,
            tags: WrittenTags::default(),
            events: 0,
            dropped: 0,
            untold: 0,
            most_waiting: MOST_WAITING,
            written: 0,
            most_written,
            parts,
            ended: false,
        }
    }

    /// A ring for a thread that has none.
    pub(super) fn enter_thread(&mut self) -> Producer<Note> {
        let (producer, notes) = RingBuffer::new(RING);
        self.threads += 1;
        self.rings.push(Ring { thread: self.threads, notes, at: (0, 0), under: (0, 0) });
        producer
    }

    /// Defines a pool; the record is told its number.
    pub(super) fn enter_pool<'a>(&mut self, define: impl FnOnce(u32) -> Record<'a>) -> u32 {
        self.pools += 1;
        let pool = define(self.pools);
        self.encoder.define(&pool);
        self.parts.iter_mut().for_each(|parts| parts.enter_pool(&pool));
        self.pools
    }

    /// Takes what the threads have noted so far. Rings whose thread is gone go with their last event.
    pub(super) fn drain(&mut self) {
        // What is in a ring names tags that were entered before: look at the rings first.
        let ready: Vec<_> =
            self.rings.iter().map(|ring| (ring.notes.is_abandoned(), ring.notes.slots())).collect();
        self.rotate_before(ready.iter().map(|&(_, count)| count).sum());
        if !self.ended {
            self.tags.catch_up(&mut self.encoder);
        }
        let mut rings = std::mem::take(&mut self.rings);
        for (ring, &(_, count)) in rings.iter_mut().zip(&ready) {
            for _ in 0..count {
                let Ok(note) = ring.notes.pop() else { break };
                if let Some(event) = ring.read(note) {
                    self.add(ring.thread, &event);
                }
            }
        }
        let mut gone = ready.iter().map(|&(gone, _)| gone);
        rings.retain(|_| !gone.next().unwrap_or(false));
        self.rings = rings;
    }

    /// Begins the next part, where these events would not fit into this one. Not among them: they are in the order of their
    /// times for each thread only.
    fn rotate_before(&mut self, events: usize) {
        // Without any, the last part would have nothing.
        let Some(parts) = self.parts.as_mut().filter(|_| events > 0 && !self.ended) else { return };
        if !parts.is_due(self.encoder.sealed_ever(), events) {
            return;
        }
        if self.untold > 0 {
            self.encoder.define(&Record::Dropped { events: std::mem::take(&mut self.untold) });
        }
        self.encoder.define(&Record::End);
        self.encoder.begin_file();
        parts.begin(&mut self.encoder, self.events);
        self.tags = WrittenTags::default();
        self.tags.catch_up(&mut self.encoder);
        // The definitions of call sites come between.
        self.encoder.seal();
        parts.tell(&mut self.encoder);
    }

    /// Adds an event that went through no ring.
    pub(super) fn add(&mut self, thread: u32, event: &Event) {
        if self.ended {
            return;
        }
        if self.parts.as_mut().is_some_and(|parts| !parts.follow(event)) {
            return;
        }
        if self.encoder.waiting() > self.most_waiting || self.is_full() {
            self.dropped += 1;
            self.untold += 1;
            return;
        }
        self.tell_dropped();
        self.events += 1;
        self.encoder.event(thread, event);
    }

    /// Whether the file has all the bytes that it may have, or those that wait would be too many.
    pub(super) fn is_full(&self) -> bool {
        self.parts.is_none()
            && self.written.saturating_add(self.encoder.waiting() as u64) >= self.most_written
    }

    /// The oldest chunk, which goes to the file.
    pub(super) fn take(&mut self) -> Option<Sealed> {
        self.encoder.take().inspect(|chunk| self.written += chunk.bytes.len() as u64)
    }

    /// It did not.
    pub(super) fn put_back(&mut self, chunk: Sealed) {
        self.written -= chunk.bytes.len() as u64;
        self.encoder.put_back(chunk);
    }

    /// So many bytes of call sites went to the file, beside the chunks.
    pub(super) fn count(&mut self, bytes: u64) {
        self.parts.iter_mut().for_each(|parts| parts.count(bytes));
    }

    fn tell_dropped(&mut self) {
        if self.untold > 0 {
            self.encoder.define(&Record::Dropped { events: std::mem::take(&mut self.untold) });
        }
    }

    /// Ends the recording; what comes later is no part of it.
    pub(super) fn end(&mut self) {
        self.drain();
        if !std::mem::replace(&mut self.ended, true) {
            self.tell_dropped();
            self.encoder.define(&Record::End);
            self.encoder.seal();
        }
    }

    /// Events taken, dropped, and in no file any more since it rotates.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        (self.events, self.dropped, self.parts.as_ref().map_or(0, Parts::gone))
    }
}

#[cfg(test)]
mod tests {
    use super::super::chunks::records;
    use super::super::encoder::Kind;
    use super::*;

    fn event(time: u64) -> Event {
        Event { time, address: 512, size: 1, stream: 0, pool: 1, tag: 0, site: 0, kind: Kind::Alloc }
    }

    fn written(collector: &mut Collector) -> Vec<Record<'static>> {
        collector.encoder.seal();
        let mut all = Vec::new();
        while let Some(chunk) = collector.encoder.take() {
            for record in records(&chunk.bytes[8..]) {
                all.push(match record.unwrap() {
                    Record::Alloc { after, address, size } => Record::Alloc { after, address, size },
                    Record::Dropped { events } => Record::Dropped { events },
                    Record::End => Record::End,
                    _ => continue,
                });
            }
        }
        all
    }

    #[test]
    fn dropped_events_are_told_once_there_is_room() {
        let mut collector = Collector::new(&Record::End, u64::MAX, false);
        written(&mut collector);
        collector.most_waiting = 0;
        collector.add(0, &event(1));
        collector.encoder.seal();
        // One chunk waits now, which is more than may.
        collector.add(0, &event(2));
        collector.add(0, &event(3));
        assert!(matches!(written(&mut collector)[..], [Record::Alloc { .. }]));
        collector.add(0, &event(4));
        let told = written(&mut collector);
        assert!(matches!(told[..], [Record::Dropped { events: 2 }, Record::Alloc { .. }]), "{told:?}");
        assert_eq!(collector.counts(), (2, 2, 0));
    }

    #[test]
    fn what_is_dropped_last_is_told_at_the_end() {
        let mut collector = Collector::new(&Record::End, u64::MAX, false);
        collector.encoder.seal();
        collector.most_waiting = 0;
        collector.add(0, &event(1));
        collector.end();
        let told = written(&mut collector);
        assert!(matches!(told[..], [Record::End, Record::Dropped { events: 1 }, Record::End]), "{told:?}");
    }

    #[test]
    fn what_is_beyond_the_limit_is_counted_and_told_at_the_end() {
        let mut collector = Collector::new(&Record::End, 100, false);
        let mut taken = 0;
        for time in 0..1000 {
            collector.add(0, &event(time));
            collector.encoder.seal();
            while let Some(chunk) = collector.take() {
                taken += chunk.bytes.len();
            }
        }
        let (events, dropped, _) = collector.counts();
        assert!((100..200).contains(&taken) && events > 0 && events + dropped == 1000, "{taken} {events}");
        collector.end();
        let told = written(&mut collector);
        assert!(
            matches!(told[..], [Record::Dropped { events: told }, Record::End] if told == dropped),
            "{told:?}"
        );
    }

    #[test]
    fn a_ring_outlives_its_thread_until_its_last_event() {
        let mut collector = Collector::new(&Record::End, u64::MAX, false);
        written(&mut collector);
        let mut producer = collector.enter_thread();
        producer.push(Note::event(Kind::Alloc, 1, 512, 1)).unwrap();
        drop(producer);
        collector.drain();
        assert!(collector.rings.is_empty());
        assert_eq!(written(&mut collector).len(), 1);
    }
}
