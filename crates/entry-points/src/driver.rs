//! The driver's own functions, looked up at their first call. Where the driver has not got one, its answer is "not found".

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::code::Code;
use crate::linker::{self, Address};

/// `CUdeviceptr`.
pub(crate) type DeviceAddress = u64;

/// A handle of the driver's: a context, a stream, a pool, a graph.
pub(crate) type Handle = *mut c_void;

/// `CUipcMemHandle`, which is passed by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

/// `CUmemLocation`: where memory is.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Location {
    kind: c_int,
    number: c_int,
}

impl Location {
    /// The GPU whose memory it is; `None` for the host's.
    pub(crate) fn gpu(self) -> Option<usize> {
        /// `CU_MEM_LOCATION_TYPE_DEVICE`
        const DEVICE: c_int = 1;
        usize::try_from(self.number).ok().filter(|_| self.kind == DEVICE)
    }
}

/// The beginning of `CUmemPoolProps` and of `CUmemAllocationProp`, which is the same.
#[repr(C)]
pub(crate) struct MemoryProps {
    kind: c_int,
    /// For which kinds of handles the memory can be given to other processes.
    pub(crate) handle_types: c_int,
    pub(crate) location: Location,
}

/// `CUmemPoolProps`, as far as anything is in it.
#[repr(C)]
pub(crate) struct PoolProps {
    memory: MemoryProps,
    security: *const c_void,
    most_bytes: usize,
    usage: u16,
}

impl PoolProps {
    /// The GPU, if the memory is as plain as that of the GPU's default pool: `CU_MEM_ALLOCATION_TYPE_PINNED`, for no other processes,
    /// without a limit, for no special use.
    pub(crate) fn plain_on(&self) -> Option<usize> {
        const PINNED: c_int = 1;
        let Self { memory: MemoryProps { kind, handle_types, location }, most_bytes, usage, .. } = self;
        let is_plain = (*kind, *handle_types, *most_bytes, *usage) == (PINNED, 0, 0, 0);
        location.gpu().filter(|_| is_plain)
    }
}

/// A function of the driver's.
pub(crate) struct Function {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Function {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address; null where the driver has not got it.
    pub(crate) fn address(&self) -> Address {
        // Relaxed: each thread finds the same, and nothing is behind it but code.
        let known = self.found.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        self.look_up()
    }

