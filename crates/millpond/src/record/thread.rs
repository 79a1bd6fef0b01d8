//! A thread's end: the ring that its events go to, one for each recorder that it meets.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use rtrb::{Producer, PushError};

use super::clock::Moment;
use super::collector::RING;
use super::encoder::Event;
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

/// Events after which the writer is woken: half a ring, so that it can be emptied before it is full.
const WAKE_EVERY: u32 = RING as u32 / 2;

struct Ring {
    recorder: u32,
    origin: Moment,
    events: Producer<Event>,
    last: u64,
    count: u32,
    owner: Weak<Recorder>,
}

/// The recorder has gone, or belongs to the process that this one was forked from.
pub(super) struct Gone;

/// Notes an event of that moment in the calling thread's ring. `recorder` is asked only when the thread meets it for
/// the first time.
#[inline(always)]
pub(super) fn note(
    channel: Channel,
    (at, mut event): (Moment, Event),
    recorder: impl Fn() -> Option<Arc<Recorder>>,
) -> Result<(), Gone> {
    let noted = RINGS.try_with(|rings| {
        let mut rings = rings.borrow_mut();
        let ring = match rings.iter().position(|ring| ring.recorder == channel.recorder()) {
            Some(ring) => ring,
            None => enter(
                &mut rings,
                &recorder()
                    .filter(|recorder| recorder.id == channel.recorder() && recorder.is_ours())
                    .ok_or(Gone)?,
            ),
        };
        rings[ring].push(at, event)
    });
    // The thread is ending, and its rings are gone: the recorder takes the event itself.
    noted.unwrap_or_else(|_| {
        let recorder = recorder().filter(|recorder| recorder.is_ours()).ok_or(Gone)?;
        event.time = at.since(recorder.origin);
        recorder.add(std::iter::once(event));
        Ok(())
    })
}

#[cold]
fn enter(rings: &mut Vec<Ring>, recorder: &Arc<Recorder>) -> usize {
    rings.retain(|ring| !ring.events.is_abandoned() && ring.owner.strong_count() > 0);
    rings.push(Ring {
        recorder: recorder.id,
        origin: recorder.origin,
        events: recorder.enter_thread(),
        last: 0,
        count: 0,
        owner: Arc::downgrade(recorder),
    });
    rings.len() - 1
}

impl Ring {
    #[inline]
    fn push(&mut self, at: Moment, mut event: Event) -> Result<(), Gone> {
        // Later than the thread's last event even on a coarse clock: readers sort by time.
        event.time = at.since(self.origin).max(self.last + 1);
        self.last = event.time;
        if let Err(PushError::Full(event)) = self.events.push(event) {
            return self.push_slow(event);
        }
        self.count += 1;
        if self.count == WAKE_EVERY {
            self.count = 0;
            self.wake();
        }
        Ok(())
    }

    #[cold]
    fn wake(&self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.wake();
        }
    }

    #[cold]
    fn push_slow(&mut self, event: Event) -> Result<(), Gone> {
        let owner = self.owner.upgrade().filter(|owner| owner.is_ours()).ok_or(Gone)?;
        owner.drain();
        self.events.push(event).map_err(|_| Gone)
    }
}
