//! What C programs hold handles of: the header's name of each kind, and the number that tells it in a handle's bits.

use std::ffi::c_void;
use std::fmt;

/// The highest byte of a handle is this and the [`Kind`]: no address of a user program, nor of a device.
pub(crate) const TAG: u64 = 0x40;
pub(crate) const KIND_SHIFT: u32 = 56;

/// What a handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A context.
    Context = 1,
    /// A stream.
    Stream,
    /// An event.
    Event,
    /// A pool.
    Pool,
    /// A budget.
    Budget,
    /// A workspace.
    Workspace,
    /// The memory of a capture.
    Capture,
    /// Memory that several processes use.
    Shared,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Context,
        Self::Stream,
        Self::Event,
        Self::Pool,
        Self::Budget,
        Self::Workspace,
        Self::Capture,
        Self::Shared,
    ];

    /// The word for it, which is also what the header calls an argument of this kind.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Context => "context",
            Self::Stream => "stream",
            Self::Event => "event",
            Self::Pool => "pool",
            Self::Budget => "budget",
            Self::Workspace => "workspace",
            Self::Capture => "capture",
            Self::Shared => "shared",
        }
    }

    /// The kind of thing that the bits are a handle of, valid or not.
    pub(crate) fn of(bits: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| bits >> KIND_SHIFT == TAG | *kind as u64)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A device with its streams and its pools. Opaque.
#[derive(Debug)]
pub struct ContextHandle;

/// A stream that millpond knows: created by it, or registered with it. Opaque.
#[derive(Debug)]
pub struct StreamHandle;

/// A stream of either kind: a `millpond_stream`, or the driver's `CUstream` (the runtime's `cudaStream_t`).
///
/// Null is the legacy default stream, as in CUDA, and so is 1; 2 is the calling thread's default stream. A
/// `millpond_stream` and a `CUstream` for which one was made (`millpond_stream_register`) are fast. Any other `CUstream` is
/// looked up each time, and a free on it records an event at once, since it may be destroyed at any time: register the
/// streams that are used often.
pub type AnyStream = *mut c_void;

/// A point in a stream's work, made by `millpond_stream_record`. Opaque.
#[derive(Debug)]
pub struct EventHandle;

/// A memory pool. Opaque.
#[derive(Debug)]
pub struct PoolHandle;

/// A limit on the physical bytes that all pools with this budget hold together. Opaque.
#[derive(Debug)]
pub struct BudgetHandle;

/// Device memory that is handed out from front to back and taken back all at once. Opaque.
#[derive(Debug)]
pub struct WorkspaceHandle;

/// Memory for what is captured into CUDA graphs: it stays where it is, and is nobody else's, until the last handle of
/// it is released. Opaque.
#[derive(Debug)]
pub struct CaptureHandle;

/// A block that several processes use, on either side: what another process needs to open it, or what it was opened
/// with. Opaque.
#[derive(Debug)]
pub struct SharedHandle;
