//! `caching` and `expandable`: the rules of PyTorch's CUDA caching allocator (2.x, native backend), without and
//! with `expandable_segments:True`. Learnt from `c10/cuda/CUDACachingAllocator.cpp`; replayed traces allocate
//! the same segments as PyTorch did.
//!
//! **How one request passes through.** `sizes.rs` rounds it and says which of the stream's two pools it goes to.
//! `blocks.rs` finds the smallest free block there that is large enough, and splits it. Where there is none,
//! `allocator.rs` allocates a segment, or maps pages at the end of the stream's expandable one (`segment.rs`).
//! `growth.rs` says what that means for the blocks. Where the device has no more, what is cached goes back first
//! (`release.rs`).
//!
//! A free gives the block back to the pool of the stream that it was allocated on, merged with its free neighbours. It
//! is reused on that stream at once; no other stream ever gets it. Where other streams used the block (`record_use`, or
//! a free on another stream), it is pending until events on them are complete (`pending.rs`). Each allocation asks
//! about these.
//!
//! **Left out**: private pools of CUDA graphs and user memory pools. There is one allocator for each device, as
//! in PyTorch.

mod allocator;
mod blocks;
mod cache;
mod growth;
mod options;
mod pending;
mod release;
mod segment;
mod sizes;

pub use allocator::Caching;
pub use options::{CachingOptions, Divisions};
