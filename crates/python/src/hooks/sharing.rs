//! Blocks of PyTorch's that other processes use: CUDA IPC of tensors, as `torch.multiprocessing` has it.
//!
//! PyTorch hands a string to the other process: `offers` makes it, and answers whoever was given it. A block that is open takes
//! one descriptor in each process.
//!
//! PyTorch orders the work of both sides by events of its own, and frees a block only after all who got the string let go.
//! So a block is offered until its free. From then on the pool waits for those that have it open (`docs/sharing.md`).

use std::ffi::c_int;

use millpond::bindings::{self, Mutex, PerProcess};
use millpond::device::DevicePtr;
use millpond::{Error, Pool, SharedEvent, Stream};
use millpond_offers::{self as offers, Offered};
use rustc_hash::FxHashMap;

use super::blocks::book;
use super::captures::{self, PoolId};
use crate::devices::{Device, device};
use crate::failure::{Failure, Result};
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
    let handle = offers::offer(Offered { pool, ptr, stream: stream(gpu, device)? })?.text();
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

/// A block of another process: its GPU, and where it begins.
type Place = (c_int, DevicePtr);

/// What is kept of one.
#[derive(Debug)]
struct Opened {
    pool: Pool,
    stream: Stream,
    /// With it the other process's memory counts as in use.
    _event: SharedEvent,
}

/// What other processes offered, as far as it is open here.
#[derive(Debug, Default)]
struct OpenedBlocks {
    in_use: FxHashMap<Place, Opened>,
    /// What PyTorch let go of, and work may still use.
    closing: Vec<(Place, Opened)>,
}

static OPENED: PerProcess<Mutex<OpenedBlocks>> = PerProcess::new(Default::default);

/// Opens a block that another process [offers](offer), on a GPU. [`close`] closes it.
pub(super) fn open(gpu: c_int, handle: &str) -> Result<DevicePtr> {
    let device = device(gpu.into())?;
    let received = offers::open_text(handle)?;
    let stream = stream(gpu, device)?;
    let (pool, ptr, _, event) = bindings::open_shared(&device.context, received, &stream)?;
    OPENED.get().lock().in_use.insert((gpu, ptr), Opened { pool, stream, _event: event });
    Ok(ptr)
}

/// Lets go of what [`open`] opened.
pub(super) fn close(gpu: c_int, ptr: DevicePtr) -> Result<()> {
    {
        let OpenedBlocks { in_use, closing } = &mut *OPENED.get().lock();
        // A forked child has none: these are its parent's.
        closing.extend(in_use.remove(&(gpu, ptr)).map(|opened| ((gpu, ptr), opened)));
    }
    close_all()
}

/// Unmaps what PyTorch let go of. Waits for the GPU, as PyTorch's own allocator does: which streams used it is not known.
/// While a graph is captured nothing can be waited for, and it is left for the next time.
pub(super) fn close_all() -> Result<()> {
    if captures::is_any_open() {
        return Ok(());
    }
    let closing = std::mem::take(&mut OPENED.get().lock().closing);
    let mut waited_for = Vec::new();
    for ((gpu, ptr), Opened { pool, stream, _event }) in closing {
        if !waited_for.contains(&gpu) {
            device(gpu.into())?.context.synchronize()?;
            waited_for.push(gpu);
        }
        // SAFETY: PyTorch let go of it, and the work on it is complete.
        unsafe { pool.free(ptr, &stream) }?;
    }
    Ok(())
}
