//! Which free memory a stream may use: what the timelines say, under the pool's reuse policies.

use std::sync::Arc;

use crate::device::DeviceError;
use crate::figures::counters::Counters;
use crate::log::log;
use crate::order::{Fence, ReadinessQuery, ReusePolicies, Stream, Timelines};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct ReuseRules {
    pub(super) timelines: Arc<Timelines>,
    pub(super) policies: ReusePolicies,
    pub(super) counters: Arc<Counters>,
}

impl ReuseRules {
    /// Which fences the stream may use what lies behind, by what is known already.
    #[inline]
    pub(super) fn query<'a>(&'a self, stream: &'a Stream) -> ReadinessQuery<'a> {
        self.timelines.readiness(stream.timeline(), self.policies)
    }

    /// Makes the stream wait for the fence, where that is allowed; returns whether it may use what lies behind it.
    pub(super) fn wait_for(&self, fence: &Fence, stream: &Stream) -> Result<bool, DeviceError> {
        if !self.policies.internal_dependencies || !self.timelines.make_wait(fence, stream.timeline())? {
            return Ok(false);
        }
        self.counters.stream_waits.add(1);
        Ok(true)
    }

    /// Asks the device about a fence; returns whether more is complete than was known. An error only means that nothing is
    /// learned.
    pub(super) fn poll(&self, fence: &Fence) -> bool {
        self.timelines.poll(fence).unwrap_or_else(|error| {
            log!(WARN, "the device could not be asked what is complete", error);
            false
        })
    }

    /// Takes what is ready for all out of the fence.
    pub(super) fn prune(&self, fence: &mut Fence) {
        self.timelines.prune(fence, self.policies);
    }

    /// The same, of a fence of several streams only, as those of ranges that were joined are. The fewer it names, the more
    /// neighbours it is joined with at once, and the less there is to ask and to wait for.
    #[inline]
    pub(super) fn prune_several(&self, fence: &mut Fence) {
        if fence.len() > 1 {
            self.prune(fence);
        }
    }

    /// Whether everybody may use what lies behind the fence, by what the device says now.
    pub(super) fn prune_to_nothing(&self, fence: &mut Fence) -> bool {
        self.prune(fence);
        if !fence.is_empty() && self.policies.opportunistic {
            self.poll(fence);
            self.prune(fence);
        }
        fence.is_empty()
    }

    /// Whether a stream that is being captured is in one of two fences, and not in the other.
    #[inline]
    pub(super) fn is_one_of_a_capture(&self, a: &Fence, b: &Fence) -> bool {
        self.timelines.is_capturing() && self.timelines.can_be_reached(a) != self.timelines.can_be_reached(b)
    }
}
