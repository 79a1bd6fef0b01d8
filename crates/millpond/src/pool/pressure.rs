//! What happens when memory runs out: a conversation before an error.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::Mutex;

use super::inner::PoolInner;
use crate::device::DevicePtr;
use crate::extents::Refusal;
use crate::host::try_box;
use crate::order::Stream;
use crate::physical::Shortage;
use crate::{Error, HumanBytes, Result};

/// Names a callback registered with [`Pool::on_reclaim`](crate::Pool::on_reclaim).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReclaimId(u64);

/// Names a callback registered with [`Pool::on_out_of_memory`](crate::Pool::on_out_of_memory).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObserverId(u64);

/// Asked when memory is short.
pub(super) type Reclaimer = dyn Fn(u64) -> bool + Send + Sync;

/// Told when memory ran out.
pub(super) type Observer = dyn Fn(&OutOfMemory) + Send + Sync;

/// The callbacks of one kind of one pool, by number.
pub(super) struct Callbacks<F: ?Sized> {
    next: AtomicU64,
    all: Mutex<Vec<(u64, Arc<F>)>>,
    /// How deep each thread is nested that is inside of one now.
    under_way: Mutex<Vec<u32>>,
}

/// Most callbacks nested on threads of their own. On one thread callbacks do not nest; whether a callback waits for
/// another thread cannot be told.
const MOST_NESTED: u32 = 4;

thread_local! {
    /// The callbacks that this thread is inside of, by where they are kept.
    static ENTERED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// As long as this lives, the thread is inside of a callback.
struct InCallback<'a> {
    under_way: &'a Mutex<Vec<u32>>,
    depth: u32,
}

impl Drop for InCallback<'_> {
    fn drop(&mut self) {
        let mut under_way = self.under_way.lock();
        if let Some(at) = under_way.iter().position(|depth| *depth == self.depth) {
            under_way.swap_remove(at);
        }
        // Fails while the thread's variables are being destroyed: nothing is to be known by then.
        let _ = ENTERED.try_with(|entered| entered.borrow_mut().pop());
    }
}

impl<F: ?Sized> Default for Callbacks<F> {
    fn default() -> Self {
        Self { next: AtomicU64::new(0), all: Mutex::default(), under_way: Mutex::default() }
    }
}

impl<F: ?Sized> fmt::Debug for Callbacks<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").field("count", &self.all.lock().len()).finish()
    }
}

impl<F: ?Sized> Callbacks<F> {
    /// Adds a callback, if the pool is this process's, and names it.
    fn add(&self, callback: Arc<F>, is_here: bool) -> u64 {
        // Relaxed: only uniqueness matters.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if is_here {
            self.all.lock().push((number, callback));
        }
        number
    }

    /// Forgets one of them. What it holds is dropped without the lock.
    fn remove(&self, number: u64) -> bool {
        let removed = {
            let mut all = self.all.lock();
            let at = all.iter().position(|(known, _)| *known == number);
            at.map(|at| all.remove(at))
        };
        removed.is_some()
    }

    /// Forgets all of them. What they hold is dropped without the lock.
    fn clear(&self) {
        let all = std::mem::take(&mut *self.all.lock());
        drop(all);
    }

    /// How deep a request that begins now may be nested in callbacks: each that is running may wait for it.
    fn depth(&self) -> u32 {
        self.under_way.lock().iter().max().map_or(0, |deepest| deepest + 1)
    }

    /// Whether there are any that a request of this thread may be asked of.
    pub(super) fn can_be_asked(&self) -> bool {
        let at = std::ptr::from_ref(self).addr();
        let is_entered = ENTERED.try_with(|entered| entered.borrow().contains(&at)).unwrap_or(true);
        !is_entered && !self.all.lock().is_empty()
    }

    /// To be entered before a callback is called; `None` where the depth is too great, or where this thread is inside
    /// one already: it would be asked for its own requests, without end.
    fn enter(&self, depth: u32) -> Option<InCallback<'_>> {
        let at = std::ptr::from_ref(self).addr();
        if depth >= MOST_NESTED {
            return None;
        }
        let entered = ENTERED.try_with(|entered| {
            let mut entered = entered.borrow_mut();
            let is_new = !entered.contains(&at);
            let is_new = is_new && entered.try_reserve(1).is_ok();
            if is_new {
                entered.push(at);
            }
            is_new
        });
        // Not made where nothing was entered: its end leaves.
        if !entered.unwrap_or(false) {
            return None;
        }
        let mut under_way = self.under_way.lock();
        if under_way.try_reserve(1).is_err() {
            // Not by the end of an `InCallback`, which looks for its depth.
            let _ = ENTERED.try_with(|entered| entered.borrow_mut().pop());
            return None;
        }
        under_way.push(depth);
        Some(InCallback { under_way: &self.under_way, depth })
    }

    /// Those that are registered now, in that order. The lock is not held in between: they may register and remove others.
    fn each(&self) -> impl Iterator<Item = Arc<F>> {
        let mut next = 0;
        // Relaxed: a number.
        let end = self.next.load(Ordering::Relaxed);
        std::iter::from_fn(move || {
            let all = self.all.lock();
            let left = all.iter().filter(|(number, _)| (next..end).contains(number));
            let (number, callback) = left.min_by_key(|(number, _)| *number)?;
            next = number + 1;
            Some(callback.clone())
        })
    }
}

