//! Copies between a plain buffer and cudarc's device memory that the host does not wait for.

use bytemuck::Pod;
use cudarc::driver::{DevicePtr, DevicePtrMut, DeviceSlice};

use super::Stream;
use crate::device;
use crate::error::{Error, Result};
use crate::typed::Buffer;

impl<T: Pod> Buffer<T> {
    /// Copies to cudarc's device memory of the same length, on a stream `on`. The host does not wait. It is for
    /// [pinned memory](crate::Context::pinned): [`as_mut_slice`](Self::as_mut_slice) waits for the copy, and so does the free.
    ///
    /// The copy comes after the work that the buffer's stream was given so far. cudarc orders it with other uses of `to`.
    ///
    /// ```no_run
    /// use cudarc::driver::CudaContext;
    /// use millpond::cudarc::Stream;
    /// use millpond::{Buffer, Context};
    ///
    /// let cuda = CudaContext::new(0)?;
    /// let stream = cuda.new_stream()?;
    /// let device = Context::from_cudarc(&cuda)?;
    /// let pinned = device.pinned()?.build()?;
    /// let on = Stream::new(&device, &stream)?;
    /// let mut staging = Buffer::<f32>::new(&pinned, 1024, on.millpond())?;
    /// let mut slice = stream.alloc_zeros::<f32>(1024)?;
    ///
    /// staging.as_mut_slice()?.fill(1.0);
    /// staging.copy_to_cudarc(&mut slice, &on)?; // the host does not wait
    /// staging.as_mut_slice()?.fill(2.0); // here it does
    /// staging.copy_from_cudarc(&slice, &on)?;
    /// assert_eq!(staging.as_slice()?[0], 1.0); // waits for the copy
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]. [`Error::WrongDevice`] for memory or a stream of another GPU.
    /// [`DeviceError::Invalid`](crate::device::DeviceError::Invalid) while one of the two streams is being captured; the capture goes
    /// on. Else the device's own.
    pub fn copy_to_cudarc<D: DevicePtrMut<T>>(&self, to: &mut D, on: &Stream) -> Result<()> {
        const CALL: &str = "Buffer::copy_to_cudarc";
        self.check_copy(CALL, to, on)?;
        if self.byte_len() == 0 {
            return Ok(());
        }
        let stream = on.millpond();
        let _awake = self.core().stay_awake_for(stream)?;
        let elsewhere = self.stream().id() != stream.id();
        if elsewhere {
            stream.wait_for(self.stream())?;
        }
        let (at, written) = to.device_ptr_mut(on.cuda());
        // SAFETY: cudarc's memory is as long, of this device, and valid on the stream, which waits for earlier uses of it. The block is
        // live, and the stream waits for its writes. Its use is recorded below, before a free and before a later write of safe code.
        let copied = unsafe {
            let to = device::DevicePtr::new(at);
            stream.device().copy(to, self.ptr(), self.byte_len(), stream.handle_here()?)
        };
        drop(written);
        copied?;
        if elsewhere { self.note_read_on(stream) } else { Ok(()) }
    }

    /// Copies from cudarc's device memory of the same length, on a stream `on`. The host does not wait. It is for
    /// [pinned memory](crate::Context::pinned): [`as_slice`](Self::as_slice) waits for the copy, and so does the free.
    ///
    /// The copy comes after all work that uses the buffer so far, and before what its stream is given later. cudarc orders it with
    /// writes of `from`. [`copy_to_cudarc`](Self::copy_to_cudarc) has an example.
    ///
    /// # Errors
    /// Those of [`copy_to_cudarc`](Self::copy_to_cudarc).
    pub fn copy_from_cudarc<S: DevicePtr<T>>(&mut self, from: &S, on: &Stream) -> Result<()> {
        const CALL: &str = "Buffer::copy_from_cudarc";
        self.check_copy(CALL, from, on)?;
        if self.byte_len() == 0 {
            return Ok(());
        }
        let stream = on.millpond();
        let elsewhere = self.stream().id() != stream.id();
        let (_, _awake) = self.begin_write()?;
        if elsewhere {
            stream.wait_for(self.stream())?;
        }
        let (at, read) = from.device_ptr(on.cuda());
        // SAFETY: cudarc's memory is as long, of this device, and valid on the stream, which waits for earlier writes of it. The block
        // is live, and the stream waits for all uses of it. Its own stream waits for the copy below, and so does who reads, writes
        // or frees it there.
        let copied = unsafe {
            let from = device::DevicePtr::new(at);
            stream.device().copy(self.ptr(), from, self.byte_len(), stream.handle_here()?)
        };
        drop(read);
        copied?;
        if elsewhere && let Err(error) = self.stream().wait_for(stream) {
            // The buffer's stream knows nothing of the copy, so that nothing else could wait for it.
            stream.synchronize()?;
            return Err(error);
        }
        Ok(())
    }

    /// Refuses what a copy cannot be of or on.
    fn check_copy<S: DeviceSlice<T>>(&self, call: &'static str, other: &S, on: &Stream) -> Result<()> {
        self.check_len(call, other.len())?;
        self.core().check_process()?;
        self.core().check_stream(on.millpond())?;
        if other.stream().context() != on.cuda().context() {
            return Err(Error::WrongDevice { what: "slice", pool: self.core().name_of() });
        }
        for stream in [self.stream(), on.millpond()] {
            // Safe code of cudarc launches graphs. Nothing would order the copy in one with slices for the host.
            stream.check_not_captured(call, "order a copy with what the host reads and writes")?;
        }
        Ok(())
    }
}
