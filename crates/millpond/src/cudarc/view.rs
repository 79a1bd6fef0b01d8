//! Parts of a buffer that cudarc's calls write to.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, LaunchArgs, PushKernelArg, SyncOnDrop,
};

use crate::error::Result;
use crate::typed::range_in;

/// Some elements of a [`Buffer`](super::Buffer), to be read and written by launches, copies and whatever takes
/// `&mut impl DevicePtrMut<T>`. cudarc orders their use with all other uses of the buffer.
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
// It wraps a view of bytes. A mutable view of cudarc's of another type can be cut only into parts that end with that view.
#[must_use]
pub struct ViewMut<'a, T> {
    /// From the first element on; those behind the last one are not its.
    bytes: CudaViewMut<'a, u8>,
    len: usize,
    element: PhantomData<&'a mut T>,
}

impl<'a, T> ViewMut<'a, T> {
    /// # Safety
    /// The bytes begin with so many `T`s, which nobody else has.
    pub(super) unsafe fn new(bytes: CudaViewMut<'a, u8>, len: usize) -> Self {
        Self { bytes, len, element: PhantomData }
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
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<ViewMut<'_, T>> {
        let (range, each) = (range_in("ViewMut::slice_mut", range, self.len)?, size_of::<T>());
        // SAFETY: elements of this view, which is borrowed as long.
        Ok(unsafe { ViewMut::new(self.bytes.slice_mut(range.start * each..range.end * each), range.len()) })
    }

    /// The elements before `mid`, and those from there on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange).
    pub fn split_at_mut(&mut self, mid: usize) -> Result<(ViewMut<'_, T>, ViewMut<'_, T>)> {
        range_in("ViewMut::split_at_mut", mid.., self.len)?;
        let (one, other) = self.bytes.split_at_mut(mid * size_of::<T>());
        // SAFETY: as above, and both have other elements.
        Ok(unsafe { (ViewMut::new(one, mid), ViewMut::new(other, self.len - mid)) })
    }

    /// It, as cudarc's own view.
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        // SAFETY: the bytes are `T`s, by `new`.
        unsafe { self.bytes.transmute_mut(self.len) }.expect("the bytes hold the elements")
    }
}

impl<T> DeviceSlice<T> for ViewMut<'_, T> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.bytes.stream()
    }
}

impl<T> DevicePtr<T> for ViewMut<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.bytes.device_ptr(stream)
    }
}

impl<T> DevicePtrMut<T> for ViewMut<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.bytes.device_ptr_mut(stream)
    }
}

// SAFETY: pushes what cudarc pushes for its own view, which lies in this one.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b mut ViewMut<'c, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, view: &'b mut ViewMut<'c, T>) -> &mut Self {
        self.arg(&mut view.bytes)
    }
}

impl<T> fmt::Debug for ViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ViewMut")
            .field("len", &self.len)
            .field("element", &std::any::type_name::<T>())
            .finish_non_exhaustive()
    }
}
