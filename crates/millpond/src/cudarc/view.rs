//! Parts of a buffer, for cudarc's calls.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaStream, CudaView, DevicePtr, DevicePtrMut, DeviceSlice, LaunchArgs, PushKernelArg, SyncOnDrop,
};

use super::chain::Chain;
use super::uses::{Access, Own, StreamUse, Uses, UsingStream, recorded};
use crate::device;
use crate::error::Result;
use crate::typed::range_in;

/// Some bytes of a buffer.
pub(super) struct Part<'a> {
    uses: &'a Uses,
    own: Own<'a>,
    ptr: device::DevicePtr,
    bytes: usize,
    /// What builders of launches borrow: a view of these bytes for each stream, with the use that it records.
    arguments: Chain<(&'a StreamUse, CudaView<'a, u8>)>,
}

impl<'a> Part<'a> {
    /// Of no bytes yet.
    pub(super) fn new(uses: &'a Uses, own: Own<'a>) -> Self {
        Self { uses, own, ptr: uses.ptr(), bytes: 0, arguments: Chain::default() }
    }

    /// Bytes in a range that begins where this part does.
    fn of<'b>(&self, bytes: Range<usize>) -> Part<'b>
    where
        'a: 'b,
    {
        let (ptr, bytes) = (self.ptr.offset(bytes.start as u64), bytes.len());
        Part { uses: self.uses, own: self.own, ptr, bytes, arguments: Chain::default() }
    }

    fn order<'b>(&'b self, access: Access, stream: &'b CudaStream) -> (CUdeviceptr, SyncOnDrop<'b>) {
        let used = self.uses.order(access, UsingStream::of(stream), self.own);
        (self.ptr.raw(), recorded(used, stream))
    }

    fn push<'b: 'c, 'c, 'd>(&'b self, access: Access, to: &'d mut LaunchArgs<'c>) -> &'d mut LaunchArgs<'c> {
        let Some(used) = self.uses.order_launch(access, to, self.own) else { return to.arg(&self.ptr) };
        let (_, view) = self
            .arguments
            .find_or_add(|(with, _)| std::ptr::eq(*with, used), || (used, self.view_with(used)));
        to.arg(view)
    }

    /// cudarc's view of it, whose reads are recorded as this use.
    fn view_with(&self, used: &'a StreamUse) -> CudaView<'a, u8> {
        let at = (self.ptr.raw() - self.uses.ptr().raw()) as usize;
        used.slice().slice(at..at + self.bytes)
    }
}

/// Some elements of a [`Buffer`](super::Buffer), to be read by launches, copies and whatever takes `&impl DevicePtr<T>`. The reads are
/// ordered with all other uses of the buffer.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use millpond::cudarc::{Buffer, Stream};
/// use millpond::{Context, Pool};
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let cuda = CudaContext::new(0)?;
/// let stream = cuda.new_stream()?;
/// let device = Context::from_cudarc(&cuda)?;
/// let pool = Pool::builder(&device).build()?;
/// let on = Stream::new(&device, &stream)?;
///
/// let rows = Buffer::from_slice(&pool, &[1.0_f32, 2.0, 3.0, 4.0], &on)?;
/// let second = rows.slice(2..)?;
/// assert_eq!(stream.clone_dtoh(&second)?, [3.0, 4.0]);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct View<'a, T> {
    part: Part<'a>,
    len: usize,
    element: PhantomData<&'a [T]>,
}

impl<'a, T> View<'a, T> {
    /// # Safety
    /// The part begins with that many `T`s.
    pub(super) unsafe fn new(part: Part<'a>, range: Range<usize>) -> Self {
        Self { part: part.of(bytes_of::<T>(&range)), len: range.len(), element: PhantomData }
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

    /// The elements in a range.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<View<'a, T>> {
        let range = range_in("View::slice", range, self.len)?;
        // SAFETY: elements of this view.
        Ok(unsafe { View::new(self.part.of(0..0), range) })
    }

    /// cudarc's own view, for functions that ask for a `CudaView` itself. What is read by it on `stream` is ordered with all other uses
    /// of the buffer.
    ///
    /// # Safety
    /// The view, and those cut from it, are used on `stream` only: cudarc's view has one event for all its reads.
    #[must_use]
    pub unsafe fn as_cuda_view(&self, stream: &CudaStream) -> CudaView<'a, T> {
        let (Part { uses, own, .. }, by) = (&self.part, UsingStream::of(stream));
        uses.order(Access::Read, by, *own);
        let view = self.part.view_with(uses.of(Access::Read, by, *own));
        // SAFETY: the bytes are `T`s, by `new`.
        unsafe { view.transmute(self.len) }.expect("the bytes hold the elements")
    }
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        Self { part: self.part.of(0..self.part.bytes), len: self.len, element: PhantomData }
    }
}

