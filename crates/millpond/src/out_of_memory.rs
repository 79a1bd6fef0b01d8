//! The report of an out-of-memory error: where the memory is, and what would help.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::device::MemoryKind;
use crate::figures::stats::HumanBytes;
use crate::figures::tenant::Tenant;
use crate::policy::watching::MOST_TENANTS;

/// An out-of-memory error's account of where the memory is. Bytes throughout.
///
/// ```
/// use millpond::device::sim::{SimDevice, SimOptions};
/// use millpond::{Context, Error, Limit, Pool};
///
/// let device = Context::new(SimDevice::new(SimOptions::default().capacity(64 << 20))?);
/// let pool = Pool::builder(&device).build()?;
/// let stream = device.create_stream()?;
/// let Err(Error::OutOfMemory(report)) = pool.alloc(65 << 20, &stream) else { panic!("it fits") };
/// assert_eq!((report.limit, report.requested), (Limit::Device, 65 << 20));
/// println!("{report}"); // all of it, in words
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The pool's name.
    pub pool: String,
    /// What the pool's memory is. *The device*, below, is what has that memory: the host, for pinned memory.
    pub memory: MemoryKind,
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
    /// Bytes that the pool may still take from the device under every limit, in whole pages.
    pub room: u64,
    /// Bytes that other pools of this context hold.
    pub other_pools: u64,
    /// Bytes free on the device, as its driver counts.
    pub device_free: u64,
    /// Bytes that the device has.
    pub device_total: u64,
    /// Bytes of the longest free range.
    pub largest_free: u64,
    /// The other processes under the pool's [named budget](crate::Budget::named), those that hold most first.
    pub tenants: Vec<Tenant>,
}

