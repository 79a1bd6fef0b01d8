//! What only the host device can show; the rest is in `tests/integration/conformance`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::testing::trusted::Trusted;

fn host() -> Trusted<Arc<HostDevice>> {
    // SAFETY: the tests map ranges of their own; handles the device checks.
    unsafe { Trusted::new(HostDevice::new().unwrap()) }
}

#[test]
fn a_panic_of_work_is_reported_by_the_next_wait() {
    let device = host();
    let stream = device.create_stream().unwrap();
    device.launch(stream, || panic!("out of ink")).unwrap();
    let error = device.synchronize_stream(stream).unwrap_err();
    assert!(error.to_string().contains("out of ink"), "{error}");
    let ran = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&ran);
    device.launch(stream, move || _ = counted.fetch_add(1, Ordering::Relaxed)).unwrap();
    device.synchronize_stream(stream).unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), 1);
}

#[test]
fn work_that_waits_for_the_device_is_refused() {
    let device = host();
    let stream = device.create_stream().unwrap();
    let (send, receive) = mpsc::channel();
    let inside = device.clone();
    device
        .launch(stream, move || // SAFETY: the stream is there until the test ends.
 send.send(unsafe { inside.synchronize_stream(stream) }).unwrap())
        .unwrap();
    assert!(matches!(receive.recv().unwrap(), Err(DeviceError::Invalid { .. })));
}

#[test]
fn a_devices_own_work_can_drop_it_under_a_wait() {
    let device = host();
    let (first, second) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    let (let_go, wait) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let last = device.clone();
    device
        .launch(first, move || {
            wait.recv().unwrap();
            drop(last);
        })
        .unwrap();
    device.launch(first, || {}).unwrap();
    let event = device.create_event().unwrap();
    device.record_event(event, first).unwrap();
    device.wait_event(second, event).unwrap();
    device.launch(second, move || tell.send(()).unwrap()).unwrap();
    drop(device);
    let_go.send(()).unwrap();
    told.recv().unwrap();
}

#[test]
fn dropping_a_device_lets_its_work_run() {
    let ran = Arc::new(AtomicU32::new(0));
    let device = host();
    let stream = device.create_stream().unwrap();
    for _ in 0..100 {
        let ran = Arc::clone(&ran);
        device.launch(stream, move || _ = ran.fetch_add(1, Ordering::Relaxed)).unwrap();
    }
    drop(device);
    assert_eq!(ran.load(Ordering::Relaxed), 100);
}

#[test]
fn work_on_a_threads_default_stream_outlives_the_thread() {
    let device = host();
    let (tell, told) = mpsc::channel();
    let of_thread = device.clone();
    let id = thread::spawn(move || {
        of_thread.launch(StreamHandle::PER_THREAD, move || tell.send(()).unwrap()).unwrap();
        // SAFETY: every thread has it.
        unsafe { of_thread.stream_id(StreamHandle::PER_THREAD) }.unwrap()
    })
    .join()
    .unwrap();
    told.recv().unwrap();
    assert_ne!(device.stream_id(StreamHandle::PER_THREAD).unwrap(), id);
}

#[test]
fn the_memory_of_a_released_page_is_the_systems_again() {
    let device = host();
    let bytes = 64 << 20;
    let at = device.reserve(bytes).unwrap();
    let page = device.create_page(bytes).unwrap();
    device.map(at, bytes, page).unwrap();
    device.set_access(at, bytes).unwrap();
    // SAFETY: the range was just mapped for us.
    unsafe { device.memset(at, 1, bytes, StreamHandle::LEGACY) }.unwrap();
    device.synchronize().unwrap();
    assert_eq!(device.memory.resident(), bytes);
    // SAFETY: all work is complete.
    unsafe {
        device.unmap(at, bytes).unwrap();
        device.release_page(page).unwrap();
    }
    assert_eq!(device.memory.resident(), 0);
}

#[test]
fn a_terabyte_of_addresses_can_be_reserved() {
    let device = host();
    let at = device.reserve(1 << 40).unwrap();
    assert!(at.raw().is_multiple_of(device.properties().granularity));
    // SAFETY: nothing was mapped.
    unsafe { device.unreserve(at, 1 << 40) }.unwrap();
}

#[test]
fn no_page_gets_the_memory_of_another_however_many_are_made() {
    let options = HostOptions::default().capacity(u64::MAX);
    // SAFETY: as in `host`.
    let device = unsafe { Trusted::new(HostDevice::with_options(options).unwrap()) };
    let _first = device.create_page(1 << 62).unwrap();
    // No file is longer. The numbers of its bytes do not begin again.
    assert!((0..8).all(|_| device.create_page(1 << 62).is_err()));
}
