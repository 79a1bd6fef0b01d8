//! A GPU with the kernels.
//!
//! `kernels.cu` has the kernels. `kernels.ptx` was made of it by `scripts/kernels`, and is what is loaded: users need
//! no toolkit, and the driver translates it for the GPU. A kernel is timed by two events around it.

use std::ffi::{CStr, c_uint};
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUdevice_attribute, CUevent, CUevent_flags};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaStream, DriverError, LaunchArgs, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use millpond::device::{Device, DevicePtr};

use crate::owned::Segment;
use crate::{Error, Result};

const PTX: &str = include_str!("kernels.ptx");
/// Threads of a block.
const THREADS: u32 = 256;
/// Blocks for each multiprocessor: as many threads as it holds at once.
const BLOCKS: u32 = 8;

/// `cuEventElapsedTime`: milliseconds between two events that were reached. Returns 0, or an error's number.
type Elapsed = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> c_uint;
const ELAPSED: &CStr = c"cuEventElapsedTime";

/// A GPU with the kernels.
#[derive(Debug)]
pub(crate) struct Gpu {
    cuda: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    begin: CudaEvent,
    end: CudaEvent,
    elapsed: Elapsed,
    blocks: u32,
    pub(super) kernels: Kernels,
}

#[derive(Debug)]
pub(super) struct Kernels {
    pub(super) read_wide: CudaFunction,
    pub(super) read_strided: CudaFunction,
    pub(super) read_2_fields: CudaFunction,
    pub(super) read_8_fields: CudaFunction,
    pub(super) make_chain: CudaFunction,
    pub(super) chase: CudaFunction,
    pub(super) chase_shared: CudaFunction,
}

impl Gpu {
    /// Loads the kernels. The driver is there: the device was opened before.
    pub(crate) fn open(ordinal: usize) -> Result<Self> {
        let cuda = CudaContext::new(ordinal).map_err(cannot("open a context"))?;
        // By name: cudarc calls its successor, which drivers before CUDA 12.8 lack.
        // SAFETY: the driver is there, and has the function with this type since CUDA 3.0.
        let elapsed = unsafe { sys::culib().get::<Elapsed>(ELAPSED.to_bytes_with_nul()) };
        let elapsed = *elapsed.map_err(cannot("find cuEventElapsedTime"))?;
        let load = || -> std::result::Result<Self, DriverError> {
            let module = cuda.load_module(Ptx::from_src(PTX))?;
            let kernel = |name: &str| module.load_function(name);
            let kernels = Kernels {
                read_wide: kernel("read_wide")?,
                read_strided: kernel("read_strided")?,
                read_2_fields: kernel("read_2_fields")?,
                read_8_fields: kernel("read_8_fields")?,
                make_chain: kernel("make_chain")?,
                chase: kernel("chase")?,
                chase_shared: kernel("chase_shared")?,
            };
            let count = cuda.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
            let timing = || cuda.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
            Ok(Self {
                stream: cuda.new_stream()?,
                begin: timing()?,
                end: timing()?,
                elapsed,
                blocks: count.unsigned_abs().max(1) * BLOCKS,
                kernels,
                cuda: cuda.clone(),
            })
        };
        load().map_err(cannot("load the kernels"))
    }

    /// An attribute, where the driver knows it.
    pub(crate) fn attribute(&self, what: CUdevice_attribute) -> Option<i32> {
        self.cuda.attribute(what).ok()
    }

    /// Keeps the GPU busy until its clocks are those of work.
    pub(crate) fn warm_up(&self, device: &Arc<dyn Device>) -> Result<()> {
        const BYTES: u64 = 64 << 20;
        const ENOUGH: Duration = Duration::from_millis(100);
        let memory = Segment::new(device, BYTES)?;
        let began = Instant::now();
        while began.elapsed() < ENOUGH {
            // SAFETY: the segment has so many bytes, and nothing else uses it.
            unsafe { self.read(memory.at(), BYTES) }?;
        }
        Ok(())
    }

    /// Nanoseconds of reading all of a range, 16 bytes a thread.
    ///
    /// # Safety
    /// The range is this GPU's to read, and nothing writes to it meanwhile.
    pub(super) unsafe fn read(&self, from: DevicePtr, bytes: u64) -> Result<f64> {
        let (from, count) = (from.raw(), bytes / 16);
        // SAFETY: the kernel's arguments, and the caller's promise.
        unsafe {
            self.timed(self.whole(), &self.kernels.read_wide, |launch| {
                launch.arg(&from).arg(&count);
            })
        }
    }

    /// A grid that fills the GPU.
    pub(super) fn whole(&self) -> LaunchConfig {
        LaunchConfig { grid_dim: (self.blocks, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
    }

    /// Launches a kernel between two events, waits, and returns the nanoseconds between them.
    ///
    /// # Safety
    /// `arguments` are the kernel's, as `kernels.cu` has them. They name memory that lives as long as this call, and that
    /// nothing else uses meanwhile.
    pub(super) unsafe fn timed<'a>(
        &'a self,
        grid: LaunchConfig,
        kernel: &'a CudaFunction,
        arguments: impl FnOnce(&mut LaunchArgs<'a>),
    ) -> Result<f64> {
        let mut launch = self.stream.launch_builder(kernel);
        arguments(&mut launch);
        let mut run = || -> std::result::Result<(), DriverError> {
            self.begin.record(&self.stream)?;
            // SAFETY: the caller's promise, and the wait below comes before the memory goes.
            unsafe { launch.launch(grid) }?;
            self.end.record(&self.stream)?;
            self.stream.synchronize()
        };
        run().map_err(cannot("run a kernel"))?;
        let mut milliseconds = 0.0;
        // SAFETY: the number is writable, and both events were recorded with timing.
        match unsafe { (self.elapsed)(&mut milliseconds, self.begin.cu_event(), self.end.cu_event()) } {
            0 => Ok(f64::from(milliseconds) * 1e6),
            code => Err(cannot("time a kernel")(format!("cuEventElapsedTime returned {code}"))),
        }
    }
}

fn cannot<E: Display>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |why| Error::Kernel { what, why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_ptx_belongs_to_the_source() {
        let digest = Sha256::digest(include_str!("kernels.cu"));
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let first = PTX.lines().next().unwrap();
        assert_eq!(
            first,
            format!("// kernels.cu {digest}"),
            "run scripts/kernels after a change to kernels.cu"
        );
        assert!(PTX.contains(".target sm_75"), "for every GPU since Turing");
        assert!(PTX.contains(".version 8.0"), "for every driver since CUDA 12.0");
    }
}
