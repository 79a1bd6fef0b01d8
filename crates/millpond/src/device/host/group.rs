//! What host devices of a process share: events, and who may use whose memory.

use std::sync::{Arc, OnceLock, Weak};

use slotmap::{DefaultKey, SlotMap};

use super::memory::Memory;
use super::shared_event::SharedEvent;
use super::stream::Moment;
use crate::device::inventory::invalid;
use crate::device::{DevicePtr, DeviceResult, PeerId};
use crate::system::lock::Mutex;
use crate::system::process::PerProcess;

/// What an event is.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// Of this process: what it stands for; nothing if it was never recorded.
    Own(Option<Moment>),
    /// One that other processes may have, too.
    Shared(Arc<SharedEvent>),
}

/// What the host devices of a process share.
pub(super) struct Group {
    pub(super) events: Mutex<SlotMap<DefaultKey, Event>>,
    /// The memory of each, by its number. A number is free once the memory is gone.
    members: Mutex<[Weak<Memories>; PeerId::MOST]>,
}

impl Default for Group {
    fn default() -> Self {
        let members = std::array::from_fn(|_| Weak::new());
        Self { events: Mutex::default(), members: Mutex::new(members) }
    }
}

impl Group {
    /// That of this process.
    pub(super) fn here() -> &'static Self {
        static GROUP: PerProcess<Group> = PerProcess::new(Default::default);
        GROUP.get()
    }

    /// A name for a new device. Beyond the most that a group can have, it works alone.
    pub(super) fn enter(&self, memories: &Arc<Memories>) -> PeerId {
        let mut members = self.members.lock();
        match members.iter().position(|member| member.strong_count() == 0) {
            Some(number) => {
                members[number] = Arc::downgrade(memories);
                PeerId::host(number)
            }
            None => PeerId::new_group(1).next().expect("a group of one"),
        }
    }

    /// The memory of a device, unless that is gone.
    pub(super) fn memory_of(&self, peer: PeerId) -> Option<Arc<Memories>> {
        self.members.lock()[peer.number() as usize].upgrade()
    }

    /// Whether `peer` may use a range, which is another device's.
    pub(super) fn check_access_by(
        &self,
        call: &'static str,
        at: DevicePtr,
        bytes: u64,
        peer: PeerId,
    ) -> DeviceResult<()> {
        // Let go of without the lock: the last one to go unmaps its memory.
        let others: Vec<_> = self.members.lock().iter().filter_map(Weak::upgrade).collect();
        let mut checked = others.iter().map(|memories| memories.check_access(call, at, bytes, Some(peer)));
        match checked.find(Result::is_ok) {
            Some(_) => Ok(()),
            None => invalid(call, "no other device lets this one use the range"),
        }
    }
}

/// The memory that work on the streams may use.
#[derive(Debug)]
pub(super) struct Memories {
    pub(super) device: Arc<Memory>,
    pub(super) pinned: OnceLock<Arc<Memory>>,
    pub(super) managed: OnceLock<Arc<Memory>>,
}

impl Memories {
    /// Whether the device may use the range, or another one.
    pub(super) fn check_access(
        &self,
        call: &'static str,
        at: DevicePtr,
        bytes: u64,
        peer: Option<PeerId>,
    ) -> DeviceResult<()> {
        let mut checked = self.device.check_access(call, at, bytes, peer);
        for other in [&self.pinned, &self.managed].into_iter().filter_map(OnceLock::get) {
            checked = checked.or_else(|error| other.check_access(call, at, bytes, peer).map_err(|_| error));
        }
        checked
    }

    /// The managed memory, where it has all of a range.
    pub(super) fn managed(
        &self,
        call: &'static str,
        at: DevicePtr,
        bytes: u64,
    ) -> DeviceResult<&Arc<Memory>> {
        match self.managed.get() {
            Some(managed) => managed.check_access(call, at, bytes, None).map(|()| managed),
            None => invalid(call, "there is no managed memory: make a pool of it first, by Context::managed"),
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::device::host::HostDevice;
    use crate::device::{Device, DeviceError, StreamHandle};
    use crate::fixtures::alone;

    #[test]
    fn a_copy_between_devices_waits_for_no_lock_in_a_forked_child() {
        alone(
            "device::host::group::tests::a_copy_between_devices_waits_for_no_lock_in_a_forked_child",
            || {
                let [device, other] = [(); 2].map(|()| HostDevice::new().unwrap());
                let [at, from] = [&device, &other].map(|device| device.alloc_segment(4096).unwrap());
                let peer = other.peer_id().unwrap();
                // As of a thread that the child does not have.
                let _locked = Group::here().members.lock();
                // SAFETY: the child makes the call, and ends.
                let pid = unsafe { libc::fork() };
                assert!(pid >= 0);
                if pid == 0 {
                    // SAFETY: it asks for a signal. Both ranges are live, and nothing else uses them.
                    let copied = unsafe {
                        libc::alarm(5);
                        device.copy_from_peer(at, from, 4096, peer, StreamHandle::LEGACY)
                    };
                    // SAFETY: it ends the child, and runs nothing of ours.
                    unsafe { libc::_exit(i32::from(!matches!(copied, Err(DeviceError::Forked)))) };
                }
                let mut status = 0;
                // SAFETY: our child, and a place for its status.
                assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                assert_eq!(status, 0);
            },
        );
    }
}
