//! The CUDA runtime's functions, as PyTorch calls them. What would do something on a card does nothing.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use crate::card::{Card, Layout};
use crate::memory::{self, Owner};
use crate::stubs::{DONE, answers, done, handle};

const INVALID_DEVICE: c_int = 101;
const OUT_OF_MEMORY: c_int = 2;

done! {
    cudaInitDevice cudaGetLastError cudaPeekAtLastError cudaDeviceSynchronize cudaStreamSynchronize cudaStreamQuery
    cudaStreamWaitEvent cudaStreamDestroy cudaEventRecord cudaEventRecordWithFlags cudaEventQuery cudaEventSynchronize
    cudaEventDestroy cudaDeviceEnablePeerAccess cudaFuncSetAttribute cudaLaunchKernel cudaLaunchKernelExC cudaMemset
    __cudaLaunchKernel cudaLaunchCooperativeKernel cudaLaunchHostFunc cudaStreamAddCallback cudaMemcpy2DAsync cudaMemcpy2D
    cudaIpcGetMemHandle cudaIpcGetEventHandle cudaIpcCloseMemHandle cudaGraphNodeGetDependencies
    cudaMemsetAsync cudaMemcpyToSymbol cudaMemcpyPeerAsync cudaHostRegister cudaHostUnregister cudaGraphLaunch
    cudaGraphDestroy cudaGraphExecDestroy cudaGraphDebugDotPrint cudaThreadExchangeStreamCaptureMode
    cudaMemPoolTrimTo cudaMemPoolSetAttribute cudaMemPoolSetAccess cudaProfilerStart cudaProfilerStop cudaDeviceReset
    cudaDeviceSetLimit cudaCtxResetPersistingL2Cache
}

/// The device that each thread chose.
fn current() -> &'static std::thread::LocalKey<AtomicI32> {
    thread_local! {
        static CURRENT: AtomicI32 = const { AtomicI32::new(0) };
    }
    &CURRENT
}

/// CUDA 13.0. A runtime of another version says so itself: this is what its driver has.
pub(crate) const VERSION: c_int = 13_000;

answers! {
    cudaGetDeviceCount: c_int = Card::get().count;
    // Relaxed: it is this thread's.
    cudaGetDevice: c_int = current().with(|device| device.load(Ordering::Relaxed));
    cudaDriverGetVersion: c_int = VERSION;
    cudaDeviceCanAccessPeer: c_int = 0;
    cudaStreamCreateWithPriority: usize = handle();
    cudaStreamCreateWithFlags: usize = handle();
    cudaStreamCreate: usize = handle();
    cudaEventCreate: usize = handle();
    cudaEventCreateWithFlags: usize = handle();
    cudaEventElapsedTime: f32 = 1.0;
    cudaGetKernel: usize = handle();
    __cudaGetKernel: usize = handle();
    cudaIpcOpenEventHandle: usize = handle();
    cudaIpcOpenMemHandle: usize = memory::take(4096, Owner::Card);
    cudaGetSymbolAddress: usize = memory::take(4096, Owner::Card);
    cudaGraphInstantiateWithFlags: usize = handle();
    cudaGraphInstantiate: usize = handle();
    cudaDeviceGetDefaultMemPool: usize = handle();
    // Enough for libraries that shape their kernels by it.
    cudaOccupancyMaxActiveBlocksPerMultiprocessor: c_int = 2;
    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags: c_int = 2;
}

