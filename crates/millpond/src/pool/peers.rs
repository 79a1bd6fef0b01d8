//! Which other devices may use a pool's memory.
//!
//! A pool whose memory is for a peer gives it access to each page as it is mapped. Kernels of the peer may then use every
//! block. Other pools give access on demand: to the pages of a block that somebody [names](Pool::allow_access_to), or copies
//! from. That costs once for each page, and about twenty times what the device's own access costs.

use crate::device::{DeviceError, DevicePtr, PeerId, PeerSet};
use crate::lock::RwLockReadGuard;
use crate::order::Stream;
use crate::{Error, Result};

use super::inner::PoolInner;
use super::{Context, Pool};

impl Pool {
    /// Lets the GPU of another context use all memory of the pool at its addresses: what there is, and what comes.
    ///
    /// It costs about 1 ms for each page (H200), while other threads wait where they need more than their caches have. New
    /// pages cost as much more. Where few blocks are for the other GPU, [`allow_access_to`](Self::allow_access_to) is
    /// cheaper. Order between the GPUs is the program's: [`Stream::wait_for`](crate::Stream::wait_for),
    /// [`record_use`](Self::record_use).
    ///
    /// ```
    /// use millpond::device::sim::{SimDevice, SimOptions};
    /// use millpond::{Context, Pool};
    ///
    /// let gpus = SimDevice::group(2, SimOptions::default())?; // or Context::cuda(0)?, Context::cuda(1)?
    /// let [first, second] = [0, 1].map(|number| Context::new(gpus[number].clone()));
    /// let pool = Pool::builder(&first).build()?;
    /// let stream = first.create_stream()?;
    /// let block = pool.alloc(1 << 20, &stream)?;
    /// assert!(!pool.is_accessible_from(block, &second)?);
    /// pool.allow_access(&second)?;
    /// assert!(pool.is_accessible_from(block, &second)?);
    /// pool.take_back_access(&second)?;
    /// # unsafe { pool.free(block, &stream) }?;
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for a device that cannot work together with the pool's, and for a GPU that does not reach
    /// this one's memory. Else the device's own: then some pages have access, and the call may be tried again.
    pub fn allow_access(&self, peer: &Context) -> Result<()> {
        let inner = self.inner();
        let Some(peer) = inner.reachable_peer(peer)? else { return Ok(()) };
        inner.share_all(PeerSet::of(peer))
    }

    /// Takes the access of another context's GPU back, from all memory of the pool: also where it was given to one block,
    /// or for a copy. It waits for all work of that GPU. Mapping and unmapping pages then costs what it costs for one GPU.
    ///
    /// Memory in segments (a pool without pages) stays within reach of a GPU that had it once.
    ///
    /// # Errors
    /// As for [`allow_access`](Self::allow_access). [`Error::BadOption`] for a pool that is
    /// [for all peers](crate::PoolBuilder::accessible_from_all). [`DeviceError::Invalid`] while a stream of that GPU is being
    /// captured: then nothing changed.
    pub fn take_back_access(&self, peer: &Context) -> Result<()> {
        self.inner().take_back_access(peer)
    }

    /// Lets the GPU of another context use one live block. Its pages get access, as far as they have none: about 1 ms for
    /// each (H200). They keep it until they are remapped or given back, so that later blocks on them cost nothing. Null does
    /// nothing.
    ///
    /// # Errors
    /// As for [`allow_access`](Self::allow_access), and for [`size_of`](Self::size_of).
    pub fn allow_access_to(&self, ptr: DevicePtr, peer: &Context) -> Result<()> {
        self.inner().allow_access_to(ptr, peer)
    }

    /// Whether the GPU of another context may use a live block. For memory in segments, which is all or nothing, the answer
    /// is that of the pool: whether all of it is for that GPU.
    ///
    /// # Errors
    /// As for [`allow_access_to`](Self::allow_access_to).
    pub fn is_accessible_from(&self, ptr: DevicePtr, peer: &Context) -> Result<bool> {
        let inner = self.inner();
        let Some(peer) = inner.peer_of(peer)? else { return Ok(true) };
        inner.with_live(ptr, |arena, id| arena.is_shared_with(id, PeerSet::of(peer)))
    }
}

impl PoolInner {
    /// Refuses a stream of a device that does not work together with the pool's.
    pub(crate) fn check_beside(&self, stream: &Stream) -> Result<()> {
        self.check_process()?;
        match self.is_beside(stream.device().peer_id()) {
            true => Ok(()),
            false => Err(Error::WrongDevice { what: "stream", pool: self.name_of() }),
        }
    }

