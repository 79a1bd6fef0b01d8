//! Why something could not be measured.

use millpond::device::DeviceError;

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The allocator refused.
    #[error(transparent)]
    Memory(#[from] millpond::Error),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There is no such allocator here.
    #[error(transparent)]
    Choice(#[from] millpond_baselines::ChoiceError),
    /// The host's own allocator has no memory.
    #[error("the host has no {bytes} bytes for mimalloc; free some memory or measure fewer suites")]
    HostMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The suite is for the memory of the simulated device.
    #[error("it is measured on the memory of the simulated device: --device sim")]
    SimulatedOnly,
    /// A thread that measured ended early.
    #[error("a measuring thread panicked; its message is above")]
    Thread,
    /// No sample was taken.
    #[error("nothing was measured; give each figure more time")]
    NothingMeasured,
}

/// The result of measuring.
pub type Result<T> = std::result::Result<T, Error>;
