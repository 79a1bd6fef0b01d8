//! The report of an out-of-memory error: where the memory is, and what would help.

use std::fmt;

use crate::stats::HumanBytes;

/// An out-of-memory error's account of where the memory is. Bytes throughout.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
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
#[non_exhaustive]
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
