//! The process's allocator, which refuses what it is told to; and a device whose own allocations it leaves alone.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use millpond::device::sim::SimDevice;
use millpond::device::{
    AsyncUsage, CaptureId, Device, DevicePtr, DeviceResult, EventHandle, MemoryInfo, PageHandle, Properties,
    StreamHandle, StreamId,
};

/// Refuses one allocation of the thread that asked for it.
struct Refusing;

thread_local! {
    /// Allocations until the one that is refused; 0 for none.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Whether all that come after it are refused too.
static FOR_GOOD: AtomicBool = AtomicBool::new(false);

/// From now on, all that come after an allocation that is refused are refused too.
pub(crate) fn refuse_for_good() {
    FOR_GOOD.store(true, Ordering::Relaxed);
}

/// Refusals so far.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// From now on, the calling thread's allocation with this number is refused; with 0, none is.
pub(crate) fn refuse(number: u64) {
    LEFT.set(number);
}

pub(crate) fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

fn is_refused() -> bool {
    let counted = LEFT.try_with(|left| {
        let now = left.get();
        let is_last = now == 1 && FOR_GOOD.load(Ordering::Relaxed);
        left.set(if is_last { 1 } else { now.saturating_sub(1) });
        now == 1
    });
    let is_refused = counted.unwrap_or(false);
    if is_refused {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
    is_refused
}

// SAFETY: the system's allocator, which may refuse anything.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        if is_refused() { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        if is_refused() { std::ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        if is_refused() { std::ptr::null_mut() } else { unsafe { System.realloc(ptr, layout, new) } }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// What this does is refused nothing.
pub(crate) fn spared<R>(work: impl FnOnce() -> R) -> R {
    let left = LEFT.replace(0);
    let done = work();
    LEFT.set(left);
    done
}

/// A simulated device that is refused nothing: a driver allocates in its own ways.
#[derive(Debug)]
pub(crate) struct Spared(pub Arc<SimDevice>);

macro_rules! spare {
    ($(fn $name:ident($($argument:ident: $of:ty),*) -> $result:ty;)* unsafe $(fn $unsafe:ident($($given:ident: $its:ty),*) -> $yields:ty;)*) => {
        // SAFETY: the simulated device's, as it is.
        unsafe impl Device for Spared {
            fn properties(&self) -> &Properties {
                self.0.properties()
            }

            fn now(&self) -> Duration {
                Device::now(&*self.0)
            }

            $(fn $name(&self, $($argument: $of),*) -> DeviceResult<$result> {
                spared(|| Device::$name(&*self.0, $($argument),*))
            })*

            $(unsafe fn $unsafe(&self, $($given: $its),*) -> DeviceResult<$yields> {
                // SAFETY: the caller's promise.
                spared(|| unsafe { Device::$unsafe(&*self.0, $($given),*) })
            })*
        }
    };
}

spare! {
    fn memory_info() -> MemoryInfo;
    fn reserve(bytes: u64) -> DevicePtr;
    fn create_page(bytes: u64) -> PageHandle;
    fn alloc_segment(bytes: u64) -> DevicePtr;
    fn async_usage() -> AsyncUsage;
    fn create_stream() -> StreamHandle;
    fn synchronize() -> ();
    fn create_event() -> EventHandle;
    unsafe
    fn unreserve(at: DevicePtr, bytes: u64) -> ();
    fn map(at: DevicePtr, bytes: u64, page: PageHandle) -> ();
    fn set_access(at: DevicePtr, bytes: u64) -> ();
    fn unmap(at: DevicePtr, bytes: u64) -> ();
    fn release_page(page: PageHandle) -> ();
    fn free_segment(at: DevicePtr) -> ();
    fn alloc_async(bytes: u64, stream: StreamHandle) -> DevicePtr;
    fn free_async(at: DevicePtr, stream: StreamHandle) -> ();
    fn destroy_stream(stream: StreamHandle) -> ();
    fn stream_id(stream: StreamHandle) -> StreamId;
    fn stream_is_idle(stream: StreamHandle) -> bool;
    fn capture_of(stream: StreamHandle) -> Option<CaptureId>;
    fn synchronize_stream(stream: StreamHandle) -> ();
    fn destroy_event(event: EventHandle) -> ();
    fn record_event(event: EventHandle, stream: StreamHandle) -> ();
    fn query_event(event: EventHandle) -> bool;
    fn wait_event(stream: StreamHandle, event: EventHandle) -> ();
    fn synchronize_event(event: EventHandle) -> ();
    fn memset(at: DevicePtr, value: u8, bytes: u64, stream: StreamHandle) -> ();
    fn copy_from_host(to: DevicePtr, from: *const u8, bytes: u64, stream: StreamHandle) -> ();
    fn copy_to_host(to: *mut u8, from: DevicePtr, bytes: u64, stream: StreamHandle) -> ();
    fn copy(to: DevicePtr, from: DevicePtr, bytes: u64, stream: StreamHandle) -> ();
}
