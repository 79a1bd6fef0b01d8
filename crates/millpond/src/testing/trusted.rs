//! For tests: a device whose handles are trusted.

use std::ops::Deref;

use crate::device::{
    AsyncUsage, CaptureId, Device, DevicePtr, DeviceResult, EventHandle, PageExport, PageHandle,
    StreamHandle, StreamId,
};

/// A device for a test that makes its promise once. The calls of [`Device`] that are unsafe only because of their handles
/// are safe here, by the same names.
///
/// ```
/// use millpond::device::Device;
/// use millpond::device::sim::{SimDevice, SimOptions};
/// use millpond::testing::trusted::Trusted;
///
/// // SAFETY: the simulated device refuses handles that it does not know.
/// let device = unsafe { Trusted::new(SimDevice::new(SimOptions::default())?) };
/// let stream = device.create_stream()?;
/// device.synchronize_stream(stream)?; // safe
/// # unsafe { device.destroy_stream(stream) }?;
/// # Ok::<(), millpond::device::DeviceError>(())
/// ```
#[derive(Debug)]
pub struct Trusted<P>(P);

impl<P> Deref for Trusted<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.0
    }
}

impl<P> Trusted<P> {
    /// Trusts whoever has this. `clone` is the device's: the clone is trusted no more than that.
    ///
    /// # Safety
    /// What is given to the calls below is what [`Device`] asks for: handles that are valid, and ranges that are the
    /// caller's. A device that checks them (`host`, `sim`, and the checker over any) may be given others: it refuses them.
    pub unsafe fn new(device: P) -> Self {
        Self(device)
    }
}

macro_rules! trust {
    ($($name:ident($($argument:ident: $of:ty),*) -> $result:ty;)*) => {
        #[allow(missing_docs, clippy::missing_errors_doc, reason = "they are those of `Device`")]
        impl<P: Deref<Target: Device>> Trusted<P> {
            $(pub fn $name(&self, $($argument: $of),*) -> DeviceResult<$result> {
                // SAFETY: promised by who made this.
                unsafe { Device::$name(&*self.0, $($argument),*) }
            })*
        }
    };
}

trust! {
    map(at: DevicePtr, bytes: u64, page: PageHandle) -> ();
    set_access(at: DevicePtr, bytes: u64) -> ();
    stream_id(stream: StreamHandle) -> StreamId;
    stream_is_idle(stream: StreamHandle) -> bool;
    capture_of(stream: StreamHandle) -> Option<CaptureId>;
    synchronize_stream(stream: StreamHandle) -> ();
    record_event(event: EventHandle, stream: StreamHandle) -> ();
    query_event(event: EventHandle) -> bool;
    wait_event(stream: StreamHandle, event: EventHandle) -> ();
    synchronize_event(event: EventHandle) -> ();
    export_page(page: PageHandle) -> PageExport;
}

#[allow(clippy::missing_errors_doc, reason = "they are those of `DriverPool`")]
impl<P: Deref<Target: Device>> Trusted<P> {
    /// Of the device's own pool.
    pub fn alloc_async(&self, bytes: u64, stream: StreamHandle) -> DeviceResult<DevicePtr> {
        // SAFETY: promised by who made this.
        unsafe { self.0.driver_pool()?.alloc_async(bytes, stream) }
    }

    /// To the device's own pool.
    ///
    /// # Safety
    /// As for [`DriverPool::free_async`](crate::device::DriverPool::free_async).
    pub unsafe fn free_async(&self, at: DevicePtr, stream: StreamHandle) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.driver_pool()?.free_async(at, stream) }
    }

    /// What the device's own pool holds.
    pub fn async_usage(&self) -> DeviceResult<AsyncUsage> {
        self.0.driver_pool()?.async_usage()
    }
}
