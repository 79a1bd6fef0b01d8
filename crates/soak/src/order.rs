//! What a thread itself knows about order: enough to write programs that are free of races.
//!
//! Deliberately not the checker's clocks. Those also learn from what the pool asks the device; a program may rely only on
//! what it did itself.

/// Streams that a thread has at most.
pub(crate) const STREAMS: usize = 8;

/// For each stream, the number of the last piece of work that is ordered before something; 0 for none.
pub(crate) type Ticks = [u32; STREAMS];

/// The order that a thread made.
#[derive(Debug, Default)]
pub(crate) struct Order {
    streams: [Ticks; STREAMS],
    host: Ticks,
}

fn join(into: &mut Ticks, other: Ticks) {
    for (mine, theirs) in into.iter_mut().zip(other) {
        *mine = (*mine).max(theirs);
    }
}

impl Order {
    /// One more piece of work on the stream: its number.
    pub(crate) fn submit(&mut self, stream: usize) -> u32 {
        self.streams[stream][stream] += 1;
        self.streams[stream][stream]
    }

    /// Later work on `stream` comes after all that `other` has been given.
    pub(crate) fn wait(&mut self, stream: usize, other: usize) {
        let other = self.streams[other];
        join(&mut self.streams[stream], other);
    }

    /// The host has waited for the stream.
    pub(crate) fn complete(&mut self, stream: usize) {
        join(&mut self.host, self.streams[stream]);
    }

    /// The host has waited for all of them.
    pub(crate) fn complete_all(&mut self) {
        (0..STREAMS).for_each(|stream| self.complete(stream));
    }

    /// Whether work given to `stream` now comes after the piece `tick` of `of`.
    pub(crate) fn is_before(&self, of: usize, tick: u32, stream: usize) -> bool {
        tick <= self.host[of] || tick <= self.streams[stream][of]
    }
}
