//! Two devices of a group: who may use whose memory.

use super::*;
use crate::device::PeerSet;

/// Two devices, of which the first has a page mapped.
struct TwoDevices {
    sims: Vec<Arc<SimDevice>>,
    checkers: [Checker; 2],
    at: DevicePtr,
}

impl TwoDevices {
    fn new() -> Self {
        let sims = SimDevice::group(2, SimOptions::default().capacity(64 << 20)).unwrap();
        let checkers = CheckerDevice::group(sims.iter().map(|sim| sim.clone() as _));
        // SAFETY: the checker sees what is not valid, and below it are no bytes.
        let checkers = [0, 1].map(|number: usize| unsafe { Trusted::new(checkers[number].clone()) });
        let at = checkers[0].reserve(PAGE).unwrap();
        let page = checkers[0].create_page(PAGE).unwrap();
        checkers[0].map(at, PAGE, page).unwrap();
        checkers[0].set_access(at, PAGE).unwrap();
        Self { sims, checkers, at }
    }

    /// Lets the second device use the page, or no longer.
    fn set_access(&self, allowed: bool) {
        let peers = PeerSet::of(self.sims[1].peer_id().unwrap());
        // SAFETY: a mapping; whether work uses it is what is tested.
        unsafe { self.checkers[0].set_peer_access(self.at, PAGE, peers, allowed) }.unwrap();
    }

    fn rules(&self) -> Vec<Rule> {
        match self.checkers[1].verify() {
            Ok(()) => Vec::new(),
            Err(report) => report.violations.iter().map(|violation| violation.rule).collect(),
        }
    }
}

#[test]
fn a_kernel_on_another_device_needs_access() {
    for allowed in [false, true] {
        let two = TwoDevices::new();
        let stream = two.checkers[0].create_stream().unwrap();
        let other = two.checkers[1].create_stream().unwrap();
        let block = two.checkers[0].allocated(two.at, PAGE, stream);
        if allowed {
            two.set_access(true);
        }
        let event = two.checkers[0].create_event().unwrap();
        two.checkers[0].record_event(event, stream).unwrap();
        two.checkers[1].wait_event(other, event).unwrap();
        two.checkers[1].used(block, other);
        assert_eq!(two.rules(), if allowed { vec![] } else { vec![Rule::PeerAccess] });
    }
}

#[test]
fn a_copy_that_names_both_devices_needs_none() {
    let two = TwoDevices::new();
    let other = two.checkers[1].create_stream().unwrap();
    let to = two.checkers[1].alloc_segment(PAGE).unwrap();
    let source = two.sims[0].peer_id().unwrap();
    // SAFETY: there are no bytes.
    unsafe { two.checkers[1].copy_from_peer(to, two.at, PAGE, source, other) }.unwrap();
    assert_eq!(two.rules(), []);
}

#[test]
fn access_goes_with_the_mapping() {
    let two = TwoDevices::new();
    let stream = two.checkers[0].create_stream().unwrap();
    let other = two.checkers[1].create_stream().unwrap();
    two.set_access(true);
    // SAFETY: nothing uses it.
    unsafe { two.checkers[0].unmap(two.at, PAGE) }.unwrap();
    let page = two.checkers[0].create_page(PAGE).unwrap();
    two.checkers[0].map(two.at, PAGE, page).unwrap();
    two.checkers[0].set_access(two.at, PAGE).unwrap();
    let block = two.checkers[0].allocated(two.at, PAGE, stream);
    two.checkers[0].synchronize().unwrap();
    two.checkers[1].used(block, other);
    assert_eq!(two.rules(), [Rule::PeerAccess]);
}

#[test]
fn access_is_taken_back_once_the_work_is_complete() {
    for waits in [false, true] {
        let two = TwoDevices::new();
        let stream = two.checkers[0].create_stream().unwrap();
        let other = two.checkers[1].create_stream().unwrap();
        two.set_access(true);
        let block = two.checkers[0].allocated(two.at, PAGE, stream);
        two.checkers[0].synchronize().unwrap();
        two.checkers[1].used(block, other);
        if waits {
            two.checkers[1].synchronize().unwrap();
        }
        two.set_access(false);
        assert_eq!(two.rules(), if waits { vec![] } else { vec![Rule::UnmapUnderWork] });
    }
}

#[test]
fn default_streams_of_two_devices_are_two() {
    let two = TwoDevices::new();
    two.set_access(true);
    let block = two.checkers[0].allocated(two.at, PAGE, StreamHandle::LEGACY);
    two.checkers[1].used(block, StreamHandle::LEGACY);
    let _freed = two.checkers[0].freed(block, StreamHandle::LEGACY);
    assert_eq!(two.rules(), [Rule::Program], "the free is not ordered after the other device's work");
}
