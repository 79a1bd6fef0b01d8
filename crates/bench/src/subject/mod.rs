//! `subject/`: an allocator as the loops that measure see it.
//!
//! A suite is generic over [`Subject`], so that its calls are compiled in, as in a program that uses the allocator:
//! where a pair costs ten nanoseconds, a call through a table would show. [`with_subject`] chooses the allocator once,
//! outside of all loops.

mod choice;
mod interface;
mod mimalloc;
mod ordered;

pub use choice::names;
pub(crate) use choice::with_subject;
pub(crate) use interface::{Subject, Visit};
pub use mimalloc::MIMALLOC;
pub(crate) use mimalloc::Mimalloc;
