//! The part of cuda.h that we use: types and numbers of the driver's binary interface, which has not changed
//! them from CUDA 12.0 to 13. Names are cuda.h's without the prefix.

use std::ffi::{c_int, c_uint, c_void};

/// `CUdevice`.
pub(super) type RawDevice = c_int;
/// `CUcontext`.
pub(super) type RawContext = *mut c_void;
/// `CUstream`.
pub(super) type RawStream = *mut c_void;
/// `CUevent`.
pub(super) type RawEvent = *mut c_void;
/// `CUmemoryPool`.
pub(super) type RawPool = *mut c_void;
/// `CUdeviceptr`.
pub(super) type RawPtr = u64;
/// `CUmemGenericAllocationHandle`.
pub(super) type RawPage = u64;
/// `CUhostFn`.
pub(super) type HostFn = unsafe extern "C" fn(*mut c_void);

/// `CUmemLocation`: where memory lies.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`: what kind of page to create.
#[repr(C)]
#[derive(Debug)]
pub(super) struct PageProps {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    win32: *mut c_void,
    /// Compression, GPUDirect RDMA and usage, all off, and the reserved part.
    flags: [u8; 8],
}

/// `CUmemPoolProps`: what kind of pool to create.
#[repr(C)]
#[derive(Debug)]
pub(super) struct PoolProps {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    win32: *mut c_void,
    /// In newer drivers the largest size and the usage; 0 is their default.
    reserved: [u8; 64],
}

/// `CUmemAccessDesc`: who may do what with mapped memory.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Access {
    location: Location,
    flags: c_int,
}

const _: () = assert!(size_of::<PageProps>() == 32 && size_of::<PoolProps>() == 88);
const _: () = assert!(size_of::<Access>() == 12);

/// `CU_MEM_ALLOCATION_TYPE_PINNED`: physical device memory, which the driver never moves.
const PINNED: c_int = 1;
/// `CU_MEM_HANDLE_TYPE_NONE`: not exported to other processes.
const NOT_SHARED: c_int = 0;
const LOCATION_TYPE_DEVICE: c_int = 1;
const ACCESS_PROT_READWRITE: c_int = 3;

impl Location {
    fn of(device: RawDevice) -> Self {
        Self { kind: LOCATION_TYPE_DEVICE, id: device }
    }
}

impl PageProps {
    /// Ordinary memory of this device, for this process alone.
    pub(super) fn of(device: RawDevice) -> Self {
        let location = Location::of(device);
        Self { kind: PINNED, handle_types: NOT_SHARED, location, win32: std::ptr::null_mut(), flags: [0; 8] }
    }
}

impl PoolProps {
    /// A pool of ordinary memory of this device, for this process alone.
    pub(super) fn of(device: RawDevice) -> Self {
        Self {
            kind: PINNED,
            handle_types: NOT_SHARED,
            location: Location::of(device),
            win32: std::ptr::null_mut(),
            reserved: [0; 64],
        }
    }
}

impl Access {
    /// This device may read and write.
    pub(super) fn read_write(device: RawDevice) -> Self {
        Self { location: Location::of(device), flags: ACCESS_PROT_READWRITE }
    }
}

/// `CUdevice_attribute`.
pub(super) mod attribute {
    use super::c_int;

    pub(crate) const MULTIPROCESSOR_COUNT: c_int = 16;
    pub(crate) const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
    pub(crate) const COMPUTE_CAPABILITY_MINOR: c_int = 76;
    pub(crate) const PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES: c_int = 100;
    pub(crate) const VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: c_int = 102;
    pub(crate) const MEMORY_POOLS_SUPPORTED: c_int = 115;
}

/// `CUmemPool_attribute`.
pub(super) mod pool_attribute {
    use super::c_int;

    pub(crate) const RELEASE_THRESHOLD: c_int = 4;
    pub(crate) const RESERVED_MEM_CURRENT: c_int = 5;
    pub(crate) const RESERVED_MEM_HIGH: c_int = 6;
    pub(crate) const USED_MEM_CURRENT: c_int = 7;
    pub(crate) const USED_MEM_HIGH: c_int = 8;
}

/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
pub(super) const GRANULARITY_MINIMUM: c_int = 0;
/// `CU_STREAM_NON_BLOCKING`: does not synchronise with the default stream.
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
pub(super) const POINTER_MEMORY_TYPE: c_int = 2;
