//! Why an allocation was refused.

use crate::device::DeviceError;
use crate::physical::{NoPage, Shortage};

/// See the [module](self).
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

impl Refusal {
    pub(crate) fn of_page(error: NoPage, bytes: u64) -> Self {
        match error {
            NoPage::Short(what) => Self::Short { what, bytes },
            NoPage::Device(error) => Self::Device(error),
        }
    }
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}
