//! Blocks that were freed while other streams may still use them: an event for each stream, asked in order.

use std::collections::VecDeque;
use std::sync::Arc;

use millpond::device::{Device, StreamId};
use millpond::{Result, Stream};

use super::blocks::BlockId;
use crate::events::{Events, Recorded};

#[derive(Debug)]
struct Queue {
    stream: StreamId,
    /// In the order in which they were recorded, which is the order in which they complete.
    events: VecDeque<(Recorded, BlockId)>,
}

#[derive(Debug)]
pub(super) struct Pending {
    events: Events,
    /// One for each stream, so that a slow stream does not delay what the others are past.
    queues: Vec<Queue>,
    waiting: usize,
}

impl Pending {
    pub(super) fn new(device: Arc<dyn Device>) -> Self {
        Self { events: Events::new(device), queues: Vec::new(), waiting: 0 }
    }

    /// Records an event for the block on each of the streams. Returns how many there are.
    pub(super) fn record<'a>(
        &mut self,
        block: BlockId,
        streams: impl Iterator<Item = &'a Stream>,
    ) -> Result<u32> {
        let recorded = self.events.record_all(streams)?;
        let count = recorded.len();
        self.waiting += count;
        for event in recorded {
            let queue = match self.queues.iter_mut().position(|queue| queue.stream == event.stream) {
                Some(at) => &mut self.queues[at],
                None => {
                    self.queues.push(Queue { stream: event.stream, events: VecDeque::new() });
                    self.queues.last_mut().expect("one was just added")
                }
            };
            queue.events.push_back((event, block));
        }
        Ok(count as u32)
    }

    /// Calls `passed` with the block of each event that is complete, without waiting.
    ///
    /// # Errors
    /// The device's own; what was not asked about stays pending.
    pub(super) fn take_complete(&mut self, mut passed: impl FnMut(BlockId)) -> Result<()> {
        if self.waiting == 0 {
            return Ok(());
        }
        for queue in &mut self.queues {
            while let Some((event, _)) = queue.events.front() {
                if !self.events.is_complete(event)? {
                    break;
                }
                if let Some((event, block)) = queue.events.pop_front() {
                    self.waiting -= 1;
                    self.events.recycle([event]);
                    passed(block);
                }
            }
        }
        Ok(())
    }

    /// Waits for every event, and calls `passed` with the block of each.
    ///
    /// # Errors
    /// The device's own; what was not waited for stays pending.
    pub(super) fn take_all(&mut self, mut passed: impl FnMut(BlockId)) -> Result<()> {
        for queue in &mut self.queues {
            while let Some((event, _)) = queue.events.front() {
                self.events.wait(event)?;
                if let Some((event, block)) = queue.events.pop_front() {
                    self.waiting -= 1;
                    self.events.recycle([event]);
                    passed(block);
                }
            }
        }
        Ok(())
    }
}
