//! The other allocators, behind one trait: what millpond is measured against.
//!
//! Uses the public interface of `millpond` only. Each allocator is one file or folder. All of them work over any
//! [`Device`](millpond::device::Device), so they can be compared on a GPU, on the CPU and in simulation.
//!
//! **How one request passes through.** [`by_name`] finds the allocator that the user chose in [the list](ALLOCATORS)
//! and builds it. Its [`allocate`](Allocator::allocate) finds memory, asks the device for more where it has none, and
//! enters the block into its books (`books.rs`). A [`free`](Allocator::free) takes the block out of the books, so a
//! double free is an error. It keeps the memory until the streams that used it are past it.
//!
//! **What they do not do.** They hold a stream for as long as a block that it uses. `caching`, `expandable` and `bfc`
//! order what they cache after streams, and hold them as long as they live. So a stream from
//! [`Context::foreign_stream`], which its owner may destroy at any time, is for the pool only. A thread's default
//! stream is used and freed on by its own thread.

mod allocator;
mod bfc;
mod binned;
mod books;
mod caching;
mod driver;
mod events;
mod first_fit;
mod memory;
mod pool;
mod rmm_arena;
mod rmm_pool;
mod stream_ordered;
mod streams;

use millpond::{Context, Pool, Result};

pub use allocator::{Allocator, Usage};
pub use bfc::{Bfc, BfcOptions};
pub use binned::Binned;
pub use caching::{Caching, CachingOptions, Divisions};
pub use driver::Driver;
pub use first_fit::FirstFit;
pub use memory::{MEMORIES, memory_of, name_of};
pub use pool::NAME as MILLPOND;
pub use rmm_arena::RmmArena;
pub use rmm_pool::RmmPool;
pub use stream_ordered::StreamOrdered;

/// An allocator as users choose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// The name that `--allocator` takes.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
}

/// What to do with an allocator whose type is known at compile time. A call through [`by_name`]'s table takes a
/// nanosecond or two.
pub trait Visit {
    /// What comes of it.
    type Outcome;

    /// Does it. `build` makes the allocator, with default options, over a context's device.
    fn visit<A: Allocator>(self, build: impl Fn(&Context) -> Result<A>) -> Self::Outcome;
}

macro_rules! list {
    ($($name:path: $about:literal, $build:expr;)*) => {
        /// All allocators, in the order in which reports list them.
        pub const ALLOCATORS: [Listed; [$($about),*].len()] = [$(Listed { name: $name, about: $about }),*];

        /// Hands the allocator of this name to `visit`.
        ///
        /// # Errors
        /// [`ChoiceError::UnknownName`] for a name that is not in [`NAMES`].
        pub fn with_allocator<V: Visit>(
            name: &str,
            visit: V,
        ) -> std::result::Result<V::Outcome, ChoiceError> {
            match name {
                $($name => Ok(visit.visit($build)),)*
                _ => Err(ChoiceError::UnknownName { name: name.to_owned() }),
            }
        }
    };
}

list! {
    MILLPOND: "this pool",
        |context| Pool::builder(context).name(MILLPOND).build();
    Caching::NAME: "PyTorch's rules, 2.x",
        |context| Ok(Caching::new(context));
    Caching::EXPANDABLE: "the same with expandable_segments:True",
        |context| Caching::with_options(context, CachingOptions::expandable());
    Bfc::NAME: "TensorFlow's best fit with coalescing",
        |context| Ok(Bfc::new(context));
    StreamOrdered::NAME: "the driver's own pool, cuMemAllocAsync",
        StreamOrdered::new;
    Driver::NAME: "cuMemAlloc and cuMemFree each time",
        |context| Ok(Driver::new(context));
    Binned::NAME: "power-of-two classes with free lists",
        |context| Ok(Binned::new(context));
    FirstFit::NAME: "one linked list, split and coalesced",
        |context| Ok(FirstFit::new(context));
}

/// The names that [`by_name`] knows, in the order in which reports list them.
pub const NAMES: [&str; ALLOCATORS.len()] = {
    let mut names = [""; ALLOCATORS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = ALLOCATORS[at].name;
        at += 1;
    }
    names
};

/// RMM's own allocators, which [`by_name`] knows, too. They are of interest to programs that use RMM, and stand in no other list.
pub const OF_RMM: [Listed; 2] = [
    Listed { name: RmmPool::NAME, about: "RMM's pool_memory_resource" },
    Listed { name: RmmArena::NAME, about: "RMM's arena_memory_resource" },
];

/// Why there is no allocator to be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// No allocator has this name.
    #[error("no allocator is called '{name}'; there are {}, {}", NAMES.join(", "), OF_RMM.map(|listed| listed.name).join(", "))]
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
/// [`ChoiceError::UnknownName`] for a name that is neither in [`NAMES`] nor in [`OF_RMM`], and the allocator's own error where
/// the device cannot carry it.
pub fn by_name(name: &str, context: &Context) -> std::result::Result<Box<dyn Allocator>, ChoiceError> {
    struct Boxed<'a>(&'a Context);
    impl Visit for Boxed<'_> {
        type Outcome = Result<Box<dyn Allocator>>;

        fn visit<A: Allocator>(self, build: impl Fn(&Context) -> Result<A>) -> Self::Outcome {
            Ok(Box::new(build(self.0)?))
        }
    }
    match name {
        RmmPool::NAME => Ok(Box::new(RmmPool::new(context))),
        RmmArena::NAME => Ok(Box::new(RmmArena::new(context))),
        _ => Ok(with_allocator(name, Boxed(context))??),
    }
}
