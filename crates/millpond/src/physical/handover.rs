//! What a page leaves behind that passes to another pool: see [`passing`](super::passing).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::DevicePtr;
use crate::order::Fence;

/// What pages pass behind, and how many of their mappings are still where they were.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) fence: Fence,
    mappings: AtomicU32,
}

impl Handover {
    /// Pages will pass behind the fence.
    pub(crate) fn behind(fence: Fence) -> Arc<Self> {
        Arc::new(Self { fence, mappings: AtomicU32::new(0) })
    }

    /// One more page passes, and its mapping stays.
    pub(super) fn add(&self) {
        // Relaxed: nobody else knows the mapping yet.
        self.mappings.fetch_add(1, Ordering::Relaxed);
    }

    /// One mapping is gone, or is its page's again.
    pub(super) fn remove(&self) {
        // Release: pairs with `is_over`.
        self.mappings.fetch_sub(1, Ordering::Release);
    }

    /// Whether all mappings are gone.
    pub(super) fn is_over(&self) -> bool {
        // Acquire: other pages may be mapped there from now on.
        self.mappings.load(Ordering::Acquire) == 0
    }
}

/// A mapping of a page in the addresses of the pool that the page comes from.
#[derive(Debug)]
pub(super) struct MappingElsewhere {
    pub(super) at: DevicePtr,
    pub(super) handover: Arc<Handover>,
}
