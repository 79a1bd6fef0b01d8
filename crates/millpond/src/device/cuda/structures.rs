//! What the driver's structures are filled with.

use std::ffi::c_int;

use cudarc::driver::sys::{
    CUdevice, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType, CUmemLocation,
    CUmemLocationType,
};

/// Physical device memory, which is what CUDA calls a pinned allocation.
pub(super) const PINNED: CUmemAllocationType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
/// Memory that is not exported to other processes.
pub(super) const NO_SHARING: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;

/// This device as the place of memory.
pub(super) fn location(device: CUdevice) -> CUmemLocation {
    let kind = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_int;
    // From CUDA 13.2 on, cudarc's field for the number is a union in the same place. So no literal of the structure
    // compiles with every version. SAFETY: in cuda.h this is the kind and a number, both of the size of an int, and the
    // kind is one of the enum's.
    unsafe { std::mem::transmute::<[c_int; 2], CUmemLocation>([kind, device]) }
}

/// Ordinary device memory, mapped by this process alone.
pub(super) fn page_props(device: CUdevice) -> CUmemAllocationProp {
    // SAFETY: all zeros is a valid value of this C structure, and what the driver wants in its reserved part.
    let mut props: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    props.type_ = PINNED;
    props.requestedHandleTypes = NO_SHARING;
    props.location = location(device);
    props
}
