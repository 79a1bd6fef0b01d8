//! Blocks of PyTorch's that other processes use: CUDA IPC of tensors, as `torch.multiprocessing` has it.
//!
//! PyTorch hands a string to the other process: `offers` makes it, and answers whoever was given it. A page that is open takes
//! one descriptor in each process. Who opens a second block on a page asks nobody, as with a segment of PyTorch's own.
//!
//! PyTorch orders the work of both sides by events of its own, and frees a block only after all who got the string let go.
//! So a block is offered until its free.

use std::ffi::c_int;

use millpond::bindings::{Mutex, PerProcess};
use millpond::device::DevicePtr;
use millpond::{Error, Stream};
use millpond_offers::{self as offers, Offered, OpenedBlock, OpenedBlocks, PlacedName};
use rustc_hash::FxHashMap;

use super::blocks::book;
use super::captures::{self, PoolId};
use crate::devices::{Device, device, is_forked};
use crate::failure::{Failure, MOST_DEVICES, Result};
use crate::thread_tag;

/// A block is being freed: nobody can open it any more.
pub(super) use millpond_offers::withdraw;

/// Offers a live block to other processes. Returns what [`open`] takes there; the same as often as it is offered.
pub(super) fn offer(gpu: c_int, ptr: DevicePtr) -> Result<String> {
    let device = device(gpu.into())?;
    let entry = book(gpu as usize).lock().get(ptr.raw());
    let not_shareable = |why| Failure::Pool(Error::NotShareable { pool: device.pool.name().to_owned(), why });
    if entry.is_some_and(|block| block.pool != PoolId::default()) {
        return Err(not_shareable("it is memory of a graph or a MemPool: send a clone of the tensor"));
    }
    if !device.context.device().properties().virtual_memory {
        return Err(not_shareable("the device has no virtual memory: send a copy on the CPU (tensor.cpu())"));
    }
    let (pool, _) = thread_tag::owner_of(device, ptr)?;
    let handle = offers::offer_placed(Offered { pool, ptr, stream: stream(gpu, device)? })?.text();
    // Its free withdraws it.
    book(gpu as usize).lock().note_shared(ptr.raw());
    Ok(handle)
}

/// A stream of a GPU that is given no work: the order is PyTorch's, by events of its own.
fn stream(gpu: c_int, device: &Device) -> Result<Stream> {
    static STREAMS: PerProcess<Mutex<FxHashMap<c_int, Stream>>> = PerProcess::new(Default::default);
    let mut streams = STREAMS.get().lock();
    if let Some(known) = streams.get(&gpu) {
        return Ok(known.clone());
    }
    let made = device.context.create_stream()?;
    streams.insert(gpu, made.clone());
    Ok(made)
}

/// What other processes offered, as far as it is open here.
#[derive(Debug)]
struct Opened {
    /// By GPU.
    in_use: [OpenedBlocks; MOST_DEVICES],
    /// What PyTorch let go of, and work may still use.
    closing: Mutex<Vec<(c_int, OpenedBlock)>>,
}

impl Default for Opened {
    fn default() -> Self {
        Self { in_use: std::array::from_fn(|_| OpenedBlocks::default()), closing: Mutex::default() }
    }
}

static OPENED: PerProcess<Opened> = PerProcess::new(Default::default);

/// Opens a block that another process [offers](offer), on a GPU. [`close`] closes it.
pub(super) fn open(gpu: c_int, handle: &str) -> Result<DevicePtr> {
    let device = device(gpu.into())?;
    let (name, stream) = (PlacedName::read(handle)?, stream(gpu, device)?);
    let blocks = &OPENED.get().in_use[gpu as usize];
    Ok(blocks.open(name.place(), || name.open(), &device.context, &stream)?)
}

/// Lets go of what [`open`] opened.
pub(super) fn close(gpu: c_int, ptr: DevicePtr) -> Result<()> {
    let Opened { in_use, closing } = OPENED.get();
    // A forked child has none: these are its parent's.
    match in_use[gpu as usize].close(ptr) {
        Some(closed) => closing.lock().push((gpu, closed)),
        // Once this returns, PyTorch tells the owner that the block may be used again. What is open beside it does not hold it.
        None if !captures::is_any_open() && !is_forked() => device(gpu.into())?.context.synchronize()?,
        None => {}
    }
    close_all()
}

/// Unmaps what PyTorch let go of. Waits for the GPU, as PyTorch's own allocator does: which streams used it is not known.
/// While a graph is captured nothing can be waited for, and it is left for the next time.
pub(super) fn close_all() -> Result<()> {
    if captures::is_any_open() {
        return Ok(());
    }
    let closing = std::mem::take(&mut *OPENED.get().closing.lock());
    let mut waited_for = Vec::new();
    for (gpu, opened) in closing {
        let device = device(gpu.into())?;
        if !waited_for.contains(&gpu) {
            device.context.synchronize()?;
            waited_for.push(gpu);
        }
        // SAFETY: PyTorch let go of all blocks in it, and the work on them is complete.
        unsafe { opened.close(&stream(gpu, device)?) }?;
    }
    Ok(())
}
