//! A block's bytes as a DLPack tensor: one dimension of bytes. The layouts are those of `dlpack.h`
//! (<https://dmlc.github.io/dlpack/latest/c_api.html>).

use std::ffi::{CStr, c_void};

use pyo3::ffi;
use pyo3::prelude::*;

/// `kDLCPU`.
pub(crate) const CPU: i32 = 1;
/// `kDLCUDA`.
pub(crate) const CUDA: i32 = 2;
/// `kDLCUDAHost`.
pub(crate) const PINNED: i32 = 3;
/// `kDLCUDAManaged`.
pub(crate) const MANAGED: i32 = 13;

/// `DLPACK_FLAG_BITMASK_IS_COPIED`.
const IS_COPIED: u64 = 1 << 1;

/// The names of capsules that nobody has taken yet.
const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// `DLTensor`, with the fields of `DLDevice` and `DLDataType` in their places.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut Managed),
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut ManagedVersioned),
    flags: u64,
    tensor: Tensor,
}

/// What a tensor leads to, until its consumer deletes it.
struct TensorData {
    shape: i64,
    stride: i64,
    _owner: Box<dyn Send>,
}

impl TensorData {
    /// # Safety
    /// `kept` came from a box, and is given up here.
    unsafe fn delete(kept: *mut c_void) {
        // SAFETY: as promised.
        drop(unsafe { Box::from_raw(kept.cast::<Self>()) });
    }
}

/// # Safety
/// DLPack's promise: each tensor is deleted once.
unsafe extern "C" fn delete(tensor: *mut Managed) {
    // SAFETY: made by `capsule` from a box, as was its context.
    unsafe { TensorData::delete(Box::from_raw(tensor).context) };
}

/// # Safety
/// As for [`delete`].
unsafe extern "C" fn delete_versioned(tensor: *mut ManagedVersioned) {
    // SAFETY: as in `delete`.
    unsafe { TensorData::delete(Box::from_raw(tensor).context) };
}

/// Deletes the tensor of a capsule that nobody took: whoever takes one renames the capsule.
///
/// # Safety
/// Python's promise: the capsule is alive.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule of this name holds what `capsule` put there.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// Which of the two structures a consumer takes, and what it is told in the newer one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Version {
    pub(crate) is_versioned: bool,
    pub(crate) is_copy: bool,
}

/// A capsule with a tensor of `bytes` bytes from `at` on, on a device by its two numbers. It drops `owner` at its end, on any thread; until then the bytes
/// are there.
pub(crate) fn capsule(
    py: Python<'_>,
    owner: Box<dyn Send>,
    (at, bytes): (*mut c_void, u64),
    (device_type, device_id): (i32, i32),
    Version { is_versioned, is_copy }: Version,
) -> PyResult<Bound<'_, PyAny>> {
    let kept = Box::into_raw(Box::new(TensorData { shape: bytes as i64, stride: 1, _owner: owner }));
    let tensor = Tensor {
        data: at,
        device_type,
        device_id,
        dimensions: 1,
        // `kDLUInt` of 8 bits.
        type_code: 1,
        type_bits: 8,
        type_lanes: 1,
        // SAFETY: `kept` lives until the tensor is deleted.
        shape: unsafe { &raw mut (*kept).shape },
        // SAFETY: as above.
        strides: unsafe { &raw mut (*kept).stride },
        byte_offset: 0,
    };
    let context = kept.cast();
    let (made, name): (*mut c_void, _) = if is_versioned {
        let deleter = delete_versioned;
        let flags = if is_copy { IS_COPIED } else { 0 };
        let made = ManagedVersioned { major: 1, minor: 0, context, deleter, flags, tensor };
        (Box::into_raw(Box::new(made)).cast(), VERSIONED)
    } else {
        (Box::into_raw(Box::new(Managed { tensor, context, deleter: delete })).cast(), PLAIN)
    };
    // SAFETY: the pointer is not null, the name is static, and the destructor takes what the capsule holds.
    let capsule = unsafe { ffi::PyCapsule_New(made, name.as_ptr(), Some(destroy)) };
    if capsule.is_null() {
        // SAFETY: nobody has seen the tensor, which was made above.
        unsafe {
            if is_versioned {
                delete_versioned(made.cast());
            } else {
                delete(made.cast());
            }
        }
        return Err(PyErr::fetch(py));
    }
    // SAFETY: a new reference, not null.
    Ok(unsafe { Bound::from_owned_ptr(py, capsule) })
}
