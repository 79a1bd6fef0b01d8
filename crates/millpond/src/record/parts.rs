//! A recording that rotates: when its next part is due, and what that begins with, so that it can be read alone.
//!
//! Each part begins with the pools, and with the blocks that live, each as the event that told of it. Threads tell of what
//! they did one after another, so a free may come before its allocation. Such a free waits for it, and is told again in the
//! next part.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::encoder::{Encoder, Event, Kind};
use super::format::Record;
use crate::policy::watching::PARTS;

/// Bytes of an event, or a little more: those that wait are to fit into the part.
const EVENT_BYTES: u64 = 12;

/// A pool's record, kept.
#[derive(Debug)]
struct Pool {
    name: String,
    device: String,
    ordinal: u32,
    device_key: u64,
    /// The bytes held that were told last.
    reserved: Option<Event>,
    /// Its eviction, while it is evicted.
    evicted: Option<Event>,
    /// The part in which it ended.
    ended: Option<u32>,
}

/// See the [module](self). Belongs to the collector.
#[derive(Debug)]
pub(super) struct Parts {
    /// Of a part.
    most_bytes: u64,
    /// The file's first record, kept.
    unix_ns: u64,
    process: u32,
    program: String,
    /// The number of the present part.
    part: u32,
    /// What the encoder had sealed ever when it began, and the bytes of its head.
    began: u64,
    head: u64,
    /// Bytes of it that came to the file by another way.
    beside: u64,
    /// Events before the present part, and before the one before it.
    before: u64,
    gone: u64,
    /// The time of the last event, and of the last before the present part.
    now: u64,
    since: u64,
    pools: BTreeMap<u32, Pool>,
    live: FxHashMap<(u32, u64), Event>,
    early: FxHashMap<(u32, u64), Event>,
}

impl Parts {
    /// Of a recording with so many bytes at most, and this first record.
    pub(super) fn within(bytes: u64, start: &Record<'_>) -> Self {
        let (unix_ns, process, program) = match start {
            Record::Start { unix_ns, process, program } => (*unix_ns, *process, *program),
            _ => (0, 0, ""),
        };
        Self {
            most_bytes: bytes / PARTS,
            unix_ns,
            process,
            program: program.to_owned(),
            part: 1,
            began: 0,
            head: 0,
            beside: 0,
            before: 0,
            gone: 0,
            now: 0,
            since: 0,
            pools: BTreeMap::new(),
            live: FxHashMap::default(),
            early: FxHashMap::default(),
        }
    }

    /// Keeps what a pool was defined as.
    pub(super) fn enter_pool(&mut self, pool: &Record<'_>) {
        if let Record::Pool { pool, name, device, ordinal, device_key } = *pool {
            let (name, device) = (name.to_owned(), device.to_owned());
            let (reserved, evicted, ended) = (None, None, None);
            self.pools.insert(pool, Pool { name, device, ordinal, device_key, reserved, evicted, ended });
        }
    }

    /// Keeps what an event says of what is live and held. Returns whether the present part knows its pool.
    pub(super) fn follow(&mut self, event: &Event) -> bool {
        let Some(pool) = self.pools.get_mut(&event.pool) else { return false };
        self.now = self.now.max(event.time);
        let key = (event.pool, event.address);
        match event.kind {
            Kind::Alloc => {
                let freed = self.early.remove(&key).is_some_and(|free| free.time >= event.time);
                let has_successor = self.live.get(&key).is_some_and(|block| block.time > event.time);
                if !freed && !has_successor {
                    self.live.insert(key, *event);
                }
            }
            // The list of live blocks may come after events of the same blocks: see docs/recording.md.
            Kind::Live => {
                if self.early.remove(&key).is_none() {
                    self.live.entry(key).or_insert(*event);
                }
            }
            Kind::Free => match self.live.get(&key).map(|block| block.time <= event.time) {
                Some(true) => drop(self.live.remove(&key)),
                // An earlier block of this address, whose successor was told first.
                Some(false) => {}
                None => drop(self.early.insert(key, *event)),
            },
            Kind::Reserved => {
                if pool.reserved.is_none_or(|told| told.time <= event.time) {
                    pool.reserved = Some(*event);
                }
            }
            // Calls of one pool come one after another.
            Kind::Evicted => pool.evicted = Some(*event),
            Kind::Restored => pool.evicted = None,
            Kind::PoolEnd => {
                pool.ended = Some(self.part);
                self.live.retain(|(pool, _), _| *pool != event.pool);
            }
            Kind::Use | Kind::Trim | Kind::OutOfMemory => {}
        }
        true
    }

    /// Whether the next part begins before so many events, where so many bytes were sealed. Where the head alone takes more
    /// than half of a part, parts are longer: else part would follow part.
    pub(super) fn is_due(&self, sealed_ever: u64, events: usize) -> bool {
        let sealed = sealed_ever - self.began;
        let next = sealed + self.beside + events as u64 * EVENT_BYTES;
        sealed > self.head && next >= self.most_bytes.max(2 * (self.head + self.beside))
    }

    /// Counts bytes that came to the file by another way: the lines of call sites, which each part has.
    pub(super) fn count(&mut self, bytes: u64) {
        self.beside += bytes;
    }

    /// Events that are in no file any more.
    pub(super) fn gone(&self) -> u64 {
        self.gone
    }

