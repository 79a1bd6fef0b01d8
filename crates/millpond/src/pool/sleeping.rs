//! Sleep and wake: a pool gives its memory to others, and gets it back at the same addresses.
//!
//! **How a pool falls asleep.** Nobody may give work on its memory to the device any more (`sleep_gate`), and the host waits
//! for the device. Under the pool's lock, the caches are emptied, and what is free goes back. Then page by page: the live
//! bytes are copied to pinned memory (`staging`), and the page goes back once its copies are complete. The copies of later
//! pages run meanwhile. Extents and the places of pages stay as they are.
//!
//! **How it wakes.** Pages that hold no live byte any more are forgotten. Each of the others gets memory, is mapped where it
//! was, and its bytes are copied back, while the next ones are mapped.
//!
//! **When a call fails.** A page whose bytes are *kept* can go and come again at any time, and no other page can go. So
//! wherever a sleep fails, it wakes what has gone. Wherever a wake fails, what has come goes back. If that fails too, the
//! pool sleeps, some of its pages do not, and each call can be made again.

use std::collections::VecDeque;
#[cfg(any(feature = "cudarc", test))]
use std::ops::Deref;
use std::ops::Range;
#[cfg(any(feature = "cudarc", test))]
use std::sync::Arc;

use super::Pool;
use super::asleep::{Asleep, Keep};
use super::capture_memory::MemoryId;
use super::emptying_caches::take_back;
use super::inner::{PoolInner, PoolState};
use super::other_processes::MOST_ASKED;
use super::sleep_gate::Awake;
use super::staging::{Copies, Mark};
use crate::device::{DeviceError, DeviceResult, MemoryKind};
use crate::extents::{Arena, Refusal};
use crate::physical::{Budget, Shortage};
use crate::{Error, Result};

/// Batches that are given to the device in advance.
const AHEAD: usize = 2;

impl Pool {
    /// Gives all of the pool's memory back to the device. Addresses stay, and so do live blocks: [`wake`](Self::wake) brings
    /// them back to where they were, so that captured graphs can be replayed. Pools of [tags](Self::tagged) sleep with it.
    /// Returns the bytes given back.
    ///
    /// It waits for the device. Until the pool is awake, its memory must not be used. What safe code asks of the pool or its
    /// buffers is refused with [`Error::Asleep`]. Blocks may be freed. The page `docs/sleep.md` says more.
    ///
    /// Pinned memory for the bytes stays with the pool for the next sleep: to prepare it takes longer than to copy.
    /// [`trim_staging`](Self::trim_staging) gives it back.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Keep, Pool};
    ///
    /// let device = Context::host()?;
    /// let pool = Pool::builder(&device).build()?;
    /// let stream = device.create_stream()?;
    /// let weights = Buffer::from_slice(&pool, &[1.0_f32; 1000], &stream)?;
    /// let at = weights.ptr();
    /// pool.sleep(Keep::InPinnedMemory)?;
    /// assert_eq!(pool.reserved().current, 0);
    /// // … others use the memory …
    /// pool.wake()?;
    /// assert_eq!((weights.ptr(), weights.to_vec()?), (at, vec![1.0; 1000]));
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// If it fails, the pool is awake, or [sleeps](Self::is_asleep) and holds some of its memory still. Both can be tried
    /// again. To put a pool to sleep that sleeps gives that back, or does nothing.
    ///
    /// # Errors
    /// [`Error::CannotSleep`] for a pool of pinned or managed memory, on a device without virtual memory, while other
    /// processes may use [shared](crate::Buffer::share) blocks, while a buffer of the module `cudarc` lives, and while a graph is
    /// being captured. [`Error::PoolDestroyed`], or the device's own, such as [`DeviceError::OutOfMemory`] where the host has
    /// too little pinned memory.
    ///
    /// [`DeviceError::OutOfMemory`]: crate::device::DeviceError::OutOfMemory
    pub fn sleep(&self, keep: Keep) -> Result<u64> {
        let mut given_back = self.inner.sleep(keep)?;
        for of_tag in self.of_tags() {
            given_back += of_tag.sleep(keep)?;
        }
        Ok(given_back)
    }

