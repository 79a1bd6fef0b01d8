//! What every allocator under test does.

use millpond::device::DevicePtr;
use millpond::{DeviceCalls, Level, Result, Stream};

/// An allocator under test. The pool implements it too.
///
/// Memory is valid for work ordered after the allocation and before the free, on the streams named. Calls may
/// come from any thread.
pub trait Allocator: Send + Sync + std::fmt::Debug + 'static {
    /// The name by which the command knows it.
    fn name(&self) -> &'static str;

    /// Allocates `bytes` for work on `stream`. Zero bytes give the null pointer.
    ///
    /// # Errors
    /// [`millpond::Error::OutOfMemory`] or the device's own.
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr>;

    /// Frees what [`allocate`](Self::allocate) returned, after the work given to `stream` so far. Null is
    /// freed at no cost.
    ///
    /// # Errors
    /// For a pointer that is not a live block of this allocator.
    ///
    /// # Safety
    /// As for [`Pool::free`](millpond::Pool::free): a live block that starts at `ptr` is the caller's, and work that uses it is ordered.
    unsafe fn free(&self, ptr: DevicePtr, stream: &Stream) -> Result<()>;

    /// Notes that work on `stream` uses the block, so that its free waits for that work too.
    ///
    /// # Errors
    /// As for [`free`](Self::free).
    fn record_use(&self, ptr: DevicePtr, stream: &Stream) -> Result<()>;

    /// Gives back to the device what is cached and can be given back now.
    ///
    /// # Errors
    /// The device's own.
    fn trim(&self) -> Result<()>;

    /// What it holds and did.
    fn usage(&self) -> Usage;
}

/// What an allocator holds and did. Sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes asked for, in live blocks.
    pub requested: Level,
    /// Physical bytes held from the device.
    pub reserved: Level,
    /// Device calls by kind.
    pub calls: DeviceCalls,
}
