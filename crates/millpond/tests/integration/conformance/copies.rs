//! Bytes: memset and copies, in stream order.

use millpond::device::Kind;

use super::harness::*;

pub(crate) fn what_is_copied_in_comes_back_out(h: &dyn Harness) {
    let stream = h.device().create_stream().unwrap();
    let bytes: Vec<u8> = (0..1_000_003_u32).map(|n| (n * 7 + n / 256) as u8).collect();
    let memory = h.device().alloc_segment(bytes.len() as u64).unwrap();
    copy_in(h, memory, &bytes, stream);
    expect_bytes(h, memory, &bytes, stream);
    expect_bytes(h, memory.offset(4097), &bytes[4097..5000], stream);
}

pub(crate) fn the_source_of_a_copy_may_change_at_once(h: &dyn Harness) {
    let stream = h.device().create_stream().unwrap();
    let memory = h.device().alloc_segment(4096).unwrap();
    let hold = h.hold(stream);
    let mut source = vec![1; 4096];
    copy_in(h, memory, &source, stream);
    source.fill(2);
    drop(source);
    hold();
    expect_bytes(h, memory, &[1; 4096], stream);
}

pub(crate) fn memsets_and_copies_run_in_stream_order(h: &dyn Harness) {
    let stream = h.device().create_stream().unwrap();
    let bytes = 1 << 20;
    let (a, b) = (h.device().alloc_segment(bytes).unwrap(), h.device().alloc_segment(bytes).unwrap());
    let hold = h.hold(stream);
    fill(h, a, 1, bytes, stream);
    copy(h, b, a, bytes, stream);
    fill(h, a, 2, bytes, stream);
    copy(h, b, a, 512, stream);
    hold();
    expect_bytes(h, a, &vec![2; bytes as usize], stream);
    expect_bytes(h, b, &[2; 512], stream);
    expect_bytes(h, b.offset(512), &vec![1; bytes as usize - 512], stream);
}

pub(crate) fn a_byte_that_differs_is_never_missed(h: &dyn Harness) {
    let device = h.device();
    let stream = device.create_stream().unwrap();
    let most = (9 << 20) + 13;
    let at = device.alloc_segment(most).unwrap();
    // SAFETY: memory of the test, all of whose work is on this stream.
    let may_differ = |bytes| unsafe { device.may_differ(at, 0xFD, bytes, stream) }.unwrap();
    fill(h, at, 0xFD, most, stream);
    for bytes in [1, 15, 16, 17, 4096, 1_000_003, most] {
        // Others have no fast way to look.
        assert!(!may_differ(bytes) || device.properties().kind != Kind::Cuda, "{bytes}");
        for place in [0, bytes / 2, bytes - 1] {
            fill(h, at.offset(place), 0xFC, 1, stream);
            assert!(may_differ(bytes), "byte {place} of {bytes}");
            fill(h, at.offset(place), 0xFD, 1, stream);
        }
    }
}

pub(crate) fn a_copy_waits_for_an_event_of_another_stream(h: &dyn Harness) {
    let device = h.device();
    let (producer, consumer) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    let event = device.create_event().unwrap();
    let (a, b) = (device.alloc_segment(4096).unwrap(), device.alloc_segment(4096).unwrap());
    fill(h, a, 1, 4096, producer);
    let hold = h.hold(producer);
    fill(h, a, 2, 4096, producer);
    device.record_event(event, producer).unwrap();
    device.wait_event(consumer, event).unwrap();
    copy(h, b, a, 4096, consumer);
    assert!(!device.stream_is_idle(consumer).unwrap());
    hold();
    expect_bytes(h, b, &[2; 4096], consumer);
}

pub(crate) fn no_bytes_are_no_work(h: &dyn Harness) {
    let stream = h.device().create_stream().unwrap();
    let (a, b) = (h.device().alloc_segment(512).unwrap(), h.device().alloc_segment(512).unwrap());
    fill(h, a, 1, 0, stream);
    copy(h, a, b, 0, stream);
    copy_in(h, a, &[], stream);
    expect_bytes(h, a, &[], stream);
}
