//! What a pool may hold: its hard limit, its budget, and what it leaves free for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Budget;
use crate::counters::Counters;
use crate::device::Device;

/// What stood in the way of more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The device has none left.
    Device,
    /// The pool's hard limit.
    HardLimit,
    /// The budget that the pool shares.
    Budget,
    /// The bytes that the pool leaves free on the device.
    Headroom,
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Bytes that the pool may hold.
    pub(crate) hard_limit: u64,
    /// Bytes that must stay free on the device.
    pub(crate) headroom: u64,
    pub(crate) budget: Option<Budget>,
    /// Bytes that the device has, but for those that must stay free.
    pub(crate) on_device: u64,
    /// Bytes that all pools of the context hold together.
    pub(crate) together: Arc<AtomicU64>,
}

impl Limits {
    /// Whether no limit is near: so many bytes more exceed none of them.
    #[inline]
    pub(crate) fn are_far(&self, bytes: u64, counters: &Counters) -> bool {
        let are_below = |held: u64, limit: u64| held.saturating_add(bytes) <= limit;
        // Relaxed: a figure to read.
        are_below(self.together.load(Ordering::Relaxed), self.on_device)
            && are_below(counters.reserved.current(), self.hard_limit)
            && self.budget.as_ref().is_none_or(|budget| budget.has_room(bytes))
    }

    /// Takes `bytes` of the budget if every limit allows it. They are counted as reserved once the device has
    /// given them ([`count`](Self::count)), so that a refusal leaves no high-water mark.
    pub(crate) fn admit(&self, bytes: u64, device: &dyn Device, counters: &Counters) -> Result<(), Shortage> {
        let after = counters.reserved.current().saturating_add(bytes);
        if after > self.hard_limit {
            return Err(Shortage::HardLimit);
        }
        if self.headroom > 0 {
            // A device that cannot say how much is free is asked for the memory itself.
            let free = device.memory_info().map_or(u64::MAX, |info| info.free);
            if free < bytes.saturating_add(self.headroom) {
                return Err(Shortage::Headroom);
            }
        }
        if self.budget.as_ref().is_some_and(|budget| !budget.take(bytes)) {
            return Err(Shortage::Budget);
        }
        Ok(())
    }

    /// Counts what was admitted and given.
    pub(crate) fn count(&self, bytes: u64, counters: &Counters) {
        counters.reserved.raise(bytes);
        // Relaxed, here and below: a figure to read; read-modify-writes never lose an update.
        self.together.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Undoes [`admit`](Self::admit), where the device refused.
    pub(crate) fn refuse(&self, bytes: u64) {
        if let Some(budget) = &self.budget {
            budget.give_back(bytes);
        }
    }

    /// Undoes [`admit`](Self::admit) and [`count`](Self::count).
    pub(crate) fn withdraw(&self, bytes: u64, counters: &Counters) {
        counters.reserved.lower(bytes);
        self.together.fetch_sub(bytes, Ordering::Relaxed);
        self.refuse(bytes);
    }
}
