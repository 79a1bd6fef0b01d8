//! What leaves a process, so that another one can use its memory.

use std::fmt;
use std::os::fd::OwnedFd;

/// Which device of the machine it is, in every process: the UUID of a GPU.
///
/// ```
/// use millpond::Context;
///
/// let (one, two) = (Context::host()?, Context::host()?);
/// assert_eq!(one.device().identity()?, two.device().identity()?);
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
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

/// What another process needs to open an event: bytes, and on some devices a descriptor.
#[derive(Debug)]
pub struct EventExport {
    /// The driver's handle for other processes (`CUipcEventHandle`).
    pub data: [u8; 64],
    /// To be sent along, where there is one.
    pub descriptor: Option<OwnedFd>,
}