    #[cold]
    fn look_up(&self) -> Address {
        let Some(driver) = linker::driver() else { return ptr::null_mut() };
        // SAFETY: the library is open, and stays so.
        let found = unsafe { linker::symbol(driver, self.name) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

macro_rules! driver_functions {
    ($($name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        /// Where each function is.
        #[allow(non_upper_case_globals, reason = "they are the driver's names")]
        pub(crate) mod functions {
            use super::Function;

            $(pub(crate) static $name: Function = Function::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zero in it"),
                },
            );)*
        }

        // The safety contract of each is that of the driver function of its name: pointers are valid, handles live.
        $(#[allow(non_snake_case, reason = "it is the driver's name")]
        #[inline]
        pub(crate) unsafe fn $name($($arg: $ty),*) -> Code {
            let at = functions::$name.address();
            if at.is_null() {
                return Code::NOT_FOUND;
            }
            // SAFETY: cuda.h declares the function of this name with these types; a `CUresult` has the size of an int.
            let function = unsafe { std::mem::transmute::<Address, unsafe extern "C" fn($($ty),*) -> Code>(at) };
            // SAFETY: the caller keeps the driver function's contract.
            unsafe { function($($arg),*) }
        })*
    };
}

driver_functions! {
    cuGetProcAddress(name: *const c_char, to: *mut Address, version: c_int, flags: u64);
    cuGetProcAddress_v2(name: *const c_char, to: *mut Address, version: c_int, flags: u64, status: *mut c_int);

    cuMemAlloc_v2(at: *mut DeviceAddress, bytes: usize);
    cuMemAllocPitch_v2(at: *mut DeviceAddress, pitch: *mut usize, width: usize, height: usize, element: c_uint);
    cuMemFree_v2(at: DeviceAddress);
    cuMemAllocAsync(at: *mut DeviceAddress, bytes: usize, stream: Handle);
    cuMemAllocAsync_ptsz(at: *mut DeviceAddress, bytes: usize, stream: Handle);
    cuMemAllocFromPoolAsync(at: *mut DeviceAddress, bytes: usize, pool: Handle, stream: Handle);
    cuMemAllocFromPoolAsync_ptsz(at: *mut DeviceAddress, bytes: usize, pool: Handle, stream: Handle);
    cuMemFreeAsync(at: DeviceAddress, stream: Handle);
    cuMemFreeAsync_ptsz(at: DeviceAddress, stream: Handle);
    cuMemAllocManaged(at: *mut DeviceAddress, bytes: usize, flags: c_uint);
    cuMemAllocHost_v2(at: *mut DeviceAddress, bytes: usize);
    cuMemHostAlloc(at: *mut DeviceAddress, bytes: usize, flags: c_uint);
    cuMemFreeHost(at: DeviceAddress);
    cuMemCreate(handle: *mut u64, bytes: usize, props: *const MemoryProps, flags: u64);
    cuMemRelease(handle: u64);
    cuMemRetainAllocationHandle(handle: *mut u64, at: *mut c_void);
    cuMemMap(at: DeviceAddress, bytes: usize, offset: usize, handle: u64, flags: u64);
    cuMemUnmap(at: DeviceAddress, bytes: usize);

    cuMemPoolCreate(pool: *mut Handle, props: *const PoolProps);
    cuMemPoolDestroy(pool: Handle);
    cuMemPoolTrimTo(pool: Handle, keep: usize);
    cuMemPoolSetAttribute(pool: Handle, attribute: c_int, value: *mut c_void);
    cuMemPoolGetAttribute(pool: Handle, attribute: c_int, value: *mut c_void);
    cuMemPoolSetAccess(pool: Handle, access: *const c_void, count: usize);
    cuDeviceSetMemPool(device: c_int, pool: Handle);
    cuMemSetMemPool(location: *const Location, kind: c_int, pool: Handle);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: c_int);
    cuDeviceGetDefaultMemPool(pool: *mut Handle, device: c_int);

    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemGetAddressRange_v2(start: *mut DeviceAddress, bytes: *mut usize, at: DeviceAddress);
    cuPointerGetAttribute(to: *mut c_void, attribute: c_int, at: DeviceAddress);
    cuPointerGetAttributes(count: c_uint, attributes: *mut c_int, to: *mut *mut c_void, at: DeviceAddress);
    cuPointerSetAttribute(value: *const c_void, attribute: c_int, at: DeviceAddress);
    cuIpcGetMemHandle(handle: *mut IpcHandle, at: DeviceAddress);
    cuIpcOpenMemHandle(at: *mut DeviceAddress, handle: IpcHandle, flags: c_uint);
    cuIpcOpenMemHandle_v2(at: *mut DeviceAddress, handle: IpcHandle, flags: c_uint);
    cuIpcCloseMemHandle(at: DeviceAddress);

    cuMemcpy(to: DeviceAddress, from: DeviceAddress, bytes: usize);
    cuMemcpy_ptds(to: DeviceAddress, from: DeviceAddress, bytes: usize);
    cuMemcpyAsync(to: DeviceAddress, from: DeviceAddress, bytes: usize, stream: Handle);
    cuMemcpyAsync_ptsz(to: DeviceAddress, from: DeviceAddress, bytes: usize, stream: Handle);
    cuMemcpyDtoD_v2(to: DeviceAddress, from: DeviceAddress, bytes: usize);
    cuMemcpyDtoD_v2_ptds(to: DeviceAddress, from: DeviceAddress, bytes: usize);
    cuMemcpyDtoDAsync_v2(to: DeviceAddress, from: DeviceAddress, bytes: usize, stream: Handle);
    cuMemcpyDtoDAsync_v2_ptsz(to: DeviceAddress, from: DeviceAddress, bytes: usize, stream: Handle);
    cuMemcpyPeer(to: DeviceAddress, to_context: Handle, from: DeviceAddress, from_context: Handle, bytes: usize);
    cuMemcpyPeer_ptds(to: DeviceAddress, to_context: Handle, from: DeviceAddress, from_context: Handle, bytes: usize);
    cuMemcpyPeerAsync(to: DeviceAddress, to_context: Handle, from: DeviceAddress, from_context: Handle, bytes: usize, stream: Handle);
    cuMemcpyPeerAsync_ptsz(to: DeviceAddress, to_context: Handle, from: DeviceAddress, from_context: Handle, bytes: usize, stream: Handle);
    cuMemcpy2D_v2(plane: *const c_void);
    cuMemcpy2D_v2_ptds(plane: *const c_void);
    cuMemcpy2DUnaligned_v2(plane: *const c_void);
    cuMemcpy2DUnaligned_v2_ptds(plane: *const c_void);
    cuMemcpy2DAsync_v2(plane: *const c_void, stream: Handle);
    cuMemcpy2DAsync_v2_ptsz(plane: *const c_void, stream: Handle);
    cuMemcpy3D_v2(space: *const c_void);
    cuMemcpy3D_v2_ptds(space: *const c_void);
    cuMemcpy3DAsync_v2(space: *const c_void, stream: Handle);
    cuMemcpy3DAsync_v2_ptsz(space: *const c_void, stream: Handle);
    cuMemcpy3DPeer(space: *const c_void);
    cuMemcpy3DPeer_ptds(space: *const c_void);
    cuMemcpy3DPeerAsync(space: *const c_void, stream: Handle);
    cuMemcpy3DPeerAsync_ptsz(space: *const c_void, stream: Handle);

    cuStreamDestroy(stream: Handle);
    cuStreamDestroy_v2(stream: Handle);
    cuStreamGetCtx(stream: Handle, context: *mut Handle);
    cuStreamIsCapturing(stream: Handle, status: *mut c_int);
    cuStreamBeginCapture(stream: Handle);
    cuStreamBeginCapture_ptsz(stream: Handle);
    cuStreamBeginCapture_v2(stream: Handle, mode: c_int);
    cuStreamBeginCapture_v2_ptsz(stream: Handle, mode: c_int);
    cuStreamBeginCaptureToGraph(
        stream: Handle, graph: Handle, after: *const Handle, edges: *const c_void, count: usize, mode: c_int,
    );
    cuStreamBeginCaptureToGraph_ptsz(
        stream: Handle, graph: Handle, after: *const Handle, edges: *const c_void, count: usize, mode: c_int,
    );
    cuStreamBeginCaptureToCig(stream: Handle, params: *mut c_void);
    cuStreamBeginRecaptureToGraph(
        stream: Handle, mode: c_int, graph: Handle, callback: *const c_void, data: *mut c_void,
    );
    cuStreamEndCaptureToCig(stream: Handle);
    cuStreamEndCapture(stream: Handle, graph: *mut Handle);
    cuStreamEndCapture_ptsz(stream: Handle, graph: *mut Handle);

    cuCtxGetCurrent(context: *mut Handle);
    cuCtxGetDevice(device: *mut c_int);
    cuCtxGetFlags(flags: *mut c_uint);
    cuCtxSetFlags(flags: c_uint);
    cuCtxPushCurrent_v2(context: Handle);
    cuCtxPopCurrent_v2(context: *mut Handle);
    cuCtxDestroy(context: Handle);
    cuCtxDestroy_v2(context: Handle);
    cuCtxEnablePeerAccess(peer: Handle, flags: c_uint);
    cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int);
    cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int);
    cuGreenCtxCreate(context: *mut Handle, description: Handle, device: c_int, flags: c_uint);
    cuDevicePrimaryCtxRelease(device: c_int);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuDevicePrimaryCtxReset(device: c_int);
    cuDevicePrimaryCtxReset_v2(device: c_int);
}

