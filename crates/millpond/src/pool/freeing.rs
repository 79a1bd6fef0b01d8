//! How a pool frees: into the thread's magazines, without a lock; or under it, where there is no room, other streams used
//! the block, or it is none.

use super::beyond_caches::take_back;
use super::inner::{PoolInner, State};
use crate::Result;
use crate::arena::{BlockId, Entry, Pointer};
use crate::device::DevicePtr;
use crate::order::Stream;
use crate::record::Moment;

impl PoolInner {
    /// Frees a block. The fast path is one call, which takes no lock.
    ///
    /// # Safety
    /// As for [`Pool::free`](crate::Pool::free).
    #[inline]
    pub(crate) unsafe fn free(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        if self.caches.free(ptr, stream) { Ok(()) } else { self.free_slow(ptr, stream) }
    }

    #[cold]
    fn free_slow(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        if self.recording.is_on() {
            self.free_recorded(ptr, stream)
        } else {
            self.free_unrecorded(ptr, stream)
        }
    }

    /// Frees, and notes it as of a time when nobody else could have the block yet. What is no live block is
    /// an error, and not noted.
    fn free_recorded(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        let before = Moment::now();
        if let Some(requested) = self.caches.free_wide(ptr, stream) {
            self.recording.free(ptr, requested, stream, before);
            return Ok(());
        }
        let requested = if ptr.is_null() { None } else { self.requested(ptr) };
        self.free_unrecorded(ptr, stream)?;
        if let Some(requested) = requested {
            self.recording.free(ptr, requested, stream, before);
        }
        Ok(())
    }

    /// Bytes asked for in the live block that starts at `ptr`; `None` where there is none. Takes the lock
    /// only where the entry of the block does not say.
    fn requested(&self, ptr: DevicePtr) -> Option<u64> {
        if let Some(entry) = self.views.find(ptr).filter(|entry| entry.is_plain(ptr)) {
            return Some(entry.requested());
        }
        let mut state = self.state.lock();
        match state.look_up(ptr) {
            Pointer::Live(id) => Some(state.arena_of(ptr).requested(id)),
            _ => None,
        }
    }

    /// Frees under the lock: what has no room in the thread's magazines, is used by other streams, or is no
    /// live block at all.
    fn free_unrecorded(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        let entry = self.views.find(ptr).filter(|entry| entry.is_plain(ptr));
        // Nearly always of a large block, while a program does not repeat itself, there is no room.
        if entry.is_some_and(|entry| self.caches.may_take(entry.bytes()))
            && self.caches.free_wide(ptr, stream).is_some()
        {
            return Ok(());
        }
        self.check_stream(stream)?;
        if ptr.is_null() {
            return Ok(());
        }
        let last_of_destroyed = {
            let mut state = self.lock_noting_waits();
            // Another thread may have freed it just now, which would be a mistake.
            let plain = entry.filter(|entry| entry.is_plain(ptr));
            match plain.filter(|_| state.captured.is_empty() && !state.destroyed) {
                // Nearly always: what has no room in a magazine.
                Some(entry) => self.free_plain(&mut state, entry, stream),
                None => {
                    let pointer = state.look_up(ptr);
                    let Pointer::Live(id) = pointer else {
                        drop(state);
                        return Err(self.misuse(ptr, pointer));
                    };
                    self.free_under_lock(&mut state, ptr, id, stream);
                }
            }
            state.destroyed && self.counted().blocks.current == 0
        };
        if last_of_destroyed {
            self.give_all_back_slow();
        }
        Ok(())
    }

    fn free_under_lock(&self, state: &mut State, ptr: DevicePtr, id: BlockId, stream: &Stream) {
        if let Some(captured) = state.captured_at(ptr) {
            return self.free_captured(state, captured, id, stream);
        }
        let plain = self.views.find(ptr).filter(|entry| entry.is_plain(ptr));
        match plain.filter(|_| !state.destroyed) {
            Some(entry) => self.free_plain(state, entry, stream),
            None => {
                let State { arena, locked, .. } = state;
                let (requested, size) = (arena.requested(id), arena.bytes(id));
                arena.free(id, stream.fence());
                self.caches.count_free(locked, requested, size);
            }
        }
    }

    /// Frees a live block of the pool's own arena, of which no other stream's uses are recorded.
    fn free_plain(&self, state: &mut State, entry: &Entry, stream: &Stream) {
        let State { arena, locked, .. } = state;
        let each = |cached| take_back(arena, cached);
        if self.caches.put_slow(locked, entry, stream, &self.counters.high, each) {
            return;
        }
        let (requested, size) = (entry.requested(), entry.bytes());
        arena.free(entry.id(), stream.fence());
        self.caches.count_free(locked, requested, size);
    }

    pub(crate) fn record_use(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        self.check_stream(stream)?;
        self.with_live(ptr, |arena, id| {
            arena.record_use(id, stream);
            self.recording.record_use(ptr, stream);
        })
    }
}