#[unsafe(no_mangle)]
extern "C" fn cudaSetDevice(device: c_int) -> c_int {
    if !(0..Card::get().count).contains(&device) {
        return INVALID_DEVICE;
    }
    // Relaxed: it is this thread's.
    current().with(|current| current.store(device, Ordering::Relaxed));
    DONE
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaGetDeviceProperties(properties: *mut c_void, _device: c_int) -> c_int {
    // SAFETY: the caller has a `cudaDeviceProp` of the runtime that it is linked with.
    unsafe { Card::get().fill(properties, layout()) };
    DONE
}

/// That of the runtime which the process has loaded, whose own functions are hidden by these.
fn layout() -> &'static Layout {
    static IS_OLD: OnceLock<bool> = OnceLock::new();
    let is_old = || {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"cudaRuntimeGetVersion".as_ptr()) };
        if found.is_null() {
            return false;
        }
        let mut version: c_int = 0;
        // SAFETY: the runtime's function has this type, and asks no driver.
        let version_of: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { std::mem::transmute(found) };
        // SAFETY: as above.
        unsafe { version_of(&mut version) };
        (1..VERSION).contains(&version)
    };
    if *IS_OLD.get_or_init(is_old) { &Layout::CUDA_12 } else { &Layout::CUDA_13 }
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaGetDeviceProperties_v2(properties: *mut c_void, device: c_int) -> c_int {
    // SAFETY: the caller has a `cudaDeviceProp`.
    unsafe { cudaGetDeviceProperties(properties, device) }
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaDeviceGetAttribute(answer: *mut c_int, number: c_int, _device: c_int) -> c_int {
    // SAFETY: the caller names a place for the answer.
    unsafe { answer.write(Card::get().attribute(number)) };
    DONE
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> c_int {
    // SAFETY: the caller names a place for each answer, or none.
    unsafe {
        least.as_mut().into_iter().for_each(|least| *least = 0);
        greatest.as_mut().into_iter().for_each(|greatest| *greatest = -5);
    }
    DONE
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaDeviceGetPCIBusId(answer: *mut c_char, length: c_int, _device: c_int) -> c_int {
    let name = c"0000:00:00.0".to_bytes_with_nul();
    if length < name.len() as c_int {
        return 1;
    }
    // SAFETY: the caller has so much room.
    unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), answer.cast(), name.len()) };
    DONE
}

