//! Which GPUs may use a GPU's memory.
//!
//! `cudaMalloc`'s memory is within reach of a peer once somebody called `cuCtxEnablePeerAccess`. Mapped pages are not:
//! each mapping needs an access of its own for each GPU. For its own GPU alone that costs 28 to 68 µs up to 32 MiB. A peer
//! costs 1 ms more where no other page has it, and some 40 µs else (H100, driver 580; docs/lab/several-gpus.md). So a mapping
//! is for its own GPU, until somebody [gives](Peers::set_access) it to peers.
//!
//! Mappings may be for *all* peers. A GPU *joins* when it first takes memory. From then on it has access to them, to the older
//! ones as well.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use cudarc::driver::sys::{CUdevice, CUmemAccess_flags, CUmemAccessDesc};
use smallvec::SmallVec;

use super::api::{Api, Code, Failure};
use super::context::Context;
use super::host_ranges;
use super::structures::location;
use crate::device::{DeviceError, DevicePtr, DeviceResult, PeerId, PeerSet};
use crate::system::lock::Mutex;
use crate::system::process::OfProcess;

/// The GPUs that are open in this process.
static OPENED: Mutex<Vec<Weak<Peers>>> = Mutex::new(Vec::new());

/// Held while a GPU joins, so that of two that join at once each sees the other.
static JOINING: Mutex<()> = Mutex::new(());

/// What of a GPU's memory all others may use.
#[derive(Debug)]
pub(super) struct Peers {
    api: &'static Api,
    device: CUdevice,
    context: Arc<Context>,
    has_joined: AtomicBool,
    for_all: OfProcess<Mutex<ForAll>>,
}

#[derive(Debug, Default)]
struct ForAll {
    /// Bytes of each mapping, by its address.
    mapped: BTreeMap<u64, u64>,
    /// Whether segments are for all peers.
    segments: bool,
    /// The GPUs that have access to all of them, beside the one that they are of.
    peers: SmallVec<[CUdevice; 7]>,
}

impl ForAll {
    /// Lets a peer use what is mapped now, by `grant`, and what will be.
    fn admit(
        &mut self,
        peer: CUdevice,
        mut grant: impl FnMut(u64, u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if !self.peers.contains(&peer) {
            self.mapped.iter().try_for_each(|(at, bytes)| grant(*at, *bytes))?;
            self.peers.push(peer);
        }
        Ok(())
    }
}

impl Peers {
    /// Of a GPU that was opened.
    pub(super) fn new(api: &'static Api, context: &Arc<Context>) -> Arc<Self> {
        let this = Arc::new(Self {
            api,
            device: context.device(),
            context: context.clone(),
            has_joined: AtomicBool::new(false),
            for_all: OfProcess::default(),
        });
        OPENED.lock().push(Arc::downgrade(&this));
        this
    }

    // ---- memory for all peers --------------------------------------------------------------------

    /// Before the GPU takes memory: it gets access to what others have for all peers, and they to what it will have. After an
    /// error the next call tries again.
    #[inline]
    pub(super) fn join(&self) -> DeviceResult<()> {
        // Acquire: pairs with the Release in `join_slow`.
        if self.has_joined.load(Ordering::Acquire) { Ok(()) } else { self.join_slow() }
    }

    #[cold]
    fn join_slow(&self) -> DeviceResult<()> {
        let _joining = JOINING.lock();
        // Relaxed: written by those who hold `JOINING`.
        let have_joined = opened().into_iter().filter(|other| other.has_joined.load(Ordering::Relaxed));
        for other in have_joined.filter(|other| other.device != self.device) {
            self.admit(&other)?;
            other.admit(self)?;
        }
        // Release: whoever sees it takes memory with the access that was given above.
        self.has_joined.store(true, Ordering::Release);
        Ok(())
    }

    /// Lets `other` use this GPU's memory that is for all peers, if it can reach it.
    fn admit(&self, other: &Self) -> DeviceResult<()> {
        if !can_reach(self.api, other.device, self.device)? {
            return Ok(());
        }
        let access = access_of(other.device, true);
        let mut for_all = self.for_all.lock();
        if for_all.segments {
            self.enable(other)?;
        }
        for_all.admit(other.device, |at, bytes| {
            // SAFETY: a range that is mapped: `forget` takes it out under the lock before it is unmapped.
            unsafe { set_access(self.api, at, bytes, &[access]) }
        })?;
        Ok(())
    }

