//! Tags: the part of a GPU's shared pool that PyTorch's allocations on a thread come from.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use millpond::device::DevicePtr;
use millpond::{Error, Result, Stream};
use pyo3::prelude::*;

use crate::devices::Device;

thread_local! {
    static TAG: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Whether any thread ever had a tag. While none had, nothing has to be asked.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Lets PyTorch's allocations on this thread belong to a tag of the GPUs' pools. Returns the one before.
#[pyfunction]
#[pyo3(signature = (tag))]
fn set_tag(tag: Option<String>) -> Option<String> {
    // Relaxed: a thread that has a tag sees its own write. Others free its blocks, and were given them by it.
    IS_USED.store(true, Ordering::Relaxed);
    TAG.with_borrow_mut(|present| std::mem::replace(present, tag))
}

#[inline]
fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

/// The pool of the calling thread's tag, if it has one.
#[inline]
pub(crate) fn pool_of_thread(device: &Device) -> Result<Option<millpond::Pool>> {
    if is_used() { find_slow(device) } else { Ok(None) }
}

#[cold]
fn find_slow(device: &Device) -> Result<Option<millpond::Pool>> {
    // While the thread ends, it has none.
    let tag = TAG.try_with(|tag| tag.borrow().clone()).ok().flatten();
    tag.map(|tag| device.pool.tagged(&tag)).transpose()
}

/// The GPU's pool, and those of its tags.
pub(crate) fn pools(device: &Device) -> Vec<millpond::Pool> {
    let of_tags = device.pool.tags().into_iter().filter_map(|tag| device.pool.tagged(&tag).ok());
    std::iter::once(device.pool.clone()).chain(of_tags).collect()
}

/// The pool that a live block belongs to, and the bytes asked for; why there is none otherwise.
pub(crate) fn owner_of(device: &Device, ptr: DevicePtr) -> Result<(millpond::Pool, u64)> {
    match device.pool.size_of(ptr) {
        Err(Error::WrongPool { .. }) if is_used() => {}
        found => return found.map(|bytes| (device.pool.clone(), bytes)),
    }
    let mut refused = None;
    for pool in pools(device) {
        match pool.size_of(ptr) {
            Ok(bytes) => return Ok((pool, bytes)),
            // The block's own pool says what is wrong, if anything is.
            Err(error @ Error::WrongPool { .. }) => _ = refused.get_or_insert(error),
            Err(error) => return Err(error),
        }
    }
    Err(refused.expect("a GPU has a pool"))
}

/// Physical bytes that the GPU's pool holds, with those of its tags: now, and the sum of what each held at most.
pub(crate) fn reserved(device: &Device) -> (u64, u64) {
    if !is_used() {
        let level = device.pool.reserved();
        return (level.current, level.high);
    }
    let levels = pools(device).into_iter().map(|pool| pool.reserved());
    levels.fold((0, 0), |(now, most), level| (now + level.current, most + level.high))
}

/// Frees a block, whatever its tag.
///
/// # Safety
/// As for [`millpond::Pool::free`].
#[inline]
pub(crate) unsafe fn free(device: &Device, ptr: DevicePtr, stream: &Stream) -> Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { device.pool.free(ptr, stream) } {
        // SAFETY: likewise; nothing was done.
        Err(Error::WrongPool { .. }) if is_used() => unsafe { device.context.free(ptr, stream) },
        freed => freed,
    }
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_tag, module)?)
}
