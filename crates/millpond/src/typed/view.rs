//! Views: parts of a buffer, in elements.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};

use bytemuck::Pod;

use super::block_bytes::BlockBytes;
use crate::device::DevicePtr;
use crate::error::{Error, Result};
use crate::order::{Event, Stream};

/// Some elements of a [`Buffer`](crate::Buffer), to be read. Its work is the buffer's: on its stream, and ordered with all other uses of it.
///
/// ```
/// use millpond::{Buffer, Context, Pool};
///
/// let pool = Pool::builder(&Context::host()?).build()?;
/// let (one, two) = (pool.create_stream()?, pool.create_stream()?);
/// let table = Buffer::from_slice(&pool, &[1_u32, 2, 3, 4], &one)?;
/// let mut row = Buffer::<u32>::zeroed(&pool, 2, &two)?;
/// row.as_view_mut().copy_from(table.slice(1..3)?)?; // `two` waits for `one`, and the host for neither
/// assert_eq!(row.to_vec()?, [2, 3]);
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Clone, Copy)]
#[must_use]
pub struct BufferView<'a, T> {
    pub(super) part: BlockBytes<'a>,
    len: usize,
    element: PhantomData<T>,
}

/// Some elements of a [`Buffer`](crate::Buffer), to be read and written. Parts that do not overlap may be written by several threads.
///
/// ```
/// use millpond::{Buffer, Context, Pool};
///
/// let pool = Pool::builder(&Context::host()?).build()?;
/// let stream = pool.create_stream()?;
/// let mut batch = Buffer::<f32>::uninit(&pool, 4, &stream)?;
/// let mut whole = batch.as_view_mut();
/// let (mut first, mut second) = whole.split_at_mut(2)?;
/// first.fill(1.5)?;
/// second.copy_from_slice(&[2.0, 3.0])?;
/// assert_eq!(batch.to_vec()?, [1.5, 1.5, 2.0, 3.0]);
/// # Ok::<(), millpond::Error>(())
/// ```
#[must_use]
pub struct BufferViewMut<'a, T> {
    part: BlockBytes<'a>,
    len: usize,
    element: PhantomData<&'a mut T>,
}

/// The elements that a range names, of so many.
pub(crate) fn range_in(
    what: &'static str,
    range: impl RangeBounds<usize>,
    len: usize,
) -> Result<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(start) => Some(*start),
        Bound::Excluded(before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => Some(len),
    };
    let (start, end) = (start.unwrap_or(usize::MAX), end.unwrap_or(usize::MAX));
    if start <= end && end <= len { Ok(start..end) } else { Err(Error::OutOfRange { what, start, end, len }) }
}

/// How many elements of another type so many bytes are.
pub(super) fn cast_len<U: Pod>(what: &'static str, ptr: DevicePtr, bytes: u64) -> Result<usize> {
    let (each, align) = (size_of::<U>() as u64, align_of::<U>() as u64);
    if each == 0 || !bytes.is_multiple_of(each) {
        let expected = (bytes.checked_div(each).unwrap_or(0) * each) as usize;
        return Err(Error::LengthMismatch { what, found: bytes as usize, expected });
    }
    if !ptr.raw().is_multiple_of(align) {
        return Err(Error::BadAlignment { align, largest: 1 << ptr.raw().trailing_zeros() });
    }
    Ok((bytes / each) as usize)
}

impl<'a, T: Pod> BufferView<'a, T> {
    pub(super) fn new(part: BlockBytes<'a>, len: usize) -> Self {
        Self { part, len, element: PhantomData }
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

    /// Length in bytes.
    #[must_use]
    pub fn byte_len(&self) -> u64 {
        self.part.bytes
    }

    /// The address of its first element, for kernels and driver calls.
    pub fn ptr(&self) -> DevicePtr {
        self.part.access.give_out();
        self.part.ptr
    }

    /// Where the address lies, for the builder of a launch.
    #[cfg(feature = "cudarc")]
    pub(crate) fn ptr_ref(&self) -> &DevicePtr {
        self.part.access.give_out();
        &self.part.ptr
    }

    /// The stream of the buffer.
    #[must_use]
    pub fn stream(&self) -> &'a Stream {
        self.part.stream
    }

