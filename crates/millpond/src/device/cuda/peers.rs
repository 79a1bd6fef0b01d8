//! Which GPUs may use a GPU's memory: in a process that takes memory of several, each one its peers'.
//!
//! `cudaMalloc`'s memory is within reach of a peer once somebody called `cuCtxEnablePeerAccess`. Mapped pages are not:
//! each mapping needs an access of its own for each GPU. Programs that copy or compute across GPUs expect the first,
//! and end in an illegal address otherwise. So a GPU *joins* when it first takes memory. From then on, it and the
//! others that joined may use each other's mapped memory.
//!
//! For its own GPU alone a mapping's access costs about 50 µs, with one peer about 1 ms (H200, driver 580). So
//! a process with one GPU never asks for more.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use cudarc::driver::sys::{CUdevice, CUmemAccess_flags, CUmemAccessDesc};
use smallvec::SmallVec;

use super::api::{Api, Code, Failure};
use super::context::Context;
use super::structures::location;
use crate::device::{DevicePtr, DeviceResult};
use crate::lock::Mutex;
use crate::process::OfProcess;

/// The GPUs of this process that share their memory.
static OPENED: Mutex<Vec<Weak<Peers>>> = Mutex::new(Vec::new());

/// Held while a GPU joins, so that of two that join at once each sees the other.
static JOINING: Mutex<()> = Mutex::new(());

/// What a GPU has mapped, and which other GPUs may use it.
#[derive(Debug)]
pub(super) struct Peers {
    api: &'static Api,
    device: CUdevice,
    context: Arc<Context>,
    /// Whether its memory is pages; else it is segments.
    has_pages: bool,
    is_shared: bool,
    has_joined: AtomicBool,
    mapped: OfProcess<Mutex<Mapped>>,
}

#[derive(Debug, Default)]
struct Mapped {
    /// Bytes of each mapping with access, by its address.
    bytes: BTreeMap<u64, u64>,
    /// The GPUs with access to all of them, beside the one that they are of.
    peers: SmallVec<[CUdevice; 7]>,
}

impl Mapped {
    /// Lets a peer use what is mapped now, by `grant`, and what will be.
    fn admit(
        &mut self,
        peer: CUdevice,
        mut grant: impl FnMut(u64, u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if !self.peers.contains(&peer) {
            self.bytes.iter().try_for_each(|(at, bytes)| grant(*at, *bytes))?;
            self.peers.push(peer);
        }
        Ok(())
    }
}

impl Peers {
    /// Of a GPU that was opened; one that is not `shared` never joins.
    pub(super) fn new(api: &'static Api, context: &Arc<Context>, has_pages: bool, shared: bool) -> Arc<Self> {
        let this = Arc::new(Self {
            api,
            device: context.device(),
            context: context.clone(),
            has_pages,
            is_shared: shared,
            has_joined: AtomicBool::new(false),
            mapped: OfProcess::default(),
        });
        if shared {
            OPENED.lock().push(Arc::downgrade(&this));
        }
        this
    }

    /// Before the GPU takes memory: it and its peers get access to each other's. After an error the next call tries
    /// again.
    #[inline]
    pub(super) fn join(&self) -> DeviceResult<()> {
        // Acquire: pairs with the Release in `join_slow`.
        if self.has_joined.load(Ordering::Acquire) { Ok(()) } else { self.join_slow() }
    }

    #[cold]
    fn join_slow(&self) -> DeviceResult<()> {
        let _joining = JOINING.lock();
        if self.is_shared {
            // Relaxed: written by those who hold `JOINING`.
            let have_joined = opened().into_iter().filter(|other| other.has_joined.load(Ordering::Relaxed));
            for other in have_joined.filter(|other| other.device != self.device) {
                self.admit(&other)?;
                other.admit(self)?;
            }
        }
        // Release: whoever sees it takes memory with the access that was given above.
        self.has_joined.store(true, Ordering::Release);
        Ok(())
    }

