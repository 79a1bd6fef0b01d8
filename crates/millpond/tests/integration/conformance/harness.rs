//! What the suite needs of a device beyond the trait: making its streams pending, and running host code.

use std::sync::{Arc, mpsc};

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{Device, DevicePtr, PageHandle, StreamHandle};
use millpond::testing::capturing::CapturingDevice;
use millpond::testing::trusted::Trusted;

/// Work that is pending until this is called.
pub(crate) type Hold = Box<dyn FnOnce() + Send>;

/// A device under test. The tests take it as `dyn`: a copy of each for each device would be a third of this program.
pub(crate) trait Harness: Sync {
    /// The device keeps bytes: what was written can be read.
    fn keeps_bytes(&self) -> bool;

    /// The device keeps exact records: it refuses wrong arguments, and no byte is taken but those asked for.
    fn is_exact(&self) -> bool;

    /// Nobody else takes memory of the device's, so that what is free goes down and up by what a test takes.
    fn counts_alone(&self) -> bool {
        true
    }

    /// A call that waits for a held stream waits until the hold is released (else it is refused).
    fn waits(&self) -> bool;

    fn raw(&self) -> &dyn Device;

    /// Another device of its group; where there is none, itself by another object.
    fn peer(&self) -> &dyn Device;

    fn device(&self) -> Trusted<&dyn Device> {
        // SAFETY: the tests use ranges and handles of their own. What is not valid they give only to devices that keep
        // exact records, or after the call that the driver refuses too.
        unsafe { Trusted::new(self.raw()) }
    }

    /// Puts work on the stream that is complete only once it is released.
    fn hold(&self, stream: StreamHandle) -> Hold;

    /// Runs host code in stream order; false where the device cannot.
    fn launch(&self, stream: StreamHandle, work: Box<dyn FnOnce() + Send>) -> bool;
}

/// Enough for every test, and little enough to be used up in one.
const CAPACITY: u64 = 256 << 20;

pub(crate) struct HostHarness(Arc<HostDevice>, Arc<HostDevice>);

impl HostHarness {
    pub(crate) fn new(virtual_memory: bool) -> Self {
        let options = HostOptions::default().capacity(CAPACITY).virtual_memory(virtual_memory);
        let open = || HostDevice::with_options(options.clone()).unwrap();
        Self(open(), open())
    }
}

impl Harness for HostHarness {
    fn keeps_bytes(&self) -> bool {
        true
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn waits(&self) -> bool {
        true
    }

    fn raw(&self) -> &dyn Device {
        &*self.0
    }

    fn peer(&self) -> &dyn Device {
        &*self.1
    }

    fn hold(&self, stream: StreamHandle) -> Hold {
        let (release, released) = mpsc::channel();
        // A hold dropped by a failing test is released too: then `recv` fails, and the stream goes on.
        self.0.launch(stream, move || _ = released.recv()).unwrap();
        Box::new(move || release.send(()).unwrap())
    }

    fn launch(&self, stream: StreamHandle, work: Box<dyn FnOnce() + Send>) -> bool {
        self.0.launch(stream, work).unwrap();
        true
    }
}

/// The host device with captures, none of which is under way.
pub(crate) struct CapturingHarness {
    host: HostHarness,
    device: Arc<CapturingDevice>,
}

impl CapturingHarness {
    pub(crate) fn new() -> Self {
        let host = HostHarness::new(true);
        let device = CapturingDevice::new(host.0.clone());
        Self { host, device }
    }
}

impl Harness for CapturingHarness {
    fn keeps_bytes(&self) -> bool {
        true
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn waits(&self) -> bool {
        true
    }

    fn raw(&self) -> &dyn Device {
        &*self.device
    }

    fn peer(&self) -> &dyn Device {
        self.host.peer()
    }

    fn hold(&self, stream: StreamHandle) -> Hold {
        self.host.hold(stream)
    }

    fn launch(&self, stream: StreamHandle, work: Box<dyn FnOnce() + Send>) -> bool {
        self.host.launch(stream, work)
    }
}

/// Another memory of a device, whose streams are that device's.
pub(crate) struct MemoryHarness<H> {
    of: H,
    device: Arc<dyn Device>,
}

impl<H: Harness> MemoryHarness<H> {
    pub(crate) fn pinned(of: H) -> Self {
        let device = of.raw().pinned(None).unwrap();
        Self { of, device }
    }

    pub(crate) fn managed(of: H) -> Self {
        let device = of.raw().managed().unwrap();
        Self { of, device }
    }
}

impl<H: Harness> Harness for MemoryHarness<H> {
    fn keeps_bytes(&self) -> bool {
        self.of.keeps_bytes()
    }

    fn is_exact(&self) -> bool {
        self.of.is_exact()
    }

    // Pinned memory of a GPU is the machine's, and managed memory is counted when it is touched.
    fn counts_alone(&self) -> bool {
        self.of.is_exact()
    }

    fn waits(&self) -> bool {
        self.of.waits()
    }

