//! A job that allocates and frees, as a recorder would see it.

use fastrand::Rng;

use crate::event::{Event, EventKind, StackId};
use crate::trace::{Trace, TraceBuilder};

/// A block that the job holds.
#[derive(Debug)]
#[must_use = "a block that is dropped is never freed"]
pub(super) struct JobBlock {
    address: u64,
    size: u64,
    stream: u64,
}

/// The job, its dice and its clock.
#[derive(Debug)]
pub(super) struct GeneratedJob {
    pub(super) dice: Rng,
    builder: TraceBuilder,
    /// No address is used twice: a replay looks at sizes and lifetimes only.
    next_address: u64,
    nanoseconds: u64,
}

/// Bytes of device memory that a kernel goes through in a nanosecond: half of what an H200 can.
const BYTES_PER_NS: u64 = 2_400;

/// Operations that the matrix units do in a nanosecond: half of what an H200 can, dense and in half precision
/// (989 TFLOP/s by NVIDIA's data sheet).
const OPERATIONS_PER_NS: u64 = 495_000;

/// What passes between two allocations at least, in nanoseconds: half of what a recorded ResNet-50 needs.
const LAUNCH_NS: u64 = 80_000;

impl GeneratedJob {
    pub(super) fn new(seed: u64) -> Self {
        let (builder, next_address, nanoseconds) = (TraceBuilder::default(), 1 << 30, 0);
        Self { dice: Rng::with_seed(seed), builder, next_address, nanoseconds }
    }

    /// A block on the job's main stream, written by one kernel.
    pub(super) fn alloc(&mut self, size: u64) -> JobBlock {
        self.alloc_on(0, size)
    }

    pub(super) fn alloc_on(&mut self, stream: u64, size: u64) -> JobBlock {
        let size = size.max(1);
        let held = JobBlock { address: self.next_address, size, stream };
        self.next_address += size.next_multiple_of(512);
        self.push(EventKind::Alloc, &held);
        // The kernel that fills it, and about as much again that reads it.
        self.nanoseconds += LAUNCH_NS + 2 * size / BYTES_PER_NS;
        held
    }

    /// Multiplies matrices: so many additions and multiplications.
    pub(super) fn multiply(&mut self, operations: u64) {
        self.nanoseconds += operations / OPERATIONS_PER_NS;
    }

    /// Goes through memory that has been there for long, such as weights.
    pub(super) fn read(&mut self, bytes: u64) {
        self.nanoseconds += bytes / BYTES_PER_NS;
    }

    pub(super) fn free(&mut self, held: JobBlock) {
        self.push(EventKind::FreeRequested, &held);
        self.push(EventKind::FreeCompleted, &held);
    }

    pub(super) fn free_all(&mut self, held: impl IntoIterator<Item = JobBlock>) {
        for held in held {
            self.free(held);
        }
    }

    /// A whole number of this range.
    pub(super) fn pick(&mut self, range: std::ops::RangeInclusive<u64>) -> u64 {
        self.dice.u64(range)
    }

    pub(super) fn finish(self, name: &str) -> Trace {
        let mut traces = self.builder.finish(name);
        traces.pop().expect("every pattern allocates on device 0")
    }

    fn push(&mut self, kind: EventKind, held: &JobBlock) {
        let JobBlock { address, size, stream } = *held;
        let (device, time_us, stack) = (0, self.nanoseconds / 1000, StackId::NONE);
        let event = Event { kind, device, stream, time_us, address, size, stack };
        self.builder.push(event).expect("one device, few streams and fewer than 2^32 blocks");
    }
}
