//! `typed/`: blocks that know their type, and free themselves.
//!
//! Uses `pool/`, and what is below it.

pub(crate) mod buffer;
mod shared_buffer;
mod workspace;

pub use buffer::Buffer;
pub use shared_buffer::Opened;
pub use workspace::{Workspace, WorkspaceSlice};