/// # Safety
/// As the runtime's. `attributes` is a `cudaFuncAttributes`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaFuncGetAttributes(attributes: *mut c_void, _function: *const c_void) -> c_int {
    let card = Card::get();
    let version = card.compiled_for();
    // SAFETY: the structure begins with three sizes, and has more than 64 bytes. The numbers lie behind these.
    unsafe {
        std::ptr::write_bytes(attributes.cast::<u8>(), 0, 64);
        let numbers = attributes.cast::<c_int>();
        numbers.add(6).write(1024);
        numbers.add(7).write(32);
        numbers.add(8).write(version);
        numbers.add(9).write(version);
        numbers.add(11).write(card.attribute(97));
    }
    DONE
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaGetDriverEntryPointByVersion(
    _name: *const c_char,
    function: *mut *const c_void,
    _version: c_uint,
    _flags: u64,
    how: *mut c_int,
) -> c_int {
    extern "C" fn nothing() -> c_int {
        DONE
    }
    // SAFETY: the caller names a place for the function, and perhaps for how it was found.
    unsafe {
        function.write(nothing as *const c_void);
        how.as_mut().into_iter().for_each(|how| *how = 0);
    }
    DONE
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaGetDriverEntryPoint(
    name: *const c_char,
    function: *mut *const c_void,
    flags: u64,
    how: *mut c_int,
) -> c_int {
    // SAFETY: as the caller's.
    unsafe { cudaGetDriverEntryPointByVersion(name, function, 0, flags, how) }
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaStreamGetPriority(_stream: usize, priority: *mut c_int) -> c_int {
    // SAFETY: the caller names a place for the answer.
    unsafe { priority.write(0) };
    DONE
}

/// Streams that are being captured.
static CAPTURED: AtomicUsize = AtomicUsize::new(0);

// Relaxed, in what follows: a capture is begun, asked about and ended by one thread.
#[unsafe(no_mangle)]
extern "C" fn cudaStreamBeginCapture(_stream: usize, _mode: c_int) -> c_int {
    CAPTURED.fetch_add(1, Ordering::Relaxed);
    DONE
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaStreamEndCapture(_stream: usize, graph: *mut usize) -> c_int {
    CAPTURED.fetch_sub(1, Ordering::Relaxed);
    // SAFETY: the caller names a place for the graph.
    unsafe { graph.write(handle()) };
    DONE
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaStreamIsCapturing(_stream: usize, status: *mut c_int) -> c_int {
    // SAFETY: the caller names a place for the answer.
    unsafe { status.write((CAPTURED.load(Ordering::Relaxed) > 0).into()) };
    DONE
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaStreamGetCaptureInfo(stream: usize, status: *mut c_int, id: *mut u64) -> c_int {
    // SAFETY: the caller names a place for the status, and perhaps for the capture's number.
    unsafe {
        id.as_mut().into_iter().for_each(|id| *id = 1);
        cudaStreamIsCapturing(stream, status)
    }
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaStreamGetCaptureInfo_v2(stream: usize, status: *mut c_int, id: *mut u64) -> c_int {
    // SAFETY: as the caller's. What else is asked for is left as it is.
    unsafe { cudaStreamGetCaptureInfo(stream, status, id) }
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaGraphGetNodes(_graph: usize, _nodes: *mut c_void, count: *mut usize) -> c_int {
    // SAFETY: the caller names a place for the answer.
    unsafe { count.as_mut() }.into_iter().for_each(|count| *count = 1);
    DONE
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> c_int {
    let bytes = Card::get().bytes as usize;
    // SAFETY: the caller names a place for each answer.
    unsafe {
        free.write(bytes.saturating_sub(memory::taken()));
        total.write(bytes);
    }
    DONE
}

/// # Safety
/// `answer` is a place for the address.
unsafe fn allocated(answer: *mut usize, bytes: usize, owner: Owner) -> c_int {
    match memory::take(bytes, owner) {
        0 => OUT_OF_MEMORY,
        address => {
            // SAFETY: the caller names a place for the address.
            unsafe { answer.write(address) };
            DONE
        }
    }
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaMalloc(answer: *mut usize, bytes: usize) -> c_int {
    // SAFETY: as the caller's.
    unsafe { allocated(answer, bytes, Owner::Card) }
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaMallocAsync(answer: *mut usize, bytes: usize, _stream: usize) -> c_int {
    // SAFETY: as the caller's.
    unsafe { cudaMalloc(answer, bytes) }
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaHostAlloc(answer: *mut usize, bytes: usize, _flags: c_uint) -> c_int {
    // SAFETY: as the caller's.
    unsafe { allocated(answer, bytes, Owner::Host) }
}

#[unsafe(no_mangle)]
extern "C" fn cudaFree(address: usize) -> c_int {
    memory::give_back(address);
    DONE
}

#[unsafe(no_mangle)]
extern "C" fn cudaFreeAsync(address: usize, _stream: usize) -> c_int {
    cudaFree(address)
}

#[unsafe(no_mangle)]
extern "C" fn cudaFreeHost(address: usize) -> c_int {
    cudaFree(address)
}

/// # Safety
/// As the runtime's. `attributes` is a `cudaPointerAttributes`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaPointerGetAttributes(attributes: *mut c_void, address: usize) -> c_int {
    // 0 is memory that CUDA does not know.
    let owner = memory::owner(address).map_or(0, |owner| owner as c_int);
    // SAFETY: the structure has two numbers and two addresses.
    unsafe {
        std::ptr::write_bytes(attributes.cast::<u8>(), 0, 24);
        attributes.cast::<c_int>().write(owner);
    }
    DONE
}

/// `cudaMemcpyKind`: between places of the host, and from a card to the host.
const HOST_TO_HOST: c_int = 0;
const CARD_TO_HOST: c_int = 2;

/// What comes from a card is zeros: nothing was computed there. What goes to it is not needed.
///
/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaMemcpyAsync(
    to: *mut u8,
    from: *const u8,
    bytes: usize,
    kind: c_int,
    _stream: usize,
) -> c_int {
    match kind {
        // SAFETY: the caller names two places of so many bytes.
        HOST_TO_HOST => unsafe { std::ptr::copy(from, to, bytes) },
        // SAFETY: as above.
        CARD_TO_HOST => unsafe { std::ptr::write_bytes(to, 0, bytes) },
        _ => {}
    }
    DONE
}

/// # Safety
/// As the runtime's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaMemcpy(to: *mut u8, from: *const u8, bytes: usize, kind: c_int) -> c_int {
    // SAFETY: as the caller's.
    unsafe { cudaMemcpyAsync(to, from, bytes, kind, 0) }
}