    fn raw(&self) -> &dyn Device {
        &*self.device
    }

    fn peer(&self) -> &dyn Device {
        self.of.peer()
    }

    fn hold(&self, stream: StreamHandle) -> Hold {
        self.of.hold(stream)
    }

    fn launch(&self, stream: StreamHandle, work: Box<dyn FnOnce() + Send>) -> bool {
        self.of.launch(stream, work)
    }
}

pub(crate) struct SimHarness(Arc<SimDevice>, Arc<SimDevice>);

impl SimHarness {
    pub(crate) fn new(virtual_memory: bool) -> Self {
        let options = SimOptions::default().capacity(CAPACITY).virtual_memory(virtual_memory);
        let options = options.pinned_capacity(CAPACITY).managed_capacity(CAPACITY);
        let group = SimDevice::group(2, options).unwrap();
        Self(group[0].clone(), group[1].clone())
    }
}

impl Harness for SimHarness {
    fn keeps_bytes(&self) -> bool {
        false
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn waits(&self) -> bool {
        false
    }

    fn raw(&self) -> &dyn Device {
        &*self.0
    }

    fn peer(&self) -> &dyn Device {
        &*self.1
    }

    fn hold(&self, stream: StreamHandle) -> Hold {
        let (sim, hold) = (self.0.clone(), self.0.hold(stream).unwrap());
        Box::new(move || sim.release(hold))
    }

    fn launch(&self, _stream: StreamHandle, _work: Box<dyn FnOnce() + Send>) -> bool {
        false
    }
}

// ---- what many tests do ------------------------------------------------------------------------------

/// Whether the device has virtual memory, which most tests of pages need.
pub(crate) fn has_pages(h: &dyn Harness) -> bool {
    h.device().properties().virtual_memory
}

/// Whether the device has a stream-ordered allocator of its own.
pub(crate) fn has_driver_pool(h: &dyn Harness) -> bool {
    h.device().properties().memory_pools
}

pub(crate) fn granularity(h: &dyn Harness) -> u64 {
    h.device().properties().granularity
}

/// A new page, mapped at `at` with access.
pub(crate) fn map_new_page(h: &dyn Harness, at: DevicePtr, bytes: u64) -> PageHandle {
    let page = h.device().create_page(bytes).unwrap();
    map_page(h, at, bytes, page);
    page
}

/// The page, mapped at `at` with access.
pub(crate) fn map_page(h: &dyn Harness, at: DevicePtr, bytes: u64, page: PageHandle) {
    h.device().map(at, bytes, page).unwrap();
    h.device().set_access(at, bytes).unwrap();
}

/// Removes a mapping, when the device has done all work.
pub(crate) fn unmap(h: &dyn Harness, at: DevicePtr, bytes: u64) {
    h.device().synchronize().unwrap();
    // SAFETY: the tests give whole mappings that they do not use again, and all work is complete.
    unsafe { h.device().unmap(at, bytes) }.unwrap();
}

/// Destroys a page.
pub(crate) fn release_page(h: &dyn Harness, page: PageHandle) {
    // SAFETY: the tests do not use a page that they released.
    unsafe { h.device().release_page(page) }.unwrap();
}

/// Sets bytes of the test's memory in stream order.
pub(crate) fn fill(h: &dyn Harness, at: DevicePtr, value: u8, bytes: u64, stream: StreamHandle) {
    // SAFETY: the tests fill memory of their own, ordered by streams and events.
    unsafe { h.device().memset(at, value, bytes, stream) }.unwrap();
}

/// Copies between memory of the test in stream order.
pub(crate) fn copy(h: &dyn Harness, to: DevicePtr, from: DevicePtr, bytes: u64, stream: StreamHandle) {
    // SAFETY: the tests copy memory of their own, ordered by streams and events.
    unsafe { h.device().copy(to, from, bytes, stream) }.unwrap();
}

/// Copies from the host to memory of the test in stream order.
pub(crate) fn copy_in(h: &dyn Harness, to: DevicePtr, from: &[u8], stream: StreamHandle) {
    // SAFETY: the slice is readable; the tests write memory of their own, ordered by streams and events.
    unsafe { h.device().copy_from_host(to, from.as_ptr(), from.len() as u64, stream) }.unwrap();
}

/// Checks bytes after all work on the stream; on a device without bytes only that they can be reached.
pub(crate) fn expect_bytes(h: &dyn Harness, at: DevicePtr, expected: &[u8], stream: StreamHandle) {
    let mut found = vec![0xA5; expected.len()];
    // SAFETY: `found` is not touched until the stream is synchronised.
    unsafe { h.device().copy_to_host(found.as_mut_ptr(), at, found.len() as u64, stream) }.unwrap();
    h.device().synchronize_stream(stream).unwrap();
    if h.keeps_bytes() && found != expected {
        let wrong = found.iter().zip(expected).position(|(f, e)| f != e).unwrap();
        panic!("byte {wrong} at {at} is {}, not {}", found[wrong], expected[wrong]);
    }
}
