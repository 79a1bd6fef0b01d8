//! Devices over another device: to watch it, check it, or do one thing otherwise.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::driver_pool::DriverPool;
use super::error::DeviceResult;
use super::exports::{DeviceIdentity, EventExport, PageExport};
use super::peers::{PeerId, PeerSet};
use super::types::{
    Advice, CaptureId, DevicePtr, EventHandle, MemoryInfo, PageHandle, Place, Properties, Residency,
    StreamHandle, StreamId,
};
use super::{Device, HostWork};

/// The calls of [`Device`], each passed on to the device below. What `Device` gets, it gets here too: this list is the
/// only place that says how a call is passed on.
macro_rules! pass_on {
    (
        safe { $(fn $safe:ident($($given:ident: $its:ty),*) -> $yields:ty;)* }
        unsafe { $(fn $name:ident($($argument:ident: $of:ty),*) -> $result:ty;)* }
    ) => {
        /// A device over another one. It has each call of [`Device`]; those that are not written down go to the device below.
        ///
        /// ```
        /// use std::sync::atomic::{AtomicU64, Ordering};
        /// use millpond::device::{Device, DeviceResult, DevicePtr, Forward, sim::SimDevice};
        ///
        /// /// Counts the bytes of address space that were asked for.
        /// #[derive(Debug)]
        /// struct Counting(std::sync::Arc<SimDevice>, AtomicU64);
        ///
        /// // SAFETY: each call goes to the device below, and its answer is given back.
        /// unsafe impl Forward for Counting {
        ///     fn below(&self) -> &dyn Device {
        ///         &*self.0
        ///     }
        ///
        ///     fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        ///         self.1.fetch_add(bytes, Ordering::Relaxed);
        ///         self.0.reserve(bytes)
        ///     }
        /// }
        ///
        /// let counting = Counting(SimDevice::new(Default::default())?, AtomicU64::new(0));
        /// let device: &dyn Device = &counting;
        /// device.reserve(2 << 20)?;
        /// device.create_stream()?;
        /// assert_eq!(counting.1.load(Ordering::Relaxed), 2 << 20);
        /// # Ok::<(), millpond::device::DeviceError>(())
        /// ```
        ///
        /// # Safety
        /// As for [`Device`], of which every such type is one.
        pub unsafe trait Forward: Send + Sync + fmt::Debug + Sized + 'static {
            /// The device below.
            fn below(&self) -> &dyn Device;

            /// Each call that is passed on goes through here.
            fn pass_on<R>(&self, call: impl FnOnce(&dyn Device) -> R) -> R {
                call(self.below())
            }

            /// As [`Device::properties`], not through [`pass_on`](Self::pass_on).
            fn properties(&self) -> &Properties {
                self.below().properties()
            }

            /// As [`Device::now`], not through [`pass_on`](Self::pass_on).
            fn now(&self) -> Duration {
                self.below().now()
            }

            /// As [`Device::peer_id`], not through [`pass_on`](Self::pass_on).
            fn peer_id(&self) -> Option<PeerId> {
                self.below().peer_id()
            }

            /// As [`Device::driver_pool`]: the pool of the device below, whose calls do not come past this device.
            fn driver_pool(&self) -> DeviceResult<&dyn DriverPool> {
                self.below().driver_pool()
            }

            /// As [`Device::pinned`]: that of the device below, whose calls do not come past this device.
            fn pinned(&self, node: Option<u32>) -> DeviceResult<Arc<dyn Device>> {
                self.below().pinned(node)
            }

            /// As [`Device::managed`]: that of the device below, whose calls do not come past this device.
            fn managed(&self) -> DeviceResult<Arc<dyn Device>> {
                self.below().managed()
            }

            $(
                #[doc = concat!("As [`Device::", stringify!($safe), "`].")]
                fn $safe(&self, $($given: $its),*) -> DeviceResult<$yields> {
                    self.pass_on(|below| below.$safe($($given),*))
                }
            )*

            $(
                #[doc = concat!("As [`Device::", stringify!($name), "`].")]
                ///
                /// # Safety
                #[doc = concat!("As for [`Device::", stringify!($name), "`].")]
                unsafe fn $name(&self, $($argument: $of),*) -> DeviceResult<$result> {
                    // SAFETY: the caller keeps the promise of the same call of the device below.
                    self.pass_on(|below| unsafe { below.$name($($argument),*) })
                }
            )*
        }

        // SAFETY: promised by who implements `Forward`.
        unsafe impl<F: Forward> Device for F {
            fn properties(&self) -> &Properties {
                Forward::properties(self)
            }

            fn now(&self) -> Duration {
                Forward::now(self)
            }

            fn peer_id(&self) -> Option<PeerId> {
                Forward::peer_id(self)
            }

            fn driver_pool(&self) -> DeviceResult<&dyn DriverPool> {
                Forward::driver_pool(self)
            }

            fn pinned(&self, node: Option<u32>) -> DeviceResult<Arc<dyn Device>> {
                Forward::pinned(self, node)
            }

            fn managed(&self) -> DeviceResult<Arc<dyn Device>> {
                Forward::managed(self)
            }

            $(fn $safe(&self, $($given: $its),*) -> DeviceResult<$yields> {
                Forward::$safe(self, $($given),*)
            })*

            $(unsafe fn $name(&self, $($argument: $of),*) -> DeviceResult<$result> {
                // SAFETY: the caller's promise.
                unsafe { Forward::$name(self, $($argument),*) }
            })*
        }
    };
}