/// What stood in the way of more memory. Bytes throughout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    /// What would have let the request succeed, as one phrase: "raise hard_limit, or request less".
    #[must_use]
    pub fn advice(&self) -> String {
        let free = self.what_to_free();
        match (self.limit, free) {
            (Limit::HardLimit(limit), _) if self.requested > limit => {
                "raise hard_limit, or request less".to_owned()
            }
            (Limit::HardLimit(_), Some(free)) => format!("{free}, or raise hard_limit"),
            (Limit::HardLimit(_), None) => "raise hard_limit: memory is taken in whole pages".to_owned(),
            (Limit::Budget { limit, .. }, _) if self.requested > limit => {
                "raise the budget, or request less".to_owned()
            }
            (Limit::Budget { .. }, _) if self.lacking() > 0 => {
                let lacking = HumanBytes(self.lacking());
                format!("free or trim {lacking} in any of its pools, or raise the budget")
            }
            (Limit::Budget { .. }, _) => "free or trim in any of its pools, or raise the budget".to_owned(),
            (Limit::Headroom(_), Some(free)) => format!("{free}, or lower headroom"),
            (Limit::Headroom(_), None) => "lower headroom".to_owned(),
            (Limit::Device, _) if self.requested > self.device_total => "request less".to_owned(),
            (Limit::Device, Some(free)) => free,
            (Limit::Device, None) => format!("free memory elsewhere on the {}", self.owner()),
        }
    }

    /// Bytes of live blocks that have to be freed in the pool for the request to succeed. `None` where that alone is not
    /// enough. It is exact where nothing is cached and the blocks are of whole pages. Else it may be more: what is cached on a
    /// page with a live block is not yet the request's.
    #[must_use]
    pub fn to_free(&self) -> Option<u64> {
        Some(self.lacking()).filter(|lacking| (1..=self.live).contains(lacking))
    }

    /// Bytes that neither the cache nor the room under the limits has.
    fn lacking(&self) -> u64 {
        self.requested.saturating_sub(self.cached).saturating_sub(self.room)
    }

    /// What has the memory.
    fn owner(&self) -> &'static str {
        if self.memory == MemoryKind::Pinned { "host" } else { "device" }
    }

    /// What was requested, and what stood in the way, by the name of the setting.
    fn cause(&self) -> String {
        let (requested, owner) = (HumanBytes(self.requested), self.owner());
        let (what, limit) = match self.limit {
            Limit::HardLimit(limit) => ("hard_limit is", limit),
            Limit::Budget { limit, held } if self.requested <= limit => {
                let (held, limit) = (HumanBytes(held), HumanBytes(limit));
                return format!("{requested} requested, but the pools of its budget hold {held} of {limit}");
            }
            Limit::Budget { limit, .. } => ("the budget is", limit),
            Limit::Headroom(headroom) => {
                let headroom = HumanBytes(headroom);
                return format!("{requested} requested, but headroom keeps {headroom} of the {owner} free");
            }
            Limit::Device if self.requested <= self.device_total => {
                let free = HumanBytes(self.device_free);
                return format!("{requested} requested, but the {owner} has {free} free");
            }
            Limit::Device if owner == "host" => ("the whole host has", self.device_total),
            Limit::Device => ("the whole device has", self.device_total),
        };
        // Two figures that read the same would not say why.
        if requested.to_string() == HumanBytes(limit).to_string() {
            return format!("{} bytes requested, but {what} {limit} bytes", self.requested);
        }
        format!("{requested} requested, but {what} {}", HumanBytes(limit))
    }

    /// How much to free in the pool; `None` where nothing is live.
    fn what_to_free(&self) -> Option<String> {
        match (self.to_free(), self.lacking()) {
            _ if self.live == 0 => None,
            (Some(free), _) => {
                let about = if self.cached > 0 { "about " } else { "" };
                Some(format!("free {about}{} of live blocks", HumanBytes(free)))
            }
            // Whole pages would have been used, or given back.
            (None, 0) => Some("free live blocks that share a page with what is cached".to_owned()),
            (None, _) => Some("free the live blocks, which alone is not enough".to_owned()),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ours = self.reserved + self.other_pools;
        let others = self.device_total.saturating_sub(self.device_free).saturating_sub(ours);
        let kind = match self.memory {
            MemoryKind::Device => "",
            MemoryKind::Pinned => "pinned host ",
            MemoryKind::Managed => "managed ",
        };
        let Self { pool, blocks, .. } = self;
        let (cause, advice, owner) = (self.cause(), self.advice(), self.owner());
        let s = if *blocks == 1 { "" } else { "s" };
        let [live, cached, reserved, largest] =
            [self.live, self.cached, self.reserved, self.largest_free].map(HumanBytes);
        let [free, total, other_pools, others] =
            [self.device_free, self.device_total, self.other_pools, others].map(HumanBytes);
        write!(
            f,
            "out of {kind}memory in pool '{pool}': {cause}: {advice}. The pool has {live} live in {blocks} block{s}, \
             {cached} cached, {reserved} reserved; its longest free range is {largest}. The {owner} has {free} free of \
             {total}; other pools hold {other_pools}, other allocators and processes {others}",
        )?;
        let lists = |at: usize| if at == 0 { ". Under the budget" } else { "," };
        let (largest, others) = self.tenants.split_at(self.tenants.len().min(MOST_TENANTS));
        largest.iter().enumerate().try_for_each(|(at, tenant)| write!(f, "{} {tenant}", lists(at)))?;
        if others.is_empty() {
            return Ok(());
        }
        let held = others.iter().fold(0, |sum: u64, tenant| sum.saturating_add(tenant.held));
        write!(f, ", {} others hold {}", others.len(), HumanBytes(held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A report of a pool that holds 10 MiB, of which 8 are live, on a device of 1 GiB.
    fn report(requested: u64, limit: Limit) -> OutOfMemory {
        OutOfMemory {
            pool: "weights".to_owned(),
            memory: MemoryKind::Device,
            requested,
            limit,
            live: 8 * MIB,
            blocks: 1,
            cached: 2 * MIB,
            reserved: 10 * MIB,
            room: 0,
            other_pools: 0,
            device_free: 500 * MIB,
            device_total: 1 << 30,
            largest_free: MIB,
            tenants: Vec::new(),
        }
    }

    #[test]
    fn a_report_names_the_setting_and_all_figures() {
        assert_eq!(
            report(1 << 30, Limit::HardLimit(256 * MIB)).to_string(),
            "out of memory in pool 'weights': 1.00 GiB requested, but hard_limit is 256.00 MiB: raise hard_limit, or \
             request less. The pool has 8.00 MiB live in 1 block, 2.00 MiB cached, 10.00 MiB reserved; its longest free \
             range is 1.00 MiB. The device has 500.00 MiB free of 1.00 GiB; other pools hold 0 B, other allocators and \
             processes 514.00 MiB"
        );
    }

    #[test]
    fn each_limit_has_its_cause_and_advice() {
        let said = |requested, limit| {
            let text = report(requested, limit).to_string();
            text[text.find(": ").unwrap() + 2..text.find(". The pool").unwrap()].to_owned()
        };
        assert_eq!(
            said(6 * MIB, Limit::HardLimit(12 * MIB)),
            "6.00 MiB requested, but hard_limit is 12.00 MiB: free about 4.00 MiB of live blocks, or raise hard_limit"
        );
        assert_eq!(
            said(64 * MIB, Limit::Budget { limit: 32 * MIB, held: 10 * MIB }),
            "64.00 MiB requested, but the budget is 32.00 MiB: raise the budget, or request less"
        );
        assert_eq!(
            said(16 * MIB, Limit::Budget { limit: 32 * MIB, held: 30 * MIB }),
            "16.00 MiB requested, but the pools of its budget hold 30.00 MiB of 32.00 MiB: free or trim 14.00 MiB \
             in any of its pools, or raise the budget"
        );
        assert_eq!(
            said(6 * MIB, Limit::Headroom(512 * MIB)),
            "6.00 MiB requested, but headroom keeps 512.00 MiB of the device free: free about 4.00 MiB of live blocks, \
             or lower headroom"
        );
        assert_eq!(
            said(2 << 30, Limit::Device),
            "2.00 GiB requested, but the whole device has 1.00 GiB: request less"
        );
        assert_eq!(
            said(600 * MIB, Limit::Device),
            "600.00 MiB requested, but the device has 500.00 MiB free: free the live blocks, which alone is not enough"
        );
    }

    #[test]
    fn the_five_largest_tenants_are_named() {
        let tenant = |pid: u32| Tenant {
            pid,
            program: "python".to_owned(),
            held: MIB * u64::from(10 - pid),
            floor: 0,
            claim: 0,
        };
        let of = |count| OutOfMemory {
            tenants: (1..=count).map(tenant).collect(),
            ..report(MIB, Limit::Budget { limit: MIB, held: MIB })
        };
        let named = of(7).to_string();
        assert!(named.contains("process 5 (python) holds 5.00 MiB, 2 others hold 7.00 MiB"), "{named}");
        assert!(of(5).to_string().ends_with("process 5 (python) holds 5.00 MiB"));
    }

    #[test]
    fn the_room_under_the_limit_need_not_be_freed() {
        let of = |live, requested, room| {
            let limit = Limit::HardLimit(64 * MIB);
            OutOfMemory { live: live * MIB, cached: 0, room: room * MIB, ..report(requested * MIB, limit) }
                .advice()
        };
        assert_eq!(of(58, 10, 6), "free 4.00 MiB of live blocks, or raise hard_limit");
        assert_eq!(of(16, 60, 48), "free 12.00 MiB of live blocks, or raise hard_limit");
    }

    #[test]
    fn a_report_of_pinned_memory_speaks_of_the_host() {
        let text = OutOfMemory { memory: MemoryKind::Pinned, ..report(600 * MIB, Limit::Device) }.to_string();
        assert!(text.starts_with(
            "out of pinned host memory in pool 'weights': 600.00 MiB requested, but the host has"
        ));
        assert!(
            text.contains("The host has 500.00 MiB free of 1.00 GiB") && !text.contains("device"),
            "{text}"
        );
    }

    #[test]
    fn two_figures_never_read_the_same() {
        let text = report((256 << 20) + 1, Limit::HardLimit(256 << 20)).to_string();
        assert!(text.contains("268435457 bytes requested, but hard_limit is 268435456 bytes"), "{text}");
    }
}