    /// Ends a [sleep](Self::sleep): takes memory again, and maps it where it was. Returns once all bytes are in place. A pool
    /// that is awake stays as it is.
    ///
    /// If it fails, the pool sleeps as before, and loses nothing. Make room, and try again.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where memory is lacking, also after the context's other pools gave back what they cache. Else
    /// the device's own.
    pub fn wake(&self) -> Result<()> {
        self.inner.wake()?;
        self.of_tags().iter().try_for_each(Self::wake)
    }

    /// Whether the pool [sleeps](Self::sleep). Its [tags](Self::tagged) may do otherwise.
    pub fn is_asleep(&self) -> bool {
        self.inner.is_here() && self.inner.state.lock().asleep.is_some()
    }

    /// Gives the pinned memory back that a [sleep](Self::sleep) left, unless the pool sleeps: its own, and that of its
    /// [tags](Self::tagged). Returns the bytes given back.
    ///
    /// # Errors
    /// The device's own; what could not be given back stays.
    pub fn trim_staging(&self) -> Result<u64> {
        self.inner.check_process()?;
        let mut given_back = 0;
        {
            let mut state = self.inner.state.lock();
            if state.asleep.is_none() {
                given_back += state.staging.release()?;
            }
        }
        for of_tag in self.of_tags() {
            given_back += of_tag.trim_staging()?;
        }
        Ok(given_back)
    }
}

/// A pool that is not put to sleep as long as this lives: for memory that somebody's safe code uses without a question to
/// the pool.
#[cfg(any(feature = "cudarc", test))]
pub(crate) struct KeptAwake(Arc<PoolInner>);

#[cfg(any(feature = "cudarc", test))]
impl Deref for KeptAwake {
    type Target = PoolInner;

    fn deref(&self) -> &PoolInner {
        &self.0
    }
}

#[cfg(any(feature = "cudarc", test))]
impl Drop for KeptAwake {
    fn drop(&mut self) {
        self.0.sleep_gate.move_out();
    }
}

impl PoolInner {
    /// See [`KeptAwake`].
    #[cfg(any(feature = "cudarc", test))]
    pub(crate) fn keep_awake(self: &Arc<Self>) -> Result<KeptAwake> {
        self.check_process()?;
        if self.sleep_gate.move_in() { Ok(KeptAwake(self.clone())) } else { Err(self.error_asleep()) }
    }