    /// Lets `other` use the segments of this GPU, all that are and will be.
    fn enable(&self, other: &Self) -> DeviceResult<()> {
        let _entered = other.context.enter()?;
        // SAFETY: the context is retained as long as `self` is.
        match unsafe { self.api.cuCtxEnablePeerAccess(self.context.raw(), 0) } {
            Err(failure) if failure.code != Code::PEER_ACCESS_ALREADY_ENABLED => Err(failure.into()),
            _ => Ok(()),
        }
    }

    /// A mapping is about to be taken away.
    pub(super) fn forget(&self, at: DevicePtr) {
        self.for_all.lock().mapped.remove(&at.raw());
    }

    // ---- memory for some or all ------------------------------------------------------------------

    /// Lets peers use a mapping of the GPU's, or of pinned memory, or no longer.
    ///
    /// # Safety
    /// As for [`Device::set_peer_access`](crate::device::Device::set_peer_access).
    pub(super) unsafe fn set_access(
        &self,
        at: DevicePtr,
        bytes: u64,
        peers: PeerSet,
        allowed: bool,
    ) -> DeviceResult<()> {
        if peers != PeerSet::ALL {
            let devices = self.named(peers, host_ranges::contains(at))?;
            // SAFETY: the caller's promise.
            return Ok(unsafe { self.set(at, bytes, &devices, allowed) }?);
        }
        let mut for_all = self.for_all.lock();
        if !allowed {
            for_all.mapped.remove(&at.raw());
        }
        // SAFETY: the caller's promise.
        unsafe { self.set(at, bytes, &for_all.peers, allowed) }?;
        if allowed {
            for_all.mapped.insert(at.raw(), bytes);
        }
        Ok(())
    }

    /// Whether a GPU reaches this one's memory; it reaches its own.
    pub(super) fn can_be_reached_from(&self, gpu: PeerId) -> DeviceResult<bool> {
        let device = raw_of(self.api, gpu.number())?;
        Ok(device == self.device || can_reach(self.api, device, self.device)?)
    }

    /// Lets peers use the segments of the GPU.
    pub(super) fn share_segments(&self, peers: PeerSet) -> DeviceResult<()> {
        // Dropped after the lock is: the last one to go takes it.
        let opened = opened();
        let mut for_all = self.for_all.lock();
        for_all.segments |= peers == PeerSet::ALL;
        let devices = if peers == PeerSet::ALL { for_all.peers.clone() } else { self.named(peers, false)? };
        opened.iter().filter(|other| devices.contains(&other.device)).try_for_each(|other| self.enable(other))
    }

    /// The other GPUs of a set, which have to reach this one's memory, but not that of the host.
    fn named(&self, peers: PeerSet, is_host: bool) -> DeviceResult<SmallVec<[CUdevice; 7]>> {
        let mut devices = SmallVec::new();
        for number in peers.numbers() {
            let device = raw_of(self.api, number)?;
            if device != self.device {
                if !is_host && !can_reach(self.api, device, self.device)? {
                    let what = "direct access of that GPU to its memory: the GPUs do not reach each other";
                    return Err(DeviceError::Unsupported { device: format!("GPU {}", self.device), what });
                }
                devices.push(device);
            }
        }
        Ok(devices)
    }

