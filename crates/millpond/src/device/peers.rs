//! Devices that work together: their names, and sets of them.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names a device among those that work together: the *group* of its peers. The GPUs of a process are one group, and its host
/// devices are another.
///
/// Streams of a group may wait for each other's events, and no two devices of it have memory at one address.
///
/// ```
/// use millpond::device::Device;
/// use millpond::device::sim::{SimDevice, SimOptions};
///
/// let gpus = SimDevice::group(2, SimOptions::default())?;
/// let names = [gpus[0].peer_id().unwrap(), gpus[1].peer_id().unwrap()];
/// assert!(names[0].is_beside(names[1]) && names[0] != names[1]);
/// # Ok::<(), millpond::device::DeviceError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PeerId {
    group: u32,
    number: u32,
}

impl PeerId {
    /// Devices that a group can have.
    pub const MOST: usize = 64;

    /// The group of the GPUs.
    #[cfg(feature = "cuda")]
    const GPUS: u32 = 0;
    /// The group of the host devices.
    const HOSTS: u32 = 1;

    /// The GPU with this number; `None` where a group cannot have so many.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn gpu(ordinal: usize) -> Option<Self> {
        (ordinal < Self::MOST).then_some(Self { group: Self::GPUS, number: ordinal as u32 })
    }

    /// The host device with this number, which is below [`MOST`](Self::MOST).
    pub(super) fn host(number: usize) -> Self {
        debug_assert!(number < Self::MOST);
        Self { group: Self::HOSTS, number: number as u32 }
    }

    /// The names of a new group of devices: so many, numbered from 0, and [`MOST`](Self::MOST) at most.
    pub fn new_group(devices: usize) -> impl ExactSizeIterator<Item = Self> {
        static NEXT: AtomicU32 = AtomicU32::new(PeerId::HOSTS + 1);
        // Relaxed: only uniqueness matters.
        let group = NEXT.fetch_add(1, Ordering::Relaxed);
        (0..devices.min(Self::MOST) as u32).map(move |number| Self { group, number })
    }

    /// Whether both are of one group; a device is beside itself, too.
    #[must_use]
    pub fn is_beside(self, other: Self) -> bool {
        self.group == other.group
    }

    /// The device's number in its group; of a GPU, its ordinal.
    #[must_use]
    pub fn number(self) -> u32 {
        self.number
    }
}

/// A set of devices of one group.
///
/// ```
/// use millpond::device::{PeerId, PeerSet};
///
/// let names: Vec<_> = PeerId::new_group(3).collect();
/// let two = PeerSet::of(names[0]).with(PeerSet::of(names[2]));
/// assert!(two.contains(names[2]) && !two.contains(names[1]));
/// assert_eq!(two.without(PeerSet::of(names[0])), PeerSet::of(names[2]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PeerSet(u64);

impl PeerSet {
    /// No device.
    pub const NONE: Self = Self(0);
    /// All devices of the group, those that are opened later, too.
    pub const ALL: Self = Self(u64::MAX);

    /// One device.
    #[must_use]
    pub fn of(peer: PeerId) -> Self {
        Self(1 << peer.number)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the device is one of them.
    #[must_use]
    pub fn contains(self, peer: PeerId) -> bool {
        self.0 & Self::of(peer).0 != 0
    }

    /// Those of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These, but for those of the other set.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Their numbers, in order.
    pub fn numbers(self) -> impl Iterator<Item = u32> {
        (0..u64::BITS).filter(move |number| self.0 >> number & 1 != 0)
    }
}

impl fmt::Debug for PeerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL { f.write_str("{all}") } else { f.debug_set().entries(self.numbers()).finish() }
    }
}
