//! The driver's functions that we call, as one table.
//!
//! The types are cudarc's. The library is loaded and the functions are looked up here, for three reasons. First, whether cudarc
//! loads the library or is linked to it is the program's choice. Second, cudarc looks a function up when it is first called, and
//! panics where it is missing. Here all are looked up at once, and a missing one is an error that names it. Third, cudarc declares
//! results as a Rust enum. A code that a newer driver has added would be undefined behaviour. Here they are numbers.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUhostFn, CUipcEventHandle, CUlaunchConfig,
    CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUmodule, CUpointer_attribute, CUstream, CUuuid,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::structures::Location;
use crate::device::{DeviceError, DeviceResult};

/// What a driver function returned (`CUresult`), also where it is younger than this program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(super) struct Code(c_uint);

impl Code {
    const SUCCESS: Self = Self(0);
    pub(super) const INVALID_VALUE: Self = Self(1);
    pub(super) const OUT_OF_MEMORY: Self = Self(2);
    pub(super) const NO_DEVICE: Self = Self(100);
    pub(super) const INVALID_CONTEXT: Self = Self(201);
    pub(super) const NOT_READY: Self = Self(600);
    /// The context may use the peer's memory already.
    pub(super) const PEER_ACCESS_ALREADY_ENABLED: Self = Self(704);
    /// The legacy default stream was asked about, which waits for a stream that is being captured.
    pub(super) const CAPTURE_IMPLICIT: Self = Self(906);
    pub(super) const UNKNOWN: Self = Self(999);

    /// What the driver says of a stream that is gone, or whose context is: its handle or context is invalid, its context is destroyed,
    /// or it is detached from a green one.
    pub(super) const OF_AN_ENDED_STREAM: [Self; 4] = [Self::INVALID_CONTEXT, Self(400), Self(709), Self(917)];
}

/// What `cuStreamGetCaptureInfo` says of a stream (`CUstreamCaptureStatus`), also where it is younger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(super) struct CaptureStatus(c_int);

impl CaptureStatus {
    pub(super) const NONE: Self = Self(0);
}

/// Which calls a capture forbids to a thread (`CUstreamCaptureMode`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(super) struct CaptureMode(c_int);

impl CaptureMode {
    /// Those that concern the capture itself, and no others.
    pub(super) const RELAXED: Self = Self(2);
}

/// A driver call that returned something else than success.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) call: &'static str,
    pub(super) code: Code,
}

impl Failure {
    /// The error, where the call asked for `bytes` of memory.
    pub(super) fn asking(self, bytes: u64) -> DeviceError {
        if self.code == Code::OUT_OF_MEMORY {
            DeviceError::OutOfMemory { call: self.call, requested: bytes }
        } else {
            self.described()
        }
    }

    /// The error, where a page of `bytes` was to be mapped. Driver 580 says "unknown" there if it finds no memory for the mapping: "Failed
    /// to allocate physical memory" stands in its log (docs/lab/sleep.md). To give memory back, and to try again, may help.
    pub(super) fn mapping(self, bytes: u64) -> DeviceError {
        let code = if self.code == Code::UNKNOWN { Code::OUT_OF_MEMORY } else { self.code };
        Self { code, ..self }.asking(bytes)
    }

    /// The error with the driver's name and sentence for it, also where it is "out of memory".
    pub(super) fn described(self) -> DeviceError {
        let (name, text) = match API.get() {
            Some(api) => api.describe(self.code),
            None => (String::from("unknown"), String::from("the driver is not loaded")),
        };
        DeviceError::Driver { call: self.call, code: self.code.0 as i32, name, text }
    }
}

impl From<Failure> for DeviceError {
    fn from(failure: Failure) -> Self {
        failure.asking(0)
    }
}

/// Turns "not ready" into `false` and success into `true`.
pub(super) fn is_ready(result: Result<(), Failure>) -> DeviceResult<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(failure) if failure.code == Code::NOT_READY => Ok(false),
        Err(failure) => Err(failure.into()),
    }
}