    /// # Safety
    /// As for [`set_access`](Self::set_access).
    unsafe fn set(
        &self,
        at: DevicePtr,
        bytes: u64,
        devices: &[CUdevice],
        allowed: bool,
    ) -> Result<(), Failure> {
        if devices.is_empty() {
            return Ok(());
        }
        let access: SmallVec<[_; 8]> = devices.iter().map(|device| access_of(*device, allowed)).collect();
        // SAFETY: the caller's promise. GPUs that are not named keep what they have.
        unsafe { set_access(self.api, at.raw(), bytes, &access) }
    }
}

impl Drop for Peers {
    /// What others map from now on is not for a GPU that is not open any more.
    fn drop(&mut self) {
        if self.context.check_process().is_err() {
            // The GPUs are the parent's.
            return;
        }
        let remaining = opened();
        if remaining.iter().all(|other| other.device != self.device) {
            remaining.iter().for_each(|other| other.for_all.lock().peers.retain(|peer| *peer != self.device));
        }
    }
}

/// Sets what devices may do with a mapping.
///
/// Driver 580 refuses a new device where the page's first mapping is gone and another is left, if the page was created with the
/// [extras](super::structures::PageExtras): "invalid value". While the page has one mapping more, it agrees. (docs/lab/several-gpus.md, "A page's second mapping")
///
/// # Safety
/// The range is that of one mapping. Where access is taken away, no work of the devices uses it.
unsafe fn set_access(api: &Api, at: u64, bytes: u64, access: &[CUmemAccessDesc]) -> Result<(), Failure> {
    // SAFETY: readable descriptions, and the caller's promise.
    let set = || unsafe { api.cuMemSetAccess(at, bytes as usize, access.as_ptr(), access.len()) };
    match set() {
        Err(refused) if refused.code == Code::INVALID_VALUE => {
            // SAFETY: the caller's promise.
            unsafe { with_another_mapping(api, at, bytes, set) }.map_err(|_| refused)
        }
        done => done,
    }
}

/// Does something while a mapped page has another mapping, which nobody has access to. What was made for that goes again after a
/// failure as well: `and` has both sides computed.
///
/// # Safety
/// The range is that of one mapping.
unsafe fn with_another_mapping(
    api: &Api,
    at: u64,
    bytes: u64,
    act: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (mut page, mut there, bytes) = (0, 0, bytes as usize);
    // SAFETY: `page` is writable, and something is mapped at `at`.
    unsafe { api.cuMemRetainAllocationHandle(&mut page, at as *mut c_void) }?;
    // SAFETY: `there` is writable. An alignment of 0 is the granularity.
    let reserved = unsafe { api.cuMemAddressReserve(&mut there, bytes, 0, 0, 0) };
    let done = reserved.and_then(|()| {
        // SAFETY: a page that is retained, and a range that was reserved above.
        let done = unsafe { api.cuMemMap(there, bytes, 0, page, 0) }.and_then(|()| {
            let done = act();
            // SAFETY: it was mapped above, and nobody was told of it.
            done.and(unsafe { api.cuMemUnmap(there, bytes) })
        });
        // SAFETY: it was reserved above, and is empty.
        done.and(unsafe { api.cuMemAddressFree(there, bytes) })
    });
    // SAFETY: it was retained above.
    done.and(unsafe { api.cuMemRelease(page) })
}

/// Those that are open now. They must be let go without the lock on the list, which the drop of the last one takes.
fn opened() -> Vec<Arc<Peers>> {
    let mut known = OPENED.lock();
    known.retain(|peers| peers.strong_count() > 0);
    let mut opened: Vec<_> = known.iter().filter_map(Weak::upgrade).collect();
    drop(known);
    // Not before: to leave one out may be its end.
    opened.retain(|peers| !peers.context.has_ended());
    opened
}

/// The context of a GPU that is open.
pub(super) fn context_of(api: &Api, gpu: PeerId) -> DeviceResult<Arc<Context>> {
    let device = raw_of(api, gpu.number())?;
    let found = opened().into_iter().find(|peers| peers.device == device);
    found.map(|peers| peers.context.clone()).ok_or_else(|| DeviceError::Invalid {
        call: "cuMemcpyPeerAsync",
        what: format!("GPU {} is not open: keep its context until the copy is done", gpu.number()),
    })
}

/// The driver's handle of a GPU.
fn raw_of(api: &Api, ordinal: u32) -> DeviceResult<CUdevice> {
    let mut device = 0;
    // SAFETY: `device` is writable.
    unsafe { api.cuDeviceGet(&mut device, ordinal as c_int) }?;
    Ok(device)
}

/// Whether one GPU can use the memory of another directly.
pub(super) fn can_reach(api: &Api, device: CUdevice, other: CUdevice) -> DeviceResult<bool> {
    let mut can = 0;
    // SAFETY: `can` is writable, and both handles came from cuDeviceGet.
    unsafe { api.cuDeviceCanAccessPeer(&mut can, device, other) }?;
    Ok(can != 0)
}

/// A GPU may read and write, or neither.
pub(super) fn access_of(device: CUdevice, allowed: bool) -> CUmemAccessDesc {
    let flags = if allowed {
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    } else {
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE
    };
    CUmemAccessDesc { location: location(device), flags }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_gets_access_to_each_mapping_once() {
        let mut for_all =
            ForAll { mapped: BTreeMap::from([(0x20_0000, 2), (0x40_0000, 4)]), ..Default::default() };
        let mut granted = Vec::new();
        for _ in 0..2 {
            for_all
                .admit(1, |at, bytes| {
                    granted.push((at, bytes));
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(granted, [(0x20_0000, 2), (0x40_0000, 4)]);
        assert_eq!(for_all.peers[..], [1]);
    }

    #[test]
    fn a_peer_that_was_refused_is_tried_again() {
        let mut for_all = ForAll { mapped: BTreeMap::from([(0x20_0000, 2)]), ..Default::default() };
        let refusal = Failure { call: "cuMemSetAccess", code: Code::OUT_OF_MEMORY };
        assert!(for_all.admit(1, |_, _| Err(refusal)).is_err());
        assert!(for_all.peers.is_empty());
        for_all.admit(1, |_, _| Ok(())).unwrap();
        assert_eq!(for_all.peers[..], [1]);
    }
}
