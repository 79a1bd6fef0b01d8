//! Training on the CPU: each operation is a closure that the host device's stream runs in order.
//!
//! It may use the host device and the tensors. An operation checks the shapes, allocates its output, and
//! launches a closure over [`View`]s of its inputs and its output; the arithmetic is in `arithmetic`, on plain
//! slices. Work inside a closure is spread over the cores by rayon.

mod arithmetic;
mod backend;
mod view;

pub use backend::HostBackend;
pub(crate) use view::View;
