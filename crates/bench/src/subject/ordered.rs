//! Allocators in stream order: the pool, and those of `millpond-baselines`.

use millpond::device::DevicePtr;
use millpond::{Context, Pool, Stream};
use millpond_baselines::{Allocator, NAMES};

use super::interface::Subject;
use crate::Result;

/// An allocator with its calls known at compile time.
#[derive(Debug)]
pub(super) struct Ordered<A> {
    context: Context,
    allocator: A,
}

impl<A: Allocator> Ordered<A> {
    pub(super) fn build(
        context: Context,
        build: impl FnOnce(&Context) -> millpond::Result<A>,
    ) -> Result<Self> {
        let allocator = build(&context)?;
        Ok(Self { context, allocator })
    }
}

impl<A: Allocator> Subject for Ordered<A> {
    type Stream = Stream;
    type Block = DevicePtr;

    fn name(&self) -> &'static str {
        self.allocator.name()
    }

    fn create_stream(&self) -> Result<Stream> {
        Ok(self.context.create_stream()?)
    }

    #[inline(always)]
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
        Ok(self.allocator.allocate(bytes, stream)?)
    }

    #[inline(always)]
    fn free(&self, block: DevicePtr, stream: &Stream) -> Result<()> {
        // SAFETY: a suite frees each block once, and orders what it gave it to do.
        Ok(unsafe { self.allocator.free(block, stream) }?)
    }
}

/// The pool, called as programs call it. As an [`Ordered`] the loop around a pair takes 1 ns more (2 cores of an AMD EPYC).
#[derive(Debug)]
pub(super) struct Millpond {
    context: Context,
    pool: Pool,
}

impl Millpond {
    pub(super) fn new(context: Context) -> Result<Self> {
        let pool = Pool::builder(&context).name("bench").build()?;
        Ok(Self { context, pool })
    }
}

impl Subject for Millpond {
    type Stream = Stream;
    type Block = DevicePtr;

    fn name(&self) -> &'static str {
        NAMES[0]
    }

    fn create_stream(&self) -> Result<Stream> {
        Ok(self.context.create_stream()?)
    }

    #[inline(always)]
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
        Ok(self.pool.alloc(bytes, stream)?)
    }

    #[inline(always)]
    fn free(&self, block: DevicePtr, stream: &Stream) -> Result<()> {
        // SAFETY: a suite frees each block once, and orders what it gave it to do.
        Ok(unsafe { self.pool.free(block, stream) }?)
    }
}
