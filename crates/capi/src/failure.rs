//! What a call answers when it did nothing, and the boundary that no panic crosses.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use millpond::bindings::Forked;
use millpond::device::DeviceError;
use millpond::{Context, Error, OutOfMemory};

use crate::in_use::{Record, this_thread};
use crate::kind::Kind;
use crate::status::Status;

/// Why a call did nothing.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The Rust interface's own.
    #[error(transparent)]
    Pool(#[from] Error),
    /// See the message.
    #[error("`{0}` is null; pass a valid pointer or handle")]
    Null(&'static str),
    /// See the message.
    #[error("{bits:#x} is not a handle of a {wanted}; pass what its create function gave")]
    UnknownHandle {
        /// What was passed.
        bits: u64,
        /// What was asked for.
        wanted: Kind,
    },
    /// See the message.
    #[error("{bits:#x} is a handle of a {kind}; pass one of a {wanted}")]
    WrongKind {
        /// What was passed.
        bits: u64,
        /// What it is a handle of.
        kind: Kind,
        /// What was asked for.
        wanted: Kind,
    },
    /// See the message.
    #[error("the {kind} {bits:#x} was released; do not use a handle after its release")]
    Released {
        /// What was passed.
        bits: u64,
        /// What it was a handle of.
        kind: Kind,
    },
    /// See the message.
    #[error("the {0} is in use by the call that this callback belongs to; release it after that call")]
    Busy(Kind),
    /// See the message.
    #[error("there are too many handles of a {0}; release those that are not needed")]
    TooManyHandles(Kind),
    /// See the message.
    #[error("calls are nested too deep in callbacks; allocate less from within callbacks")]
    NestedTooDeep,
    /// See the message.
    #[error("`{0}` is not a text in UTF-8")]
    BadText(&'static str),
    /// See the message.
    #[error("`{what}`: its `size` says {found} bytes; set it to the struct's sizeof before the call")]
    BadStruct {
        /// The struct's type.
        what: &'static str,
        /// What its size says.
        found: usize,
    },
    /// See the message.
    #[error("`{what}` has fields that this version of millpond does not know; leave them zero, or update")]
    UnknownFields {
        /// The struct's type.
        what: &'static str,
    },
    /// A mistake of ours that was noticed.
    #[error("an object without its handle: a mistake in millpond, please report it")]
    Internal,
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Self::Pool(error.into())
    }
}

impl From<Forked> for Failure {
    fn from(_: Forked) -> Self {
        Self::Pool(Error::Forked)
    }
}

impl Failure {
    /// An option that makes no sense.
    pub(crate) fn option(option: &'static str, why: impl Into<String>) -> Self {
        Self::Pool(Error::BadOption { option, why: why.into() })
    }

    /// Only the host device runs functions of the CPU.
    pub(crate) fn not_host(context: &Context) -> Self {
        let device = context.device().properties().name.clone();
        Self::Pool(Error::Device(DeviceError::Unsupported {
            device,
            what: "functions of the CPU as kernels",
        }))
    }

    fn status(&self) -> Status {
        match self {
            Self::Pool(error) => error.into(),
            Self::Null(_) => Status::NullArgument,
            Self::UnknownHandle { .. } | Self::WrongKind { .. } => Status::InvalidHandle,
            Self::Released { .. } => Status::ReleasedHandle,
            Self::Busy(_) => Status::Busy,
            Self::TooManyHandles(_) | Self::NestedTooDeep => Status::TooMany,
            Self::BadText(_) => Status::BadText,
            Self::BadStruct { .. } | Self::UnknownFields { .. } => Status::BadOption,
            Self::Internal => Status::Internal,
        }
    }
}

/// The last failure of a thread.
#[derive(Default)]
struct Last {
    message: CString,
    status: Option<Status>,
    out_of_memory: Option<OutOfMemory>,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// Runs a call: no panic leaves it, and a failure becomes a status and this thread's last error.
#[inline]
pub(crate) fn boundary(call: impl FnOnce(&'static Record) -> Result<(), Failure>) -> Status {
    match catch_unwind(AssertUnwindSafe(|| call(this_thread()))) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(failure)) => note_slow(failure),
        Err(panic) => note_panic_slow(&*panic),
    }
}

/// Makes a failure this thread's last error.
#[cold]
pub(crate) fn note_slow(failure: Failure) -> Status {
    let (message, status) = (failure.to_string(), failure.status());
    let out_of_memory = match failure {
        Failure::Pool(Error::OutOfMemory(report)) => Some(*report),
        _ => None,
    };
    remember(message, status, out_of_memory);
    status
}

/// Makes a panic this thread's last error.
#[cold]
pub(crate) fn note_panic_slow(panic: &(dyn std::any::Any + Send)) -> Status {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    remember(format!("a panic in millpond, please report it: {text}"), Status::Internal, None);
    Status::Internal
}

fn remember(mut message: String, status: Status, out_of_memory: Option<OutOfMemory>) {
    // Names of pools may hold anything but the byte that ends a text of C: they came from one.
    message.retain(|character| character != '\0');
    let message = CString::new(message).unwrap_or_default();
    // Fails while the thread's variables are being destroyed; then the status is all there is.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Last { message, status: Some(status), out_of_memory });
}

/// The message of this thread's last call that failed, with the figures and what to do next; empty if none did.
/// Never null. Valid until the thread's next call that fails. A call that succeeds leaves it as it is.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().message.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The message of this thread's last failure.
pub(crate) fn last_message() -> String {
    LAST.try_with(|last| last.borrow().message.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The status of this thread's last call that failed; OK if none did.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_last_status() -> Status {
    LAST.try_with(|last| last.borrow().status).ok().flatten().unwrap_or(Status::Ok)
}

/// The account of this thread's last failure, if it was that memory ran out.
pub(crate) fn last_out_of_memory() -> Option<OutOfMemory> {
    LAST.try_with(|last| last.borrow().out_of_memory.clone()).ok().flatten()
}
