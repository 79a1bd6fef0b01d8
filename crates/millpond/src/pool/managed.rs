//! Managed memory of live blocks: where it lies, and how it will be used.
//!
//! The system maps pages (4 KiB on most), and a block may share its first and its last one with neighbours. A prefetch moves
//! these, too: it does not last. Advice lasts, so it is given for the pages that are the block's alone.

use super::inner::PoolInner;
use super::{Context, Pool};
use crate::device::{
    Advice, DeviceError, DevicePtr, DeviceResult, MemoryKind, Place, Residency, StreamHandle,
};
use crate::order::Stream;
use crate::{Error, Result};

impl Pool {
    /// Moves a live block of a pool of [managed memory](Context::managed) in stream order, as [`Buffer::prefetch`] does. Null
    /// does nothing.
    ///
    /// ```
    /// use millpond::{Advice, Context, Place};
    ///
    /// let device = Context::host()?;
    /// let (pool, stream) = (device.managed()?.build()?, device.create_stream()?);
    /// let block = pool.alloc(1 << 20, &stream)?;
    /// pool.prefetch(block, Place::Device, &stream)?;
    /// pool.advise(block, Advice::ReadMostly(true))?;
    /// stream.synchronize()?;
    /// assert_eq!(pool.residency(block)?.last_prefetch, Some(Place::Device));
    /// pool.take_back_advice(block)?; // so that the next owner of the memory does not have it
    /// # unsafe { pool.free(block, &stream) }?;
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Buffer::prefetch`], and for [`size_of`](Self::size_of).
    ///
    /// [`Buffer::prefetch`]: crate::Buffer::prefetch
    pub fn prefetch(&self, ptr: DevicePtr, to: Place, stream: &Stream) -> Result<()> {
        self.inner().prefetch("Pool::prefetch", ptr, to, stream, None)
    }

    /// Says how a live block will be used, as [`Buffer::advise`](crate::Buffer::advise) does. The advice stays with the memory:
    /// before the block is freed, [take it back](Self::take_back_advice).
    ///
    /// # Errors
    /// As for [`prefetch`](Self::prefetch).
    pub fn advise(&self, ptr: DevicePtr, advice: Advice) -> Result<()> {
        self.inner().advise("Pool::advise", ptr, &[advice])
    }

    /// Takes back all advice on a live block.
    ///
    /// # Errors
    /// As for [`prefetch`](Self::prefetch).
    pub fn take_back_advice(&self, ptr: DevicePtr) -> Result<()> {
        self.inner().take_back_advice("Pool::take_back_advice", ptr)
    }

    /// What was said of a live block, as [`Buffer::residency`](crate::Buffer::residency).
    ///
    /// # Errors
    /// As for [`prefetch`](Self::prefetch).
    pub fn residency(&self, ptr: DevicePtr) -> Result<Residency> {
        self.inner().residency("Pool::residency", ptr)
    }
}

impl PoolInner {
    /// Refuses what is for managed memory where the pool has other.
    pub(crate) fn needs_managed(&self, what: &'static str) -> Result<()> {
        if self.device().properties().memory == MemoryKind::Managed {
            return Ok(());
        }
        Err(Error::NotManaged { what, pool: self.name_of() })
    }

    /// The bytes of a live block of managed memory; `None` for null.
    fn managed_bytes(&self, what: &'static str, ptr: DevicePtr) -> Result<Option<u64>> {
        self.needs_managed(what)?;
        if ptr.is_null() {
            return Ok(None);
        }
        self.with_live(ptr, |arena, id| arena.bytes(id)).map(Some)
    }

    /// Moves a block, which belongs to the stream `own` where that is known.
    pub(crate) fn prefetch(
        &self,
        what: &'static str,
        ptr: DevicePtr,
        to: Place,
        stream: &Stream,
        own: Option<&Stream>,
    ) -> Result<()> {
        let Some(bytes) = self.managed_bytes(what, ptr)? else { return Ok(()) };
        self.check_stream(stream)?;
        let handle = usable(what, stream)?;
        // SAFETY: the stream is valid, and in no capture. The block is live, and stays so until the stream has done this: its
        // use is recorded below, before a free.
        unsafe { self.device().prefetch(ptr, bytes, to, handle) }?;
        if own.is_some_and(|own| own.id() == stream.id()) {
            return Ok(());
        }
        // After it: of a thread's default stream, a recorded use covers only what was given before.
        if let Err(error) = self.record_use(ptr, stream) {
            // Nobody knows of it, so that nothing could wait for it.
            stream.synchronize()?;
            return Err(error);
        }
        Ok(())
    }

    pub(crate) fn advise(&self, what: &'static str, ptr: DevicePtr, all: &[Advice]) -> Result<()> {
        let Some(bytes) = self.managed_bytes(what, ptr)? else { return Ok(()) };
        let (at, bytes) = whole_pages(ptr, bytes);
        if bytes == 0 {
            return Ok(());
        }
        // One that fails leaves the others to be given.
        let given = all.iter().map(|advice| self.device().advise(at, bytes, *advice));
        Ok(given.fold(Ok(()), |all, given| all.and(given))?)
    }

    pub(crate) fn take_back_advice(&self, what: &'static str, ptr: DevicePtr) -> Result<()> {
        self.advise(what, ptr, &Advice::TAKEN_BACK)
    }

    pub(crate) fn residency(&self, what: &'static str, ptr: DevicePtr) -> Result<Residency> {
        let Some(bytes) = self.managed_bytes(what, ptr)? else { return Ok(Residency::default()) };
        let (at, of) = match whole_pages(ptr, bytes) {
            (_, 0) => (ptr, bytes),
            pages => pages,
        };
        Ok(self.device().residency(at, of)?)
    }
}

/// The pages of the system that lie in a range, from where on, and their bytes.
fn whole_pages(at: DevicePtr, bytes: u64) -> (DevicePtr, u64) {
    let page = rustix::param::page_size() as u64;
    let start = at.raw().next_multiple_of(page);
    let end = (at.raw() + bytes) / page * page;
    (DevicePtr::new(start), end.saturating_sub(start))
}

/// The handle of a stream that may be given a prefetch.
fn usable(call: &'static str, stream: &Stream) -> DeviceResult<StreamHandle> {
    let handle = stream.handle_here()?;
    // SAFETY: the stream is valid, as `handle_here` says.
    if unsafe { stream.device().capture_of(handle) }?.is_some() {
        let what = "the stream is being captured, and a graph cannot prefetch: prefetch before the capture";
        return Err(DeviceError::Invalid { call, what: what.to_owned() });
    }
    Ok(handle)
}

// ---- plain memory of the host ------------------------------------------------------------------------

impl Context {
    /// Moves plain memory of the host in stream order, where the device reaches it by the system's page tables
    /// ([`Properties::pageable_access`](crate::device::Properties::pageable_access)).
    ///
    /// ```no_run
    /// use millpond::{Context, Place};
    ///
    /// let device = Context::cuda(0)?;
    /// let stream = device.create_stream()?;
    /// let table = vec![1.0_f32; 1 << 20];
    /// if device.device().properties().pageable_access {
    ///     // SAFETY: the table lives until the stream is synchronised.
    ///     unsafe { device.prefetch_slice(&table, Place::Device, &stream) }?;
    ///     stream.synchronize()?;
    /// }
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device does not reach it. [`DeviceError::Invalid`] for a stream of another
    /// context, or one that is being captured. Else the device's own.
    ///
    /// # Safety
    /// The memory stays allocated until the stream has done this.
    pub unsafe fn prefetch_slice<T>(&self, memory: &[T], to: Place, stream: &Stream) -> DeviceResult<()> {
        const CALL: &str = "Context::prefetch_slice";
        self.timelines().check_process()?;
        self.needs_pageable_access()?;
        if !std::sync::Arc::ptr_eq(stream.timelines(), self.timelines()) {
            let what = "the stream is of another context: use one of this context's".to_owned();
            return Err(DeviceError::Invalid { call: CALL, what });
        }
        let handle = usable(CALL, stream)?;
        let (at, bytes) = range_of(memory);
        // SAFETY: the stream is valid, and in no capture. The rest is the caller's promise.
        unsafe { self.device().prefetch(at, bytes, to, handle) }
    }

    /// Says how plain memory of the host will be used, where the device reaches it. The advice stays with the whole pages of
    /// the system in the memory, also when it is freed: take it back before.
    ///
    /// # Errors
    /// As for [`prefetch_slice`](Self::prefetch_slice).
    pub fn advise_slice<T>(&self, memory: &[T], advice: Advice) -> DeviceResult<()> {
        self.timelines().check_process()?;
        self.needs_pageable_access()?;
        let (at, bytes) = range_of(memory);
        let (at, bytes) = whole_pages(at, bytes);
        self.device().advise(at, bytes, advice)
    }

    fn needs_pageable_access(&self) -> DeviceResult<()> {
        let properties = self.device().properties();
        if properties.pageable_access {
            return Ok(());
        }
        let what = "plain host memory in kernels (pageableMemoryAccess): use a pool of Context::managed";
        Err(DeviceError::Unsupported { device: properties.name.clone(), what })
    }
}

fn range_of<T>(memory: &[T]) -> (DevicePtr, u64) {
    (DevicePtr::new(memory.as_ptr().expose_provenance() as u64), size_of_val(memory) as u64)
}
