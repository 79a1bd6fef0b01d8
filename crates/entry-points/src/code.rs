//! What a driver function returns, and what an error of a pool is in its words.

use std::ffi::c_int;

use millpond::Error;
use millpond::device::DeviceError;

/// `CUresult`, also where it is younger than this library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Code(pub(crate) c_int);

impl Code {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const NOT_INITIALIZED: Self = Self(3);
    pub(crate) const INVALID_CONTEXT: Self = Self(201);
    pub(crate) const NOT_FOUND: Self = Self(500);
    pub(crate) const NOT_SUPPORTED: Self = Self(801);
    pub(crate) const CAPTURE_IMPLICIT: Self = Self(906);
    pub(crate) const UNKNOWN: Self = Self(999);

    pub(crate) fn is_success(self) -> bool {
        self == Self::SUCCESS
    }
}

impl From<&Error> for Code {
    fn from(error: &Error) -> Self {
        match error {
            Error::OutOfMemory(_) | Error::HostMemory { .. } | Error::SizeOverflow { .. } => {
                Self::OUT_OF_MEMORY
            }
            Error::Forked => Self::NOT_INITIALIZED,
            Error::Device(error) => error.into(),
            _ => Self::INVALID_VALUE,
        }
    }
}

impl From<&DeviceError> for Code {
    fn from(error: &DeviceError) -> Self {
        match error {
            DeviceError::OutOfMemory { .. } | DeviceError::HostMemory { .. } => Self::OUT_OF_MEMORY,
            DeviceError::Unsupported { .. } => Self::NOT_SUPPORTED,
            DeviceError::Forked => Self::NOT_INITIALIZED,
            DeviceError::Driver { code, .. } => Self(*code),
            DeviceError::Invalid { .. } => Self::INVALID_VALUE,
            _ => Self::UNKNOWN,
        }
    }
}