macro_rules! driver_functions {
    (
        required { $($name:ident($($arg:ident: $ty:ty),*);)* }
        optional { $($newer:ident($($given:ident: $its:ty),*);)* }
    ) => {
        /// The table. Each method calls the driver function of its name.
        #[allow(non_snake_case)]
        pub(super) struct Api {
            $($name: unsafe extern "C" fn($($ty),*) -> Code,)*
            $($newer: Option<unsafe extern "C" fn($($its),*) -> Code>,)*
        }

        #[allow(non_snake_case, clippy::missing_safety_doc)]
        impl Api {
            /// Looks up every function.
            ///
            /// # Errors
            /// The name of the first required function that the library lacks.
            ///
            /// # Safety
            /// The library is libcuda, and is never unloaded.
            unsafe fn look_up(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the declared types are those of cuda.h for these names, and `CUresult` has the
                    // size of an unsigned int. The library is never unloaded, so the pointers stay valid.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|_| stringify!($name))?,)*
                    // SAFETY: as above.
                    $($newer: unsafe { library.get(concat!(stringify!($newer), "\0").as_bytes()) }
                        .ok()
                        .map(|found| *found),)*
                })
            }

            // The safety contract of each is that of the driver function: pointers are valid, handles live.
            $(#[inline]
            pub(super) unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), Failure> {
                // SAFETY: the caller keeps the driver function's contract.
                match unsafe { (self.$name)($($arg),*) } {
                    Code::SUCCESS => Ok(()),
                    code => Err(Failure { call: stringify!($name), code }),
                }
            })*

            // Likewise; `None` where the driver is too old for the function, or too new.
            $(pub(super) unsafe fn $newer(&self, $($given: $its),*) -> Option<Result<(), Failure>> {
                // SAFETY: the caller keeps the driver function's contract.
                Some(match unsafe { (self.$newer?)($($given),*) } {
                    Code::SUCCESS => Ok(()),
                    code => Err(Failure { call: stringify!($newer), code }),
                })
            })*
        }
    };
}

driver_functions! {
    required {
        cuInit(flags: c_uint);
        cuDriverGetVersion(version: *mut c_int);
        cuGetErrorName(error: Code, text: *mut *const c_char);
        cuGetErrorString(error: Code, text: *mut *const c_char);

        cuDeviceGetCount(count: *mut c_int);
        cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
        cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: CUdevice);
        cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
        cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice);
        cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);

        cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        cuDevicePrimaryCtxRelease_v2(device: CUdevice);
        cuCtxGetCurrent(context: *mut CUcontext);
        cuCtxSetCurrent(context: CUcontext);
        cuCtxPushCurrent_v2(context: CUcontext);
        cuCtxPopCurrent_v2(context: *mut CUcontext);
        cuCtxSynchronize();
        cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);

        cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        cuMemGetAllocationGranularity(
            bytes: *mut usize,
            prop: *const CUmemAllocationProp,
            option: CUmemAllocationGranularity_flags
        );
        cuMemAddressReserve(
            at: *mut CUdeviceptr,
            bytes: usize,
            alignment: usize,
            hint: CUdeviceptr,
            flags: c_ulonglong
        );
        cuMemAddressFree(at: CUdeviceptr, bytes: usize);
        cuMemCreate(
            handle: *mut CUmemGenericAllocationHandle,
            bytes: usize,
            prop: *const CUmemAllocationProp,
            flags: c_ulonglong
        );
        cuMemRelease(handle: CUmemGenericAllocationHandle);
        cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, at: *mut c_void);
        cuMemMap(
            at: CUdeviceptr,
            bytes: usize,
            offset: usize,
            handle: CUmemGenericAllocationHandle,
            flags: c_ulonglong
        );
        cuMemSetAccess(at: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize);
        cuMemUnmap(at: CUdeviceptr, bytes: usize);

        cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize);
        cuMemFree_v2(at: CUdeviceptr);
        cuMemAllocManaged(at: *mut CUdeviceptr, bytes: usize, flags: c_uint);
        cuMemRangeGetAttribute(to: *mut c_void, size: usize, attribute: c_int, at: CUdeviceptr, bytes: usize);
        cuMemHostRegister_v2(at: *mut c_void, bytes: usize, flags: c_uint);
        cuMemHostUnregister(at: *mut c_void);
        cuMemPoolCreate(pool: *mut CUmemoryPool, props: *const CUmemPoolProps);
        cuMemPoolDestroy(pool: CUmemoryPool);
        cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
        cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
        cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
        cuMemAllocFromPoolAsync(at: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
        cuMemFreeAsync(at: CUdeviceptr, stream: CUstream);

        cuStreamCreate(stream: *mut CUstream, flags: c_uint);
        cuStreamDestroy_v2(stream: CUstream);
        cuStreamGetId(stream: CUstream, id: *mut c_ulonglong);
        cuStreamQuery(stream: CUstream);
        cuStreamGetCaptureInfo_v2(
            stream: CUstream,
            status: *mut CaptureStatus,
            id: *mut c_ulonglong,
            graph: *mut c_void,
            dependencies: *mut c_void,
            dependency_count: *mut usize
        );
        cuThreadExchangeStreamCaptureMode(mode: *mut CaptureMode);
        cuStreamSynchronize(stream: CUstream);
        cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
        cuEventCreate(event: *mut CUevent, flags: c_uint);
        cuEventDestroy_v2(event: CUevent);
        cuEventRecord(event: CUevent, stream: CUstream);
        cuEventQuery(event: CUevent);
        cuEventSynchronize(event: CUevent);

        cuPointerGetAttribute(value: *mut c_void, attribute: CUpointer_attribute, at: CUdeviceptr);
        cuMemsetD8Async(at: CUdeviceptr, value: u8, bytes: usize, stream: CUstream);
        cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
        cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
        cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        cuMemcpyPeerAsync(
            to: CUdeviceptr,
            to_context: CUcontext,
            from: CUdeviceptr,
            from_context: CUcontext,
            bytes: usize,
            stream: CUstream
        );
        cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void);

        cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
        cuMemExportToShareableHandle(
            to: *mut c_void,
            handle: CUmemGenericAllocationHandle,
            kind: c_uint,
            flags: c_ulonglong
        );
        cuMemImportFromShareableHandle(
            handle: *mut CUmemGenericAllocationHandle,
            from: *mut c_void,
            kind: c_uint
        );
        cuIpcGetEventHandle(handle: *mut CUipcEventHandle, event: CUevent);
        cuIpcOpenEventHandle(event: *mut CUevent, handle: CUipcEventHandle);
    }
    optional {
        // Since CUDA 12.2, and what they take the place of.
        cuMemPrefetchAsync_v2(
            at: CUdeviceptr,
            bytes: usize,
            to: Location,
            flags: c_uint,
            stream: CUstream
        );
        cuMemAdvise_v2(at: CUdeviceptr, bytes: usize, advice: c_uint, place: Location);
        cuMemPrefetchAsync(at: CUdeviceptr, bytes: usize, to: CUdevice, stream: CUstream);
        cuMemAdvise(at: CUdeviceptr, bytes: usize, advice: c_uint, place: CUdevice);
        // Not in what stands for a driver in tests.
        cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
        cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
        cuModuleUnload(module: CUmodule);
        cuLaunchKernelEx(
            config: *const CUlaunchConfig,
            function: CUfunction,
            arguments: *mut *mut c_void,
            extra: *mut *mut c_void
        );
    }
}

