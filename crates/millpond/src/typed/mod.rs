//! `typed/`: blocks that know their type, and free themselves.
//!
//! Uses `pool/`, and what is below it.
//!
//! **How one request passes through.** A call of a buffer, a view or a workspace checks lengths in elements, and becomes one of a
//! `BlockBytes`: bytes of a block. That orders the work, and gives it to the device.

mod block_bytes;
pub(crate) mod buffer;
mod shared_buffer;
mod view;
mod workspace;

pub use buffer::Buffer;
pub use shared_buffer::Opened;
#[cfg(feature = "cudarc")]
pub(crate) use view::range_in;
pub use view::{BufferView, BufferViewMut};
pub use workspace::{Workspace, WorkspaceSlice};