fn bytes_of<T>(range: &Range<usize>) -> Range<usize> {
    range.start * size_of::<T>()..range.end * size_of::<T>()
}

/// Some elements of a [`Buffer`](super::Buffer), to be read and written by launches, copies and whatever takes
/// `&mut impl DevicePtrMut<T>`. Their uses are ordered with all other uses of the buffer.
///
/// ```no_run
/// use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
/// use millpond::cudarc::{Buffer, Stream};
/// use millpond::{Context, Pool};
/// # fn example(double: cudarc::driver::CudaFunction) -> Result<(), Box<dyn std::error::Error>> {
/// let cuda = CudaContext::new(0)?;
/// let stream = cuda.new_stream()?;
/// let device = Context::from_cudarc(&cuda)?;
/// let pool = Pool::builder(&device).build()?;
/// let on = Stream::new(&device, &stream)?;
///
/// let mut rows = Buffer::<f32>::zeroed(&pool, 4 * 256, &on)?;
/// let mut second = rows.slice_mut(256..512)?;
/// stream.memcpy_htod(&[1.0; 256], &mut second)?;
/// // SAFETY: the kernel `double` takes a pointer to 256 floats.
/// unsafe { stream.launch_builder(&double).arg(&mut second).launch(LaunchConfig::for_num_elems(256)) }?;
/// let (mut front, mut back) = rows.split_at_mut(512)?; // two parts at once
/// stream.memset_zeros(&mut front)?;
/// stream.memset_zeros(&mut back)?;
/// # Ok(())
/// # }
/// ```
///
/// Two views that are written at once come from [`split_at_mut`](super::Buffer::split_at_mut), as with slices:
/// ```compile_fail,E0499
/// # fn example(buffer: &mut millpond::cudarc::Buffer<f32>) -> millpond::Result<()> {
/// let one = buffer.slice_mut(..4)?;
/// let other = buffer.slice_mut(4..)?; // error: `one` is used below
/// println!("{}", one.len());
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct ViewMut<'a, T> {
    part: Part<'a>,
    len: usize,
    element: PhantomData<&'a mut [T]>,
}

impl<'a, T> ViewMut<'a, T> {
    /// # Safety
    /// The part begins with that many `T`s. Nobody else has those in the range.
    pub(super) unsafe fn new(part: Part<'a>, range: Range<usize>) -> Self {
        Self { part: part.of(bytes_of::<T>(&range)), len: range.len(), element: PhantomData }
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

    /// All of it, to be read.
    pub fn as_view(&self) -> View<'_, T> {
        View { part: self.part.of(0..self.part.bytes), len: self.len, element: PhantomData }
    }

    /// The elements in a range.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange).
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<ViewMut<'_, T>> {
        let range = range_in("ViewMut::slice_mut", range, self.len)?;
        // SAFETY: elements of this view, which is borrowed as long.
        Ok(unsafe { ViewMut::new(self.part.of(0..0), range) })
    }

    /// The elements before `mid`, and those from there on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange).
    pub fn split_at_mut(&mut self, mid: usize) -> Result<(ViewMut<'_, T>, ViewMut<'_, T>)> {
        range_in("ViewMut::split_at_mut", mid.., self.len)?;
        let (one, other) = (self.part.of(0..0), self.part.of(0..0));
        // SAFETY: as above, and both have other elements.
        Ok(unsafe { (ViewMut::new(one, 0..mid), ViewMut::new(other, mid..self.len)) })
    }
}

impl<T> DeviceSlice<T> for View<'_, T> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.part.own.cuda
    }
}

impl<T> DeviceSlice<T> for ViewMut<'_, T> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.part.own.cuda
    }
}

impl<T> DevicePtr<T> for View<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.part.order(Access::Read, stream)
    }
}

impl<T> DevicePtr<T> for ViewMut<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.part.order(Access::Read, stream)
    }
}

impl<T> DevicePtrMut<T> for ViewMut<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.part.order(Access::Write, stream)
    }
}

// SAFETY: pushes one pointer to the address, which lies in the view and is borrowed as long as the builder.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b View<'c, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, view: &'b View<'c, T>) -> &mut Self {
        view.part.push(Access::Read, self)
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b mut ViewMut<'c, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, view: &'b mut ViewMut<'c, T>) -> &mut Self {
        view.part.push(Access::Write, self)
    }
}

impl<T> fmt::Debug for View<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug::<T>("View", self.len, f)
    }
}

impl<T> fmt::Debug for ViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug::<T>("ViewMut", self.len, f)
    }
}

fn debug<T>(name: &str, len: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct(name)
        .field("len", &len)
        .field("element", &std::any::type_name::<T>())
        .finish_non_exhaustive()
}
