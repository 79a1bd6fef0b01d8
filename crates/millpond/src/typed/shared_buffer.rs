//! Buffers that several processes use.

use std::sync::Arc;

use bytemuck::Pod;

use crate::error::{Error, Result};
use crate::order::Stream;
use crate::pool::Context;
use crate::sharing::{Received, Shared, SharedEvent};
use crate::typed::Buffer;

/// What another process shared, open in this one. [`Shared`] has an example.
///
/// Dropped, the buffer is unmapped once the work of its stream is complete. When buffer and event are gone, the process that
/// shared it may use the memory for something else.
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened<T: Pod> {
    /// The memory. Its owner and others may use it at the same time: the event orders that.
    pub buffer: Buffer<T>,
    /// Orders the work of all processes on the memory.
    pub event: SharedEvent,
}

impl<T: Pod> Buffer<T> {
    /// Lets other processes open the buffer's memory. They find there what the work that the buffer's stream was given so far
    /// writes.
    ///
    /// They reach the whole pages that the buffer lies on ([`SharedToken::exposed_bytes`](crate::SharedToken::exposed_bytes)),
    /// with what else lies there. In a pool of [`PoolBuilder::for_sharing`](crate::PoolBuilder::for_sharing), each buffer has
    /// pages of its own.
    ///
    /// The buffer may be used, and dropped, as before. Its memory is given to nobody else as long as another process has it
    /// open, or the result lives.
    ///
    /// # Errors
    /// [`Error::NotShareable`] for a buffer of no elements, memory of another kind than the device's own, memory of a capture,
    /// and devices without virtual memory. [`Error::Device`] where the device cannot share memory, for a stream that is being
    /// captured, and where the process has too few descriptors: there is one for each page.
    pub fn share(&self) -> Result<Shared> {
        crate::sharing::share(
            self.core().clone(),
            self.ptr(),
            Some((self.byte_len(), size_of::<T>())),
            self.stream(),
        )
    }
}

impl Context {
    /// Opens what another process [shared](Buffer::share), for work on `stream`. Work given to the stream from now on comes
    /// after what the [event](Shared::event) stands for. No memory of the device is taken. Elements of any size can be opened as
    /// bytes (`u8`), and bytes as elements of any size.
    ///
    /// # Errors
    /// [`Error::BadToken`] for elements of another size than `T`, for memory that this context's device cannot reach, and for
    /// what no [`Buffer::share`] made. [`Error::OwnerGone`] where the process that shared it is gone, or has ended the sharing
    /// before this process began. [`Error::WrongDevice`] for a stream of another context. Else the device's own.
    pub fn open_shared<T: Pod>(&self, received: Received, stream: &Stream) -> Result<Opened<T>> {
        let (here, others) = (size_of::<T>(), self.of_others()?);
        if !Arc::ptr_eq(stream.timelines(), self.timelines()) {
            return Err(Error::WrongDevice { what: "stream", pool: others.pool.name_of() });
        }
        let (shared, bytes) = (received.token().element_size(), received.token().byte_len());
        // Bytes are elements of any size, and the other way round.
        let fits = here > 0 && bytes.is_multiple_of(here as u64) && (here == 1 || shared == 1);
        if here != shared && !fits {
            let why = format!("its elements have {shared} bytes, and those asked for {here}");
            return Err(Error::BadToken { why });
        }
        let (ptr, event) = others.open(received, stream)?;
        let buffer = Buffer::<T>::over_block(&others.pool, ptr, bytes as usize / here, stream);
        if !ptr.raw().is_multiple_of(align_of::<T>() as u64) {
            let why = format!("the block is not aligned to {} bytes, as its elements are", align_of::<T>());
            return Err(Error::BadToken { why });
        }
        Ok(Opened { buffer, event })
    }
}
