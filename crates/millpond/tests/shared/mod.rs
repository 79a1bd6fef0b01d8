//! What the tests of this crate share: sizes, the simulated device, and freeing of blocks that are their own.
// Each program of tests uses a part.
#![allow(dead_code)]

use std::sync::Arc;

use millpond::device::DevicePtr;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Context, Pool, Result, Stream};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// A simulated device with so many bytes, its context, and a stream.
pub(crate) fn sim(capacity: u64) -> (Arc<SimDevice>, Context, Stream) {
    sim_with(SimOptions::default().capacity(capacity))
}

/// As [`sim`], with other options.
pub(crate) fn sim_with(options: SimOptions) -> (Arc<SimDevice>, Context, Stream) {
    let sim = SimDevice::new(options).unwrap();
    let context = Context::new(sim.clone());
    let stream = context.create_stream().unwrap();
    (sim, context, stream)
}

/// [`Pool::free`] and [`Context::free`] for blocks that nobody but the test has, and for pointers that are refused.
pub(crate) trait Freeing {
    /// Frees the block.
    fn free_block(&self, ptr: DevicePtr, stream: &Stream) -> Result<()>;
}

impl Freeing for Pool {
    fn free_block(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        // SAFETY: the tests free what they allocated themselves, and order their work. What is no live block is refused.
        unsafe { self.free(ptr, stream) }
    }
}

impl Freeing for Context {
    fn free_block(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.free(ptr, stream) }
    }
}

/// Whether each byte is `value`. Compared by the C library, as bytes and those that follow them: a loop is slow in tests.
pub(crate) fn are_all(bytes: &[u8], value: u8) -> bool {
    bytes.first().is_none_or(|first| *first == value && bytes[1..] == bytes[..bytes.len() - 1])
}

/// Knuth's generator (TAOCP 3.3.4, the MMIX constants).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}
