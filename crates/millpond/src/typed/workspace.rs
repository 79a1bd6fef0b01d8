//! Workspaces: one block taken in advance, for a program that needs the same scratch memory every step.

use std::marker::PhantomData;
use std::ops::RangeBounds;

use bytemuck::Pod;

use crate::device::DevicePtr;
use crate::error::{Error, Result};
use crate::order::Stream;
use crate::policy::options::{ALIGNMENT, ALIGNMENTS};
use crate::pool::Pool;
use crate::typed::block_bytes::BlockBytes;
use crate::typed::buffer::{Buffer, byte_len};
use crate::typed::view::{BufferView, BufferViewMut};

/// Device memory that is handed out from front to back, and taken back all at once. Handing out costs an
/// addition. Nothing is freed one by one.
///
/// ```
/// use millpond::{Context, Pool, Workspace};
/// let device = Context::host()?;
/// let pool = Pool::builder(&device).build()?;
/// let stream = device.create_stream()?;
/// let mut workspace = Workspace::new(&pool, 1 << 20, &stream)?;
/// for _step in 0..3 {
///     let activations = workspace.alloc::<f32>(1024)?;
///     let gradients = workspace.alloc::<f32>(1024)?;
///     assert_ne!(activations.ptr(), gradients.ptr());
///     workspace.reset();
/// }
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the block is freed when this is dropped"]
pub struct Workspace {
    block: Buffer<u8>,
    used: std::cell::Cell<u64>,
    high: u64,
}

/// Memory of a [`Workspace`], until its next [reset](Workspace::reset). [`Workspace::alloc`] returns it.
///
/// ```
/// # let device = millpond::Context::host()?;
/// # let pool = millpond::Pool::builder(&device).build()?;
/// # let stream = device.create_stream()?;
/// let workspace = millpond::Workspace::new(&pool, 1 << 20, &stream)?;
/// let scratch = workspace.alloc::<f32>(1024)?;
/// assert_eq!((scratch.len(), scratch.ptr().raw() % 512), (1024, 0)); // the address is for kernels
/// # Ok::<(), millpond::Error>(())
/// ```
///
/// It goes into launches and copies, on the workspace's stream:
/// ```
/// # let device = millpond::Context::host()?;
/// # let pool = millpond::Pool::builder(&device).build()?;
/// # let stream = device.create_stream()?;
/// # let workspace = millpond::Workspace::new(&pool, 1 << 20, &stream)?;
/// let scratch = workspace.alloc::<u32>(4)?;
/// scratch.fill(7)?;
/// scratch.slice(1..3)?.copy_from_slice(&[1, 2])?;
/// assert_eq!(scratch.to_vec()?, [7, 1, 2, 7]);
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct WorkspaceSlice<'a, T> {
    ptr: DevicePtr,
    len: usize,
    block: &'a Buffer<u8>,
    of: PhantomData<(&'a Workspace, T)>,
}

impl Workspace {
    /// Takes a block of `bytes` from the pool. What it hands out is aligned to 512 bytes, or as its elements are.
    ///
    /// # Errors
    /// Those of [`Pool::alloc`].
    pub fn new(pool: &Pool, bytes: u64, stream: &Stream) -> Result<Self> {
        let len = usize::try_from(bytes).map_err(|_| Error::SizeOverflow { bytes, count: 1 })?;
        // Whatever the pool's minimum is.
        let ptr = pool.alloc_aligned(bytes, ALIGNMENT, stream)?;
        let block = Buffer::over_block(pool.inner(), ptr, len, stream);
        Ok(Self { block, used: std::cell::Cell::new(0), high: 0 })
    }

