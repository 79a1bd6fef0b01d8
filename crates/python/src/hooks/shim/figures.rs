//! Figures and snapshots.

use std::ffi::{c_int, c_void};

use millpond::bindings;

use super::super::blocks::{Figures, book};
use super::super::captures::{self, PoolId};
use super::super::torch::pointer;
use super::entries::{Entry, Segment, Tell, entry, present};
use crate::thread_tag;

/// # Safety
/// `out` may be written.
pub(super) unsafe extern "C" fn figures(gpu: c_int, out: *mut Figures) {
    let figures = present(gpu).map(|(ordinal, device)| book(ordinal).lock().figures(device));
    // SAFETY: as promised to this function.
    unsafe { out.write(figures.unwrap_or_default()) };
}

pub(super) extern "C" fn reset_peaks(gpu: c_int) {
    if let Some((ordinal, device)) = present(gpu) {
        book(ordinal).lock().reset_peaks(device);
    }
}

pub(super) extern "C" fn reset_accumulated(gpu: c_int) {
    if let Some((ordinal, device)) = present(gpu) {
        book(ordinal).lock().reset_accumulated(device);
    }
}

/// Tells what a GPU's pool holds: each range of addresses that is backed, then the live blocks in it, in the order of
/// their addresses. With `only`, of one pool of PyTorch's.
///
/// # Safety
/// `only` is null or a pool's name. The functions may be called with `context`, until this returns.
pub(super) unsafe extern "C" fn snapshot(
    gpu: c_int,
    only: *const PoolId,
    context: *mut c_void,
    segment: Tell<Segment>,
    block: Tell<Entry>,
) {
    let Some((ordinal, device)) = present(gpu) else { return };
    // SAFETY: as promised to this function.
    let only = unsafe { only.as_ref() }.copied();
    let mut backed: Vec<_> = thread_tag::pools(device).iter().flat_map(bindings::backed).collect();
    backed.sort_unstable_by_key(|range| range.start.raw());
    let live = book(ordinal).lock().live(only);
    let mut live = live.iter().peekable();
    for range in backed {
        let pool = range.memory.and_then(|memory| captures::with_memory(gpu, memory)).unwrap_or_default();
        if only.is_some_and(|only| only != pool) {
            continue;
        }
        let (start, end) = (range.start.raw(), range.start.raw() + range.bytes);
        let told = Segment { start: pointer(range.start), bytes: range.bytes, pool };
        // SAFETY: as promised to this function.
        unsafe { segment(context, &raw const told) };
        // What was allocated since the ranges were read lies in none.
        while let Some((ptr, entry_of)) = live.next_if(|(ptr, _)| *ptr < end) {
            if *ptr >= start {
                let told = entry(gpu, device, (*ptr, *entry_of), 0);
                // SAFETY: as above.
                unsafe { block(context, &raw const told) };
            }
        }
    }
}
