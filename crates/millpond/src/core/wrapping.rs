//! What may stand between a program and the blocks of its pool: a feature that gives it a part of each block.
//!
//! The fast path of such a pool is closed, so that every request comes by the functions that ask here.

use std::fmt;

use crate::device::DevicePtr;
use crate::error::Result;
use crate::order::Stream;

/// See the [module](self). `C` is the [core](super::Core).
pub(crate) trait Wrapping<C>: fmt::Debug + Send + Sync {
    /// Allocates what the program asks for, as a part of a [block](super::allocating::alloc_block).
    fn alloc(&self, core: &C, bytes: u64, align: u64, stream: &Stream) -> Result<DevicePtr>;

    /// Takes back what the program has at `ptr`. The block may be freed later.
    fn free(&self, core: &C, ptr: DevicePtr, stream: &Stream) -> Result<()>;

    /// The first address of the block in which the program has a part at `ptr`, and the bytes that it asked for. `None` where
    /// it has a whole block, or nothing.
    fn part_at(&self, ptr: DevicePtr) -> Option<(DevicePtr, u64)>;

    /// Of these blocks, which the pool says are live, those that the program has, as it knows them. Also called under the
    /// pool's lock.
    fn parts(&self, blocks: Vec<(DevicePtr, u64)>) -> Vec<(DevicePtr, u64)>;

    /// Frees the blocks that the program gave back: those that it is time for, or after a wait `all` of them. Returns whether
    /// there were any.
    fn give_back(&self, core: &C, all: bool) -> bool;

    /// Frees all blocks that the program gave back, after a wait, before the pool's pages go. The gate is closed.
    fn give_back_before_leaving(&self, core: &C);
}
