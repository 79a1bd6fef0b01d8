//! A device that passes every call on, and keeps how long they took, what lies where, and how much memory the
//! driver itself counts as free whenever more was taken of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millpond::device::{
    AsyncUsage, Device, DevicePtr, DeviceResult, DriverPool, Forward, Kind, PageHandle, StreamHandle,
};
use parking_lot::Mutex;

/// Any device, watched.
#[derive(Debug)]
pub struct Watched {
    device: Arc<dyn Device>,
    nanoseconds: AtomicU64,
    /// Spent in questions of the watcher's own.
    aside: AtomicU64,
    paused: AtomicBool,
    /// The time of the step that is being replayed, in nanoseconds.
    trace_time: AtomicU64,
    backing: Mutex<BTreeMap<u64, Backing>>,
    turn: AtomicU64,
    /// The least that the driver had free, in bytes.
    lowest_free: AtomicU64,
    /// The most that the driver's own pool held when that was last looked at.
    pool_high: AtomicU64,
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
        Arc::new(Self {
            device,
            nanoseconds: AtomicU64::new(0),
            aside: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            trace_time: AtomicU64::new(0),
            backing: Mutex::default(),
            turn: AtomicU64::new(0),
            lowest_free: AtomicU64::new(u64::MAX),
            pool_high: AtomicU64::new(0),
        })
    }

    /// Time spent in the device's calls so far, by the clock on the wall.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }

    /// From now on the clock says `time`, and what the device's calls take on top.
    pub fn set_now(&self, time: Duration) {
        // Relaxed: the thread that replays asks for it, too.
        self.trace_time.store(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Time spent in asking the driver for its free memory, which is no part of [`time`](Self::time).
    pub fn time_aside(&self) -> Duration {
        Duration::from_nanos(self.aside.load(Ordering::Relaxed))
    }

    /// What is called from here until [`resume`](Self::resume) is not the allocator's, and not timed.
    pub fn pause(&self) {
        // Relaxed, here and below: the thread that replays is the one that pauses.
        self.paused.store(true, Ordering::Relaxed);
    }

    /// Calls are timed again.
    pub fn resume(&self) {
        self.paused.store(false, Ordering::Relaxed);
    }

    /// Bytes that the driver has free now. Not timed.
    ///
    /// # Errors
    /// The device's own.
    pub fn free_now(&self) -> DeviceResult<u64> {
        Ok(self.device.memory_info()?.free)
    }

    /// The least that the driver had free, in bytes, after any call that took memory of it; `None` where there
    /// was no such call, the driver did not say, or the device is simulated.
    pub fn lowest_free(&self) -> Option<u64> {
        Some(self.lowest_free.load(Ordering::Relaxed)).filter(|&free| free != u64::MAX)
    }

    /// The simulated device has a clock of its own, in which a question would take time.
    fn is_simulated(&self) -> bool {
        self.device.properties().kind == Kind::Sim
    }

    /// Asks the driver what is free, after memory was taken of it.
    fn look_at_free(&self) {
        if self.is_simulated() {
            return;
        }
        let start = Instant::now();
        if let Ok(free) = self.free_now() {
            // Relaxed: a minimum, read when the replay is over.
            self.lowest_free.fetch_min(free, Ordering::Relaxed);
        }
        self.aside.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// The same where the driver's own pool may have grown.
    fn look_at_pool(&self) {
        let Ok(usage) = self.device.driver_pool().and_then(|pool| pool.async_usage()) else { return };
        // Relaxed, as above.
        if self.pool_high.fetch_max(usage.reserved_high, Ordering::Relaxed) < usage.reserved_high {
            self.look_at_free();
        }
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
        if self.paused.load(Ordering::Relaxed) {
            return call(&*self.device);
        }
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

// SAFETY: it passes every call on, and every answer back.
unsafe impl Forward for Watched {
    fn below(&self) -> &dyn Device {
        &*self.device
    }

    fn pass_on<R>(&self, call: impl FnOnce(&dyn Device) -> R) -> R {
        self.timed(call)
    }

    fn now(&self) -> Duration {
        if self.is_simulated() {
            return self.device.now();
        }
        Duration::from_nanos(self.trace_time.load(Ordering::Relaxed)) + self.time()
    }

    fn driver_pool(&self) -> DeviceResult<&dyn DriverPool> {
        self.device.driver_pool()?;
        Ok(self)
    }

    fn create_page(&self, bytes: u64) -> DeviceResult<PageHandle> {
        let page = self.timed(|device| device.create_page(bytes))?;
        self.look_at_free();
        Ok(page)
    }

    unsafe fn map(&self, at: DevicePtr, bytes: u64, page: PageHandle) -> DeviceResult<()> {
        // SAFETY: the caller keeps the promise of the same call of the device below.
        self.timed(|device| unsafe { device.map(at, bytes, page) })?;
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
        self.look_at_free();
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

// SAFETY: as above.
unsafe impl DriverPool for Watched {
    unsafe fn alloc_async(&self, bytes: u64, stream: StreamHandle) -> DeviceResult<DevicePtr> {
        let pool = self.device.driver_pool()?;
        // SAFETY: the caller keeps the promise of the same call of the device below.
        let at = self.timed(|_| unsafe { pool.alloc_async(bytes, stream) })?;
        self.look_at_pool();
        Ok(at)
    }

    unsafe fn free_async(&self, at: DevicePtr, stream: StreamHandle) -> DeviceResult<()> {
        let pool = self.device.driver_pool()?;
        // SAFETY: the caller keeps the promise of the same call of the device below.
        self.timed(|_| unsafe { pool.free_async(at, stream) })
    }

    fn async_usage(&self) -> DeviceResult<AsyncUsage> {
        let pool = self.device.driver_pool()?;
        self.timed(|_| pool.async_usage())
    }
}
