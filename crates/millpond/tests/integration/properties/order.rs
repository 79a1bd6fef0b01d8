//! What the program itself knows about order: enough to write programs that are free of races.
//!
//! Deliberately not the checker's clocks. Those also learn from what the pool asks the device; a program may
//! rely only on what it did itself.

/// For each stream ever made, the number of the last piece of work that is ordered before something.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock(Vec<u64>);

/// Names a stream for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(usize);

/// One piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) key: Key,
    tick: u64,
}

impl Clock {
    fn covers(&self, work: Work) -> bool {
        self.0.get(work.key.0).is_some_and(|tick| *tick >= work.tick)
    }

    fn raise(&mut self, work: Work) {
        if self.0.len() <= work.key.0 {
            self.0.resize(work.key.0 + 1, 0);
        }
        self.0[work.key.0] = self.0[work.key.0].max(work.tick);
    }

    fn join(&mut self, other: &Self) {
        for (key, tick) in other.0.iter().enumerate() {
            self.raise(Work { key: Key(key), tick: *tick });
        }
    }
}

/// The order that the program made.
#[derive(Debug, Default)]
pub(crate) struct Order {
    streams: Vec<Clock>,
    host: Clock,
}

impl Order {
    pub(crate) fn new_stream(&mut self) -> Key {
        self.streams.push(Clock::default());
        Key(self.streams.len() - 1)
    }

    pub(crate) fn submit(&mut self, key: Key) -> Work {
        let clock = &mut self.streams[key.0];
        let tick = clock.0.get(key.0).copied().unwrap_or(0) + 1;
        let work = Work { key, tick };
        clock.raise(work);
        work
    }

    /// What an event recorded now stands for.
    pub(crate) fn snapshot(&self, key: Key) -> Clock {
        self.streams[key.0].clone()
    }

    pub(crate) fn wait(&mut self, key: Key, event: &Clock) {
        self.streams[key.0].join(event);
    }

    /// The host has waited for this, or seen it complete.
    pub(crate) fn complete(&mut self, clock: &Clock) {
        self.host.join(clock);
    }

    /// The host has waited for the device.
    pub(crate) fn complete_all(&mut self) {
        for stream in &self.streams {
            self.host.join(stream);
        }
    }

    /// Whether work given to the stream now comes after `work`.
    pub(crate) fn is_before(&self, work: Work, key: Key) -> bool {
        self.host.covers(work) || self.streams[key.0].covers(work)
    }
}
