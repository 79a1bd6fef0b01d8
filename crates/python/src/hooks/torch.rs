//! The functions themselves, with the signatures of `torch/csrc/cuda/CUDAPluggableAllocator.h` (PyTorch 2.11).

use std::ffi::{c_int, c_void};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use millpond::bindings::{Mutex, PerProcess};
use millpond::device::DevicePtr;
use millpond::{Error, Stream};

use super::captures::{self, PoolId};
use super::last_error::note;
use super::std_function::{Layout, StreamFilter};
use super::throw;
use crate::devices::{self, Device, device};
use crate::failure::{Failure, Result};
use crate::frames;
use crate::thread_tag;

/// Runs what a hook does; a panic becomes a failure.
#[inline]
pub(super) fn caught<R>(call: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        Err(Failure::Broken("a panic in millpond, printed above: please report it".to_owned()))
    })
}

pub(super) fn pointer(address: DevicePtr) -> *mut c_void {
    std::ptr::without_provenance_mut(address.raw() as usize)
}

pub(super) fn address(pointer: *mut c_void) -> DevicePtr {
    DevicePtr::new(pointer.addr() as u64)
}

/// Allocates `bytes` for work on `stream`. Throws where it cannot: PyTorch takes null for memory.
///
/// # Safety
/// `stream` is null or a live stream of the device, as `streams` says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn millpond_torch_alloc(
    bytes: usize,
    number: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let allocated = caught(|| {
        let device = device(number.into())?;
        // SAFETY: as PyTorch promises.
        let stream = unsafe { device.streams.find(stream.addr() as u64) }?;
        Ok(alloc_tagged(device, bytes as u64, &stream)?)
    });
    match allocated {
        Ok(ptr) => pointer(ptr),
        Err(failure) => fail(failure),
    }
}

/// Allocates from the pool of the thread's tag, or from the GPU's own. While a graph is captured, all is the graph's.
#[inline]
pub(super) fn alloc_tagged(device: &Device, bytes: u64, stream: &Stream) -> millpond::Result<DevicePtr> {
    let _called = frames::of_torch();
    match thread_tag::pool_of_thread(device)? {
        Some(tagged) if !captures::is_any_open() => tagged.alloc(bytes, stream),
        _ => device.pool.alloc(bytes, stream),
    }
}

/// Throws. Returns null only where PyTorch's exceptions were not found, as in a test without PyTorch.
#[cold]
pub(super) fn fail(failure: Failure) -> *mut c_void {
    note(&failure);
    let (is_out_of_memory, text) = (failure.is_out_of_memory(), failure.to_string());
    // Nothing that has a destructor is left but the text, which `throw` takes.
    drop(failure);
    if is_out_of_memory {
        throw::out_of_memory(text)
    } else {
        throw::error(text)
    }
    std::ptr::null_mut()
}

/// Frees what [`millpond_torch_alloc`] gave, after the work given to `stream` so far.
///
/// # Safety
/// As for [`millpond_torch_alloc`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millpond_torch_free(
    ptr: *mut c_void,
    _bytes: usize,
    number: c_int,
    stream: *mut c_void,
) {
    let _called = frames::of_torch_free();
    let freed = caught(|| {
        let device = device(number.into())?;
        // SAFETY: as PyTorch promises.
        let stream = unsafe { device.streams.find_to_free(stream.addr() as u64) }?;
        // SAFETY: the block is PyTorch's, which frees it once and orders its uses.
        Ok(unsafe { thread_tag::free(device, address(ptr), &stream) }?)
    });
    report(freed);
}

/// Says what a hook that must not throw could not do. The same is said once: after an error of a kernel, every later call of
/// the GPU fails likewise, and the first error is what the program has to see.
pub(super) fn report(result: Result<()>) {
    static SAID: PerProcess<Mutex<String>> = PerProcess::new(Default::default);
    if let Err(failure) = result {
        note(&failure);
        // A forked child drops its parent's tensors, which is no mistake of its own.
        if failure.is_forked() {
            return;
        }
        let text = failure.to_string();
        if std::mem::replace(&mut *SAID.get().lock(), text.clone()) == text {
            return;
        }
        // Where that is closed, there is nobody to be told.
        writeln!(std::io::stderr(), "millpond: {text}").ok();
    }
}

