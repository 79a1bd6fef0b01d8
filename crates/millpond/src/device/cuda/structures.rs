//! What the driver's structures are filled with.

use std::ffi::{c_int, c_uchar, c_ushort, c_void};
use std::ptr;

use cudarc::driver::sys::{
    CUdevice, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemLocation, CUmemLocationType,
};

/// Physical device memory, which is what CUDA calls a pinned allocation.
pub(super) const PINNED: CUmemAllocationType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
/// Memory that is not exported to other processes.
pub(super) const NO_SHARING: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;

/// Memory that is exported as file descriptors.
const AS_DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// This device as the place of memory.
pub(super) fn location(device: CUdevice) -> CUmemLocation {
    let kind = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_int;
    // From CUDA 13.2 on, cudarc's field for the number is a union in the same place. So no literal of the structure
    // compiles with every version. SAFETY: in cuda.h this is the kind and a number, both of the size of an int, and the
    // kind is one of the enum's.
    unsafe { std::mem::transmute::<[c_int; 2], CUmemLocation>([kind, device]) }
}

/// What pages are created with beside their place. It costs nothing: creating a page takes as long with it (H200, driver 580).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PageExtras {
    /// Whether they can be exported as file descriptors.
    pub(super) exportable: bool,
    /// Whether network cards may reach them (GPUDirect RDMA).
    pub(super) rdma: bool,
}

/// Ordinary device memory, mapped by this process alone until a page is exported.
pub(super) fn page_props(device: CUdevice, extras: PageExtras) -> CUmemAllocationProp {
    // SAFETY: all zeros is a valid value of this C structure, and what the driver wants in its reserved part.
    let mut props: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    props.type_ = PINNED;
    props.requestedHandleTypes = if extras.exportable { AS_DESCRIPTOR } else { NO_SHARING };
    props.location = location(device);
    props.allocFlags.gpuDirectRDMACapable = c_uchar::from(extras.rdma);
    props
}

/// `CUmemLocation`, with kinds that cudarc's enum has only for some CUDA versions.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Location {
    kind: c_int,
    id: c_int,
}

impl Location {
    /// A GPU's own memory.
    pub(super) fn of(device: CUdevice) -> Self {
        Self { kind: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_int, id: device }
    }

    /// The memory of the host, of any node (`CU_MEM_LOCATION_TYPE_HOST`).
    pub(super) fn of_host() -> Self {
        Self { kind: 2, id: 0 }
    }

    /// The memory of a NUMA node of the host (`CU_MEM_LOCATION_TYPE_HOST_NUMA`).
    pub(super) fn of_node(node: c_int) -> Self {
        Self { kind: 3, id: node }
    }
}

/// `CUmemAllocationProp`, for such a location.
#[derive(Debug)]
#[repr(C)]
pub(super) struct HostPageProps {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    win32: *const c_void,
    compression: c_uchar,
    gpu_direct: c_uchar,
    usage: c_ushort,
    reserved: [c_uchar; 4],
}

impl HostPageProps {
    /// Pages of host memory, mapped by this process alone.
    pub(super) fn of(location: Location) -> Self {
        Self {
            kind: PINNED as c_int,
            // As `NO_SHARING`, whose type differs between versions of cudarc.
            handle_types: 0,
            location,
            win32: ptr::null(),
            compression: 0,
            gpu_direct: 0,
            usage: 0,
            reserved: [0; 4],
        }
    }

    /// As the driver takes it. Only the driver may read it: it need not be a value of cudarc's type.
    pub(super) fn as_raw(&self) -> *const CUmemAllocationProp {
        ptr::from_ref(self).cast()
    }
}

/// `CUmemAccessDesc`, likewise.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Access {
    location: Location,
    flags: c_int,
}

impl Access {
    /// Reading and writing from there.
    pub(super) fn from(location: Location) -> Self {
        // `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
        Self { location, flags: 3 }
    }

    /// As the driver takes a list of them; see [`HostPageProps::as_raw`].
    pub(super) fn list(all: &[Self]) -> (*const CUmemAccessDesc, usize) {
        (all.as_ptr().cast(), all.len())
    }
}

const _: () = {
    assert!(size_of::<Location>() == size_of::<CUmemLocation>());
    assert!(size_of::<HostPageProps>() == size_of::<CUmemAllocationProp>());
    assert!(
        std::mem::offset_of!(HostPageProps, location) == std::mem::offset_of!(CUmemAllocationProp, location)
    );
    assert!(size_of::<Access>() == size_of::<CUmemAccessDesc>());
};
