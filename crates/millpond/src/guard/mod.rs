//! The guard: it finds what a program does to memory that is not its own.
//!
//! [`Guard`] says what is watched. Give it to [`PoolBuilder::guard`](crate::PoolBuilder::guard), or set `MILLPOND_GUARD=all`
//! for every pool of a program, in whatever language.

// Uses `core/` and what is below it; the page for users is docs/guard.md.
//
// **How one block passes through.** `core/` has every request of a guarded pool come to `Guarding`, by the trait `Wrapping`. It
// allocates a block that is longer than what the program asked for. In stream order it fills what lies before and behind
// with *canaries*, and what the program gets with *poison*. A free copies the canaries to pinned memory of the host
// (`canaries`), and fills the block with another poison, both in stream order. The block is *quarantined* then: it stays allocated.
// Once the copies are complete, the canaries are compared. When its time is over, the block's poison is read too, and the block
// is freed behind the fence of its own free. What differs is a `Finding`.
//
// A large block may be a segment of its own (`fenced`), at whose end nothing is mapped. Such a segment goes back to the device as
// soon as its block is freed, so that nothing is mapped there either.
//
// **What is not watched.** Blocks that belong to a stream's capture, since a graph would repeat the copies at each replay. And
// the simulated device, which keeps no bytes.

mod canaries;
mod fenced;
mod finding;
mod guarding;
mod options;

pub(crate) use fenced::FencedMemory;
pub use finding::{Finding, GuardedCall, Mistake};
pub(crate) use guarding::Guarding;
pub use options::Guard;
