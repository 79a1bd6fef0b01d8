//! Addresses, handles and properties: the words a device is spoken to with.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// The addresses of every device are below this.
pub(crate) const ADDRESSES_END: u64 = 1 << 62;

/// An address in device memory. Null is 0 and is never allocated.
///
/// ```
/// use millpond::device::DevicePtr;
///
/// let at = DevicePtr::new(0x1000).offset(16);
/// assert_eq!((at.raw(), at.to_string().as_str()), (0x1010, "0x1010"));
/// assert!(DevicePtr::NULL.is_null());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
#[must_use = "a block whose address is lost is never freed"]
pub struct DevicePtr(u64);

impl DevicePtr {
    /// The null address.
    pub const NULL: Self = Self(0);

    /// The address with this number.
    #[inline]
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The address as the driver takes it (`CUdeviceptr`).
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Whether this is the null address.
    #[inline]
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address `bytes` further on.
    #[inline]
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl From<u64> for DevicePtr {
    fn from(raw: u64) -> Self {
        Self(raw)
    }
}

impl From<DevicePtr> for u64 {
    fn from(ptr: DevicePtr) -> Self {
        ptr.0
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// The handle with this number.
            ///
            /// # Safety
            /// The number is a handle of the device that it is given to, and stays valid as long as it is used.
            #[inline]
            pub const unsafe fn from_raw(raw: u64) -> Self {
                Self(raw)
            }

            /// The handle's number, as the driver takes it.
            #[inline]
            #[must_use]
            pub const fn raw(self) -> u64 {
                self.0
            }
        }
    };
}

handle!(
    /// A stream (`CUstream`). Handles are recycled by the driver after a destroy; [`StreamId`]s are not.
    StreamHandle
);
handle!(
    /// An event (`CUevent`).
    EventHandle
);
handle!(
    /// A physical page (`CUmemGenericAllocationHandle`).
    PageHandle
);

impl StreamHandle {
    /// The legacy default stream (`CU_STREAM_LEGACY`), which every device has.
    pub const LEGACY: Self = Self(1);
    /// The calling thread's default stream (`CU_STREAM_PER_THREAD`), which every device has.
    pub const PER_THREAD: Self = Self(2);
}

/// A stream's identity: never reused by its device (`cuStreamGetId`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

impl StreamId {
    /// Set in no identity that a driver gives.
    const IN_CAPTURE: u64 = 1 << 63;
    /// Set in the names of threads' default streams, which all have one handle. No handle is that large.
    const OF_THREAD: u64 = 1 << 62;

    /// An identity for a stream while it is being captured, when the driver refuses to identify it. It is made of the
    /// handle. In a later capture, another stream may have the same handle, and so the same identity. That is harmless,
    /// since captures that share memory use it one after the other. Each thread's default stream has its own.
    #[must_use]
    pub fn in_capture(stream: StreamHandle) -> Self {
        let name = match stream {
            StreamHandle::PER_THREAD => Self::OF_THREAD | calling_thread(),
            _ => stream.0,
        };
        Self(Self::IN_CAPTURE | name)
    }

    /// Whether it is such a name.
    #[must_use]
    pub fn is_in_capture(self) -> bool {
        self.0 & Self::IN_CAPTURE != 0
    }
}

/// A number for the calling thread. No other thread of the process ever has it.
pub(crate) fn calling_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        // Not dropped, so that it can be read while the thread ends.
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            // Relaxed: only uniqueness matters.
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// A capture under way: the streams that are part of it have the same (`cuStreamGetCaptureInfo`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaptureId(pub u64);

/// Which of the devices this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An NVIDIA GPU.
    Cuda,
    /// The CPU, with real memory and threads for streams.
    Host,
    /// Nothing: bookkeeping in virtual time.
    Sim,
    /// A device of another crate.
    Other,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cuda => "cuda",
            Self::Host => "host",
            Self::Sim => "sim",
            Self::Other => "other",
        })
    }
}

/// What the memory is that a device's pages and segments are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MemoryKind {
    /// The device's own.
    #[default]
    Device,
    /// Page-locked memory of the host, which the device can reach ([`Device::pinned`](super::Device::pinned)).
    Pinned,
    /// Memory that moves between the device and the host, to where it is used ([`Device::managed`](super::Device::managed)).
    Managed,
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device memory",
            Self::Pinned => "pinned host memory",
            Self::Managed => "managed memory",
        })
    }
}

