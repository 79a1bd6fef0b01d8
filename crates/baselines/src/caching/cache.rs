//! What the allocator holds, and what it may hold.

use std::sync::Arc;

use millpond::device::Device;
use slab::Slab;

use super::blocks::{BlockId, Blocks};
use super::options::CachingOptions;
use super::pending::Pending;
use super::segment::Segment;
use crate::books::Books;
use crate::streams::Streams;

/// What stays as it is.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) device: Arc<dyn Device>,
    pub(super) options: CachingOptions,
    /// Bytes that may be held, where the options limit them.
    pub(super) allowed: Option<u64>,
}

/// Everything behind the lock.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) blocks: Blocks,
    pub(super) segments: Slab<Segment>,
    pub(super) pending: Pending,
    pub(super) streams: Streams,
    pub(super) books: Books<BlockId>,
}
