//! Which streams are being captured: what is allocated on them is the graph's own, and the driver's. Only the driver knows how long a
//! graph lives, with its clones and what was made of it. A program that knows it keeps the pool's memory for the graph itself, by
//! [`CapturePool`](millpond::CapturePool); then the pool serves.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use millpond::Capturing;
use millpond::bindings::{Mutex, PerProcess, captures_under_way};

use crate::code::Code;
use crate::driver::{self, Handle};
use crate::{fast_path, gpus};

/// How many are under way. A forked child of who captures has no CUDA, and may find its parent's.
static COUNT: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug, Default)]
struct Captures(Mutex<Begun>);

#[derive(Debug, Default)]
struct Begun {
    /// The streams that captures began on, each with its context.
    streams: Vec<(u64, Option<u64>)>,
    /// So long no pool waits for its GPU, which would end a capture.
    _held_back: Vec<Capturing>,
}

static CAPTURES: PerProcess<Captures> = PerProcess::new(Default::default);

/// Begins a capture on a stream, unless the driver refuses.
///
/// # Safety
/// The handle is one of the default ones, or a live stream.
pub(crate) unsafe fn begin(stream: Handle, real: impl FnOnce() -> Code) -> Code {
    // SAFETY: the caller's promise.
    let context = unsafe { driver::context_of(stream) }.map(|context| context.addr() as u64);
    let stream = stream.addr() as u64;
    let mut begun = CAPTURES.get().0.lock();
    if begun.streams.is_empty() {
        let gpus = gpus::known();
        // Nothing is allocated from that memory.
        begun._held_back =
            gpus.iter().filter_map(|gpu| gpu.pool.capture_pool().begin_where(|_| false).ok()).collect();
    }
    begun.streams.push((stream, context));
    // Before the call: afterwards an allocation may be the graph's.
    COUNT.store(begun.streams.len(), Ordering::SeqCst);
    fast_path::close();
    drop(begun);
    let code = real();
    if !code.is_success() {
        end(stream);
    }
    code
}

/// A capture on a stream ended.
pub(crate) fn end(stream: u64) {
    end_where(|(known, _)| *known == stream);
}

/// A context ended, and with it the captures on its streams.
pub(crate) fn end_all_of(context: Handle) {
    let context = context.addr() as u64;
    while end_where(|(_, known)| *known == Some(context)) {}
}

/// Whether a capture was there to end.
fn end_where(is_it: impl FnMut(&(u64, Option<u64>)) -> bool) -> bool {
    let mut begun = CAPTURES.get().0.lock();
    let Some(at) = begun.streams.iter().position(is_it) else { return false };
    begun.streams.swap_remove(at);
    COUNT.store(begun.streams.len(), Ordering::SeqCst);
    fast_path::reopen();
    if begun.streams.is_empty() {
        let held_back = std::mem::take(&mut begun._held_back);
        drop(begun);
        // Makes up for what was put off.
        drop(held_back);
        gpus::free_late();
    }
    true
}

/// Whether a stream is being captured. Without any capture, the driver is not asked.
///
/// # Safety
/// The handle is null or a live stream.
#[inline]
pub(crate) unsafe fn is_captured(stream: Handle) -> bool {
    if !is_any() {
        return false;
    }
    let mut status: c_int = 0;
    // SAFETY: `status` is writable, and the stream lives by the caller's promise.
    let asked = unsafe { driver::cuStreamIsCapturing(stream, &mut status) };
    asked == Code::CAPTURE_IMPLICIT || status != 0
}

/// Whether the program keeps the memory of a capture itself, by a pool of a GPU. Beside what is held back here.
pub(crate) fn is_any_kept() -> bool {
    gpus::known().iter().any(|gpu| captures_under_way(&gpu.pool) > 1)
}

/// Whether any capture is under way.
#[inline]
pub(crate) fn is_any() -> bool {
    // Sequentially consistent: who begins a capture counts it before.
    COUNT.load(Ordering::SeqCst) > 0
}
