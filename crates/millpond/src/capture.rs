//! Captures as programs hold them: whose memory it is, and while it is allocated from.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::core::allocating::{check_request, hand_out};
use crate::core::giving_back::{end_capture, let_go_of_released, outlive_if_needed};
use crate::core::{ArenaId, Filter, HasCore, Route};
use crate::device::DevicePtr;
use crate::error::{Error, Result};
use crate::extents::Arena;
use crate::order::Stream;

/// Memory for what is captured into CUDA graphs. Made by [`Pool::capture_pool`](crate::Pool::capture_pool), which has an
/// example.
///
/// Clones are the same memory. It stays at its addresses, and is shared with nobody, until the last clone is dropped. So
/// keep a clone as long as the graph. Several captures may share it, one after the other, as with PyTorch's shared pools.
/// Then their graphs must be replayed in the order of the captures, and never at the same time.
///
/// Drop the last clone only when no graph that uses the memory is launched again. The host then waits for the device, since
/// a replay may be under way on any stream. What is free goes back to the device. Blocks that are still live stay valid until
/// they are freed. While another capture is under way, this is put off until it ends.
///
/// ```
/// # let device = millpond::Context::host()?;
/// # let pool = millpond::Pool::builder(&device).build()?;
/// # let stream = device.create_stream()?;
/// let memory = pool.capture_pool();
/// {
///     let _capturing = memory.begin(&stream)?;
///     let scratch = millpond::Buffer::<f32>::new(&pool, 1024, &stream)?; // comes from `memory`
///     assert!(memory.allocated() > 0);
/// }
/// assert!(memory.reserved() > 0); // kept for replays of the graph
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct CapturePool {
    claim: Arc<Claim>,
}

/// The right to find the memory as it was left.
#[derive(Debug)]
struct Claim {
    pool: Arc<dyn HasCore>,
    id: ArenaId,
}

/// While this lives, allocations for the streams of a capture come from its memory. [`CapturePool::begin`] makes it;
/// [`Pool::capture_pool`](crate::Pool::capture_pool) has an example.
///
/// Drop it once the capture has ended, on any thread, before or after the graph is instantiated.
/// [Foreign streams](crate::Context::foreign_stream) that were allocated on must be alive until then.
#[derive(Debug)]
#[must_use = "allocations go to the capture's memory only while this lives"]
pub struct Capturing {
    memory: CapturePool,
}

impl CapturePool {
    pub(crate) fn new(pool: Arc<dyn HasCore>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only uniqueness matters.
        let id = ArenaId(NEXT.fetch_add(1, Ordering::Relaxed));
        // In a forked child the pool is the parent's, which has no such memory.
        pool.lock_here().into_iter().for_each(|mut state| state.arenas.add(id));
        Self { claim: Arc::new(Claim { pool, id }) }
    }

    /// Sends the pool's allocations on `stream` to this memory until the guard is dropped. So it does with those on other
    /// streams of the same capture.
    ///
    /// Call it before the capture begins, on any thread. Once it has returned, no other thread's request asks the device
    /// what would end the capture. It may be called later where no other thread uses pools of the context.
    ///
    /// Until the guard is dropped, all other requests of the pool take its lock. Memory that is freed on the captured
    /// streams passes to other streams only once the capture has ended.
    ///
    /// # Errors
    /// [`Error::CaptureUnderWay`] where a guard of this memory lives; [`Error::WrongDevice`], or
    /// [`Error::PoolDestroyed`].
    pub fn begin(&self, stream: &Stream) -> Result<Capturing> {
        self.claim.pool.check_stream(stream)?;
        let first = stream.clone();
        self.begin_where(move |other| {
            // Of a thread's default stream, only that thread can tell.
            let capture_of = |stream: &Stream| {
                let handle = stream.handle_here().ok()?;
                // SAFETY: `other` is presented by who allocates, and `first` is kept, or valid until the capture has ended.
                unsafe { stream.device().capture_of(handle) }.ok().flatten()
            };
            other.id() == first.id() || capture_of(other).is_some_and(|one| capture_of(&first) == Some(one))
        })
    }