    /// Lets `other` use this GPU's memory, if it can reach it.
    fn admit(&self, other: &Self) -> DeviceResult<()> {
        if !can_reach(self.api, other.device, self.device)? {
            return Ok(());
        }
        if self.has_pages {
            let access = access_of(other.device);
            self.mapped.lock().admit(other.device, |at, bytes| {
                // SAFETY: one readable description, of a range that is mapped: `forget` takes it out under the lock
                // before it is unmapped.
                unsafe { self.api.cuMemSetAccess(at, bytes as usize, &access, 1) }
            })?;
            return Ok(());
        }
        let _entered = other.context.enter()?;
        // SAFETY: the context is retained as long as `self` is.
        match unsafe { self.api.cuCtxEnablePeerAccess(self.context.raw(), 0) } {
            Err(failure) if failure.code != Code::PEER_ACCESS_ALREADY_ENABLED => Err(failure.into()),
            _ => Ok(()),
        }
    }

    /// Gives the GPU and its peers access to a mapping of its.
    ///
    /// # Safety
    /// As for [`Device::set_access`](crate::device::Device::set_access).
    pub(super) unsafe fn give_access(&self, at: DevicePtr, bytes: u64) -> Result<(), Failure> {
        let mut mapped = self.mapped.lock();
        let all = std::iter::once(self.device).chain(mapped.peers.iter().copied());
        let access: SmallVec<[_; 8]> = all.map(access_of).collect();
        // SAFETY: readable descriptions, and the caller's promise.
        unsafe { self.api.cuMemSetAccess(at.raw(), bytes as usize, access.as_ptr(), access.len()) }?;
        mapped.bytes.insert(at.raw(), bytes);
        Ok(())
    }

    /// A mapping is about to be taken away.
    pub(super) fn forget(&self, at: DevicePtr) {
        self.mapped.lock().bytes.remove(&at.raw());
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
            remaining.iter().for_each(|other| other.mapped.lock().peers.retain(|peer| *peer != self.device));
        }
    }
}

/// Those that are open now. They must be let go without the lock on the list, which the drop of the last one takes.
fn opened() -> Vec<Arc<Peers>> {
    let mut opened = OPENED.lock();
    opened.retain(|peers| peers.strong_count() > 0);
    opened.iter().filter_map(Weak::upgrade).collect()
}

/// What the environment says, where a program does not.
pub(super) fn is_shared_by_default() -> bool {
    std::env::var_os("MILLPOND_PEER_ACCESS").is_none_or(|value| value != "0")
}

/// Whether one GPU can use the memory of another directly.
pub(super) fn can_reach(api: &Api, device: CUdevice, other: CUdevice) -> DeviceResult<bool> {
    let mut can = 0;
    // SAFETY: `can` is writable, and both handles came from cuDeviceGet.
    unsafe { api.cuDeviceCanAccessPeer(&mut can, device, other) }?;
    Ok(can != 0)
}

/// A GPU may read and write.
fn access_of(device: CUdevice) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: location(device),
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_gets_access_to_each_mapping_once() {
        let mut mapped =
            Mapped { bytes: BTreeMap::from([(0x20_0000, 2), (0x40_0000, 4)]), ..Default::default() };
        let mut granted = Vec::new();
        for _ in 0..2 {
            mapped
                .admit(1, |at, bytes| {
                    granted.push((at, bytes));
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(granted, [(0x20_0000, 2), (0x40_0000, 4)]);
        assert_eq!(mapped.peers[..], [1]);
    }

    #[test]
    fn a_peer_that_was_refused_is_tried_again() {
        let mut mapped = Mapped { bytes: BTreeMap::from([(0x20_0000, 2)]), ..Default::default() };
        let refusal = Failure { call: "cuMemSetAccess", code: Code::OUT_OF_MEMORY };
        assert!(mapped.admit(1, |_, _| Err(refusal)).is_err());
        assert!(mapped.peers.is_empty());
        mapped.admit(1, |_, _| Ok(())).unwrap();
        assert_eq!(mapped.peers[..], [1]);
    }
}
