//! Status codes, and which error of the Rust interface each stands for.

use std::ffi::{CStr, c_char};

use millpond::Error;
use millpond::device::DeviceError;

/// What a call answers: OK, or why nothing was done. The full message, with the figures and what to do next, is
/// `millpond_last_error`'s. Numbers never change their meaning; new ones may come.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// There is no memory for the request, after everything that could be given back was given back.
    OutOfMemory = 1,
    /// The size overflows, or is more than any device can address.
    SizeOverflow = 2,
    /// The alignment is no power of two, or larger than a page.
    BadAlignment = 3,
    /// The block was freed already.
    DoubleFree = 4,
    /// The pointer lies inside a live block; free takes the pointer that the allocation gave.
    InteriorPointer = 5,
    /// The pointer belongs to another pool.
    WrongPool = 6,
    /// The pointer belongs to no pool of the device.
    ForeignPointer = 7,
    /// The stream, event, pool or budget belongs to another context.
    WrongDevice = 8,
    /// The pool was destroyed; it frees what is live but allocates nothing.
    PoolDestroyed = 9,
    /// The pool was destroyed while blocks were live. It is destroyed: their memory goes back with the last.
    LiveBlocks = 10,
    /// A length that does not match.
    LengthMismatch = 11,
    /// The workspace has less left than was asked for.
    WorkspaceFull = 12,
    /// An option, attribute or struct that makes no sense; the message says which, and what would.
    BadOption = 13,
    /// Allocations go to this memory of a capture already.
    CaptureUnderWay = 14,
    /// A recording cannot be written.
    Recording = 15,
    /// The object was made in the process that this one was forked from. Nothing was done.
    Forked = 16,
    /// The CPU cannot use the pool's memory in place.
    NoHostAccess = 17,
    /// The pool is not of pinned memory.
    NotPinned = 18,
    /// The pool is not of managed memory.
    NotManaged = 19,
    /// The device has too little memory.
    DeviceOutOfMemory = 20,
    /// The device or its driver cannot do this.
    DeviceUnsupported = 21,
    /// There is no such device, or no driver for it.
    DeviceUnavailable = 22,
    /// The device was given a stream, event, address or size that it does not know.
    DeviceInvalid = 23,
    /// The driver refused the call, or the device failed.
    DeviceFailed = 24,
    /// The pool sleeps: wake it first.
    Asleep = 25,
    /// The pool cannot sleep; the message says why.
    CannotSleep = 26,
    /// The file by which processes share a budget cannot be used.
    SharedBudget = 27,
    /// The pool is evicted: restore it first.
    Evicted = 28,
    /// The pool cannot be evicted; the message says why.
    CannotEvict = 29,
    /// The memory cannot be shared with other processes.
    NotShareable = 30,
    /// What another process sent is no memory that can be opened.
    BadToken = 31,
    /// A socket to another process failed.
    Socket = 32,
    /// The process that shared memory is gone. The memory stays valid.
    OwnerGone = 33,
    /// An argument that must not be null is.
    NullArgument = 40,
    /// The handle is none: garbage, or of another kind of object.
    InvalidHandle = 41,
    /// The handle was released.
    ReleasedHandle = 42,
    /// The handle cannot be released from within a callback of a call that uses it.
    Busy = 43,
    /// More handles, or calls nested in callbacks, than there can be.
    TooMany = 44,
    /// A text is not UTF-8, or not ended.
    BadText = 45,
    /// A mistake of millpond's own. Please report it with the message.
    Internal = 50,
    /// An error that this version of the interface has no number for; the message says which.
    Other = 51,
}