    fn is_beside(&self, peer: Option<PeerId>) -> bool {
        self.device().peer_id().zip(peer).is_some_and(|(own, peer)| own.is_beside(peer))
    }

    /// The name of a context's device, which has to work together with the pool's; `None` for the pool's own.
    fn peer_of(&self, context: &Context) -> Result<Option<PeerId>> {
        self.check_process()?;
        let peer = context.device().peer_id();
        if !self.is_beside(peer) {
            let what = "working together with that device: both have to be GPUs, or both host devices";
            return Err(self.unsupported(what));
        }
        Ok(peer.filter(|_| self.device().peer_id() != peer))
    }

    fn unsupported(&self, what: &'static str) -> Error {
        DeviceError::Unsupported { device: self.device().properties().name.clone(), what }.into()
    }

    /// Likewise of one that has to reach the pool's memory.
    fn reachable_peer(&self, context: &Context) -> Result<Option<PeerId>> {
        match self.peer_of(context)? {
            Some(peer) if !self.device().can_be_reached_from(peer)? => {
                Err(self
                    .unsupported("direct access from that GPU: copies between them go by way of the host"))
            }
            peer => Ok(peer),
        }
    }

    /// Lets these peers use all memory of a new pool; all peers where it is not said which.
    pub(super) fn share_from_the_start(&self, peers: Option<&[Context]>) -> Result<()> {
        let Some(peers) = peers else { return self.share_all(PeerSet::ALL) };
        for peer in peers {
            if let Some(peer) = self.reachable_peer(peer)? {
                self.share_all(PeerSet::of(peer))?;
            }
        }
        Ok(())
    }

    fn share_all(&self, peers: PeerSet) -> Result<()> {
        let mut state = self.state.lock();
        // First: also after an error, the pool is for these peers from now on.
        state.arenas_mut().for_each(|arena| arena.set_peers(arena.peers().with(peers)));
        Ok(state.arenas_mut().try_for_each(|arena| arena.share_all(peers))?)
    }

    pub(crate) fn allow_access_to(&self, ptr: DevicePtr, peer: &Context) -> Result<()> {
        match self.reachable_peer(peer)? {
            Some(peer) if !ptr.is_null() => {
                Ok(self.with_live(ptr, |arena, id| arena.share(id, PeerSet::of(peer)))??)
            }
            _ => Ok(()),
        }
    }

    fn take_back_access(&self, peer: &Context) -> Result<()> {
        let Some(id) = self.peer_of(peer)? else { return Ok(()) };
        if self.state.lock().arena.peers() == PeerSet::ALL {
            let why = format!(
                "pool '{}' is for all peers: build it with accessible_from, for those that need it",
                self.name
            );
            return Err(Error::BadOption { option: "accessible_from_all", why });
        }
        let _no_copies = self.peer_copies.write();
        if !peer.timelines().synchronize_device_unless_capturing()? {
            let what = "a stream of the other GPU is being captured: end the capture first".to_owned();
            return Err(DeviceError::Invalid { call: "Pool::take_back_access", what }.into());
        }
        let peers = PeerSet::of(id);
        let mut state = self.state.lock();
        state.arenas_mut().for_each(|arena| arena.set_peers(arena.peers().without(peers)));
        // SAFETY: the peer has done all its work. Copies of safe code come later than this, and ask for access again; who
        // launches kernels vouches for the memory that they use.
        Ok(state.arenas_mut().try_for_each(|arena| unsafe { arena.take_back_all(peers) })?)
    }

    /// A copy from a live block is about to be given to another device: gives that access, where it reaches the memory. Until
    /// the guard goes, access is not taken back. Returns whether the device has access.
    pub(crate) fn begin_copy_to(
        &self,
        ptr: DevicePtr,
        to: PeerId,
    ) -> Result<(RwLockReadGuard<'_, ()>, bool)> {
        let guard = self.peer_copies.read();
        let peers = PeerSet::of(to);
        let is_own = self.device().peer_id() == Some(to);
        if is_own || self.with_live(ptr, |arena, id| arena.is_shared_with(id, peers))? {
            return Ok((guard, true));
        }
        if !self.device().can_be_reached_from(to)? {
            return Ok((guard, false));
        }
        let shared = self.with_live(ptr, |arena, id| arena.share(id, peers))?;
        if let Err(error) = &shared {
            tracing::debug!(%error, "a copy goes by way of the host: its source got no access for the other device");
        }
        Ok((guard, shared.is_ok()))
    }
}