impl PoolInner {
    pub(super) fn add_reclaimer(&self, reclaimer: Arc<Reclaimer>) -> ReclaimId {
        ReclaimId(self.reclaimers.add(reclaimer, self.is_here()))
    }

    pub(super) fn remove_reclaimer(&self, ReclaimId(number): ReclaimId) -> bool {
        self.is_here() && self.reclaimers.remove(number)
    }

    pub(super) fn add_observer(&self, observer: Arc<Observer>) -> ObserverId {
        ObserverId(self.observers.add(observer, self.is_here()))
    }

    pub(super) fn remove_observer(&self, ObserverId(number): ObserverId) -> bool {
        self.is_here() && self.observers.remove(number)
    }

    /// Lets go of all callbacks: nobody can allocate any more, and what they hold may be memory of this pool, which
    /// would hold the pool.
    pub(super) fn forget_callbacks(&self) {
        self.reclaimers.clear();
        self.observers.clear();
    }
}

/// An out-of-memory error's account of where the memory is. Bytes throughout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The pool's name.
    pub pool: String,
    /// Bytes asked for.
    pub requested: u64,
    /// What stood in the way of more memory.
    pub limit: Limit,
    /// Bytes in live blocks of the pool.
    pub live: u64,
    /// Live blocks of the pool.
    pub blocks: u64,
    /// Bytes that the pool holds but that are in no live block.
    pub cached: u64,
    /// Physical bytes that the pool holds.
    pub reserved: u64,
    /// Bytes that other pools of this context hold.
    pub other_pools: u64,
    /// Bytes free on the device, as its driver counts.
    pub device_free: u64,
    /// Bytes that the device has.
    pub device_total: u64,
    /// Bytes of the longest free range.
    pub largest_free: u64,
}

/// What stood in the way of more memory. Bytes throughout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The device has none left.
    Device,
    /// The pool's hard limit.
    HardLimit(u64),
    /// The budget that the pool shares with others: its limit, and what all of them hold.
    Budget {
        /// The budget.
        limit: u64,
        /// What all pools under it hold.
        held: u64,
    },
    /// The bytes that the pool leaves free on the device.
    Headroom(u64),
}