    /// Begins the next part, behind so many events: what it is, and its pools.
    pub(super) fn begin(&mut self, encoder: &mut Encoder, events: u64) {
        let (last, last_since) = (self.part, self.since);
        (self.gone, self.before) = (self.before, events);
        (self.part, self.since) = (last + 1, self.now);
        (self.began, self.beside) = (encoder.sealed_ever(), 0);
        // Other threads' last events of a pool may come a little after its end. What waits for its allocation since before the
        // last part waits for none: that was live before the recording.
        self.pools.retain(|_, pool| pool.ended.is_none_or(|ended| ended >= last));
        self.live.retain(|(pool, _), _| self.pools.contains_key(pool));
        self.early.retain(|(pool, _), free| free.time > last_since && self.pools.contains_key(pool));
        let Self { unix_ns, process, .. } = *self;
        encoder.define(&Record::Start { unix_ns, process, program: &self.program });
        encoder.define(&Record::Part { part: self.part, events, time: self.since });
        for (&pool, Pool { name, device, ordinal, device_key, .. }) in &self.pools {
            let (ordinal, device_key) = (*ordinal, *device_key);
            encoder.define(&Record::Pool { pool, name, device, ordinal, device_key });
        }
    }

    /// Tells what is live and held, behind the definitions that this names.
    pub(super) fn tell(&mut self, encoder: &mut Encoder) {
        let mut told: Vec<_> = self.live.values().chain(self.early.values()).collect();
        told.extend(self.pools.values().flat_map(|pool| pool.reserved.iter().chain(&pool.evicted)));
        told.sort_unstable_by_key(|event| (event.time, event.pool, event.address));
        told.into_iter().for_each(|event| encoder.event(0, event));
        encoder.seal();
        self.head = encoder.sealed_ever() - self.began;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Record<'static> = Record::Start { unix_ns: 7, process: 3, program: "a" };

    fn parts() -> Parts {
        let mut parts = Parts::within(0, &START);
        for pool in [1, 2] {
            let (name, device) = ("a", "b");
            parts.enter_pool(&Record::Pool { pool, name, device, ordinal: 0, device_key: 0 });
        }
        parts
    }

    fn event(kind: Kind, time: u64, address: u64) -> Event {
        Event { time, address, size: 1, stream: 0, pool: 1, tag: 0, site: 0, kind }
    }

    /// Addresses and times of the blocks that the next part would begin with.
    fn live(events: &[Event]) -> Vec<(u64, u64)> {
        let mut parts = parts();
        assert!(events.iter().all(|event| parts.follow(event)));
        let mut live: Vec<_> = parts.live.values().map(|block| (block.address, block.time)).collect();
        live.sort_unstable();
        live
    }

    #[test]
    fn events_of_threads_in_any_order_leave_the_same_live_blocks() {
        use Kind::{Alloc, Free};
        // Block 512 lives twice, 1024 once; only the second life of 512 goes on.
        let all = [
            event(Alloc, 1, 512),
            event(Free, 2, 512),
            event(Alloc, 3, 512),
            event(Free, 5, 1024),
            event(Alloc, 4, 1024),
        ];
        // Each thread's own events are in order: the first three are of two threads, the free of the one.
        let orders: [[usize; 5]; 4] = [[0, 1, 2, 4, 3], [1, 0, 2, 3, 4], [0, 2, 1, 3, 4], [0, 2, 4, 1, 3]];
        for order in orders {
            assert_eq!(live(&order.map(|at| all[at])), [(512, 3)], "{order:?}");
        }
    }

    #[test]
    fn listed_blocks_are_live_unless_they_were_freed_meanwhile() {
        use Kind::{Alloc, Free, Live};
        let told = [
            event(Free, 1, 512),
            event(Alloc, 2, 1024),
            event(Live, 3, 512),
            event(Live, 3, 1024),
            event(Live, 3, 1536),
        ];
        assert_eq!(live(&told), [(1024, 2), (1536, 3)]);
        assert_eq!(live(&[told[4], event(Free, 4, 1536)]), []);
    }

    #[test]
    fn a_pool_that_ended_is_known_for_one_more_part() {
        let (mut parts, mut encoder) = (parts(), Encoder::new());
        assert!(parts.follow(&event(Kind::Alloc, 1, 512)));
        assert!(parts.follow(&event(Kind::PoolEnd, 2, 0)));
        parts.begin(&mut encoder, 2);
        assert!(parts.follow(&event(Kind::Alloc, 1, 1024)));
        parts.begin(&mut encoder, 3);
        assert!(!parts.follow(&event(Kind::Free, 2, 512)) && parts.live.is_empty());
        assert!(parts.follow(&Event { pool: 2, ..event(Kind::Alloc, 3, 512) }));
    }

    #[test]
    fn parts_with_much_that_lives_are_longer_instead_of_endless() {
        let (mut parts, mut encoder) = (parts(), Encoder::new());
        for address in 0..1000 {
            parts.follow(&event(Kind::Alloc, address, address));
        }
        parts.begin(&mut encoder, 1000);
        parts.tell(&mut encoder);
        let head = encoder.sealed_ever();
        assert!(head > 1000 && !parts.is_due(head, 1 << 30), "no event since");
        assert!(!parts.is_due(head + 1, 0) && parts.is_due(2 * head, 0));
        parts.count(head);
        assert!(!parts.is_due(2 * head, 0) && parts.is_due(3 * head, 0));
    }
}
