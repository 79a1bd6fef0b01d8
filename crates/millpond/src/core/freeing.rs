//! One free, as a ladder, like an allocation's.
//!
//! 1. Onto the thread's magazine: the fast path ([`Caches::free`](crate::cache::Caches::free)).
//! 2. Without the pool's lock: the same where lock entries are closed, where a magazine gets its first room, or where a full
//!    one can bring its older half to the depot.
//! 3. Under it, a block that no other stream used: 2 again, with the thread's cache open. Else the arena takes it.
//! 4. Under it, any other block: the arena takes it, behind the fence of all streams that used it.
//! 5. What is no live block is a mistake of the program's, and said so.

use super::giving_back::unlock_freed;
use super::pool_core::{Core, PoolState};
use crate::device::{DeviceError, DevicePtr};
use crate::error::{Error, Result};
use crate::order::Stream;
use crate::record::Moment;

/// Frees a block. The fast path is one call, which takes no lock.
///
/// # Safety
/// As for [`Pool::free`](crate::Pool::free).
#[inline]
pub(crate) unsafe fn free(core: &Core, ptr: DevicePtr, stream: &Stream) -> Result<()> {
    if core.caches.free(ptr, stream) { Ok(()) } else { free_slow(core, ptr, stream) }
}

/// Climbs the ladder from its second rung on. Where it is to be recorded, notes the free at a time when nobody else
/// could have the block yet.
#[cold]
fn free_slow(core: &Core, ptr: DevicePtr, stream: &Stream) -> Result<()> {
    core.check_process()?;
    let asks = core.recording.asks_free_of(ptr);
    let noted = if asks { requested_at(core, ptr).ok().zip(Some(Moment::now())) } else { None };
    let freed = match &core.wrapping {
        Some(wrapping) => wrapping.free(core, ptr, stream),
        None => free_block(core, ptr, stream),
    };
    if let Some((requested, before)) = noted
        && freed.is_ok()
    {
        core.recording.free(ptr, requested, stream, before);
    }
    freed
}

/// Frees a block, of which nobody is told.
pub(crate) fn free_block(core: &Core, ptr: DevicePtr, stream: &Stream) -> Result<()> {
    if core.caches.free_without_entry(ptr, stream) {
        return Ok(());
    }
    core.check_stream(stream)?;
    if ptr.is_null() {
        return Ok(());
    }
    let mut state = core.lock_noting_waits();
    if !free_plain(core, &mut state, ptr, stream) {
        let kept = core.holds.keep(ptr, || stream.fence());
        let free =
            |is_kept| if is_kept { Ok(()) } else { core.free_in_arena(&mut state, ptr, stream.fence()) };
        if let Err(pointer) = kept.and_then(free) {
            drop(state);
            return Err(core.misuse(ptr, pointer));
        }
    }
    unlock_freed(core, state);
    Ok(())
}

/// Bytes asked for in the live block that starts at `ptr`. Takes the lock only where the descriptor of the block does not say.
pub(crate) fn requested_at(core: &Core, ptr: DevicePtr) -> Result<u64> {
    core.check_process()?;
    if let Some((_, bytes)) = core.part_at(ptr) {
        return Ok(bytes);
    }
    match core.caches.page_map.find_plain(ptr) {
        Some(plain) => Ok(plain.descriptor.requested()),
        None => core.with_live(ptr, |arena, id| arena.requested(id)),
    }
}

/// Frees a live block of the pool's own arena, of which no other stream's uses are recorded. `false`, and nothing
/// done, where it is none, or another thread was first.
fn free_plain(core: &Core, state: &mut PoolState, ptr: DevicePtr, stream: &Stream) -> bool {
    let plain = core.caches.page_map.find_plain(ptr).map(|plain| plain.descriptor);
    let Some(descriptor) = plain else { return false };
    let (locked, arena) = state.for_caches();
    let size = descriptor.bytes();
    let opened = core.caches.open_to_free(locked, descriptor, stream, arena);
    if opened && core.caches.free_without_entry(ptr, stream) {
        return true;
    }
    if !descriptor.claim(ptr) {
        return false;
    }
    let requested = descriptor.requested();
    let freed = state.arenas.own.take_back(descriptor, stream.fence());
    if freed {
        core.caches.count_free(&mut state.locked, requested, size);
    }
    freed
}