/// PyTorch tells how many GPUs there are. Pools are made when they are needed.
pub(super) extern "C" fn init(_devices: c_int) {}

/// `torch.cuda.empty_cache`: gives back what no tensor has, on every GPU.
pub(super) extern "C" fn reset() {
    report(caught(|| {
        for pool in devices::present().flat_map(|(_, device)| thread_tag::pools(device)) {
            pool.trim_to(0)?;
        }
        Ok(())
    }));
}

/// `torch.cuda.set_per_process_memory_fraction`.
pub(super) extern "C-unwind" fn memory_fraction(fraction: f64, number: c_int) {
    let set = caught(|| {
        // PyTorch has checked that the fraction lies between 0 and 1.
        device(number.into())?.set_fraction(fraction)
    });
    if let Err(failure) = set {
        fail(failure);
    }
}

/// The block in which an address lies, and its size, for sharing between processes.
///
/// # Safety
/// `size` is null or valid for writing.
pub(super) unsafe extern "C" fn base_allocation(ptr: *mut c_void, size: *mut usize) -> *mut c_void {
    let asked = address(ptr);
    let found = caught(|| {
        let foreign = || Error::ForeignPointer { ptr: asked, pool: "any GPU's".to_owned() };
        Ok(block_around(asked).ok_or_else(foreign)?)
    });
    let (base, bytes) = match found {
        Ok(found) => found,
        Err(failure) => {
            report(Err(failure));
            (asked, 0)
        }
    };
    if !size.is_null() {
        // SAFETY: not null, and PyTorch passes a variable of its own.
        unsafe { size.write(bytes as usize) };
    }
    pointer(base)
}

/// The live block in which an address lies, and the bytes asked for there.
pub(super) fn block_around(asked: DevicePtr) -> Option<(DevicePtr, u64)> {
    devices::present().find_map(|(_, device)| match thread_tag::owner_of(device, asked) {
        Ok((_, bytes)) => Some((asked, bytes)),
        Err(Error::InteriorPointer { start, .. }) => {
            Some((start, thread_tag::owner_of(device, start).ok()?.1))
        }
        Err(_) => None,
    })
}

/// `tensor.record_stream`: work on `stream` uses the block, until it is freed. Throws where that cannot be had: the
/// program would go on with memory that is not safe.
///
/// # Safety
/// As for [`millpond_torch_alloc`].
pub(super) unsafe extern "C-unwind" fn record_stream(ptr: *mut c_void, stream: *mut c_void) {
    if ptr.is_null() {
        return;
    }
    let recorded = caught(|| {
        let mut refused = None;
        for (_, device) in devices::present() {
            // The stream may be of one of the devices only; the block says of which.
            let (pool, _) = match thread_tag::owner_of(device, address(ptr)) {
                Ok(owner) => owner,
                Err(error) => {
                    refused = Some(error);
                    continue;
                }
            };
            // SAFETY: as PyTorch promises.
            let stream = unsafe { device.streams.find(stream.addr() as u64) }?;
            return Ok(pool.record_use(address(ptr), &stream)?);
        }
        refused.map_or(Ok(()), |error| Err(error.into()))
    });
    if let Err(failure) = recorded {
        fail(failure);
    }
}

/// Allocations for streams that the filter takes come from the pool from now on.
///
/// # Safety
/// `filter` points to a `std::function<bool(cudaStream_t)>`, and what that refers to lives until [`end`].
pub(super) unsafe extern "C-unwind" fn begin(number: c_int, id: PoolId, filter: *const Layout) {
    let begun = caught(|| {
        // SAFETY: as PyTorch promises.
        let filter = unsafe { StreamFilter::copy_of(filter) };
        let takes = filter.map(|filter| -> Box<captures::Takes> {
            // SAFETY: it is asked until `end`, as PyTorch promises.
            Box::new(move |stream| unsafe { filter.takes(stream) })
        });
        captures::begin(number, id, takes)
    });
    if let Err(failure) = begun {
        fail(failure);
    }
}

/// Allocations come from the device's own memory again.
pub(super) extern "C-unwind" fn end(number: c_int, id: PoolId) {
    report(caught(|| {
        captures::end(number, id);
        Ok(())
    }));
}

/// The graph is gone, or the program's use of the pool over.
pub(super) extern "C-unwind" fn release(number: c_int, id: PoolId) {
    report(caught(|| captures::release(number, id)));
}
