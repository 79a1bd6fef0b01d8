//! Of libcuda: modules, launches and timed events. The rest of the driver is millpond's `CudaDevice`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use millpond::device::{StreamHandle, cuda};

use super::library::{self, function_table};
use crate::{Error, Result};

const NAME: &str = "the CUDA driver";

type Module = *mut c_void;
type RawFunction = *mut c_void;
type RawEvent = *mut c_void;
type RawStream = *mut c_void;

function_table! {
    Functions {
        cuModuleLoadData(module: *mut Module, image: *const c_void) -> c_int;
        cuModuleGetFunction(function: *mut RawFunction, module: Module, name: *const c_char) -> c_int;
        cuLaunchKernel(
            function: RawFunction,
            grid_x: c_uint,
            grid_y: c_uint,
            grid_z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            shared_bytes: c_uint,
            stream: RawStream,
            arguments: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) -> c_int;
        cuEventCreate(event: *mut RawEvent, flags: c_uint) -> c_int;
        cuEventDestroy_v2(event: RawEvent) -> c_int;
        cuEventRecord(event: RawEvent, stream: RawStream) -> c_int;
        cuEventSynchronize(event: RawEvent) -> c_int;
        cuEventElapsedTime(milliseconds: *mut f32, from: RawEvent, to: RawEvent) -> c_int;
        cuGetErrorString(error: c_int, text: *mut *const c_char) -> c_int;
    }
}

/// The loaded driver. Its calls want a current context: see `CudaDevice::make_current`.
pub(super) struct Driver {
    functions: Functions,
}

/// A kernel of a loaded module.
#[derive(Clone, Copy)]
pub(super) struct Function(RawFunction);

// SAFETY: a CUfunction is a handle that any thread may use, as long as its module is loaded: for good.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// How a kernel is spread over the GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    /// Blocks, in two directions.
    pub(super) blocks: (u32, u32),
    /// Threads of a block.
    pub(super) threads: u32,
}

impl Driver {
    /// Opens the driver that millpond has started.
    pub(super) fn open() -> Result<Self> {
        let path = cuda::driver()?.library.unwrap_or_else(|| "libcuda.so.1".into());
        let library =
            library::load(path).map_err(|error| Error::Library { library: NAME, what: error.to_string() })?;
        // SAFETY: the types are those of cuda.h, and the library is never closed.
        let functions = unsafe { Functions::look_up(library) }.map_err(|name| library::lacks(NAME, name))?;
        Ok(Self { functions })
    }

    /// Loads a compiled module for good, and finds its kernels by name.
    pub(super) fn load<const N: usize>(&self, image: &[u8], names: [&CStr; N]) -> Result<[Function; N]> {
        let mut module = ptr::null_mut();
        // SAFETY: `module` is writable, and `image` is what NVRTC made.
        self.check("cuModuleLoadData", unsafe {
            (self.functions.cuModuleLoadData)(&mut module, image.as_ptr().cast())
        })?;
        let mut functions = [Function(ptr::null_mut()); N];
        for (function, name) in functions.iter_mut().zip(names) {
            // SAFETY: the first is writable, the module is loaded, the name ends in a zero.
            self.check("cuModuleGetFunction", unsafe {
                (self.functions.cuModuleGetFunction)(&mut function.0, module, name.as_ptr())
            })?;
        }
        Ok(functions)
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// `arguments` point to values of the kernel's parameter types, in order, and what the kernel does with
    /// them is sound once the stream gets there.
    pub(super) unsafe fn launch(
        &self,
        function: Function,
        grid: Grid,
        stream: StreamHandle,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let Grid { blocks: (x, y), threads } = grid;
        // SAFETY: the caller's promise. The driver copies the arguments before it returns.
        self.check("cuLaunchKernel", unsafe {
            (self.functions.cuLaunchKernel)(
                function.0,
                x,
                y,
                1,
                threads,
                1,
                1,
                0,
                stream.raw() as RawStream,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }

    /// An event that knows the time.
    pub(super) fn timed_event(&self) -> Result<TimedEvent<'_>> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is writable.
        self.check("cuEventCreate", unsafe { (self.functions.cuEventCreate)(&mut raw, 0) })?;
        Ok(TimedEvent { driver: self, raw })
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text: *const c_char = ptr::null();
        // SAFETY: `text` is writable; on success it points to a static C string.
        let text = match unsafe { (self.functions.cuGetErrorString)(code, &mut text) } {
            // SAFETY: as above.
            0 if !text.is_null() => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
            _ => String::from("unknown error"),
        };
        Err(Error::Library { library: NAME, what: format!("{call} failed: {text} ({code})") })
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Driver")
    }
}

/// An event with a time stamp.
pub(super) struct TimedEvent<'d> {
    driver: &'d Driver,
    raw: RawEvent,
}

impl TimedEvent<'_> {
    /// Lets the event stand for all work given to `stream` so far.
    pub(super) fn record(&self, stream: StreamHandle) -> Result<()> {
        // SAFETY: the event lives, and the stream by the rule for handles.
        self.driver.check("cuEventRecord", unsafe {
            (self.driver.functions.cuEventRecord)(self.raw, stream.raw() as RawStream)
        })
    }

    /// Milliseconds from `earlier` to this event. Waits for both.
    pub(super) fn since(&self, earlier: &Self) -> Result<f32> {
        let functions = &self.driver.functions;
        let mut milliseconds = 0.0;
        // SAFETY: the event lives.
        let waited = unsafe { (functions.cuEventSynchronize)(self.raw) };
        self.driver.check("cuEventSynchronize", waited)?;
        // SAFETY: both events live, and the first argument is writable.
        let asked = unsafe { (functions.cuEventElapsedTime)(&mut milliseconds, earlier.raw, self.raw) };
        self.driver.check("cuEventElapsedTime", asked)?;
        Ok(milliseconds)
    }
}

impl Drop for TimedEvent<'_> {
    fn drop(&mut self) {
        // A refusal leaks one event, and there is nobody to tell.
        // SAFETY: the event is not used again.
        let _ = unsafe { (self.driver.functions.cuEventDestroy_v2)(self.raw) };
    }
}