impl Api {
    /// The driver's name and sentence for a code.
    fn describe(&self, code: Code) -> (String, String) {
        type Lookup = unsafe fn(&Api, Code, *mut *const c_char) -> Result<(), Failure>;
        let ask = |lookup: Lookup, unknown: &str| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: `text` is writable. On success it points to a static C string of the driver.
            match unsafe { lookup(self, code, &mut text) } {
                Ok(()) if !text.is_null() => {
                    // SAFETY: as above.
                    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
                }
                _ => unknown.to_owned(),
            }
        };
        (
            ask(Self::cuGetErrorName, "unknown error"),
            ask(Self::cuGetErrorString, "the driver has no description for this code"),
        )
    }
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Api")
    }
}

static API: OnceLock<Api> = OnceLock::new();

/// Why there is no table.
pub(super) enum NoApi {
    /// No libcuda can be loaded.
    NoLibrary,
    /// The library lacks this function.
    NoFunction(&'static str),
}

/// The table, loaded at the first call. The driver is not started yet ([`Api::cuInit`]).
pub(super) fn load() -> Result<&'static Api, NoApi> {
    if let Some(api) = API.get() {
        return Ok(api);
    }
    let library = library().ok_or(NoApi::NoLibrary)?;
    // SAFETY: it is libcuda, and is not dropped.
    let api = unsafe { Api::look_up(&library) }.map_err(NoApi::NoFunction)?;
    Ok(API.get_or_init(|| api))
}

/// libcuda: the one that the program has, as where it is linked to it, or else the one that the system finds. It stays loaded.
fn library() -> Option<ManuallyDrop<Library>> {
    let (load, find) = (RTLD_NOW | RTLD_LOCAL, RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD);
    let ways = [("libcuda.so.1", find), ("libcuda.so", load), ("libcuda.so.1", load)];
    // SAFETY: loading libcuda runs its initialisers, which any CUDA program does.
    let mut loaded =
        ways.into_iter().filter_map(|(name, how)| unsafe { Library::open(Some(name), how) }.ok());
    loaded.next().map(ManuallyDrop::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_for_which_the_driver_has_no_memory_is_out_of_memory() {
        let failed = |code| Failure { call: "cuMemMap", code }.mapping(2 << 20);
        let out_of_memory = DeviceError::OutOfMemory { call: "cuMemMap", requested: 2 << 20 };
        assert_eq!(failed(Code::UNKNOWN), out_of_memory);
        assert_eq!(failed(Code::OUT_OF_MEMORY), out_of_memory);
        assert!(matches!(failed(Code::INVALID_VALUE), DeviceError::Driver { code: 1, .. }));
    }
}
