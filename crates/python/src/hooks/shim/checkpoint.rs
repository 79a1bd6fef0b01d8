//! Checkpoints of what is live in a pool of PyTorch's.

use std::ffi::{c_int, c_void};
use std::slice;

use millpond::bindings;
use millpond::device::DevicePtr;

use super::super::blocks::{TorchBlock, book};
use super::super::captures::{self, PoolId};
use super::super::outcome::{Outcome, outcome};
use super::allocation::{free, strike};
use super::entries::{Entry, Tell, entry, handle, present};
use crate::devices::device;
use crate::failure::Failure;

/// What was live in a pool.
#[derive(Debug)]
struct Checkpoint {
    pool: PoolId,
    live: Vec<(u64, TorchBlock)>,
}

/// Whether exactly these blocks are live in a pool.
///
/// # Safety
/// There are so many addresses; each stands there once.
pub(super) unsafe extern "C" fn are_live(
    gpu: c_int,
    id: PoolId,
    expected: *const *mut c_void,
    count: usize,
) -> bool {
    let live = present(gpu).map_or_else(Vec::new, |(ordinal, _)| book(ordinal).lock().live(Some(id)));
    // SAFETY: as promised to this function; a length of 0 has no address.
    let expected = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(expected, count) } };
    let mut expected: Vec<u64> = expected.iter().map(|ptr| ptr.addr() as u64).collect();
    expected.sort_unstable();
    expected.into_iter().eq(live.into_iter().map(|(ptr, _)| ptr))
}

/// What is live in a pool now, for [`restore`]. [`forget_checkpoint`] drops it.
pub(super) extern "C" fn checkpoint(gpu: c_int, id: PoolId) -> *mut c_void {
    let live = present(gpu).map_or_else(Vec::new, |(ordinal, _)| book(ordinal).lock().live(Some(id)));
    Box::into_raw(Box::new(Checkpoint { pool: id, live })).cast()
}

/// # Safety
/// From [`checkpoint`], and not used any more.
pub(super) unsafe extern "C" fn forget_checkpoint(checkpoint: *mut c_void) {
    // SAFETY: as promised to this function.
    drop(unsafe { Box::from_raw(checkpoint.cast::<Checkpoint>()) });
}

/// Makes live in a pool what was live at the checkpoint, at the same addresses; and nothing else. Tells what was freed
/// for it, which is everything that was live, and then what was allocated.
///
/// # Safety
/// From [`checkpoint`]. Work on all of these blocks is ordered before the work to come. The functions may be called with
/// `context`, until this returns.
pub(super) unsafe extern "C" fn restore(
    gpu: c_int,
    checkpoint: *const c_void,
    context: *mut c_void,
    freed: Tell<Entry>,
    allocated: Tell<Entry>,
) -> Outcome {
    outcome(|| {
        // SAFETY: as promised to this function.
        let Checkpoint { pool, live } = unsafe { &*checkpoint.cast::<Checkpoint>() };
        let (device, memory) = (device(gpu.into())?, captures::memory(gpu, *pool)?);
        let now = book(gpu as usize).lock().live(Some(*pool));
        for (ptr, _) in now {
            let mut entry = std::mem::MaybeUninit::uninit();
            // SAFETY: it is written where there is such a block, and freed after that; as promised to this function.
            unsafe {
                if strike(handle(ptr), entry.as_mut_ptr()) {
                    freed(context, entry.as_ptr());
                    free(entry.as_ptr());
                }
            }
        }
        for (ptr, block) in live {
            // SAFETY: PyTorch's streams live as long as the process.
            let stream = unsafe { device.streams.find(block.stream) }?;
            // SAFETY: as promised to this function.
            if !unsafe { bindings::alloc_at(&memory, DevicePtr::new(*ptr), block.requested, &stream) }? {
                return Err(Failure::Broken(format!(
                    "{ptr:#x} cannot be live again as it was at PyTorch's checkpoint: something else lies there"
                )));
            }
            let block = TorchBlock { is_used_elsewhere: false, is_shared: false, ..*block };
            let mut book = book(gpu as usize).lock();
            book.enter(*ptr, block);
            let told = entry(gpu, device, (*ptr, block), book.allocated());
            drop(book);
            // SAFETY: as promised to this function.
            unsafe { allocated(context, &raw const told) };
        }
        Ok(())
    })
}
