//! Of libcuda: modules, launches and graphs. The rest of the driver is millpond's `CudaDevice`.
//!
//! All of it wants a current context ([`CudaDevice::make_current`]), and who has one has the driver loaded.

use std::ffi::{CStr, c_void};

use bytemuck::Pod;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute, CUgraphExec, CUgraphInstantiate_flags, CUlaunchAttribute,
    CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchAttributeValue_union__bindgen_ty_1, CUlaunchConfig,
    CUstream, CUstreamCaptureMode,
};
use millpond::Stream;
use millpond::device::StreamHandle;
#[cfg(doc)]
use millpond::device::cuda::CudaDevice;

use crate::{Error, Result, Tensor};

/// A kernel of a loaded module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Function(CUfunction);

// SAFETY: a CUfunction is a handle that any thread may use, as long as its module is loaded: for good.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// How a kernel is spread over the GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    /// Blocks, in three directions.
    pub(super) blocks: [u32; 3],
    /// Threads of a block.
    pub(super) threads: u32,
    /// Bytes of shared memory of a block, beside those that the kernel declares.
    pub(super) shared: u32,
    /// All blocks run at once: they may wait for each other.
    pub(super) at_once: bool,
}

impl Grid {
    /// As many blocks in one direction.
    pub(super) fn of(blocks: u32, threads: u32) -> Self {
        Self { blocks: [blocks, 1, 1], threads, shared: 0, at_once: false }
    }
}

/// What a kernel is given: a number or an address, or a structure.
#[derive(Debug, Clone, Copy)]
pub(super) enum Argument {
    /// A kernel reads as many of the first bytes as its parameter has: the machine is little-endian.
    Word(u64),
    Structure(*const c_void),
}

impl Argument {
    /// A structure, which must live until the launch.
    pub(super) fn of<T>(structure: &T) -> Self {
        Self::Structure((&raw const *structure).cast())
    }
}

impl<T: Pod> From<&Tensor<T>> for Argument {
    fn from(tensor: &Tensor<T>) -> Self {
        Self::Word(tensor.ptr().raw())
    }
}

impl From<usize> for Argument {
    fn from(number: usize) -> Self {
        Self::Word(number as u64)
    }
}

impl From<f32> for Argument {
    fn from(number: f32) -> Self {
        Self::Word(number.to_bits().into())
    }
}

impl Function {
    /// Lets launches give a block so much shared memory.
    pub(super) fn may_share(self, bytes: usize) -> Result<()> {
        let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function's module is loaded for good.
        unsafe { result::function::set_function_attribute(self.0, most, bytes as i32) }
            .map_err(refused("cuFuncSetAttribute"))
    }

    /// How many of its clusters run at once, each of the blocks of this grid.
    pub(super) fn clusters_at_once(self, cluster: Grid) -> Result<u32> {
        let [x, y, z] = cluster.blocks;
        let value =
            CUlaunchAttributeValue { clusterDim: CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z } };
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        let mut attribute = CUlaunchAttribute { id, pad: [0; 4], value };
        let config = CUlaunchConfig { numAttrs: 1, ..config(cluster, &mut attribute) };
        let mut clusters = 0;
        // SAFETY: the function's module is loaded for good, and what is pointed to lives.
        unsafe { sys::cuOccupancyMaxActiveClusters(&raw mut clusters, self.0, &raw const config) }
            .result()
            .map_err(refused("cuOccupancyMaxActiveClusters"))?;
        Ok(clusters as u32)
    }
}

/// How the driver is told of a grid, with an attribute if the blocks are to run at once.
fn config(grid: Grid, attribute: &mut CUlaunchAttribute) -> CUlaunchConfig {
    let Grid { blocks: [x, y, z], threads, shared, at_once } = grid;
    CUlaunchConfig {
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shared,
        hStream: std::ptr::null_mut(),
        attrs: attribute,
        numAttrs: u32::from(at_once),
    }
}

/// Parameters of a kernel at most.
const MOST_ARGUMENTS: usize = 10;

/// GPUs that this process sees; 0 without a driver.
pub(super) fn gpus() -> usize {
    // SAFETY: loading the driver, which any CUDA program does.
    let is_there = unsafe { sys::is_culib_present() };
    let count = if is_there { result::init().and_then(|()| result::device::get_count()) } else { Ok(0) };
    count.map_or(0, |count| usize::try_from(count).unwrap_or(0))
}

