//! What ranks do together with memory on their devices.

use std::any::Any;

use millpond::Stream;

use crate::{Result, Tensor};

/// Operations in which all ranks take part, in the same order, with tensors of the same size.
///
/// An operation returns once its work is queued on the stream. The tensors live until that work is done. Where an operation
/// has no way to report a failure, [`check`](Self::check) does.
pub trait Collective: std::fmt::Debug {
    /// Each element becomes the sum over all ranks. The result is the same to the last bit on all of them.
    ///
    /// # Errors
    /// The device's own, or [`Error::Library`](crate::Error::Library), here and below.
    fn all_reduce(&self, buffer: &Tensor, stream: &Stream) -> Result<()>;

    /// This rank's piece of the buffer, of as many equal ones as there are ranks, becomes the sum over all ranks. It is written to
    /// `piece`, which may be that part of the buffer. The rest of the buffer is undefined then.
    ///
    /// # Errors
    /// As above.
    fn reduce_scatter(&self, buffer: &Tensor, piece: &Tensor, stream: &Stream) -> Result<()>;

    /// Each rank's piece of the buffer becomes what that rank has there.
    ///
    /// # Errors
    /// As above.
    fn all_gather(&self, buffer: &Tensor, stream: &Stream) -> Result<()>;

    /// The buffer becomes what rank 0 has there.
    ///
    /// # Errors
    /// As above.
    fn broadcast(&self, buffer: &Tensor, stream: &Stream) -> Result<()>;

    /// Prepares the buffer for operations without a copy in between, until what is returned is dropped: before the buffer.
    /// `None` where that is not possible.
    fn register(&self, _buffer: &Tensor) -> Option<Box<dyn Any>> {
        None
    }

    /// The first failure of an operation that was queued, if the ranks do not know of it.
    ///
    /// # Errors
    /// That.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}
