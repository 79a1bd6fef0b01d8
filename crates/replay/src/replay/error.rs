//! Why a replay could not be done.

use millpond_baselines::ChoiceError;

/// Why a replay could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// There is no such allocator, or none on this device.
    #[error(transparent)]
    Allocator(#[from] ChoiceError),
    /// The device refused something other than memory.
    #[error("{0}")]
    Device(#[from] millpond::Error),
    /// The allocator failed, other than for want of memory.
    #[error("{allocator} failed at event {event}: {error}")]
    Failed {
        /// The allocator's name.
        allocator: String,
        /// The step, from 0.
        event: usize,
        /// What it said.
        error: millpond::Error,
    },
    /// A block did not keep what was written into it: two blocks shared memory, or a page was lost.
    #[error(
        "block {block}: at offset {offset} it held {found} when it was freed, not its mark; its memory was given to another"
    )]
    Corrupt {
        /// The block's number in the trace.
        block: u32,
        /// The offset in the block, in bytes.
        offset: u64,
        /// The bytes found there.
        found: String,
    },
}

impl From<millpond::device::DeviceError> for ReplayError {
    fn from(error: millpond::device::DeviceError) -> Self {
        Self::Device(error.into())
    }
}