/// How many GPUs there are.
pub(crate) fn device_count() -> usize {
    let mut count: c_int = 0;
    // SAFETY: `count` is writable.
    let asked = unsafe { cuDeviceGetCount(&mut count) };
    usize::try_from(count).ok().filter(|_| asked.is_success()).unwrap_or(0)
}

/// Whether a GPU has its primary context.
pub(crate) fn has_primary(device: c_int) -> bool {
    let (mut flags, mut is_active): (c_uint, c_int) = (0, 0);
    // SAFETY: both are writable.
    let asked = unsafe { cuDevicePrimaryCtxGetState(device, &mut flags, &mut is_active) };
    asked.is_success() && is_active != 0
}

/// The calling thread's context; `None` where it has none.
pub(crate) fn current_context() -> Option<Handle> {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is writable.
    let asked = unsafe { cuCtxGetCurrent(&mut context) };
    (asked.is_success() && !context.is_null()).then_some(context)
}

/// The context of a stream.
///
/// # Safety
/// The handle is one of the default ones, or a live stream.
pub(crate) unsafe fn context_of(stream: Handle) -> Option<Handle> {
    let mut context = ptr::null_mut();
    // SAFETY: the stream lives by the caller's promise, and `context` is writable.
    let asked = unsafe { cuStreamGetCtx(stream, &mut context) };
    (asked.is_success() && !context.is_null()).then_some(context)
}

/// The GPU of the calling thread's context.
pub(crate) fn current_device() -> Option<c_int> {
    let mut device = 0;
    // SAFETY: `device` is writable.
    unsafe { cuCtxGetDevice(&mut device) }.is_success().then_some(device)
}
