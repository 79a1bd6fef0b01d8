//! The other allocators, behind one trait: what millpond is measured against.
//!
//! Uses the public interface of `millpond` only. Each allocator is one file or folder; all of them work over any
//! [`Device`](millpond::device::Device), so that they can be compared on a GPU, on the CPU and in simulation.
//!
//! **How one request passes through.** [`by_name`] builds the allocator that the user chose. Its
//! [`allocate`](Allocator::allocate) finds memory, asks the device for more where it has none, and enters the
//! block into its books (`books.rs`). A [`free`](Allocator::free) takes the block out of the books, which is
//! what makes a double free an error, and keeps the memory until the streams that used it are past it.
//!
//! **What they do not do.** They hold a stream for as long as a block that it uses (`caching`, `expandable` and
//! `bfc`, which order what they cache after streams: for as long as they live). So a stream from
//! [`Context::foreign_stream`], which its owner may destroy at any time, is for the pool only, and a thread's
//! default stream is used and freed on by its own thread.

mod bfc;
mod binned;
mod books;
mod caching;
mod driver;
mod events;
mod first_fit;
mod pool;
mod stream_ordered;
mod streams;

use millpond::device::DevicePtr;
use millpond::{Context, DeviceCalls, Level, Pool, Result, Stream};

pub use bfc::{Bfc, BfcOptions};
pub use binned::Binned;
pub use caching::{Caching, CachingOptions, Divisions};
pub use driver::Driver;
pub use first_fit::FirstFit;
pub use stream_ordered::StreamOrdered;

/// The names that [`by_name`] knows, in the order in which reports list them.
pub const NAMES: [&str; 8] = [
    pool::NAME,
    Caching::NAME,
    Caching::EXPANDABLE,
    Bfc::NAME,
    StreamOrdered::NAME,
    Driver::NAME,
    Binned::NAME,
    FirstFit::NAME,
];

/// Why there is no allocator to be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// No allocator has this name.
    #[error("no allocator is called '{name}'; there are {}", NAMES.join(", "))]
    UnknownName {
        /// The name asked for.
        name: String,
    },
    /// The allocator cannot be had on this device.
    #[error(transparent)]
    Allocator(#[from] millpond::Error),
}

/// Builds the allocator of this name, with default options, over the context's device.
///
/// # Errors
/// [`ChoiceError::UnknownName`] for a name that is not in [`NAMES`], and the allocator's own error where the
/// device cannot carry it.
pub fn by_name(name: &str, context: &Context) -> std::result::Result<Box<dyn Allocator>, ChoiceError> {
    Ok(match name {
        pool::NAME => Box::new(Pool::builder(context).name(pool::NAME).build()?),
        Caching::NAME => Box::new(Caching::new(context)),
        Caching::EXPANDABLE => Box::new(Caching::with_options(context, CachingOptions::expandable())?),
        Bfc::NAME => Box::new(Bfc::new(context)),
        StreamOrdered::NAME => Box::new(StreamOrdered::new(context)?),
        Driver::NAME => Box::new(Driver::new(context)),
        Binned::NAME => Box::new(Binned::new(context)),
        FirstFit::NAME => Box::new(FirstFit::new(context)),
        _ => return Err(ChoiceError::UnknownName { name: name.to_owned() }),
    })
}

/// An allocator under test. The pool implements it too.
///
/// Memory is valid for work ordered after the allocation and before the free, on the streams named. Calls may
/// come from any thread.
pub trait Allocator: Send + Sync + std::fmt::Debug {
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
    /// As for [`Pool::free`]: a live block that starts at `ptr` is the caller's, and work that uses it is ordered.
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
