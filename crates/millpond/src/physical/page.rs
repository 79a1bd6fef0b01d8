//! One physical page, as the table of [`Pages`](super::Pages) has it.

use std::cell::Cell;
use std::sync::Arc;

use super::handover::{Handover, MappingElsewhere};
use crate::budgets::Shortage;
use crate::device::{DeviceError, DevicePtr, PageHandle, PeerSet};
use crate::order::Fence;

/// Names a page of one pool. Recycled when the page is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageId(pub(crate) u32);

/// How much of a page is there, at one of its addresses. Less than all of it only while its pool sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Presence {
    /// Its memory is the device's again. The handle names nothing.
    Gone,
    /// It has memory, and is not mapped there.
    Unmapped,
    /// It is mapped there, and the device may not use it.
    WithoutAccess,
    /// All of it.
    Whole,
}

/// A page's length is a power of two in base pages, of fewer than 2^32.
pub(super) const LENGTHS: usize = u32::BITS as usize;

/// Where a parked page is linked.
#[derive(Debug, Clone, Copy)]
pub(super) struct ParkedLink {
    pub(super) before: Option<PageId>,
    pub(super) behind: Option<PageId>,
}

/// Parked pages: held, mapped nowhere in use, and the first to be used again. They are linked through their records, by length: to
/// park one, or to take any, costs the same however many there are, and takes no memory of the host's.
#[derive(Debug, Default)]
pub(super) struct Parked {
    /// By the binary logarithm of the length: the one that was parked last.
    pub(super) first: [Option<PageId>; LENGTHS],
}

/// What a page is to the device.
#[derive(Debug, Clone, Copy)]
pub(super) enum Backing {
    Handle(PageHandle),
    /// A segment, which the driver allocated whole. It lies there for ever.
    Segment(DevicePtr),
    /// Another pool has it now ([`passing`](super::passing)). Mappings that it had here are still to be removed.
    Given,
}

/// Base pages of a range of addresses of an arena's: the range's number, the first, and the first behind them.
pub(crate) type Home = (u32, (u64, u64));

/// One physical page.
#[derive(Debug)]
pub(crate) struct Page {
    pub(super) backing: Backing,
    /// Length in base pages.
    pub(crate) base_pages: u32,
    /// Mappings, the one in use and old ones. A page that sleeps has one, too.
    pub(crate) mappings: u32,
    pub(super) presence: Presence,
    /// Where the mapping in use is, as its arena notes it: the range's number, and the first base page.
    pub(crate) home: Option<(u32, u64)>,
    /// The other devices that may use it, through the mapping in use.
    pub(crate) peers: PeerSet,
    pub(super) parked: Option<ParkedLink>,
    /// What it left behind, where its memory is another pool's now.
    pub(super) left: Option<Arc<Handover>>,
    /// The mapping where it was, where it came from another pool.
    pub(super) elsewhere: Option<MappingElsewhere>,
    /// Whether it came from another pool, and nobody has mapped it since.
    pub(super) is_intact: bool,
    /// Whether other devices may use it than may use the mapping that it left behind.
    pub(super) has_new_peers: bool,
    /// How many pages had been created before it.
    pub(super) number: u64,
    /// The number of the last place that it was claimed for, while somebody plans with pages.
    pub(crate) mark: Cell<u32>,
}

impl Page {
    /// Whether it is one that can pass to another pool: all of it is there, at home and nowhere else.
    pub(crate) fn may_pass(&self) -> bool {
        self.presence == Presence::Whole && self.mappings == 1 && self.elsewhere.is_none()
    }

    /// Whether another pool can get it, while its mappings stay for a time.
    pub(crate) fn may_be_given(&self) -> bool {
        self.presence == Presence::Whole && matches!(self.backing, Backing::Handle(_))
    }

    /// Whether another pool has it, and only its mappings are left here.
    pub(crate) fn is_given(&self) -> bool {
        matches!(self.backing, Backing::Given)
    }

    /// Whether all of its memory is elsewhere.
    pub(crate) fn has_gone(&self) -> bool {
        self.presence == Presence::Gone
    }

    /// What it left behind, where its memory is another pool's now, and its mapping may still be at its home.
    pub(crate) fn leaves_behind(&self) -> Option<&Handover> {
        self.left.as_deref().filter(|handover| !handover.is_over())
    }

    /// Whether its mapping there, if it left one behind, is for those that may use it now.
    pub(crate) fn left_for_its_peers(&self) -> bool {
        self.left.is_none() || !self.has_new_peers
    }

    /// What it comes behind, where it came from another pool, and work may still use it there.
    pub(crate) fn arrives_behind(&self) -> Option<&Fence> {
        self.elsewhere.as_ref().map(|elsewhere| &elsewhere.handover.fence)
    }
}

/// Why memory was refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Memory for a page of this many bytes is lacking.
    Short {
        /// What stood in the way.
        what: Shortage,
        /// Bytes that were asked of the device.
        bytes: u64,
    },
    /// The device refused for another reason, or the host has no memory, or no addresses, left for what describes the device's.
    Device(DeviceError),
}

/// Memory that the driver itself lacks, as for page tables, is lacking too.
impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::OutOfMemory { requested, .. } => {
                Self::Short { what: Shortage::Device, bytes: requested }
            }
            other => Self::Device(other),
        }
    }
}

/// Why a page could not be mapped.
#[derive(Debug)]
pub(crate) enum MapFailure {
    /// Nothing is mapped at the address.
    Clean(DeviceError),
    /// The page is mapped there, without access, and the mapping could not be removed: it counts as one, and
    /// is to be unmapped later.
    Stuck(DeviceError),
}
