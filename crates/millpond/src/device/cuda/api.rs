//! The driver's functions that we call, as one table.
//!
//! Not cudarc's bindings, for three reasons, the first being enough. A build has one cudarc, with one CUDA
//! version and one way of linking among its features, and two crates that choose differently do not compile
//! together (263 errors for 12.0 and 12.8): depending on it would shut out the programs that already use it.
//! It panics where the library or a function is missing; here that is an error that names it. And it declares
//! results as a Rust enum, so that a code which a newer driver has added would be undefined behaviour; here
//! they are numbers. Programs over cudarc share the primary context and pass streams as raw handles.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use libloading::Library;

use super::abi::{
    Access, HostFn, PageProps, PoolProps, RawContext, RawDevice, RawEvent, RawPage, RawPool, RawPtr,
    RawStream,
};
use crate::device::{DeviceError, DeviceResult};

/// What a driver function returned (`CUresult`), also where it is younger than this program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(super) struct Code(c_uint);

impl Code {
    const SUCCESS: Self = Self(0);
    pub(super) const OUT_OF_MEMORY: Self = Self(2);
    pub(super) const NO_DEVICE: Self = Self(100);
    pub(super) const NOT_READY: Self = Self(600);
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
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {
        /// The table. Each method calls the driver function of its name.
        #[allow(non_snake_case)]
        pub(super) struct Api {
            $($name: unsafe extern "C" fn($($ty),*) -> Code,)*
            /// Keeps the functions where they are.
            _library: Library,
        }

        #[allow(non_snake_case, clippy::missing_safety_doc)]
        impl Api {
            /// Looks up every function.
            ///
            /// # Errors
            /// The name of the first function that the library lacks.
            ///
            /// # Safety
            /// The library is libcuda.
            unsafe fn look_up(library: Library) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the declared types are those of cuda.h for these names, and `CUresult` has the
                    // size of an unsigned int. The pointers are valid as long as the library is open, which
                    // lies in the same table.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|_| stringify!($name))?,)*
                    _library: library,
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
        }
    };
}

driver_functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuGetErrorName(error: Code, text: *mut *const c_char);
    cuGetErrorString(error: Code, text: *mut *const c_char);

    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut RawDevice, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: RawDevice);
    cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: RawDevice);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: RawDevice);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: RawDevice);
    cuDeviceCanAccessPeer(can: *mut c_int, device: RawDevice, peer: RawDevice);

    cuDevicePrimaryCtxRetain(context: *mut RawContext, device: RawDevice);
    cuDevicePrimaryCtxRelease_v2(device: RawDevice);
    cuCtxGetCurrent(context: *mut RawContext);
    cuCtxSetCurrent(context: RawContext);
    cuCtxPushCurrent_v2(context: RawContext);
    cuCtxPopCurrent_v2(context: *mut RawContext);
    cuCtxSynchronize();

    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemGetAllocationGranularity(
        bytes: *mut usize,
        prop: *const PageProps,
        option: c_int
    );
    cuMemAddressReserve(
        at: *mut RawPtr,
        bytes: usize,
        alignment: usize,
        hint: RawPtr,
        flags: c_ulonglong
    );
    cuMemAddressFree(at: RawPtr, bytes: usize);
    cuMemCreate(
        handle: *mut RawPage,
        bytes: usize,
        prop: *const PageProps,
        flags: c_ulonglong
    );
    cuMemRelease(handle: RawPage);
    cuMemMap(
        at: RawPtr,
        bytes: usize,
        offset: usize,
        handle: RawPage,
        flags: c_ulonglong
    );
    cuMemSetAccess(at: RawPtr, bytes: usize, access: *const Access, count: usize);
    cuMemUnmap(at: RawPtr, bytes: usize);

    cuMemAlloc_v2(at: *mut RawPtr, bytes: usize);
    cuMemFree_v2(at: RawPtr);
    cuMemPoolCreate(pool: *mut RawPool, props: *const PoolProps);
    cuMemPoolDestroy(pool: RawPool);
    cuMemPoolSetAttribute(pool: RawPool, attribute: c_int, value: *mut c_void);
    cuMemPoolGetAttribute(pool: RawPool, attribute: c_int, value: *mut c_void);
    cuMemAllocFromPoolAsync(at: *mut RawPtr, bytes: usize, pool: RawPool, stream: RawStream);
    cuMemFreeAsync(at: RawPtr, stream: RawStream);

    cuStreamCreate(stream: *mut RawStream, flags: c_uint);
    cuStreamDestroy_v2(stream: RawStream);
    cuStreamGetId(stream: RawStream, id: *mut c_ulonglong);
    cuStreamQuery(stream: RawStream);
    cuStreamSynchronize(stream: RawStream);
    cuStreamWaitEvent(stream: RawStream, event: RawEvent, flags: c_uint);
    cuEventCreate(event: *mut RawEvent, flags: c_uint);
    cuEventDestroy_v2(event: RawEvent);
    cuEventRecord(event: RawEvent, stream: RawStream);
    cuEventQuery(event: RawEvent);
    cuEventSynchronize(event: RawEvent);

    cuPointerGetAttribute(value: *mut c_void, attribute: c_int, at: RawPtr);
    cuMemsetD8Async(at: RawPtr, value: u8, bytes: usize, stream: RawStream);
    cuMemcpyHtoDAsync_v2(to: RawPtr, from: *const c_void, bytes: usize, stream: RawStream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: RawPtr, bytes: usize, stream: RawStream);
    cuMemcpyDtoDAsync_v2(to: RawPtr, from: RawPtr, bytes: usize, stream: RawStream);
    cuLaunchHostFunc(stream: RawStream, function: HostFn, data: *mut c_void);
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

/// The driver's file name; the second is what a machine without the package of the first may still have.
pub(super) const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

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
    // SAFETY: loading libcuda runs its initialisers, which any CUDA program does.
    let library =
        NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok()).ok_or(NoApi::NoLibrary)?;
    // SAFETY: it is libcuda.
    let api = unsafe { Api::look_up(library) }.map_err(NoApi::NoFunction)?;
    // Of two threads that come here at once, the second one closes its own opening of the same library.
    Ok(API.get_or_init(|| api))
}
