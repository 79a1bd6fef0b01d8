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
    /// What the pool may hold, with those of its tags: as a budget that no others share.
    pub(crate) hard_limit: Budget,
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
    pub(crate) fn are_far(&self, bytes: u64) -> bool {
        let are_below = |held: u64, limit: u64| held.saturating_add(bytes) <= limit;
        // Relaxed: a figure to read.
        are_below(self.together.load(Ordering::Relaxed), self.on_device)
            && self.hard_limit.has_room(bytes)
            && self.budget.as_ref().is_none_or(|budget| budget.has_room(bytes))
    }

    /// Takes `bytes` of the budgets if every limit allows it. They are counted as reserved once the device has
    /// given them ([`count`](Self::count)), so that a refusal leaves no high-water mark.
    pub(crate) fn admit(&self, bytes: u64, device: &dyn Device) -> Result<(), Shortage> {
        if !self.hard_limit.take(bytes) {
            return Err(Shortage::HardLimit);
        }
        let admitted = self.admit_beside(bytes, device);
        if admitted.is_err() {
            self.hard_limit.give_back(bytes);
        }
        admitted
    }

    /// All limits but the hard limit.
    fn admit_beside(&self, bytes: u64, device: &dyn Device) -> Result<(), Shortage> {
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
        self.hard_limit.give_back(bytes);
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