    /// The elements in a range.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = range_in("BufferView::slice", range, self.len)?;
        Ok(self.cut(range))
    }

    fn cut(&self, range: Range<usize>) -> Self {
        let each = size_of::<T>() as u64;
        let part = self.part.cut(range.start as u64 * each, range.len() as u64 * each);
        Self::new(part, range.len())
    }

    /// The elements before `mid`, and those from there on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn split_at(&self, mid: usize) -> Result<(Self, Self)> {
        range_in("BufferView::split_at", mid.., self.len)?;
        Ok((self.cut(0..mid), self.cut(mid..self.len)))
    }

    /// The same bytes as elements of another type.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], in bytes, where they are no whole number of such elements. [`Error::BadAlignment`] where the
    /// address is not aligned as these are.
    pub fn cast<U: Pod>(&self) -> Result<BufferView<'a, U>> {
        Ok(BufferView::new(self.part, cast_len::<U>("BufferView::cast", self.part.ptr, self.part.bytes)?))
    }

    /// As [`Buffer::copy_to_slice`](crate::Buffer::copy_to_slice).
    ///
    /// # Errors
    /// As for [`Buffer::copy_to_slice`](crate::Buffer::copy_to_slice).
    pub fn copy_to_slice(&self, to: &mut [T]) -> Result<()> {
        check_len("BufferView::copy_to_slice", to.len(), self.len)?;
        self.part.copy_to_host(to)
    }

    /// As [`Buffer::to_vec`](crate::Buffer::to_vec).
    ///
    /// # Errors
    /// As for [`Buffer::to_vec`](crate::Buffer::to_vec).
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let Ok(mut elements) = bytemuck::try_zeroed_slice_box(self.len) else {
            return Err(self.part.pool.no_host_memory("the elements of a buffer", self.part.bytes));
        };
        self.part.copy_to_host(&mut elements)?;
        Ok(elements.into_vec())
    }

    /// As [`Buffer::as_slice`](crate::Buffer::as_slice).
    ///
    /// # Errors
    /// As for [`Buffer::as_slice`](crate::Buffer::as_slice), and [`Error::NoHostAccess`] for a part of a [`Workspace`](crate::Workspace).
    pub fn as_slice(&self) -> Result<&'a [T]> {
        // SAFETY: the buffer is borrowed for `'a`.
        unsafe { self.part.as_slice(self.len) }
    }

    /// As [`Buffer::as_slice_after`](crate::Buffer::as_slice_after).
    ///
    /// # Errors
    /// As for [`as_slice`](Self::as_slice).
    pub fn as_slice_after(&self, event: &Event) -> Result<&'a [T]> {
        // SAFETY: the buffer is borrowed for `'a`.
        unsafe { self.part.as_slice_after(self.len, event) }
    }
}

impl<'a, T: Pod> BufferViewMut<'a, T> {
    /// The part is borrowed for writing for `'a`.
    pub(super) fn new(part: BlockBytes<'a>, len: usize) -> Self {
        Self { part, len, element: PhantomData }
    }

    /// Of a view whose elements nobody else has.
    pub(super) fn of(view: BufferView<'a, T>) -> Self {
        Self::new(view.part, view.len)
    }

    /// The same elements, to be read.
    pub fn as_view(&self) -> BufferView<'_, T> {
        BufferView::new(self.part, self.len)
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

    /// The address of its first element, for kernels and driver calls.
    pub fn ptr(&self) -> DevicePtr {
        self.part.access.give_out();
        self.part.ptr
    }

    /// Where the address lies, for the builder of a launch.
    #[cfg(feature = "cudarc")]
    pub(crate) fn ptr_ref(&self) -> &DevicePtr {
        self.part.access.give_out();
        &self.part.ptr
    }

