//! Two devices of a group: copies between them, events across, and access to each other's memory.

use std::ops::Deref;

use millpond::device::{Device, DeviceError, DevicePtr, PeerId, PeerSet, StreamHandle};
use millpond::testing::trusted::Trusted;

use super::harness::*;

const BYTES: u64 = 4096;

/// The other device, and a stream and a segment of its own.
fn other(h: &dyn Harness) -> (Trusted<&dyn Device>, StreamHandle, DevicePtr) {
    // SAFETY: as in `Harness::device`.
    let peer = unsafe { Trusted::new(h.peer()) };
    let (stream, memory) = (peer.create_stream().unwrap(), peer.alloc_segment(BYTES).unwrap());
    (peer, stream, memory)
}

/// Later work on `stream` comes after what the stream of `before` was given.
fn order<D: Deref<Target: Device>, E: Deref<Target: Device>>(
    (before, first): (&Trusted<D>, StreamHandle),
    (after, then): (&Trusted<E>, StreamHandle),
) {
    let event = before.create_event().unwrap();
    before.record_event(event, first).unwrap();
    after.wait_event(then, event).unwrap();
    // SAFETY: it is not used again.
    unsafe { before.destroy_event(event) }.unwrap();
}

fn fill_there(peer: &Trusted<&dyn Device>, at: DevicePtr, value: u8, bytes: u64, stream: StreamHandle) {
    // SAFETY: the tests fill memory of their own, ordered by streams and events.
    unsafe { peer.memset(at, value, bytes, stream) }.unwrap();
}

pub(crate) fn devices_of_a_group_know_each_other(h: &dyn Harness) {
    let (own, peer) = (h.device().peer_id().unwrap(), h.peer().peer_id().unwrap());
    assert!(own.is_beside(peer));
    assert!(h.device().can_be_reached_from(own).unwrap());
    let stranger = PeerId::new_group(1).next().unwrap();
    assert!(!own.is_beside(stranger));
}

pub(crate) fn a_copy_from_the_other_device_carries_its_bytes(h: &dyn Harness) {
    let (peer, there, from) = other(h);
    let (stream, to) = (h.device().create_stream().unwrap(), h.device().alloc_segment(BYTES).unwrap());
    fill(h, to, 1, BYTES, stream);
    fill_there(&peer, from, 2, BYTES, there);
    order((&peer, there), (&h.device(), stream));
    let source = peer.peer_id().unwrap();
    // SAFETY: both ranges are the test's, and ordered.
    unsafe { h.device().copy_from_peer(to, from, BYTES / 2, source, stream) }.unwrap();
    // SAFETY: no bytes.
    unsafe { h.device().copy_from_peer(to, from, 0, source, stream) }.unwrap();
    expect_bytes(h, to, &[2; BYTES as usize / 2], stream);
    expect_bytes(h, to.offset(BYTES / 2), &[1; BYTES as usize / 2], stream);
}

pub(crate) fn a_stream_waits_for_an_event_of_the_other_device(h: &dyn Harness) {
    let (peer, there, from) = other(h);
    let (stream, to) = (h.device().create_stream().unwrap(), h.device().alloc_segment(BYTES).unwrap());
    let own = h.device().create_stream().unwrap();
    let hold = h.hold(own);
    // By way of the other device and back.
    order((&h.device(), own), (&peer, there));
    fill_there(&peer, from, 3, BYTES, there);
    order((&peer, there), (&h.device(), stream));
    // SAFETY: both ranges are the test's, and ordered.
    unsafe { h.device().copy_from_peer(to, from, BYTES, peer.peer_id().unwrap(), stream) }.unwrap();
    assert!(!h.device().stream_is_idle(stream).unwrap() && !peer.stream_is_idle(there).unwrap());
    hold();
    expect_bytes(h, to, &[3; BYTES as usize], stream);
}

pub(crate) fn a_page_is_used_by_the_other_device_once_it_has_access(h: &dyn Harness) {
    let name = h.peer().peer_id().unwrap();
    if !has_pages(h) || !h.device().can_be_reached_from(name).unwrap() {
        return;
    }
    let (peer, there, _) = other(h);
    let g = granularity(h);
    let at = h.device().reserve(g).unwrap();
    let page = map_new_page(h, at, g);
    // SAFETY: there is no access, so that it is refused, by a device that checks.
    let touch = || unsafe { peer.memset(at, 4, BYTES, there) };
    let is_refused = || !h.is_exact() || matches!(touch(), Err(DeviceError::Invalid { .. }));
    assert!(is_refused());
    // SAFETY: a mapping of the test's; nothing uses it where access is taken away.
    let set = |allowed| unsafe { h.device().set_peer_access(at, g, PeerSet::of(name), allowed) }.unwrap();
    set(true);
    touch().unwrap();
    peer.synchronize().unwrap();
    expect_bytes(h, at, &[4; BYTES as usize], StreamHandle::LEGACY);
    if h.device().peer_id() != Some(name) {
        set(false);
        assert!(is_refused());
    }
    expect_bytes(h, at, &[4; BYTES as usize], StreamHandle::LEGACY);
    set(true);
    // Access goes with the mapping.
    unmap(h, at, g);
    map_page(h, at, g, page);
    assert!(is_refused());
    unmap(h, at, g);
    release_page(h, page);
}

pub(crate) fn a_page_that_moved_is_used_by_the_other_device_once_it_has_access(h: &dyn Harness) {
    let name = h.peer().peer_id().unwrap();
    if !has_pages(h) || !h.device().can_be_reached_from(name).unwrap() {
        return;
    }
    let (peer, there, _) = other(h);
    let g = granularity(h);
    let (first, second) = (h.device().reserve(g).unwrap(), h.device().reserve(g).unwrap());
    let page = map_new_page(h, first, g);
    map_page(h, second, g, page);
    unmap(h, first, g);
    // SAFETY: a mapping of the test's.
    unsafe { h.device().set_peer_access(second, g, PeerSet::of(name), true) }.unwrap();
    fill_there(&peer, second, 6, BYTES, there);
    peer.synchronize_stream(there).unwrap();
    expect_bytes(h, second, &[6; BYTES as usize], StreamHandle::LEGACY);
    unmap(h, second, g);
    release_page(h, page);
}

pub(crate) fn a_segment_is_used_by_the_other_device_once_it_has_access(h: &dyn Harness) {
    let name = h.peer().peer_id().unwrap();
    if !h.device().can_be_reached_from(name).unwrap() {
        return;
    }
    let (peer, there, _) = other(h);
    let at = h.device().alloc_segment(BYTES).unwrap();
    // SAFETY: a segment of the test's.
    unsafe { h.device().set_peer_access(at, BYTES, PeerSet::of(name), true) }.unwrap();
    fill_there(&peer, at, 5, BYTES, there);
    peer.synchronize_stream(there).unwrap();
    expect_bytes(h, at, &[5; BYTES as usize], StreamHandle::LEGACY);
}