    /// Until this is dropped, the pool does not fall asleep. Who gives work on its memory to the device has one.
    pub(crate) fn stay_awake(&self) -> Result<Awake<'_>> {
        self.sleep_gate.enter().ok_or_else(|| self.error_asleep())
    }

    #[cold]
    fn error_asleep(&self) -> Error {
        Error::Asleep { pool: self.name_of() }
    }

    pub(super) fn check_not_destroyed(&self) -> Result<()> {
        if self.state.lock().destroyed {
            return Err(Error::PoolDestroyed { pool: self.name_of() });
        }
        Ok(())
    }

    /// Refuses an allocation of a pool that was destroyed, or sleeps.
    #[inline]
    pub(super) fn check_allocates(&self, state: &PoolState) -> Result<()> {
        if state.destroyed {
            return Err(Error::PoolDestroyed { pool: self.name_of() });
        }
        if state.asleep.is_some() { Err(self.error_asleep()) } else { Ok(()) }
    }

    fn check_can_sleep(&self) -> Result<()> {
        let properties = self.device.properties();
        let why = match properties.memory {
            MemoryKind::Pinned => "its memory is the host's already",
            MemoryKind::Managed => "managed memory cannot be mapped again at its addresses",
            MemoryKind::Device if self.is_of_others => "its memory is another process's",
            MemoryKind::Device if properties.virtual_memory => return Ok(()),
            MemoryKind::Device => {
                "the device cannot map memory again at its addresses (virtual memory management)"
            }
        };
        Err(self.cannot_sleep(why))
    }

    fn cannot_sleep(&self, why: &'static str) -> Error {
        Error::CannotSleep { pool: self.name_of(), why }
    }

    // ---- sleep -----------------------------------------------------------------------------------

    fn sleep(&self, keep: Keep) -> Result<u64> {
        self.check_process()?;
        self.check_can_sleep()?;
        // One at a time, with wakes: else the one that fails could open the gate of another.
        let _turn = self.sleep_turn.lock();
        self.sleep_gate.close();
        let slept = self.sleep_behind_gate(keep);
        if self.state.lock().asleep.is_none() {
            self.sleep_gate.open();
        }
        slept
    }

    fn sleep_behind_gate(&self, keep: Keep) -> Result<u64> {
        if self.sleep_gate.has_residents() {
            return Err(self.cannot_sleep(
                "buffers of the module cudarc live, which cudarc uses without asking the pool: drop them first, or use \
                 millpond::Buffer",
            ));
        }
        // Without the pool's lock: the device may be waiting for a function of the host that uses the pool.
        if !self.timelines.synchronize_device_unless_capturing()? {
            return Err(self.cannot_sleep(
                "a graph is being captured, which a wait for the device would end: end the capture first",
            ));
        }
        self.collect_shares();
        let mut state = self.state.lock();
        if state.destroyed {
            return Err(Error::PoolDestroyed { pool: self.name_of() });
        }
        // Under the lock, under which blocks are shared.
        if self.shares.any() {
            return Err(
                self.cannot_sleep("other processes may use blocks of it: wait until they have let go")
            );
        }
        let before = self.counters.reserved.current();
        self.sleep_under_lock(&mut state, keep).map_err(|error| self.error_of(error))?;
        Ok(before - self.counters.reserved.current())
    }

    fn sleep_under_lock(&self, state: &mut PoolState, keep: Keep) -> DeviceResult<()> {
        let mut asleep = match state.asleep.take() {
            Some(asleep) => asleep,
            None => {
                let PoolState { arena, locked, .. } = &mut *state;
                self.caches.pause(locked, |cached| take_back(arena, cached));
                self.prepare_sleep(state, keep).inspect_err(|_| self.resume_caches(state))?
            }
        };
        let slept = self.put_pages_to_sleep(state, &mut asleep);
        if slept.is_err() && asleep.pages.iter().any(|page| !page.is_kept) {
            // Some bytes are in their pages only. So those that have gone come back.
            match self.wake_pages(state, &mut asleep) {
                Ok(()) => {
                    self.resume_caches(state);
                    return slept;
                }
                Err(refusal) => {
                    tracing::warn!(?refusal, pool = self.name, "a sleep failed, and so did the wake after it")
                }
            }
        }
        state.asleep = Some(asleep);
        slept
    }

    /// Caches again, unless a capture has a route: the caches stay paused until its end.
    pub(super) fn resume_caches(&self, state: &mut PoolState) {
        if self.routes.is_empty() {
            self.caches.resume(&mut state.locked);
        }
    }

    /// Gives back what is free, lists what will sleep, and takes pinned memory for what is to be kept.
    fn prepare_sleep(&self, state: &mut PoolState, keep: Keep) -> DeviceResult<Asleep> {
        state.captured.trim_all();
        state.arena.trim(0)?;
        let mut asleep = Asleep { pages: Vec::new(), pieces: Vec::new() };
        asleep.add(&mut state.arena, None, keep)?;
        for (id, arena) in state.captured.iter_mut() {
            asleep.add(arena, Some(id), keep)?;
        }
        state.staging.lengthen(self.timelines.device().as_ref(), asleep.bytes())?;
        Ok(asleep)
    }

    /// Copies what is to be kept of each page, and lets the page go once that is done. A page that cannot go is no reason to
    /// keep the others.
    fn put_pages_to_sleep(&self, state: &mut PoolState, asleep: &mut Asleep) -> DeviceResult<()> {
        let copies = Copies::new(self.timelines.device().as_ref())?;
        let slept = copy_and_go(state, asleep, &copies);
        if slept.is_err() {
            // Copies may be under way, and their pages may be used again.
            copies.wait()?;
        }
        slept
    }

    // ---- wake ------------------------------------------------------------------------------------

    fn wake(&self) -> Result<()> {
        self.check_process()?;
        if let Some(what) = self.wake_in_turn()? {
            return Err(self.out_of_memory_awaking(what));
        }
        // What was put off.
        self.let_go_of_released();
        Ok(())
    }

    /// What is short where there is no memory. Others of this process are asked for it first, then other processes.
    fn wake_in_turn(&self) -> Result<Option<Shortage>> {
        let _turn = self.sleep_turn.lock();
        let mut patience = self.limits.budget.as_ref().and_then(Budget::patience);
        let mut short = None;
        for asked in 0..=MOST_ASKED {
            let Err(refusal) = self.wake_under_lock() else {
                self.sleep_gate.open();
                return Ok(None);
            };
            let (what, at_once) = self.shortage_of(refusal)?;
            short = Some(what);
            let has_made_room = (asked == 0 && self.trim_others()?)
                || self.ask_processes(self.counters.asleep.current(), (what, at_once), &mut patience);
            if !has_made_room {
                break;
            }
        }
        Ok(short)
    }

    fn wake_under_lock(&self) -> std::result::Result<(), Refusal> {
        let mut state = self.state.lock();
        let Some(mut asleep) = state.asleep.take() else { return Ok(()) };
        state.forget_asleep();
        state.join_asleep(&mut asleep);
        if let Err(refusal) = self.wake_pages(&mut state, &mut asleep) {
            state.asleep = Some(asleep);
            return Err(refusal);
        }
        self.resume_caches(&mut state);
        Ok(())
    }

    /// Wakes all pages that are kept. If that fails, they sleep again, as far as they can.
    fn wake_pages(&self, state: &mut PoolState, asleep: &mut Asleep) -> std::result::Result<(), Refusal> {
        let copies = Copies::new(self.timelines.device().as_ref())?;
        let woken = bring_back(state, asleep, &copies);
        // Also after an error: copies may be under way.
        let copied = copies.wait();
        if woken.is_ok() && copied.is_ok() {
            return Ok(());
        }
        if copied.is_ok() {
            for page in asleep.pages.iter().filter(|page| page.is_kept) {
                let Some(arena) = state.arena_named(page.of) else { continue };
                if let Err(error) = arena.put_to_sleep(&page.page) {
                    tracing::warn!(%error, pool = self.name, "a wake failed, and a page could not go again");
                }
            }
        }
        woken.and(copied.map_err(Refusal::from))
    }
}