    /// The stream of the buffer.
    #[must_use]
    pub fn stream(&self) -> &'a Stream {
        self.part.stream
    }

    /// The elements in a range, to be written.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<BufferViewMut<'_, T>> {
        let range = range_in("BufferViewMut::slice_mut", range, self.len)?;
        Ok(BufferViewMut::of(self.as_view().cut(range)))
    }

    /// The elements before `mid`, and those from there on, each to be written.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn split_at_mut(&mut self, mid: usize) -> Result<(BufferViewMut<'_, T>, BufferViewMut<'_, T>)> {
        range_in("BufferViewMut::split_at_mut", mid.., self.len)?;
        let whole = self.as_view();
        let [one, other] = [whole.cut(0..mid), whole.cut(mid..self.len)].map(BufferViewMut::of);
        Ok((one, other))
    }

    /// The same bytes as elements of another type, to be written.
    ///
    /// # Errors
    /// As for [`BufferView::cast`].
    pub fn cast<U: Pod>(&mut self) -> Result<BufferViewMut<'_, U>> {
        let len = cast_len::<U>("BufferViewMut::cast", self.part.ptr, self.part.bytes)?;
        Ok(BufferViewMut::new(self.part, len))
    }

    /// Sets all bytes to zero, in stream order.
    ///
    /// # Errors
    /// The device's own.
    pub fn set_zero(&mut self) -> Result<()> {
        self.part.set_zero()
    }

    /// Sets each element to `value`, in stream order.
    ///
    /// # Errors
    /// The device's own. As for [`copy_from_slice`](Self::copy_from_slice), unless all bytes of the value are the same.
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.part.fill(value)
    }

    /// As [`Buffer::copy_from_slice`](crate::Buffer::copy_from_slice).
    ///
    /// # Errors
    /// As for [`Buffer::copy_from_slice`](crate::Buffer::copy_from_slice).
    pub fn copy_from_slice(&mut self, from: &[T]) -> Result<()> {
        check_len("BufferViewMut::copy_from_slice", from.len(), self.len)?;
        self.part.copy_from_host(from)
    }

    /// As [`Buffer::copy_from`](crate::Buffer::copy_from), from a buffer or a view of as many elements.
    ///
    /// # Errors
    /// As for [`Buffer::copy_from`](crate::Buffer::copy_from).
    pub fn copy_from<'b>(&mut self, from: impl Into<BufferView<'b, T>>) -> Result<()> {
        let from = from.into();
        check_len("BufferViewMut::copy_from", from.len, self.len)?;
        self.part.copy_from(from.part)
    }

    /// Copies the elements of a range to where others begin, in stream order. The two may overlap: then it takes a block of the pool
    /// for a moment.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], those of [`Pool::alloc`](crate::Pool::alloc), or the device's own.
    pub fn copy_within(&mut self, from: impl RangeBounds<usize>, to: usize) -> Result<()> {
        const CALL: &str = "BufferViewMut::copy_within";
        let from = range_in(CALL, from, self.len)?;
        let to = range_in(CALL, to..to.saturating_add(from.len()), self.len)?;
        let whole = self.as_view();
        whole.cut(to).part.copy_from(whole.cut(from).part)
    }

    /// As [`Buffer::as_mut_slice`](crate::Buffer::as_mut_slice).
    ///
    /// # Errors
    /// As for [`Buffer::as_mut_slice`](crate::Buffer::as_mut_slice), and [`Error::NoHostAccess`] for a part of a [`Workspace`](crate::Workspace).
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        // SAFETY: the part is borrowed for writing as long as the slice.
        unsafe { self.part.as_mut_slice(self.len) }
    }
}

pub(super) fn check_len(what: &'static str, found: usize, expected: usize) -> Result<()> {
    if found == expected { Ok(()) } else { Err(Error::LengthMismatch { what, found, expected }) }
}

impl<'a, T: Pod> From<&BufferView<'a, T>> for BufferView<'a, T> {
    fn from(view: &BufferView<'a, T>) -> Self {
        *view
    }
}

impl<'a, T: Pod> From<&'a BufferViewMut<'_, T>> for BufferView<'a, T> {
    fn from(view: &'a BufferViewMut<'_, T>) -> Self {
        view.as_view()
    }
}

impl<T> fmt::Debug for BufferView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferView")
            .field("ptr", &self.part.ptr)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for BufferViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferViewMut")
            .field("ptr", &self.part.ptr)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
