//! What happens when memory runs out: a conversation before an error.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::inner::PoolInner;
use crate::arena::Refusal;
use crate::device::DevicePtr;
use crate::order::Stream;
use crate::pages::Shortage;
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
}

thread_local! {
    /// The callbacks that this thread is inside of, by where they are kept.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// As long as this lives, the thread is inside of a callback.
struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        // Fails while the thread's variables are being destroyed: nothing is to be known by then.
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().pop());
    }
}

impl<F: ?Sized> Default for Callbacks<F> {
    fn default() -> Self {
        Self { next: AtomicU64::new(0), all: Mutex::default() }
    }
}

impl<F: ?Sized> fmt::Debug for Callbacks<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").field("count", &self.all.lock().len()).finish()
    }
}

impl<F: ?Sized> Callbacks<F> {
    fn add(&self, callback: Arc<F>) -> u64 {
        // Relaxed: only uniqueness matters.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.all.lock().push((number, callback));
        number
    }

    fn remove(&self, number: u64) -> bool {
        let all = &mut self.all.lock();
        let before = all.len();
        all.retain(|(known, _)| *known != number);
        all.len() < before
    }

    /// Forgets all of them. What they hold is dropped without the lock.
    fn clear(&self) {
        let all = std::mem::take(&mut *self.all.lock());
        drop(all);
    }

    /// Before one of them is called; `None` where this thread is inside of one already. It would be asked for what it
    /// asks for itself, without end.
    fn enter(&self) -> Option<Inside> {
        let at = std::ptr::from_ref(self).addr();
        let entered = INSIDE.try_with(|inside| {
            let mut inside = inside.borrow_mut();
            let is_new = !inside.contains(&at);
            if is_new {
                inside.push(at);
            }
            is_new
        });
        // Not made where nothing was entered: its end leaves.
        if entered.unwrap_or(false) { Some(Inside) } else { None }
    }

    /// A copy, so that callbacks run without the lock and may register others.
    fn list(&self) -> Vec<Arc<F>> {
        self.all.lock().iter().map(|(_, callback)| callback.clone()).collect()
    }
}

impl PoolInner {
    pub(super) fn add_reclaimer(&self, reclaimer: Arc<Reclaimer>) -> ReclaimId {
        ReclaimId(self.reclaimers.add(reclaimer))
    }

    pub(super) fn remove_reclaimer(&self, ReclaimId(number): ReclaimId) -> bool {
        self.reclaimers.remove(number)
    }

    pub(super) fn add_observer(&self, observer: Arc<Observer>) -> ObserverId {
        ObserverId(self.observers.add(observer))
    }

    pub(super) fn remove_observer(&self, ObserverId(number): ObserverId) -> bool {
        self.observers.remove(number)
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
    /// Tries again after each thing that may have made room, from the cheapest to the dearest. The pool's
    /// lock is never held while the host waits or a callback runs.
    #[cold]
    pub(super) fn alloc_under_pressure(
        &self,
        (bytes, align): (u64, u64),
        stream: &Stream,
        first: Refusal,
    ) -> Result<DevicePtr> {
        let mut what = self.shortage_of(first)?;
        let request = bytes.next_multiple_of(align);
        let reclaimers = self.reclaimers.list();
        let reclaim = reclaimers.iter().map(|reclaimer| Step::Reclaim(reclaimer.clone()));
        let steps = [Step::WaitForFences, Step::ReleaseSome, Step::ReleaseAll, Step::TrimOthers];
        for step in steps.into_iter().chain(reclaim) {
            if !self.take_step(&step, request)? {
                continue;
            }
            self.count_retry();
            match self.try_alloc((bytes, align), stream)? {
                Ok(ptr) => return Ok(ptr),
                Err(refusal) => what = self.shortage_of(refusal)?,
            }
        }
        let report = self.out_of_memory(bytes, what);
        self.recording.out_of_memory(bytes, report.device_free, stream);
        tracing::warn!(%report, "out of memory");
        if let Some(_inside) = self.observers.enter() {
            self.observers.list().iter().for_each(|observer| observer(&report));
        }
        Err(Error::OutOfMemory(Box::new(report)))
    }

    /// What memory was short of; another refusal is the caller's error.
    fn shortage_of(&self, refusal: Refusal) -> Result<Shortage> {
        match refusal {
            Refusal::Short { what, bytes } => {
                tracing::debug!(pool = self.name, ?what, bytes, "short of memory");
                Ok(what)
            }
            Refusal::Host { what, bytes } => Err(Error::HostMemory { what, bytes, pool: self.name.clone() }),
            Refusal::Device(error) => Err(error.into()),
        }
    }

    /// Does one thing that may make room; `false` where it cannot have made any.
    fn take_step(&self, step: &Step, request: u64) -> Result<bool> {
        match step {
            Step::WaitForFences => {
                let fence = self.fence_of_all_free();
                if fence.is_empty() {
                    return Ok(false);
                }
                self.timelines.wait_on_host(&fence)?;
                self.state.lock().arena.reap();
                Ok(true)
            }
            Step::ReleaseSome => {
                let keep = self.counters.reserved.current().saturating_sub(request);
                Ok(self.trim(keep)? > 0)
            }
            // Worth a try also where nothing is left: a request that failed has given back its own pages, of
            // whatever size.
            Step::ReleaseAll => self.trim(0).map(|_| true).map_err(Error::from),
            Step::TrimOthers => self.trim_others(),
            Step::Reclaim(reclaimer) => Ok(self.reclaimers.enter().is_some_and(|_inside| reclaimer(request))),
        }
    }

    /// Lets the other pools of the device give back what they cache, once the work on it is complete.
    fn trim_others(&self) -> Result<bool> {
        let mut released = 0;
        for other in self.others() {
            let fence = other.fence_of_all_free();
            self.timelines.wait_on_host(&fence)?;
            released += other.trim(0)?;
        }
        Ok(released > 0)
    }

    fn others(&self) -> Vec<Arc<PoolInner>> {
        let all = self.registry.upgrade().map(|registry| registry.pools()).unwrap_or_default();
        all.into_iter().filter(|other| !std::ptr::eq(&**other, self)).collect()
    }

    fn count_retry(&self) {
        // Counts are written under the lock.
        let _state = self.state.lock();
        self.counters.retries.add(1);
    }

    fn out_of_memory(&self, requested: u64, what: Shortage) -> OutOfMemory {
        let device = self.timelines.device().memory_info().unwrap_or_default();
        let other_pools = self.others().iter().map(|other| other.counters.reserved.current()).sum();
        let mut state = self.state.lock();
        self.empty_caches(&mut state);
        self.counters.out_of_memory.add(1);
        let limits = state.arena.limits();
        let stats = self.stats();
        OutOfMemory {
            pool: self.name.clone(),
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
            other_pools,
            device_free: device.free,
            device_total: device.total,
            largest_free: state.arena.largest_free(),
        }
    }
}

/// One thing that may make room.
enum Step {
    /// Wait on the host until everything free is complete, so that every stream may use it and steal from it.
    WaitForFences,
    /// Give back about as much as was asked for: pages of other sizes may be had for it.
    ReleaseSome,
    /// Give back everything that is free.
    ReleaseAll,
    /// Let the other pools of the device give back what they cache.
    TrimOthers,
    /// Ask the program.
    Reclaim(Arc<Reclaimer>),
}