impl OutOfMemory {
    /// What would have let the request succeed.
    pub fn advice(&self) -> String {
        let ours = self.reserved + self.other_pools;
        let others = self.device_total.saturating_sub(self.device_free).saturating_sub(ours);
        let free_some = self.what_to_free();
        match (self.limit, free_some) {
            (Limit::HardLimit(limit), _) if self.requested > limit => format!(
                "ask for less, or raise the pool's hard limit of {}: no free makes that much room",
                HumanBytes(limit)
            ),
            (Limit::Budget { limit, .. }, _) if self.requested > limit => format!(
                "ask for less, or raise the budget of {}: no free makes that much room",
                HumanBytes(limit)
            ),
            (Limit::Device, _) if self.requested > self.device_total => format!(
                "ask for less: the whole device has {}, of which other allocators and processes hold {}",
                HumanBytes(self.device_total),
                HumanBytes(others)
            ),
            (Limit::HardLimit(limit), Some(free_some)) => {
                format!("{free_some}, or raise the pool's hard limit of {}", HumanBytes(limit))
            }
            (Limit::HardLimit(limit), None) => format!(
                "raise the pool's hard limit of {}: memory is taken in whole pages",
                HumanBytes(limit)
            ),
            (Limit::Budget { limit, held }, _) => format!(
                "the pools of this budget hold {} of {}: trim or free in any of them, or raise the budget",
                HumanBytes(held),
                HumanBytes(limit)
            ),
            (Limit::Headroom(headroom), Some(free_some)) => {
                format!("lower the pool's headroom of {}, or {free_some}", HumanBytes(headroom))
            }
            (Limit::Headroom(headroom), None) => {
                format!("lower the pool's headroom of {}", HumanBytes(headroom))
            }
            (Limit::Device, Some(free_some)) => format!(
                "{free_some}; other allocators and processes hold {} of the device",
                HumanBytes(others)
            ),
            (Limit::Device, None) => format!(
                "nothing of this pool is live; other pools hold {}, and other allocators and processes {} of the device",
                HumanBytes(self.other_pools),
                HumanBytes(others)
            ),
        }
    }

    /// What frees in the pool would have to be of; `None` where nothing is live.
    fn what_to_free(&self) -> Option<String> {
        match self.requested.checked_sub(self.cached) {
            _ if self.live == 0 => None,
            Some(lacking @ 1..) if lacking <= self.live => {
                Some(format!("free {} of live blocks", HumanBytes(lacking)))
            }
            Some(1..) => Some("free what is live, which alone is not enough".to_owned()),
            // Whole pages would have been used, or given back.
            _ => Some("free live blocks that share a page with what is cached".to_owned()),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory in pool '{}': {} requested; {} live in {} block{}, {} cached, {} reserved, {} in other \
             pools; the longest free range has {}; the device has {} free of {}. What would help: {}",
            self.pool,
            HumanBytes(self.requested),
            HumanBytes(self.live),
            self.blocks,
            if self.blocks == 1 { "" } else { "s" },
            HumanBytes(self.cached),
            HumanBytes(self.reserved),
            HumanBytes(self.other_pools),
            HumanBytes(self.largest_free),
            HumanBytes(self.device_free),
            HumanBytes(self.device_total),
            self.advice()
        )
    }
}

impl PoolInner {
    /// Tries again after each step that may have made room, from the cheapest to the dearest. The pool's
    /// lock is never held while the host waits or a callback runs.
    #[cold]
    pub(super) fn alloc_under_pressure(
        &self,
        (bytes, align): (u64, u64),
        stream: &Stream,
        first: Refusal,
    ) -> Result<DevicePtr> {
        let depths = (self.reclaimers.depth(), self.observers.depth());
        let mut what = self.shortage_of(first)?;
        let request = bytes.next_multiple_of(align);
        let reclaim = self.reclaimers.each().map(|reclaimer| PressureStep::Reclaim(reclaimer, depths.0));
        let steps = [
            PressureStep::WaitForFences,
            PressureStep::ReleaseSome,
            PressureStep::ReleaseAll,
            PressureStep::TrimOthers,
        ];
        let mut is_impossible = false;
        for step in steps.into_iter().chain(reclaim) {
            if let Some(limit) = self.what_forbids_now(bytes) {
                (what, is_impossible) = (limit, true);
                break;
            }
            let may_have_made_room = self.take_step(&step, request)?;
            // A callback may have forked: the child is as new, and the lock may be another thread's that is gone.
            self.check_process()?;
            if !may_have_made_room {
                continue;
            }
            self.count_retry();
            match self.try_alloc((bytes, align), stream)? {
                Ok(ptr) => return Ok(ptr),
                Err(refusal) => what = self.shortage_of(refusal)?,
            }
        }
        let report = self.out_of_memory(bytes, what, is_impossible);
        self.recording.out_of_memory(bytes, report.device_free, stream);
        tracing::warn!(%report, "out of memory");
        if let Some(_entered) = self.observers.enter(depths.1) {
            self.observers.each().for_each(|observer| observer(&report));
        }
        match try_box(report) {
            // SAFETY: made as a box has it, and nobody else knows it.
            Some(report) => Err(Error::OutOfMemory(unsafe { Box::from_raw(report.as_ptr()) })),
            None => {
                Err(self
                    .no_host_memory("the account of an out-of-memory error", size_of::<OutOfMemory>() as u64))
            }
        }
    }

