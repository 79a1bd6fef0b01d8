//! Searching caches: blocks that the fast path missed, found without the pool's lock.

use super::inner::PoolInner;
use crate::cache::Found;
use crate::device::DevicePtr;
use crate::order::{Admission, Stream};

impl PoolInner {
    /// A block from the thread's magazines, where they have to be searched, or from the depot.
    #[inline]
    pub(super) fn alloc_searching_caches(&self, bytes: u64, stream: &Stream) -> Option<DevicePtr> {
        if !self.caches.may_have(bytes) && !self.caches.in_throughput_mode() {
            return None;
        }
        if self.caches.must_ask(bytes) {
            let asked = self.caches.alloc_asking(&mut self.lock_noting_waits().locked, bytes, stream);
            if asked.is_some() {
                return asked;
            }
        }
        let found = self.caches.alloc_searching(bytes, stream);
        let of_other = || {
            if self.caches.in_throughput_mode() { self.alloc_of_other_stream(bytes, stream) } else { None }
        };
        let Found { ptr, is_narrow } = found.or_else(of_other)?;
        // Later, if the lock is taken now.
        if is_narrow && let Some(mut state) = self.state.try_lock() {
            let units = self.caches.sizes().units_in_throughput_mode(bytes);
            self.caches.widen(&mut state.locked, units, stream);
        }
        Some(ptr)
    }

    /// A block that another stream freed, once the stream is ordered after that one.
    fn alloc_of_other_stream(&self, bytes: u64, stream: &Stream) -> Option<Found> {
        let seen = self.caches.find_of_other_stream(bytes, stream)?;
        match self.timelines.admit(&seen.fence(), stream.timeline(), self.reuse.get()) {
            Ok(Admission::Ready) => {}
            Ok(Admission::Waits) => self.counters.stream_waits_without_lock.add(1),
            Ok(Admission::Refused) => return None,
            Err(error) => {
                tracing::warn!(%error, "a stream could not be ordered after another");
                return None;
            }
        }
        self.caches.alloc_of_other_stream(bytes, stream, seen)
    }
}
