//! What can go wrong in a device call.

use rustix::io::Errno;

use crate::figures::stats::HumanBytes;
use crate::system::process;

/// A device call that did not happen. `{:?}` writes what `{}` does, as for [`Error`](crate::Error).
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device has too little free memory. Nothing changed.
    #[error("the device is out of memory: {call} requested {}. Free memory there, or request less", HumanBytes(*.requested))]
    OutOfMemory {
        /// The call that failed, as the driver names it.
        call: &'static str,
        /// Bytes asked for.
        requested: u64,
    },
    /// The host has no memory for what the call needs beside the device's. Nothing changed.
    #[error(
        "the host refused {} for its own memory ({what}). Raise the process's limit (ulimit -v, the container's memory), or free memory",
        HumanBytes(*.bytes)
    )]
    HostMemory {
        /// What it is needed for.
        what: &'static str,
        /// Bytes that were asked of the host.
        bytes: u64,
    },
    /// The device or its driver cannot do this at all.
    #[error("{device} does not support {what}")]
    Unsupported {
        /// The device's name.
        device: String,
        /// What was asked of it.
        what: &'static str,
    },
    /// There is no such device, or no driver for it. The text says what was looked for and what to do.
    #[error("{0}")]
    Unavailable(String),
    /// The device was given a handle, address or size that it does not know.
    #[error("{call}: {what}")]
    Invalid {
        /// The call that failed.
        call: &'static str,
        /// What was wrong with it.
        what: String,
    },
    /// The object belongs to the process that this one was forked from. Nothing changed, and nothing was waited for.
    #[error(
        "a forked process cannot use the pools and devices of its parent: make a new context here. For a GPU, start a new \
         process instead (in Python, use multiprocessing's \"spawn\"): CUDA does not work after a fork"
    )]
    Forked,
    /// The driver refused the call, or the device failed.
    #[error("{call} failed: {name} ({code}): {text}")]
    Driver {
        /// The call that failed, as the driver names it.
        call: &'static str,
        /// The driver's number for the error.
        code: i32,
        /// The driver's name for the error.
        name: String,
        /// The driver's sentence for the error.
        text: String,
    },
}

/// As [`Display`](std::fmt::Display), which says what to do next.
impl std::fmt::Debug for DeviceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

#[doc(hidden)]
impl From<process::Forked> for DeviceError {
    fn from(_: process::Forked) -> Self {
        Self::Forked
    }
}

/// The result of a device call.
pub type DeviceResult<T> = Result<T, DeviceError>;

/// Turns an error of the system into one of the device.
pub(crate) fn system(call: &'static str) -> impl Fn(Errno) -> DeviceError {
    move |error| DeviceError::Driver {
        call,
        code: error.raw_os_error(),
        name: format!("{error:?}"),
        text: match error {
            Errno::MFILE => format!("{error}: raise the process's limit of descriptors (ulimit -n)"),
            Errno::FBIG => format!("{error}: raise the process's limit of file sizes (ulimit -f)"),
            _ => error.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_the_process_says_what_to_raise() {
        assert!(system("open")(Errno::MFILE).to_string().contains("ulimit -n"));
        assert!(system("ftruncate")(Errno::FBIG).to_string().contains("ulimit -f"));
    }
}
