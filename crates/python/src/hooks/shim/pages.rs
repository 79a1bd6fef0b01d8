//! Where pages back the pools' addresses: PyTorch tells it to those that register memory, such as NCCL.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

use millpond::bindings::{Mapping, watch_mappings};

use super::super::torch::pointer;
use crate::devices;

/// Gets a GPU, an address and bytes, and whether a page is mapped there now, or unmapped next.
pub(super) type Told = unsafe extern "C" fn(c_int, *mut c_void, u64, bool);

static TOLD: OnceLock<Told> = OnceLock::new();

/// Has the function called for each page that is mapped or unmapped, with the lock of a pool held.
///
/// # Safety
/// It may be called from any thread, until the process ends. It throws nothing.
pub(super) unsafe extern "C" fn watch_pages(told: Told) {
    if TOLD.set(told).is_ok() {
        watch_mappings(tell);
    }
}

fn tell(Mapping { device, at, bytes, is_mapped }: Mapping<'_>) {
    // Pinned memory is another device's.
    let gpu = devices::present().find(|(_, known)| ptr::addr_eq(Arc::as_ptr(known.context.device()), device));
    if let (Some((ordinal, _)), Some(told)) = (gpu, TOLD.get()) {
        // SAFETY: as promised to `watch_pages`.
        unsafe { told(ordinal as c_int, pointer(at), bytes, is_mapped) };
    }
}
