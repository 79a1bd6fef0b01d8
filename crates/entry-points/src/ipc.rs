//! `cuIpcGetMemHandle` and its like: blocks of the pools, for other processes that are under `millpond run`, too.
//!
//! The handle has the name of an offer (`millpond-offers`): a socket of this process, a secret, the block. Who opens it asks there,
//! and maps the block's pages. Order is the program's, by events, as with the driver's handles. The block stays as long as a
//! process has it open.

use std::ffi::c_int;
use std::sync::Arc;

use millpond::bindings::{self, Mutex, PerProcess};
use millpond::device::DevicePtr;
use millpond::{Pool, SharedEvent};
use millpond_offers::{self as offers, Name, Offered};
use rustc_hash::FxHashMap;

use crate::code::Code;
use crate::driver::DeviceAddress;
use crate::gpus::{self, Block, Gpu};
use crate::{captures, known_blocks, messages};

/// `CUipcMemHandle`
pub(crate) type HandleBytes = [u8; 64];

/// Bytes of a handle that are a name.
const NAME: usize = 40;

/// Memory of another process that is open here.
#[derive(Debug)]
struct Open {
    name: Name,
    /// How often the program has opened it.
    count: usize,
    gpu: Arc<Gpu>,
    pool: Pool,
    /// With it, the other process's memory counts as in use.
    _event: SharedEvent,
}

/// By address.
static OPEN: PerProcess<Mutex<FxHashMap<u64, Open>>> = PerProcess::new(Default::default);

/// `cuIpcGetMemHandle`.
///
/// # Safety
/// `to` is null or may be written.
pub(crate) unsafe fn get(to: *mut HandleBytes, at: DeviceAddress, real: impl FnOnce() -> Code) -> Code {
    let Some(block) = gpus::block_at(at) else { return real() };
    // SAFETY: the caller's promise.
    let Some(to) = (unsafe { to.as_mut() }) else { return Code::INVALID_VALUE };
    match offer(&block) {
        Ok(name) => {
            *to = [0; 64];
            to[..NAME].copy_from_slice(&name.to_bytes());
            Code::SUCCESS
        }
        Err(why) => {
            gpus::leave_sync_to_the_driver();
            messages::say(&format!(
                "the program gives memory to other processes by cuIpcGetMemHandle, which this pool's memory does not allow: this \
                 call fails ({why}). Run it with --ipc, which leaves cuMemAlloc to the driver, as it is from here on"
            ));
            Code::NOT_SUPPORTED
        }
    }
}

/// Offers a block until it is freed.
fn offer(block: &Block) -> Result<Name, String> {
    let (pool, stream) = (block.pool.clone(), block.gpu.waited.clone());
    // Whether it can be shared at all: the other process is told too late.
    pool.share(block.start, &stream).map_err(|error| error.to_string())?;
    // Before: its free withdraws it.
    known_blocks::of(block.start.raw(), block.gpu.ordinal, |identity| identity.is_offered = true);
    offers::offer(Offered { pool, ptr: block.start, stream }).map_err(|error| error.to_string())
}

/// `cuIpcOpenMemHandle`: at the same address as often as it is opened. The driver's own handles are the driver's.
///
/// # Safety
/// `to` is null or may be written.
pub(crate) unsafe fn open(to: *mut DeviceAddress, handle: HandleBytes, real: impl FnOnce() -> Code) -> Code {
    let name = handle.first_chunk::<NAME>().and_then(Name::from_bytes);
    // SAFETY: the caller's promise.
    let (Some(name), Some(to)) = (name, unsafe { to.as_mut() }) else { return real() };
    if name.is_own() {
        // As the driver has it.
        return Code::INVALID_CONTEXT;
    }
    let Some(gpu) = gpus::current() else {
        messages::say(
            "memory of another process cannot be opened: its pool's memory is for processes with pools",
        );
        return Code::NOT_SUPPORTED;
    };
    let mut open = OPEN.get().lock();
    if let Some((at, known)) =
        open.iter_mut().find(|(_, open)| open.name == name && open.gpu.primary() == gpu.primary())
    {
        known.count += 1;
        *to = *at;
        return Code::SUCCESS;
    }
    let received = match offers::open(name) {
        Ok(received) => received,
        Err(error) => {
            messages::say(&error.to_string());
            return Code::INVALID_VALUE;
        }
    };
    match bindings::open_shared(&gpu.context, received, &gpu.waited) {
        Ok((pool, ptr, _, event)) => {
            *to = ptr.raw();
            open.insert(ptr.raw(), Open { name, count: 1, gpu, pool, _event: event });
            Code::SUCCESS
        }
        Err(error) => {
            messages::say(&error.to_string());
            Code::from(&error)
        }
    }
}

/// `cuIpcCloseMemHandle`: waits for the GPU before the pages go.
pub(crate) fn close(at: DeviceAddress, real: impl FnOnce() -> Code) -> Code {
    let mut open = OPEN.get().lock();
    let Some(known) = open.get_mut(&at) else { return real() };
    known.count = known.count.saturating_sub(1);
    // A wait would end a capture: the pages go at the next close of it.
    if known.count > 0 || captures::is_any() {
        return Code::SUCCESS;
    }
    let closed = open.remove(&at).map(|closed| end(at, &closed));
    match closed {
        Some(Err(error)) => Code::from(&error),
        _ => Code::SUCCESS,
    }
}

fn end(at: u64, closed: &Open) -> millpond::Result<()> {
    closed.gpu.context.synchronize()?;
    // SAFETY: the program gave it up, and all work of this process on it is complete.
    unsafe { closed.pool.free(DevicePtr::new(at), &closed.gpu.waited) }
}

/// The context of a GPU ends.
pub(crate) fn forget_all_of(ordinal: c_int) {
    OPEN.get().lock().retain(|at, open| {
        let stays = open.gpu.ordinal as c_int != ordinal;
        // What fails goes with the context.
        _ = stays || end(*at, open).is_ok();
        stays
    });
}