    /// Hands out `len` elements with no defined content, for work on the workspace's stream. Zero elements always fit.
    ///
    /// # Errors
    /// [`Error::WorkspaceFull`] where less is left; nothing is handed out then.
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<WorkspaceSlice<'_, T>> {
        let ptr = self.alloc_aligned(byte_len::<T>(len)?, align_of::<T>() as u64)?;
        Ok(WorkspaceSlice { ptr, len, block: &self.block, of: PhantomData })
    }

    /// Hands out bytes at a multiple of `align` bytes, a power of two, until the next reset.
    ///
    /// # Errors
    /// [`Error::BadAlignment`], and those of [`alloc`](Self::alloc).
    pub fn alloc_aligned(&self, bytes: u64, align: u64) -> Result<DevicePtr> {
        if !align.is_power_of_two() || align > *ALIGNMENTS.end() {
            return Err(Error::BadAlignment { align, largest: *ALIGNMENTS.end() });
        }
        let (base, used) = (self.block.ptr().raw(), self.used());
        let start = (base + used).next_multiple_of(align) - base;
        let left = self.capacity().saturating_sub(start);
        if bytes > left {
            return Err(Error::WorkspaceFull { requested: bytes, left, capacity: self.capacity() });
        }
        // The next one's start; beyond the capacity where the block is used up.
        self.used.set((start + bytes).next_multiple_of(ALIGNMENT));
        Ok(self.block.ptr().offset(start))
    }

    /// Takes everything back. The borrow forbids the use of earlier slices. Their work need not be waited for: what is
    /// handed out next is for later work on the same stream.
    ///
    /// ```compile_fail,E0502
    /// # let device = millpond::Context::host()?;
    /// # let (pool, stream) = (millpond::Pool::builder(&device).build()?, device.create_stream()?);
    /// let mut workspace = millpond::Workspace::new(&pool, 1 << 20, &stream)?;
    /// let before = workspace.alloc::<f32>(1024)?;
    /// workspace.reset(); // error: `before` is used below
    /// println!("{}", before.ptr());
    /// # Ok::<(), millpond::Error>(())
    /// ```
    /// ```
    /// # let device = millpond::Context::host()?;
    /// # let (pool, stream) = (millpond::Pool::builder(&device).build()?, device.create_stream()?);
    /// let mut workspace = millpond::Workspace::new(&pool, 1 << 20, &stream)?;
    /// let before = workspace.alloc::<f32>(1024)?;
    /// println!("{}", before.ptr());
    /// workspace.reset();
    /// # Ok::<(), millpond::Error>(())
    /// ```
    pub fn reset(&mut self) {
        self.high = self.high_water();
        self.used.set(0);
    }

    /// Bytes handed out since the last reset, with what alignment took.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.get().min(self.capacity())
    }

    /// The most bytes handed out between two resets so far.
    #[must_use]
    pub fn high_water(&self) -> u64 {
        self.high.max(self.used())
    }

    /// Bytes taken from the pool.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.block.byte_len()
    }

    /// The stream that the workspace belongs to.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.block.stream()
    }
}