    /// As [`begin`](Self::begin), for allocations on streams of which `takes` says so. It is called for each
    /// allocation of the pool, without locks, and must not allocate from the pool. Where several take a stream, the memory that
    /// began last gets the allocation.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin).
    pub fn begin_where(&self, takes: impl Fn(&Stream) -> bool + Send + Sync + 'static) -> Result<Capturing> {
        let Claim { pool, id } = &*self.claim;
        pool.check_process()?;
        pool.check_not_destroyed()?;
        pool.timelines.begin_capture();
        let takes: Arc<Filter> = Arc::new(takes);
        let mut state = pool.state.lock();
        if !pool.routes.add(*id, &takes) {
            drop(state);
            end_capture(pool);
            return Err(Error::CaptureUnderWay { pool: pool.name_of() });
        }
        pool.pause_caches(&mut state);
        Ok(Capturing { memory: self.clone() })
    }

    /// Names the memory among all of this process.
    pub(crate) fn number(&self) -> u64 {
        self.claim.id.0
    }

    /// See [`bindings::alloc_at`](crate::bindings::alloc_at).
    pub(crate) fn alloc_at(&self, block: (DevicePtr, u64), stream: &Stream) -> Result<bool> {
        let Claim { pool, id } = &*self.claim;
        let (ptr, bytes) = block;
        pool.check_process()?;
        check_request(pool, bytes, 1, stream)?;
        if bytes == 0 {
            // Such a block lies nowhere.
            return Ok(false);
        }
        let units = pool.caches.sizes().units(bytes);
        let mut state = pool.state.lock();
        pool.check_allocates(&state)?;
        let found = state.arenas.named_mut(Some(*id)).and_then(|arena| arena.alloc_at(ptr, units));
        let Some(found) = found else { return Ok(false) };
        _ = hand_out(pool, &mut state, &found, bytes);
        drop(state);
        pool.recording.alloc(ptr, bytes, stream);
        Ok(true)
    }

    /// Physical bytes that the memory holds.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.with(Arena::held)
    }

    /// Bytes in live blocks of the memory.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.with(Arena::used)
    }

    /// As [`allocated`](Self::allocated).
    #[deprecated(since = "0.1.0", note = "it is `allocated`, as in `Stats`")]
    #[must_use]
    pub fn used(&self) -> u64 {
        self.allocated()
    }

    fn with(&self, look: impl FnOnce(&Arena) -> u64) -> u64 {
        let Some(mut state) = self.claim.pool.lock_here() else { return 0 };
        state.arenas.named_mut(Some(self.claim.id)).map_or(0, |arena| look(arena))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(mut state) = self.pool.lock_here() else { return };
        state.arenas.release(self.id);
        drop(state);
        let_go_of_released(&self.pool);
        // What could not be let go must not be taken from a replay by the end of the pool.
        outlive_if_needed(&self.pool);
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        let Claim { pool, id } = &*self.memory.claim;
        let Some(mut state) = pool.lock_here() else { return };
        let route = pool.routes.remove(*id);
        pool.resume_caches(&mut state);
        drop(state);
        route.iter().for_each(Route::close_ticks);
        end_capture(pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{Bench, Freeing};

    #[test]
    fn a_refused_capture_frees_what_the_last_one_left() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let memory = pool.capture_pool();
        let capturing = memory.begin(&stream).unwrap();
        let block = pool.alloc(1 << 20, &stream).unwrap();
        pool.free_block(block, &stream).unwrap();
        // It is about to find the route taken while the other one ends.
        pool.inner().timelines.begin_capture();
        drop((capturing, memory));
        assert_eq!(pool.reserved().current, 2 << 20, "the device cannot be waited for yet");
        end_capture(pool.inner());
        assert_eq!(pool.reserved().current, 0);
    }
}
