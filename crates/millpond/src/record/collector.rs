//! Where the threads' rings come together and become chunks.

use rtrb::{Consumer, Producer, RingBuffer};

use super::clock::nanoseconds;
use super::encoder::{Encoder, Event};
use super::format::Record;
use super::labels::WrittenTags;
use super::note::{Note, Noted};

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
    ended: bool,
}

impl Collector {
    /// Of a file that has so many bytes at most.
    pub(super) fn new(start: &Record<'_>, most_written: u64) -> Self {
        let mut encoder = Encoder::new();
        encoder.define(start);
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
        self.encoder.define(&define(self.pools));
        self.pools
    }

    /// Takes what the threads have noted so far. Rings whose thread is gone go with their last event.
    pub(super) fn drain(&mut self) {
        // What is in a ring names tags that were entered before: look at the rings first.
        let ready: Vec<_> =
            self.rings.iter().map(|ring| (ring.notes.is_abandoned(), ring.notes.slots())).collect();
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

    /// Adds an event that went through no ring.
    pub(super) fn add(&mut self, thread: u32, event: &Event) {
        if self.ended {
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
        self.written.saturating_add(self.encoder.waiting() as u64) >= self.most_written
    }

    /// The oldest chunk, which goes to the file.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        self.encoder.take().inspect(|chunk| self.written += chunk.len() as u64)
    }

    /// It did not.
    pub(super) fn put_back(&mut self, chunk: Vec<u8>) {
        self.written -= chunk.len() as u64;
        self.encoder.put_back(chunk);
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

    /// Events taken, and dropped.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.events, self.dropped)
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
            for record in records(&chunk[8..]) {
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
        let mut collector = Collector::new(&Record::End, u64::MAX);
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
        assert_eq!(collector.counts(), (2, 2));
    }

    #[test]
    fn what_is_dropped_last_is_told_at_the_end() {
        let mut collector = Collector::new(&Record::End, u64::MAX);
        collector.encoder.seal();
        collector.most_waiting = 0;
        collector.add(0, &event(1));
        collector.end();
        let told = written(&mut collector);
        assert!(matches!(told[..], [Record::End, Record::Dropped { events: 1 }, Record::End]), "{told:?}");
    }

    #[test]
    fn what_is_beyond_the_limit_is_counted_and_told_at_the_end() {
        let mut collector = Collector::new(&Record::End, 100);
        let mut taken = 0;
        for time in 0..1000 {
            collector.add(0, &event(time));
            collector.encoder.seal();
            while let Some(chunk) = collector.take() {
                taken += chunk.len();
            }
        }
        let (events, dropped) = collector.counts();
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
        let mut collector = Collector::new(&Record::End, u64::MAX);
        written(&mut collector);
        let mut producer = collector.enter_thread();
        producer.push(Note::event(Kind::Alloc, 1, 512, 1)).unwrap();
        drop(producer);
        collector.drain();
        assert!(collector.rings.is_empty());
        assert_eq!(written(&mut collector).len(), 1);
    }
}
