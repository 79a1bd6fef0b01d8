//! What leaves a process, so that another one can use its memory.

use std::fmt;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

/// Which device of the machine it is, in every process: the UUID of a GPU.
///
/// ```
/// use millpond::Context;
///
/// let (one, two) = (Context::host()?, Context::host()?);
/// assert_eq!(one.device().identity()?, two.device().identity()?);
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeviceIdentity(pub [u8; 16]);

impl fmt::Display for DeviceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for DeviceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What another process needs to [import](crate::device::Device::import_page) a page.
///
/// ```
/// use millpond::device::Device;
/// use millpond::device::host::HostDevice;
///
/// let (device, other) = (HostDevice::new()?, HostDevice::new()?);
/// let page = device.create_page(2 << 20)?;
/// // SAFETY: each page is of the device that gets it, and is released last.
/// unsafe {
///     let export = device.export_page(page)?;
///     // … send it to another process, which opens it with a device of its own:
///     let same = other.import_page(export, 2 << 20)?;
///     other.release_page(same)?;
///     device.release_page(page)?;
/// }
/// # Ok::<(), millpond::device::DeviceError>(())
/// ```
#[derive(Debug)]
pub struct PageExport {
    /// Stands for the page, or for what it lies in.
    pub descriptor: OwnedFd,
    /// Where in that the page begins, in bytes; 0 where the descriptor stands for the page.
    pub position: u64,
}

/// What another process needs to open an event: bytes, and on some devices a descriptor.
///
/// ```
/// use millpond::device::Device;
/// use millpond::device::host::HostDevice;
///
/// let device = HostDevice::new()?;
/// let (event, export) = device.create_shared_event()?;
/// // … send it to another process, which opens it with a device of its own:
/// let other = HostDevice::new()?;
/// let same = other.open_event(export)?;
/// let stream = device.create_stream()?;
/// // SAFETY: each handle is of the device that gets it, and is destroyed last.
/// unsafe {
///     device.record_event(event, stream)?;
///     other.synchronize_event(same)?; // waits for the work that `stream` was given
///     other.destroy_event(same)?;
///     device.destroy_event(event)?;
///     device.destroy_stream(stream)?;
/// }
/// # Ok::<(), millpond::device::DeviceError>(())
/// ```
#[derive(Debug)]
pub struct EventExport {
    /// The driver's handle for other processes (`CUipcEventHandle`).
    pub data: [u8; 64],
    /// To be sent along, where there is one.
    pub descriptor: Option<OwnedFd>,
}
