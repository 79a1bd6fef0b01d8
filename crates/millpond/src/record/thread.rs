//! A thread's end: the ring that its events go to, one for each recorder that it meets.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use rtrb::{Producer, PushError};

use super::clock::{Moment, nanoseconds};
use super::collector::RING;
use super::encoder::{Event, Kind};
use super::note::Note;
use super::recorder::Recorder;

/// A recorder, and a pool's number in its file, in one word: the recorder's id above, the pool below. 0 is
/// none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Channel(pub(super) u64);

impl Channel {
    pub(super) fn new(recorder: u32, pool: u32) -> Self {
        Self(u64::from(recorder) << 32 | u64::from(pool))
    }

    pub(super) fn recorder(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn pool(self) -> u32 {
        self.0 as u32
    }
}

thread_local! {
    static RINGS: RefCell<Vec<Ring>> = const { RefCell::new(Vec::new()) };
}

/// Events after which the writer is woken: a quarter of a ring, so that a slow writer can empty it before it is full.
const WAKE_EVERY: u32 = RING as u32 / 4;

/// How often a thread whose ring is full looks for room before it sleeps until the rings are empty.
const PATIENCE: u32 = 1000;

struct Ring {
    recorder: u32,
    origin: Moment,
    notes: Producer<Note>,
    last: u64,
    count: u32,
    /// What was noted last of the pool and stream, and of the labels.
    at: (u32, u64),
    under: (u32, u32),
    owner: Weak<Recorder>,
}

/// The recorder has gone, or belongs to the process that this one was forked from.
pub(super) struct Gone;

/// What is noted of an event, but for its pool, which the channel names.
#[derive(Clone, Copy)]
pub(super) struct Happening {
    pub(super) kind: Kind,
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) stream: u64,
    /// Tag and call site.
    pub(super) under: (u32, u32),
}

/// Notes what happened at that moment in the calling thread's ring. `recorder` is asked only when the thread
/// meets it for the first time.
#[inline(always)]
pub(super) fn note(
    channel: Channel,
    at: Moment,
    what: Happening,
    recorder: impl Fn() -> Option<Arc<Recorder>>,
) -> Result<(), Gone> {
    let noted = RINGS.try_with(|rings| {
        let mut rings = rings.borrow_mut();
        let place = match rings.iter().position(|ring| ring.recorder == channel.recorder()) {
            Some(place) => place,
            None => enter(&mut rings, channel, recorder())?,
        };
        rings[place].push(channel.pool(), at, what)
    });
    noted.unwrap_or_else(|_| note_at_thread_end(channel, at, what, recorder()))
}

/// The thread is ending, and its rings are gone: the recorder takes the event itself.
#[cold]
fn note_at_thread_end(
    channel: Channel,
    at: Moment,
    what: Happening,
    recorder: Option<Arc<Recorder>>,
) -> Result<(), Gone> {
    let recorder = recorder.filter(|recorder| is_behind(recorder, channel)).ok_or(Gone)?;
    let time = nanoseconds(at.since(recorder.origin));
    let Happening { kind, address, size, stream, under: (tag, site) } = what;
    recorder.add(std::iter::once(Event {
        time,
        address,
        size,
        stream,
        pool: channel.pool(),
        tag,
        site,
        kind,
    }));
    Ok(())
}

fn is_behind(recorder: &Recorder, channel: Channel) -> bool {
    recorder.id == channel.recorder() && recorder.is_ours()
}

#[cold]
fn enter(rings: &mut Vec<Ring>, channel: Channel, recorder: Option<Arc<Recorder>>) -> Result<usize, Gone> {
    let recorder = recorder.filter(|recorder| is_behind(recorder, channel)).ok_or(Gone)?;
    rings.retain(|ring| !ring.notes.is_abandoned() && ring.owner.strong_count() > 0);
    rings.push(Ring {
        recorder: recorder.id,
        origin: recorder.origin,
        notes: recorder.enter_thread(),
        last: 0,
        count: 0,
        at: (0, 0),
        under: (0, 0),
        owner: Arc::downgrade(&recorder),
    });
    Ok(rings.len() - 1)
}

impl Ring {
    #[inline]
    fn push(&mut self, pool: u32, at: Moment, what: Happening) -> Result<(), Gone> {
        if self.at != (pool, what.stream) || self.under != what.under {
            self.push_context(pool, what)?;
        }
        // Later than the thread's last event even on a coarse clock: readers sort by time.
        self.last = at.since(self.origin).max(self.last + 1);
        self.push_note(Note::event(what.kind, self.last, what.address, what.size))?;
        self.count += 1;
        if self.count == WAKE_EVERY {
            self.count = 0;
            self.wake();
        }
        Ok(())
    }

    #[inline(never)]
    fn push_context(&mut self, pool: u32, what: Happening) -> Result<(), Gone> {
        if self.at != (pool, what.stream) {
            self.push_note(Note::at(pool, what.stream))?;
            self.at = (pool, what.stream);
        }
        if self.under != what.under {
            self.push_note(Note::under(what.under.0, what.under.1))?;
            self.under = what.under;
        }
        Ok(())
    }

    #[inline(always)]
    fn push_note(&mut self, note: Note) -> Result<(), Gone> {
        match self.notes.push(note) {
            Ok(()) => Ok(()),
            Err(PushError::Full(note)) => self.push_slow(note),
        }
    }

    #[cold]
    fn wake(&self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.wake();
        }
    }

    #[cold]
    fn push_slow(&mut self, note: Note) -> Result<(), Gone> {
        let owner = self.owner.upgrade().filter(|owner| owner.is_ours()).ok_or(Gone)?;
        // Whoever is emptying the rings comes to this one soon. It may need this very processor, so that the wait ends.
        let soon = (0..PATIENCE).any(|_| {
            let has_room = !self.notes.is_full() || owner.try_drain();
            if !has_room {
                std::thread::yield_now();
            }
            has_room
        });
        if !soon {
            owner.drain();
        }
        self.notes.push(note).map_err(|_| Gone)
    }
}