/// What tells a GPU from all others.
pub(super) fn identity(ordinal: usize) -> Result<[u8; 16]> {
    let device = result::device::get(ordinal as i32).map_err(refused("cuDeviceGet"))?;
    let identity = result::device::get_uuid(device).map_err(refused("cuDeviceGetUuid"))?;
    Ok(identity.bytes.map(|byte| byte as u8))
}

/// Loads a compiled module for good, and finds its kernels by name.
///
/// # Safety
/// `image` is what NVRTC made.
pub(super) unsafe fn load<const N: usize>(image: &[u8], names: [&CStr; N]) -> Result<[Function; N]> {
    // SAFETY: the caller's promise.
    let module =
        unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(refused("cuModuleLoadData"))?;
    let mut functions = [Function(std::ptr::null_mut()); N];
    for (function, name) in functions.iter_mut().zip(names) {
        // SAFETY: the module is loaded.
        let found = unsafe { result::module::get_function(module, name.to_owned()) };
        function.0 = found.map_err(refused("cuModuleGetFunction"))?;
    }
    Ok(functions)
}

/// Queues a kernel.
///
/// # Safety
/// `arguments` are values of the kernel's parameter types, in order, at most [`MOST_ARGUMENTS`] of them. What the kernel does
/// with them is sound once the stream gets there.
pub(super) unsafe fn launch(
    function: Function,
    grid: Grid,
    stream: StreamHandle,
    arguments: &[Argument],
) -> Result<()> {
    let mut pointers = [std::ptr::null_mut(); MOST_ARGUMENTS];
    for (pointer, argument) in pointers.iter_mut().zip(arguments) {
        *pointer = match argument {
            Argument::Word(word) => (&raw const *word).cast_mut().cast(),
            Argument::Structure(at) => at.cast_mut(),
        };
    }
    let mut attribute = CUlaunchAttribute {
        id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
        pad: [0; 4],
        value: CUlaunchAttributeValue { cooperative: 1 },
    };
    let config = CUlaunchConfig { hStream: stream.raw() as CUstream, ..config(grid, &mut attribute) };
    // SAFETY: the caller's promise. The driver copies configuration and arguments before it returns.
    unsafe {
        sys::cuLaunchKernelEx(&raw const config, function.0, pointers.as_mut_ptr(), std::ptr::null_mut())
    }
    .result()
    .map_err(refused("cuLaunchKernelEx"))
}

/// A graph that can be launched, of what was captured.
#[derive(Debug)]
pub(super) struct GraphExec(CUgraphExec);

/// From now on work given to the stream is captured. Other calls of any thread are as before.
pub(super) fn begin_capture(stream: &Stream) -> Result<()> {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream is borrowed.
    unsafe { result::stream::begin_capture(stream.handle().raw() as CUstream, mode) }
        .map_err(refused("cuStreamBeginCapture"))
}

/// Ends the capture that began on the stream.
pub(super) fn end_capture(stream: &Stream) -> Result<GraphExec> {
    let raw = stream.handle().raw() as CUstream;
    // SAFETY: the stream is borrowed.
    let graph = unsafe { result::stream::end_capture(raw) }.map_err(refused("cuStreamEndCapture"))?;
    let flags = CUgraphInstantiate_flags(0);
    // SAFETY: the graph is ours.
    let exec =
        unsafe { result::graph::instantiate(graph, flags) }.map_err(refused("cuGraphInstantiateWithFlags"));
    // SAFETY: the graph is not used again. A refusal leaks it.
    let _ = unsafe { result::graph::destroy(graph) };
    let exec = GraphExec(exec?);
    // SAFETY: both live.
    unsafe { result::graph::upload(exec.0, raw) }.map_err(refused("cuGraphUpload"))?;
    Ok(exec)
}

impl GraphExec {
    /// Queues the graph.
    ///
    /// # Safety
    /// What its nodes do is sound once the stream gets there.
    pub(super) unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both live.
        unsafe { result::graph::launch(self.0, stream.handle().raw() as CUstream) }
            .map_err(refused("cuGraphLaunch"))
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // A refusal leaks one graph, and there is nobody to tell.
        // SAFETY: the graph is not used again. The driver lets a launch that is under way end.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

/// The error for a call that the driver refused.
fn refused(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| {
        let text = error.error_string().map_or("unknown error".into(), CStr::to_string_lossy);
        failed(format!("{call} failed: {text} ({:?})", error.0))
    }
}

fn failed(what: String) -> Error {
    Error::Library { library: "the CUDA driver", what }
}