pass_on! {
    safe {
        fn memory_info() -> MemoryInfo;
        fn reserve(bytes: u64) -> DevicePtr;
        fn create_page(bytes: u64) -> PageHandle;
        fn alloc_segment(bytes: u64) -> DevicePtr;
        fn advise(at: DevicePtr, bytes: u64, advice: Advice) -> ();
        fn residency(at: DevicePtr, bytes: u64) -> Residency;
        fn create_stream() -> StreamHandle;
        fn synchronize() -> ();
        fn create_event() -> EventHandle;
        fn identity() -> DeviceIdentity;
        fn reaches(other: DeviceIdentity) -> bool;
        fn import_page(from: PageExport, bytes: u64) -> PageHandle;
        fn create_shared_event() -> (EventHandle, EventExport);
        fn open_event(from: EventExport) -> EventHandle;
        fn can_be_reached_from(peer: PeerId) -> bool;
    }
    unsafe {
        fn unreserve(at: DevicePtr, bytes: u64) -> ();
        fn map(at: DevicePtr, bytes: u64, page: PageHandle) -> ();
        fn set_access(at: DevicePtr, bytes: u64) -> ();
        fn unmap(at: DevicePtr, bytes: u64) -> ();
        fn release_page(page: PageHandle) -> ();
        fn free_segment(at: DevicePtr) -> ();
        fn prefetch(at: DevicePtr, bytes: u64, to: Place, stream: StreamHandle) -> ();
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
        fn launch_host(stream: StreamHandle, work: HostWork) -> ();
        fn memset(at: DevicePtr, value: u8, bytes: u64, stream: StreamHandle) -> ();
        fn may_differ(at: DevicePtr, value: u8, bytes: u64, stream: StreamHandle) -> bool;
        fn copy_from_host(to: DevicePtr, from: *const u8, bytes: u64, stream: StreamHandle) -> ();
        fn copy_to_host(to: *mut u8, from: DevicePtr, bytes: u64, stream: StreamHandle) -> ();
        fn copy(to: DevicePtr, from: DevicePtr, bytes: u64, stream: StreamHandle) -> ();
        fn export_page(page: PageHandle) -> PageExport;
        fn set_peer_access(at: DevicePtr, bytes: u64, peers: PeerSet, allowed: bool) -> ();
        fn copy_from_peer(to: DevicePtr, from: DevicePtr, bytes: u64, peer: PeerId, stream: StreamHandle) -> ();
    }
}