impl<'a, T: Pod> WorkspaceSlice<'a, T> {
    /// It, as a view. The CPU cannot read it in place: other copies of the slice may be given to the device. A copy to another
    /// stream takes a block as long as the view meanwhile, since other views may write to it on other threads.
    pub fn as_view(&self) -> BufferView<'a, T> {
        BufferView::new(self.part(), self.len)
    }

    /// It, as a view to be written by the device. The CPU cannot write it in place.
    pub fn as_view_mut(&self) -> BufferViewMut<'a, T> {
        BufferViewMut::new(self.part(), self.len)
    }

    /// The elements in a range.
    ///
    /// ```
    /// # let device = millpond::Context::host()?;
    /// # let (pool, stream) = (millpond::Pool::builder(&device).build()?, device.create_stream()?);
    /// let workspace = millpond::Workspace::new(&pool, 4096, &stream)?;
    /// let tokens = workspace.alloc::<u32>(8)?;
    /// let (prompt, rest) = tokens.split_at(2)?;
    /// prompt.copy_from_slice(&[5, 6])?;
    /// rest.fill(7)?;
    /// rest.slice(..2)?.copy_from(prompt)?;
    /// assert_eq!(tokens.to_vec()?, [5, 6, 5, 6, 7, 7, 7, 7]);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(self.of_view(self.as_view().slice(range)?))
    }

    /// The elements before `mid`, and those from there on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn split_at(&self, mid: usize) -> Result<(Self, Self)> {
        let (one, other) = self.as_view().split_at(mid)?;
        Ok((self.of_view(one), self.of_view(other)))
    }

    /// Its bytes as elements of another type.
    ///
    /// # Errors
    /// Those of [`BufferView::cast`].
    pub fn cast<U: Pod>(&self) -> Result<WorkspaceSlice<'a, U>> {
        Ok(self.of_view(self.as_view().cast()?))
    }

    /// Sets all bytes to zero, in stream order.
    ///
    /// # Errors
    /// The device's own.
    pub fn set_zero(&self) -> Result<()> {
        self.as_view_mut().set_zero()
    }

    /// As [`BufferViewMut::fill`].
    ///
    /// # Errors
    /// As for [`BufferViewMut::fill`].
    pub fn fill(&self, value: T) -> Result<()> {
        self.as_view_mut().fill(value)
    }

    /// Copies from a slice of the same length, in stream order. The slice has been read on return.
    ///
    /// # Errors
    /// As for [`BufferViewMut::copy_from_slice`].
    pub fn copy_from_slice(&self, from: &[T]) -> Result<()> {
        self.as_view_mut().copy_from_slice(from)
    }

    /// Copies from a part of a buffer or a workspace, of the same length, in stream order.
    ///
    /// # Errors
    /// As for [`BufferViewMut::copy_from`].
    pub fn copy_from<'b>(&self, from: impl Into<BufferView<'b, T>>) -> Result<()> {
        self.as_view_mut().copy_from(from)
    }

    /// As [`BufferViewMut::copy_within`].
    ///
    /// # Errors
    /// As for [`BufferViewMut::copy_within`].
    pub fn copy_within(&self, from: impl RangeBounds<usize>, to: usize) -> Result<()> {
        self.as_view_mut().copy_within(from, to)
    }

    /// Copies to a slice of the same length, and waits for the stream.
    ///
    /// # Errors
    /// As for [`BufferView::copy_to_slice`].
    pub fn copy_to_slice(&self, to: &mut [T]) -> Result<()> {
        self.as_view().copy_to_slice(to)
    }

    /// The elements, after the work given to the stream so far. Waits.
    ///
    /// # Errors
    /// The device's own.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.as_view().to_vec()
    }

    /// A part of it, by the view of that.
    fn of_view<U: Pod>(&self, view: BufferView<'a, U>) -> WorkspaceSlice<'a, U> {
        WorkspaceSlice { ptr: view.part.ptr, len: view.len(), block: self.block, of: PhantomData }
    }

    fn part(&self) -> BlockBytes<'a> {
        let bytes = (self.len * size_of::<T>()) as u64;
        BlockBytes { ptr: self.ptr, bytes, is_shared: true, ..self.block.part() }
    }
}

impl<'a, T: Pod> From<WorkspaceSlice<'a, T>> for BufferView<'a, T> {
    fn from(slice: WorkspaceSlice<'a, T>) -> Self {
        slice.as_view()
    }
}

impl<T> WorkspaceSlice<'_, T> {
    /// Where the address lies, for the builder of a launch.
    #[cfg(feature = "cudarc")]
    pub(crate) fn ptr_ref(&self) -> &DevicePtr {
        &self.ptr
    }

    /// The address.
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::{SimDevice, SimOptions};
    use crate::pool::Context;

    #[test]
    fn a_workspaces_blocks_are_aligned_whatever_the_pool_promises() {
        let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
        let stream = context.create_stream().unwrap();
        let pool = Pool::builder(&context).min_alignment(256).build().unwrap();
        // So that the next block would start at an odd multiple of 256 bytes.
        let _before = pool.alloc(256, &stream).unwrap();
        let workspace = Workspace::new(&pool, 4096, &stream).unwrap();
        for _ in 0..3 {
            let slice = workspace.alloc::<u8>(100).unwrap();
            assert_eq!(slice.ptr().raw() % 512, 0);
        }
    }

    #[test]
    fn elements_are_aligned_as_their_type_asks() {
        #[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
        #[repr(C, align(1024))]
        struct Wide([u8; 1024]);
        let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
        let stream = context.create_stream().unwrap();
        let pool = Pool::builder(&context).min_alignment(256).build().unwrap();
        let workspace = Workspace::new(&pool, 1 << 20, &stream).unwrap();
        let mut buffers = Vec::new();
        for _ in 0..20 {
            workspace.alloc::<u8>(100).unwrap();
            assert_eq!(workspace.alloc::<Wide>(1).unwrap().ptr().raw() % 1024, 0);
            let _between = pool.alloc(200, &stream).unwrap();
            buffers.push(Buffer::<Wide>::new(&pool, 1, &stream).unwrap());
            assert_eq!(buffers.last().unwrap().ptr().raw() % 1024, 0);
        }
        for align in [0, 3, 4 << 20] {
            let refused = workspace.alloc_aligned(1, align);
            assert_eq!(refused, Err(Error::BadAlignment { align, largest: 2 << 20 }));
        }
    }
}
