//! A device that passes every call on, and keeps how long they took and what lies where.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millpond::device::{
    AsyncUsage, Device, DevicePtr, DeviceResult, EventHandle, MemoryInfo, PageHandle, Properties,
    StreamHandle, StreamId,
};
use parking_lot::Mutex;

/// Any device, watched.
#[derive(Debug)]
pub struct Watched {
    device: Arc<dyn Device>,
    nanoseconds: AtomicU64,
    backing: Mutex<BTreeMap<u64, Backing>>,
    turn: AtomicU64,
}

/// Memory that stands behind a range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backing {
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// The page, where it is one; else a segment.
    pub page: Option<PageHandle>,
    /// Later mappings have larger numbers.
    turn: u64,
}

impl Watched {
    /// Watches a device from now on.
    pub fn new(device: Arc<dyn Device>) -> Arc<Self> {
        let backing = Mutex::default();
        Arc::new(Self { device, nanoseconds: AtomicU64::new(0), backing, turn: AtomicU64::new(0) })
    }

    /// Time spent in the device's calls so far, by the clock on the wall.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }

    /// What lies where now, by rising address. A page that is mapped twice is listed where it was mapped last.
    pub fn backing(&self) -> Vec<Backing> {
        let all = self.backing.lock();
        let mut latest = BTreeMap::new();
        for backing in all.values() {
            if let Some(page) = backing.page {
                let turn = latest.entry(page).or_insert(backing.turn);
                *turn = backing.turn.max(*turn);
            }
        }
        let is_latest = |backing: &&Backing| backing.page.is_none_or(|page| latest[&page] == backing.turn);
        all.values().filter(is_latest).copied().collect()
    }

    fn timed<R>(&self, call: impl FnOnce(&dyn Device) -> R) -> R {
        let start = Instant::now();
        let result = call(&*self.device);
        // Relaxed: a sum, read when the replay is over.
        self.nanoseconds.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    fn enter(&self, at: DevicePtr, bytes: u64, page: Option<PageHandle>) {
        // Relaxed: the lock on the map orders what matters.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let address = at.raw();
        self.backing.lock().insert(address, Backing { address, bytes, page, turn });
    }

    fn leave(&self, at: DevicePtr) {
        self.backing.lock().remove(&at.raw());
    }
}

/// Calls that are passed on and timed, nothing else.
macro_rules! pass_on {
    ($($name:ident($($argument:ident: $of:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $of),*) -> DeviceResult<$result> {
            self.timed(|device| device.$name($($argument),*))
        })*
    };
}

/// The same for calls whose caller makes a promise.
macro_rules! pass_on_unsafe {
    ($($name:ident($($argument:ident: $of:ty),*);)*) => {
        $(unsafe fn $name(&self, $($argument: $of),*) -> DeviceResult<()> {
            // SAFETY: the caller keeps the promise of the same call of the device below.
            self.timed(|device| unsafe { device.$name($($argument),*) })
        })*
    };
}

impl Device for Watched {
    fn properties(&self) -> &Properties {
        self.device.properties()
    }

    pass_on! {
        memory_info() -> MemoryInfo;
        reserve(bytes: u64) -> DevicePtr;
        create_page(bytes: u64) -> PageHandle;
        set_access(at: DevicePtr, bytes: u64) -> ();
        alloc_async(bytes: u64, stream: StreamHandle) -> DevicePtr;
        async_usage() -> AsyncUsage;
        create_stream() -> StreamHandle;
        stream_id(stream: StreamHandle) -> StreamId;
        stream_is_idle(stream: StreamHandle) -> bool;
        synchronize_stream(stream: StreamHandle) -> ();
        synchronize() -> ();
        create_event() -> EventHandle;
        record_event(event: EventHandle, stream: StreamHandle) -> ();
        query_event(event: EventHandle) -> bool;
        wait_event(stream: StreamHandle, event: EventHandle) -> ();
        synchronize_event(event: EventHandle) -> ();
    }

    pass_on_unsafe! {
        unreserve(at: DevicePtr, bytes: u64);
        release_page(page: PageHandle);
        free_async(at: DevicePtr, stream: StreamHandle);
        destroy_stream(stream: StreamHandle);
        destroy_event(event: EventHandle);
    }

    fn map(&self, at: DevicePtr, bytes: u64, page: PageHandle) -> DeviceResult<()> {
        self.timed(|device| device.map(at, bytes, page))?;
        self.enter(at, bytes, Some(page));
        Ok(())
    }

    unsafe fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        // SAFETY: the caller keeps the promise of the same call of the device below.
        self.timed(|device| unsafe { device.unmap(at, bytes) })?;
        self.leave(at);
        Ok(())
    }

    fn alloc_segment(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let at = self.timed(|device| device.alloc_segment(bytes))?;
        self.enter(at, bytes, None);
        Ok(at)
    }

    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        // Before the call: afterwards the address may be another thread's.
        self.leave(at);
        // SAFETY: the caller keeps the promise of the same call of the device below.
        self.timed(|device| unsafe { device.free_segment(at) })
    }

    // Work for the device is the program's, not the allocator's: it is not timed.

    unsafe fn memset(&self, at: DevicePtr, value: u8, bytes: u64, stream: StreamHandle) -> DeviceResult<()> {
        // SAFETY: as above.
        unsafe { self.device.memset(at, value, bytes, stream) }
    }

    unsafe fn copy_from_host(
        &self,
        to: DevicePtr,
        from: *const u8,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        // SAFETY: as above.
        unsafe { self.device.copy_from_host(to, from, bytes, stream) }
    }

    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        // SAFETY: as above.
        unsafe { self.device.copy_to_host(to, from, bytes, stream) }
    }

    unsafe fn copy(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        // SAFETY: as above.
        unsafe { self.device.copy(to, from, bytes, stream) }
    }
}