/// Notes that work on `stream`, of the pool's own device, uses a live block.
pub(crate) fn record_use(core: &Core, ptr: DevicePtr, stream: &Stream) -> Result<()> {
    let noted = core.with_live(ptr, |arena, id| {
        arena.record_use(id, stream).then(|| core.recording.record_use(ptr, stream))
    });
    noted?.ok_or_else(|| no_list_of_streams(core))
}

#[cold]
fn no_list_of_streams(core: &Core) -> Error {
    core.no_host_memory("a list of streams", 2 * size_of::<(u64, u64)>() as u64)
}

/// Orders what comes next after the work that was noted to use the block: on this stream, or on the host.
pub(crate) fn order_after_uses(core: &Core, ptr: DevicePtr, next: Option<&Stream>) -> Result<()> {
    let uses = core.with_live(ptr, |arena, id| arena.uses(id))?;
    let uses = uses.ok_or_else(|| no_list_of_streams(core))?;
    if let Some(stream) = next
        && core.timelines.make_wait(&uses, stream.timeline())?
    {
        return Ok(());
    }
    core.timelines.wait_on_host(&uses)?;
    if core.timelines.is_complete(&uses) {
        return Ok(());
    }
    // A capture cannot be waited for.
    let what = "a stream that uses the buffer is being captured: end the capture first".to_owned();
    Err(DeviceError::Invalid { call: "Buffer", what }.into())
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{Scope, scope};

    use super::*;
    use crate::extents::BlockDescriptor;
    use crate::fixtures::{Bench, Freeing};
    use crate::pool::Pool;

    const BYTES: u64 = 4096;

    type Task = Box<dyn FnOnce() + Send>;

    /// A thread that does what it is told, one step after the other.
    fn thread<'scope>(scope: &'scope Scope<'scope, '_>) -> Sender<(Task, Sender<()>)> {
        let (send, steps) = channel::<(Task, Sender<()>)>();
        scope.spawn(move || {
            for (step, done) in steps {
                step();
                done.send(()).unwrap();
            }
        });
        send
    }

    fn run<R: Send + 'static>(
        thread: &Sender<(Task, Sender<()>)>,
        step: impl FnOnce() -> R + Send + 'static,
    ) -> R {
        let ((done, is_done), (result, results)) = (channel(), channel());
        thread.send((Box::new(move || result.send(step()).unwrap()), done)).unwrap();
        is_done.recv().unwrap();
        results.recv().unwrap()
    }

    /// A pool and a stream, whose blocks of `BYTES` find room in the magazines of the calling thread and of another.
    struct DoubleFree {
        pool: Pool,
        stream: Stream,
        other: Option<Sender<(Task, Sender<()>)>>,
    }

    impl DoubleFree {
        fn new<'scope>(scope: &'scope Scope<'scope, '_>) -> Self {
            let Bench { pool, stream, .. } = Bench::new(|pool| pool);
            let new = Self { pool, stream, other: Some(thread(scope)) };
            let (mine, others) = (new.alloc(3), new.alloc_there(3));
            mine.into_iter().for_each(|ptr| new.free(ptr));
            others.into_iter().for_each(|ptr| new.free_there(ptr));
            new
        }

        fn alloc(&self, count: usize) -> Vec<DevicePtr> {
            (0..count).map(|_| self.pool.alloc(BYTES, &self.stream).unwrap()).collect()
        }

        fn free(&self, ptr: DevicePtr) {
            self.pool.free_block(ptr, &self.stream).unwrap();
        }

        fn there<R: Send + 'static>(&self, step: impl FnOnce(&Pool, &Stream) -> R + Send + 'static) -> R {
            let (pool, stream) = (self.pool.clone(), self.stream.clone());
            run(self.other.as_ref().expect("it has not ended"), move || step(&pool, &stream))
        }

        fn alloc_there(&self, count: usize) -> Vec<DevicePtr> {
            self.there(move |pool, stream| {
                (0..count).map(|_| pool.alloc(BYTES, stream).unwrap()).collect::<Vec<_>>()
            })
        }

        fn free_there(&self, ptr: DevicePtr) {
            self.there(move |pool, stream| pool.free_block(ptr, stream).unwrap());
        }

        fn descriptor(&self, ptr: DevicePtr) -> &BlockDescriptor {
            self.pool.inner().caches.page_map.find(ptr).expect("the block is allocated")
        }

        /// The calling thread frees a block, and the other one as well, as if it had looked at the same time. The
        /// descriptor is left as the one that wrote it last left it.
        fn free_twice(&self, ptr: DevicePtr, mine_is_last: bool) {
            self.free(ptr);
            let mine = self.descriptor(ptr).place();
            self.descriptor(ptr).make_live(ptr, BYTES);
            self.free_there(ptr);
            if mine_is_last {
                self.descriptor(ptr).move_to(mine);
            }
        }

        /// Of a block that both have a copy of, the other thread wrote the descriptor last.
        fn free_there_last(&self, ptr: DevicePtr) {
            let mine = self.descriptor(ptr).place();
            let theirs = self.there(move |pool, stream| {
                // Where the thread's next block of this length goes is where the copy lies.
                let other = pool.alloc_aligned(BYTES, 8192, stream).unwrap();
                pool.free_block(other, stream).unwrap();
                pool.inner().caches.page_map.find(other).expect("the block is allocated").place()
            });
            assert_ne!(mine, theirs);
            self.descriptor(ptr).move_to(theirs);
        }

        /// The other thread ends, and gives back to the arena what it cached.
        fn end_other(&mut self) {
            self.other = None;
            while self.pool.inner().caches.threads_inside() > 1 {
                // Whatever it gives back, it collects what threads that ended cached.
                self.pool.trim_to(u64::MAX).unwrap();
                std::thread::yield_now();
            }
        }

        /// Everything that is live, of blocks of `BYTES` and one of another length, lies apart.
        fn assert_apart(live: &[DevicePtr], other: Option<(DevicePtr, u64)>) {
            let range = |(ptr, bytes): (DevicePtr, u64)| ptr.raw()..ptr.raw() + bytes;
            let mut all: Vec<Range<u64>> = live.iter().map(|ptr| range((*ptr, BYTES))).collect();
            all.extend(other.map(range));
            all.sort_by_key(|range| range.start);
            assert!(all.windows(2).all(|two| two[0].end <= two[1].start), "{all:x?}");
        }

        fn assert_sound(&self, live: u64, is_cut_anew: bool) {
            self.pool.trim_to(0).unwrap();
            let stats = self.pool.stats();
            assert_eq!((stats.double_frees, stats.blocks.current), (1, live));
            assert_eq!(stats.allocations, stats.frees + live);
            // What a copy was counted with is not known once its block was handed out again with another length.
            if !is_cut_anew {
                assert_eq!(stats.allocated.current, live * BYTES);
                self.pool.check().unwrap();
            }
        }
    }

    #[test]
    fn a_block_freed_twice_at_once_is_handed_out_once() {
        for mine_is_last in [false, true] {
            scope(|scope| {
                let bench = DoubleFree::new(scope);
                let ptr = bench.alloc(1)[0];
                bench.free_twice(ptr, mine_is_last);
                let mut live = bench.alloc(8);
                assert_eq!(live[0] == ptr, mine_is_last);
                live.extend(bench.alloc_there(8));
                assert!(live.contains(&ptr));
                DoubleFree::assert_apart(&live, None);
                bench.assert_sound(16, false);
                live.into_iter().for_each(|ptr| bench.free(ptr));
                bench.assert_sound(0, false);
            });
        }
    }

    #[test]
    fn a_block_freed_twice_goes_back_to_the_arena_once() {
        for mine_is_last in [false, true] {
            scope(|scope| {
                let bench = DoubleFree::new(scope);
                let ptr = bench.alloc(1)[0];
                bench.free_twice(ptr, mine_is_last);
                bench.assert_sound(0, false);
                assert_eq!(bench.pool.reserved().current, 0);
            });
        }
    }

    /// Both are misuse that was seen, of the thread that came second.
    #[test]
    fn after_two_frees_at_once_a_third_is_an_error() {
        scope(|scope| {
            let bench = DoubleFree::new(scope);
            let ptr = bench.alloc(1)[0];
            bench.free_twice(ptr, false);
            let again = bench.pool.free_block(ptr, &bench.stream);
            assert!(matches!(again, Err(Error::DoubleFree { .. })));
            bench.assert_sound(0, false);
        });
    }

    #[test]
    fn what_became_of_a_stray_is_not_handed_out() {
        // Which thread wrote last, and whether its free was still under way when the arena took the block back.
        for (mine_is_last, is_late) in [(false, false), (true, false), (false, true)] {
            scope(|scope| {
                let mut bench = DoubleFree::new(scope);
                let ptr = bench.alloc(1)[0];
                let page_map = bench.pool.inner().caches.page_map.clone();
                let descriptor = page_map.find(ptr).expect("the block is allocated");
                bench.free_twice(ptr, true);
                let mine = descriptor.place();
                if !mine_is_last {
                    bench.free_there_last(ptr);
                }
                bench.end_other();
                if is_late {
                    descriptor.move_to(mine);
                }
                // Of another length, over where the block was.
                let long = bench.pool.alloc(500 << 10, &bench.stream).unwrap();
                let live = bench.alloc(8);
                DoubleFree::assert_apart(&live, Some((long, 500 << 10)));
                assert_eq!(live[0] == ptr, mine_is_last);
                bench.free(long);
                bench.assert_sound(8, true);
            });
        }
    }

    #[test]
    fn a_stray_takes_no_block_from_its_present_owner() {
        scope(|scope| {
            let bench = DoubleFree::new(scope);
            let ptr = bench.alloc(1)[0];
            bench.free_twice(ptr, true);
            // Live again: the copy of the other thread must neither be handed out nor go to the arena.
            assert_eq!(bench.alloc(1), [ptr]);
            bench.assert_sound(1, false);
            assert_eq!(bench.pool.size_of(ptr).unwrap(), BYTES);
            bench.free(ptr);
            bench.assert_sound(0, false);
        });
    }

    #[test]
    fn a_stray_in_the_depot_is_not_handed_out() {
        scope(|scope| {
            let bench = DoubleFree::new(scope);
            let mut live = bench.alloc(500);
            let ptr = live.pop().unwrap();
            bench.free_twice(ptr, false);
            // The magazine with the copy is full, and its older half goes to the depot.
            live.into_iter().for_each(|ptr| bench.free(ptr));
            let mut live = bench.alloc_there(300);
            live.extend(bench.alloc(300));
            DoubleFree::assert_apart(&live, None);
            bench.assert_sound(600, false);
        });
    }

    #[test]
    fn an_arena_takes_no_block_back_that_is_not_out() {
        scope(|scope| {
            let bench = DoubleFree::new(scope);
            let ptr = bench.alloc(1)[0];
            let mut state = bench.pool.inner().state.lock();
            let (arena, descriptor) = (&mut state.arenas.own, bench.descriptor(ptr));
            assert!(!arena.take_back(descriptor, bench.stream.fence()), "the program has it");
            descriptor.claim(ptr);
            assert!(arena.take_back(descriptor, bench.stream.fence()));
            assert!(!arena.take_back(descriptor, bench.stream.fence()));
            assert!(!arena.free(descriptor.id(), bench.stream.fence()));
        });
    }
}