/// Where managed memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Place {
    /// In the memory of the context's own device.
    Device,
    /// In the memory of the host.
    Host,
}

/// How managed memory will be used. It changes where the bytes lie, and never what they are.
///
/// [`Buffer::advise`](crate::Buffer::advise) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Advice {
    /// Whether it is mostly read. If so, the device and the host each have a copy, until one of them writes.
    ReadMostly(bool),
    /// Where it is to stay, if anywhere.
    PreferredLocation(Option<Place>),
    /// Whether it stays mapped for the device or the host, wherever it lies, so that no use from there is a page fault.
    AccessedBy(Place, bool),
}

impl Advice {
    /// What takes back all advice.
    pub(crate) const TAKEN_BACK: [Self; 4] = [
        Self::ReadMostly(false),
        Self::PreferredLocation(None),
        Self::AccessedBy(Place::Device, false),
        Self::AccessedBy(Place::Host, false),
    ];
}

/// What was said of a range of managed memory, where it is the same of all its pages.
/// [`Buffer::residency`](crate::Buffer::residency) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Residency {
    /// Where it was last prefetched to.
    pub last_prefetch: Option<Place>,
    /// Whether it is [mostly read](Advice::ReadMostly).
    pub read_mostly: bool,
    /// Its [preferred location](Advice::PreferredLocation).
    pub preferred: Option<Place>,
}

/// What a device is and can do. Devices of other crates begin with [`Properties::new`], and set what differs.
///
/// ```
/// use millpond::Context;
///
/// let device = Context::host()?;
/// let properties = device.device().properties();
/// println!("{}: {} bytes, pages of {} bytes", properties.name, properties.total_memory, properties.granularity);
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// Which of the devices this is.
    pub kind: Kind,
    /// The device's number among its kind.
    pub ordinal: usize,
    /// The device's name, such as "NVIDIA H200".
    pub name: String,
    /// Bytes of memory that the device has.
    pub total_memory: u64,
    /// The smallest page, in bytes, and what page sizes are multiples of. A power of two.
    pub granularity: u64,
    /// Whether addresses and pages are separate, and can be mapped ([`Device::reserve`](super::Device::reserve) to
    /// [`Device::release_page`](super::Device::release_page)).
    pub virtual_memory: bool,
    /// Whether the driver has a stream-ordered allocator of its own.
    pub memory_pools: bool,
    /// What the memory is.
    pub memory: MemoryKind,
    /// Whether the CPU can read and write the memory at its addresses.
    pub host_access: bool,
    /// Whether the device reaches plain memory of the host, by the system's page tables
    /// ([`Context::prefetch_slice`](crate::Context::prefetch_slice)).
    pub pageable_access: bool,
}

impl Properties {
    /// A device of [another crate](Kind::Other), its first, without virtual memory and without memory pools. What later
    /// versions add is off, too.
    pub fn new(name: impl Into<String>, total_memory: u64, granularity: u64) -> Self {
        Self {
            kind: Kind::Other,
            ordinal: 0,
            name: name.into(),
            total_memory,
            granularity,
            virtual_memory: false,
            memory_pools: false,
            memory: MemoryKind::Device,
            host_access: false,
            pageable_access: false,
        }
    }

    /// The device in a word, as `cuda:0`, with its memory where that is not its own.
    pub(crate) fn short(&self) -> impl fmt::Debug {
        struct Short(Kind, usize, MemoryKind);
        impl fmt::Debug for Short {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Self(kind, ordinal, memory) = self;
                write!(f, "{kind}:{ordinal}")?;
                if *memory == MemoryKind::Device { Ok(()) } else { write!(f, " ({memory})") }
            }
        }
        Short(self.kind, self.ordinal, self.memory)
    }
}

/// Free and total memory of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct MemoryInfo {
    /// Bytes that a new allocation could get, as the driver counts.
    pub free: u64,
    /// Bytes that the device has.
    pub total: u64,
}

/// What the driver's own stream-ordered pool holds, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AsyncUsage {
    /// Physical bytes held now.
    pub reserved: u64,
    /// Physical bytes held at most so far.
    pub reserved_high: u64,
    /// Bytes in live allocations now.
    pub used: u64,
    /// Bytes in live allocations at most so far.
    pub used_high: u64,
}