/// See [`PoolInner::put_pages_to_sleep`].
fn copy_and_go(state: &mut PoolState, asleep: &mut Asleep, copies: &Copies<'_>) -> DeviceResult<()> {
    let mut ahead: VecDeque<(Range<usize>, Mark<'_>)> = VecDeque::new();
    if ahead.try_reserve_exact(AHEAD + 1).is_err() {
        let bytes = ((AHEAD + 1) * size_of::<(Range<usize>, Mark<'_>)>()) as u64;
        return Err(DeviceError::HostMemory { what: "a list of copies", bytes });
    }
    let (mut next, mut gone) = (0, Ok(()));
    while next < asleep.pages.len() || !ahead.is_empty() {
        if next < asleep.pages.len() {
            let batch = asleep.batch_from(next);
            next = batch.end;
            asleep.for_each_run_to_keep(batch.clone(), |run| {
                state.staging.for_each_part((run.offset, run.bytes), |done, staging, bytes| {
                    // SAFETY: the pages are mapped, and nobody uses them while the gate is closed. Nobody else has the
                    // staging memory.
                    unsafe { copies.copy(staging, run.at.offset(done), bytes) }
                })
            })?;
            ahead.push_back((batch, copies.mark()?));
        }
        if (ahead.len() > AHEAD || next == asleep.pages.len())
            && let Some((batch, copied)) = ahead.pop_front()
        {
            copied.wait()?;
            for page in &mut asleep.pages[batch] {
                page.is_kept = true;
                let went = state.arena_named(page.of).map_or(Ok(()), |arena| arena.put_to_sleep(&page.page));
                gone = gone.and(went);
            }
        }
    }
    gone
}

/// Maps what is kept, and gives the copies to the device.
fn bring_back(
    state: &mut PoolState,
    asleep: &Asleep,
    copies: &Copies<'_>,
) -> std::result::Result<(), Refusal> {
    for page in asleep.pages.iter().filter(|page| page.is_kept) {
        let Some(arena) = state.arena_named(page.of) else { continue };
        if !arena.wake(&page.page)? {
            continue;
        }
        for piece in &asleep.pieces[page.pieces.clone()] {
            state.staging.for_each_part((piece.offset, piece.bytes), |done, staging, bytes| {
                // SAFETY: the page is mapped, and nobody uses it while the gate is closed. The staging memory stays.
                unsafe { copies.copy(piece.at.offset(done), staging, bytes) }
            })?;
        }
    }
    Ok(())
}

impl PoolState {
    /// The memory of a capture, or the pool's own.
    fn arena_named(&mut self, of: Option<MemoryId>) -> Option<&mut Arena> {
        match of {
            None => Some(&mut self.arena),
            Some(id) => self.captured.get_mut(id),
        }
    }

    /// Forgets the pages that sleep and hold no live byte. Those that a graph may use stay.
    fn forget_asleep(&mut self) {
        let captured = self.captured.iter_mut().map(|(_, arena)| arena);
        for arena in captured.filter(|arena| !arena.keeps()).chain([&mut self.arena]) {
            if let Err(error) = arena.forget_asleep() {
                tracing::warn!(%error, "memory of a pool that sleeps could not be given back");
            }
        }
    }

    /// Joins short pages that have gone: the fewer there are, the faster they wake.
    fn join_asleep(&mut self, asleep: &mut Asleep) {
        asleep
            .join(|of, first, next| self.arena_named(of).is_some_and(|arena| arena.join_asleep(first, next)));
        self.arena.forget_whole();
        self.captured.iter().for_each(|(_, arena)| arena.forget_whole());
    }

    /// The pool is at its end, and nothing in it is live: it needs not wake.
    pub(super) fn end_sleep(&mut self) {
        if self.asleep.take().is_some() {
            self.forget_asleep();
        }
        if let Err(error) = self.staging.release() {
            tracing::warn!(%error, "pinned memory of a pool could not be given back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sleep_gate::SleepGate;
    use super::*;
    use crate::fixtures::{Bench, Freeing};

    #[test]
    fn a_pool_is_not_put_to_sleep_while_it_is_kept_awake() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let block = pool.alloc(1 << 20, &stream).unwrap();
        let held = pool.reserved().current;
        let kept = [pool.inner().keep_awake().unwrap(), pool.inner().keep_awake().unwrap()];
        for kept in kept {
            let refused = pool.sleep(Keep::Nothing).unwrap_err();
            assert!(matches!(refused, Error::CannotSleep { why, .. } if why.contains("drop them first")));
            assert_eq!((pool.is_asleep(), pool.reserved().current), (false, held));
            assert!(pool.inner().stay_awake().is_ok(), "its memory can be used");
            drop(kept);
        }
        assert_eq!(pool.sleep(Keep::Nothing), Ok(held));
        assert!(matches!(pool.inner().keep_awake(), Err(Error::Asleep { .. })));
        pool.wake().unwrap();
        drop(pool.inner().keep_awake().unwrap());
        pool.free_block(block, &stream).unwrap();
    }

    #[test]
    fn who_comes_while_a_sleep_begins_is_refused() {
        let gate = SleepGate::default();
        gate.close();
        assert!(!gate.move_in(), "the sleep looked for residents, or is about to");
        assert!(!gate.has_residents());
        gate.open();
        assert!(gate.move_in() && gate.has_residents());
        gate.close();
        gate.move_out();
        assert!(!gate.has_residents());
    }
}
