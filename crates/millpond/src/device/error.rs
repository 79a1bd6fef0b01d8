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
    move |error| {
        let code = error.raw_os_error();
        // The system's own sentence, and not its number again.
        let mut text = error.to_string().replace(&format!(" (os error {code})"), "");
        if let Some(help) = what_to_do(error) {
            text += &format!(": {help}");
        }
        DeviceError::Driver { call, code, name: name_of(error).to_owned(), text }
    }
}

/// What helps against an error of the system.
fn what_to_do(error: Errno) -> Option<&'static str> {
    Some(match error {
        Errno::MFILE => "raise the process's limit of descriptors (ulimit -n)",
        Errno::NFILE => "raise the machine's limit of open files (sysctl fs.file-max)",
        Errno::FBIG => "raise the process's limit of file sizes (ulimit -f)",
        Errno::NOMEM => {
            "free memory, or raise the process's limit (ulimit -v, the container's memory) or that of its mappings (sysctl \
             vm.max_map_count)"
        }
        Errno::NOSPC => "free memory, or raise the container's: the file lies in memory",
        Errno::AGAIN => "raise the process's limit of locked memory (ulimit -l), or try again",
        Errno::PERM | Errno::ACCESS => {
            "what confines this process (seccomp, SELinux, the container) refuses it: allow it there, or run outside"
        }
        Errno::NOSYS | Errno::OPNOTSUPP => {
            "this kernel, or the sandbox around this process, lacks it: run outside"
        }
        _ => return None,
    })
}

/// As the C library names it.
fn name_of(error: Errno) -> &'static str {
    match error {
        Errno::PERM => "EPERM",
        Errno::NOENT => "ENOENT",
        Errno::IO => "EIO",
        Errno::BADF => "EBADF",
        Errno::AGAIN => "EAGAIN",
        Errno::NOMEM => "ENOMEM",
        Errno::ACCESS => "EACCES",
        Errno::FAULT => "EFAULT",
        Errno::BUSY => "EBUSY",
        Errno::NODEV => "ENODEV",
        Errno::INVAL => "EINVAL",
        Errno::NFILE => "ENFILE",
        Errno::MFILE => "EMFILE",
        Errno::FBIG => "EFBIG",
        Errno::NOSPC => "ENOSPC",
        Errno::ROFS => "EROFS",
        Errno::PIPE => "EPIPE",
        Errno::NOSYS => "ENOSYS",
        Errno::NOLCK => "ENOLCK",
        Errno::OVERFLOW => "EOVERFLOW",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        _ => "errno",
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

    #[test]
    fn an_error_of_the_system_is_one_sentence() {
        let said = system("mmap")(Errno::NOMEM).to_string();
        assert!(
            said.starts_with("mmap failed: ENOMEM (12): Cannot allocate memory: free memory, or"),
            "{said}"
        );
        // One that has no name here.
        let said = system("mmap")(Errno::XDEV).to_string();
        assert_eq!(said, "mmap failed: errno (18): Invalid cross-device link");
    }
}
