//! What the shim is told of blocks and address ranges.

use std::ffi::{c_int, c_void};

use millpond::device::DevicePtr;

use super::super::blocks::{TorchBlock, book};
use super::super::captures::PoolId;
use super::super::torch::pointer;
use crate::devices::{self, Device};
use crate::thread_tag;

/// A block, as it was allocated or struck out.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) ptr: *mut c_void,
    pub(super) gpu: c_int,
    /// Bytes, as PyTorch rounds them, and as they were asked for.
    pub(super) bytes: u64,
    pub(super) requested: u64,
    pub(super) stream: *mut c_void,
    pub(super) pool: PoolId,
    /// Of the GPU, after it.
    pub(super) allocated: u64,
    pub(super) reserved: u64,
    /// A list of streams of other GPUs that use the block; null for none.
    pub(super) elsewhere: *mut Vec<(c_int, u64)>,
}

pub(super) fn handle(stream: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(stream as usize)
}

/// Gets one entry of a list.
pub(super) type Tell<T> = unsafe extern "C" fn(*mut c_void, *const T);

/// A range of addresses in a snapshot.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) start: *mut c_void,
    pub(super) bytes: u64,
    pub(super) pool: PoolId,
}

pub(super) fn entry(gpu: c_int, device: &Device, (ptr, block): (u64, TorchBlock), allocated: u64) -> Entry {
    Entry {
        ptr: pointer(DevicePtr::new(ptr)),
        gpu,
        bytes: block.bytes(),
        requested: block.requested,
        stream: handle(block.stream),
        pool: block.pool,
        allocated,
        reserved: thread_tag::reserved(device).0,
        elsewhere: std::ptr::null_mut(),
    }
}

/// The device, where there is a pool on it already: a question must not make one.
pub(super) fn present(number: c_int) -> Option<(usize, &'static Device)> {
    devices::present().find(|(ordinal, _)| usize::try_from(number) == Ok(*ordinal))
}

/// The GPU whose book has the block that starts here.
pub(super) fn holder(ptr: DevicePtr) -> Option<c_int> {
    let mut gpus = devices::present().map(|(ordinal, _)| ordinal);
    gpus.find(|ordinal| book(*ordinal).lock().get(ptr.raw()).is_some()).map(|ordinal| ordinal as c_int)
}
