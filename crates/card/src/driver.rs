//! The driver's functions, as PyTorch, what it compiles while it runs, and Triton call them.

use std::ffi::{c_char, c_int, c_uint};

use crate::card::Card;
use crate::runtime::VERSION;
use crate::stubs::{DONE, answers, done, handle};

done! {
    cuInit cuCtxSetCurrent cuCtxSetLimit cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease cuFuncSetAttribute
    cuFuncSetCacheConfig cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel cuLinkAddData_v2 cuLinkComplete
    cuModuleUnload cuTensorMapEncodeTiled cuTensorMapEncodeIm2col
}

answers! {
    cuDeviceGet: c_int = 0;
    cuDeviceGetCount: c_int = Card::get().count;
    cuDriverGetVersion: c_int = VERSION;
    cuCtxGetCurrent: usize = 1;
    cuCtxGetDevice: c_int = 0;
    cuCtxGetLimit: usize = 1 << 20;
    cuModuleLoad: usize = handle();
    cuModuleLoadData: usize = handle();
    cuModuleLoadDataEx: usize = handle();
    cuModuleGetFunction: usize = handle();
    // Enough for libraries that shape their kernels by it.
    cuOccupancyMaxActiveBlocksPerMultiprocessor: c_int = 2;
    cuOccupancyMaxActiveClusters: c_int = 16;
    // Of a kernel: the threads that it may have, its registers, its memory.
    cuFuncGetAttribute: c_int = 1024;
    cuPointerGetAttribute: u64 = 0;
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(answer: *mut c_int, number: c_int, _device: c_int) -> c_int {
    // SAFETY: the caller names a place for the answer. The driver's attributes have the runtime's numbers.
    unsafe { answer.write(Card::get().attribute(number)) };
    DONE
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    _device: c_int,
    flags: *mut c_uint,
    is_active: *mut c_int,
) -> c_int {
    // SAFETY: the caller names a place for each answer.
    unsafe {
        flags.write(0);
        is_active.write(1);
    }
    DONE
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(_error: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: the caller names a place for the answer.
    unsafe { text.write(c"an error of a card that is not there".as_ptr()) };
    DONE
}

/// The driver's tables of functions that nobody documents: there are none. NVRTC and the runtimes inside of libraries ask for them, and
/// do without or say so.
#[unsafe(no_mangle)]
extern "C" fn cuGetExportTable(_table: *mut usize, _name: usize) -> c_int {
    /// `CUDA_ERROR_NOT_FOUND`.
    const NOT_FOUND: c_int = 500;
    NOT_FOUND
}