impl Status {
    const ALL: [(Self, &'static CStr); 42] = [
        (Self::Ok, c"ok"),
        (Self::OutOfMemory, c"out of memory"),
        (Self::SizeOverflow, c"size overflow"),
        (Self::BadAlignment, c"bad alignment"),
        (Self::DoubleFree, c"double free"),
        (Self::InteriorPointer, c"interior pointer"),
        (Self::WrongPool, c"wrong pool"),
        (Self::ForeignPointer, c"foreign pointer"),
        (Self::WrongDevice, c"wrong device"),
        (Self::PoolDestroyed, c"pool destroyed"),
        (Self::LiveBlocks, c"live blocks"),
        (Self::LengthMismatch, c"length mismatch"),
        (Self::WorkspaceFull, c"workspace full"),
        (Self::BadOption, c"bad option"),
        (Self::CaptureUnderWay, c"capture under way"),
        (Self::Recording, c"recording failed"),
        (Self::Forked, c"forked"),
        (Self::NoHostAccess, c"no host access"),
        (Self::NotPinned, c"not pinned"),
        (Self::NotManaged, c"not managed"),
        (Self::DeviceOutOfMemory, c"device out of memory"),
        (Self::DeviceUnsupported, c"not supported by the device"),
        (Self::DeviceUnavailable, c"no such device"),
        (Self::DeviceInvalid, c"unknown to the device"),
        (Self::DeviceFailed, c"device failed"),
        (Self::SharedBudget, c"shared budget failed"),
        (Self::Asleep, c"asleep"),
        (Self::CannotSleep, c"cannot sleep"),
        (Self::Evicted, c"evicted"),
        (Self::CannotEvict, c"cannot evict"),
        (Self::NotShareable, c"not shareable"),
        (Self::BadToken, c"bad token"),
        (Self::Socket, c"socket failed"),
        (Self::OwnerGone, c"owner gone"),
        (Self::NullArgument, c"null argument"),
        (Self::InvalidHandle, c"invalid handle"),
        (Self::ReleasedHandle, c"released handle"),
        (Self::Busy, c"busy"),
        (Self::TooMany, c"too many"),
        (Self::BadText, c"bad text"),
        (Self::Internal, c"internal error"),
        (Self::Other, c"other error"),
    ];
}

impl From<&Error> for Status {
    fn from(error: &Error) -> Self {
        match error {
            Error::OutOfMemory(_) => Self::OutOfMemory,
            Error::SizeOverflow { .. } => Self::SizeOverflow,
            Error::BadAlignment { .. } => Self::BadAlignment,
            Error::DoubleFree { .. } => Self::DoubleFree,
            Error::InteriorPointer { .. } => Self::InteriorPointer,
            Error::WrongPool { .. } => Self::WrongPool,
            Error::ForeignPointer { .. } => Self::ForeignPointer,
            Error::WrongDevice { .. } => Self::WrongDevice,
            Error::PoolDestroyed { .. } => Self::PoolDestroyed,
            Error::LiveBlocks { .. } => Self::LiveBlocks,
            Error::LengthMismatch { .. } => Self::LengthMismatch,
            Error::WorkspaceFull { .. } => Self::WorkspaceFull,
            Error::BadOption { .. } => Self::BadOption,
            Error::CaptureUnderWay { .. } => Self::CaptureUnderWay,
            Error::Recording { .. } => Self::Recording,
            Error::Forked => Self::Forked,
            Error::NoHostAccess { .. } => Self::NoHostAccess,
            Error::NotPinned { .. } => Self::NotPinned,
            Error::NotManaged { .. } => Self::NotManaged,
            Error::SharedBudget { .. } => Self::SharedBudget,
            Error::Asleep { .. } => Self::Asleep,
            Error::CannotSleep { .. } => Self::CannotSleep,
            Error::Evicted { .. } => Self::Evicted,
            Error::CannotEvict { .. } => Self::CannotEvict,
            Error::NotShareable { .. } => Self::NotShareable,
            Error::BadToken { .. } => Self::BadToken,
            Error::Socket { .. } => Self::Socket,
            Error::OwnerGone => Self::OwnerGone,
            Error::Broken { .. } => Self::Internal,
            Error::Device(error) => error.into(),
            _ => Self::Other,
        }
    }
}

impl From<&DeviceError> for Status {
    fn from(error: &DeviceError) -> Self {
        match error {
            DeviceError::OutOfMemory { .. } => Self::DeviceOutOfMemory,
            DeviceError::Unsupported { .. } => Self::DeviceUnsupported,
            DeviceError::Unavailable(_) => Self::DeviceUnavailable,
            DeviceError::Invalid { .. } => Self::DeviceInvalid,
            DeviceError::Forked => Self::Forked,
            DeviceError::Driver { .. } => Self::DeviceFailed,
            _ => Self::Other,
        }
    }
}

/// A status in words, such as "double free". Never null, and for any number.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_status_name(status: i32) -> *const c_char {
    let named = Status::ALL.iter().find(|(known, _)| *known as i32 == status);
    named.map_or(c"unknown status", |(_, name)| name).as_ptr()
}

/// The library's version, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn millpond_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}