    /// The limit that makes a request of so many bytes impossible.
    fn what_forbids_now(&self, bytes: u64) -> Option<Shortage> {
        self.what_forbids_with(self.caches.sizes().units(bytes), self.others_live(bytes)?)
    }

    /// What memory was short of; another refusal is the caller's error.
    fn shortage_of(&self, refusal: Refusal) -> Result<Shortage> {
        match refusal {
            Refusal::Short { what, bytes } => {
                tracing::debug!(pool = self.name, ?what, bytes, "short of memory");
                Ok(what)
            }
            Refusal::Host { what, bytes } => Err(Error::HostMemory { what, bytes, pool: self.name_of() }),
            Refusal::Device(error) => Err(self.error_of(error)),
        }
    }

    /// Takes one step; `false` where it cannot have made room.
    fn take_step(&self, step: &PressureStep, request: u64) -> Result<bool> {
        match step {
            PressureStep::WaitForFences => {
                let let_go = self.let_go_of_released();
                let fence = self.fence_of_all_free();
                if fence.is_empty() {
                    return Ok(let_go);
                }
                self.timelines.wait_on_host(&fence)?;
                self.state.lock().arena.reap();
                Ok(true)
            }
            PressureStep::ReleaseSome => {
                let keep = self.counters.reserved.current().saturating_sub(request);
                Ok(self.trim(keep)? > 0)
            }
            // Worth a try also where nothing is left: a request that failed has given back its own pages, of
            // whatever size.
            PressureStep::ReleaseAll => self.trim(0).map(|_| true).map_err(Error::from),
            PressureStep::TrimOthers => self.trim_others(),
            PressureStep::Reclaim(reclaimer, depth) => {
                Ok(self.reclaimers.enter(*depth).is_some_and(|_entered| reclaimer(request)))
            }
        }
    }

    /// Lets the other pools of the device give back what they cache, once the work on it is complete.
    fn trim_others(&self) -> Result<bool> {
        let mut released = false;
        for other in self.others() {
            released |= other.let_go_of_released();
            let fence = other.fence_of_all_free();
            self.timelines.wait_on_host(&fence)?;
            released |= other.trim(0)? > 0;
        }
        Ok(released)
    }

    fn count_retry(&self) {
        // Counts are written under the lock.
        let _state = self.state.lock();
        self.counters.retries.add(1);
    }

    fn out_of_memory(&self, requested: u64, what: Shortage, is_impossible: bool) -> OutOfMemory {
        let device = self.timelines.device().memory_info().unwrap_or_default();
        // Relaxed: a figure to read.
        let all = self.limits.together.load(Ordering::Relaxed);
        let mut state = self.state.lock();
        if !is_impossible {
            // For the longest free range. What was not tried leaves everything as it was.
            self.empty_caches(&mut state);
        }
        self.counters.out_of_memory.add(1);
        let limits = &self.limits;
        let stats = self.stats();
        OutOfMemory {
            pool: self.name_of(),
            requested,
            limit: match (what, &limits.budget) {
                (Shortage::HardLimit, _) => Limit::HardLimit(limits.hard_limit),
                (Shortage::Headroom, _) => Limit::Headroom(limits.headroom),
                (Shortage::Budget, Some(budget)) => {
                    Limit::Budget { limit: budget.limit(), held: budget.held() }
                }
                (Shortage::Budget, None) | (Shortage::Device, _) => Limit::Device,
            },
            live: stats.allocated.current,
            blocks: stats.blocks.current,
            cached: stats.cached(),
            reserved: stats.reserved.current,
            other_pools: all.saturating_sub(stats.reserved.current),
            device_free: device.free,
            device_total: device.total,
            largest_free: state.arena.largest_free(),
        }
    }
}

/// A step that may make room.
enum PressureStep {
    /// Wait on the host until everything free is complete, so that every stream may use it and steal from it.
    WaitForFences,
    /// Give back about as much as was asked for: pages of other sizes may be had for it.
    ReleaseSome,
    /// Give back everything that is free.
    ReleaseAll,
    /// Let the other pools of the device give back what they cache.
    TrimOthers,
    /// Ask the program, for a request that is nested so deep.
    Reclaim(Arc<Reclaimer>, u32),
}
