//! A part of a block, in bytes: what buffers, their views and workspaces give the device to do with it.
//!
//! All of it goes to the block's own stream. Copies on other streams that read the block are noted, so that later writes wait
//! for them. Two parts of one block that do not overlap may be used by two threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Pod;

use crate::core::{Core, allocating, freeing};
use crate::device::{DeviceError, DevicePtr, Kind, MemoryKind, StreamHandle};
use crate::error::{Error, Result};
use crate::log::Quiet;
use crate::order::{Event, Stream, Tick};
use crate::peers;
use crate::policy::options::FILL;
use crate::pool::PoolParts;
use crate::system::host_memory::name_for_error;
use crate::system::lock::Mutex;

/// What the device does with a block, as far as that is known.
#[derive(Debug)]
pub(super) struct DeviceAccess {
    /// Whether copies on other streams read it, that its own may not have waited for.
    read_elsewhere: Mutex<bool>,
    /// The tick of its stream by which all writes to it come before; [`UNKNOWN`](Self::UNKNOWN) where others may write to it.
    written: AtomicU64,
}

impl DeviceAccess {
    const UNKNOWN: Tick = Tick::MAX;

    /// Of a new block, whose memory others used before it came to the stream.
    #[inline]
    pub(super) fn none_yet(stream: &Stream) -> Self {
        Self { read_elsewhere: Mutex::new(false), written: AtomicU64::new(stream.timeline().now()) }
    }

    /// Of a block of which nothing is known.
    pub(super) fn unknown() -> Self {
        Self { read_elsewhere: Mutex::new(true), written: AtomicU64::new(Self::UNKNOWN) }
    }

    /// Its address is given out: whoever has it may write there at any time.
    #[inline]
    pub(super) fn give_out(&self) {
        // Relaxed, all of `written`: who writes has the block for itself, and hands it on in an order of its own. Who was given the
        // address comes after this.
        self.written.store(Self::UNKNOWN, Ordering::Relaxed);
    }

    /// All that the stream was given so far comes before what reads the block.
    #[inline]
    pub(super) fn note_written(&self, stream: &Stream) {
        // After the work was given: see `Timeline::now`. What is unknown stays so, being the highest.
        self.written.fetch_max(stream.timeline().now(), Ordering::Relaxed);
    }

    /// The block is of this stream from now on, which waits for the one before.
    pub(super) fn move_to(&mut self, stream: &Stream) {
        let written = self.written.get_mut();
        if *written != Self::UNKNOWN {
            *written = stream.timeline().now();
        }
    }

    fn written(&self) -> Option<Tick> {
        Some(self.written.load(Ordering::Relaxed)).filter(|tick| *tick != Self::UNKNOWN)
    }
}

/// Notes, when it is dropped, that a block was written.
struct Writing<'a>(BlockBytes<'a>);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.access.note_written(self.0.stream);
    }
}

/// See the [module](self). The block is live as long as this.
#[derive(Clone, Copy)]
pub(crate) struct BlockBytes<'a> {
    pub(super) pool: &'a Arc<PoolParts>,
    pub(super) stream: &'a Stream,
    pub(super) access: &'a DeviceAccess,
    /// Where the block begins; null for one of no bytes.
    pub(super) block: DevicePtr,
    pub(super) ptr: DevicePtr,
    pub(super) bytes: u64,
    /// Whether safe code has other handles of these bytes, by which the device may write to them.
    pub(super) is_shared: bool,
}

impl<'a> BlockBytes<'a> {
    /// So many bytes of it, from there on. They lie in it.
    pub(super) fn cut(self, from: u64, bytes: u64) -> Self {
        // A block of no bytes is null, and so are its parts.
        let ptr = if self.block.is_null() { self.block } else { self.ptr.offset(from) };
        Self { ptr, bytes, ..self }
    }

    fn overlaps(self, other: BlockBytes<'_>) -> bool {
        let end = |part: BlockBytes<'_>| part.ptr.raw() + part.bytes;
        self.ptr.raw() < end(other) && other.ptr.raw() < end(self)
    }

    // ---- order -----------------------------------------------------------------------------------

    /// Before a write is given to the stream: orders it after the copies that read the block on other streams, and after a restore.
    /// Returns the stream's handle, and what keeps the pool awake meanwhile. That is kept until the stream was given the write.
    pub(crate) fn begin_write(self) -> Result<(StreamHandle, impl Sized + use<'a>)> {
        self.pool.check_process()?;
        let handle = self.stream.handle_here()?;
        self.order_after_reads(Some(self.stream))?;
        let awake = self.pool.stay_awake_for(self.stream)?;
        Ok((handle, (Writing(self), awake)))
    }

    /// Orders what comes next after the copies that read the block on other streams: on this stream, or on the host.
    fn order_after_reads(self, next: Option<&Stream>) -> Result<()> {
        // Held until the stream waits: else another part's write could pass before that.
        let mut read_elsewhere = self.access.read_elsewhere.lock();
        if *read_elsewhere && !self.block.is_null() {
            freeing::order_after_uses(self.pool, self.block, next)?;
            *read_elsewhere = false;
        }
        Ok(())
    }

    /// Notes that a copy on another stream reads it.
    pub(crate) fn note_read_on(self, stream: &Stream) -> Result<()> {
        self.pool.check_process()?;
        // Held while the use is noted: a write of another part that clears the flag has then waited for this use.
        let mut read_elsewhere = self.access.read_elsewhere.lock();
        // After the copy: of a thread's default stream, a recorded use covers only what was given before.
        let noted = peers::record_use(self.pool, self.block, stream);
        *read_elsewhere |= noted.is_ok();
        drop(read_elsewhere);
        if noted.is_err() {
            // Nobody knows of the copy, so that nothing could wait for it.
            stream.synchronize()?;
        }
        noted
    }

    // ---- the device's work -----------------------------------------------------------------------

    pub(super) fn set_zero(self) -> Result<()> {
        self.set_bytes(0)
    }

    fn set_bytes(self, value: u8) -> Result<()> {
        if self.bytes > 0 {
            let (handle, _awake) = self.begin_write()?;
            // SAFETY: the block is live, and valid on its stream until it is freed there.
            unsafe { self.stream.device().memset(self.ptr, value, self.bytes, handle) }?;
        }
        Ok(())
    }

    /// Sets each element to this value. The first ones come from the host, and the others from them.
    pub(super) fn fill<T: Pod>(self, value: T) -> Result<()> {
        let pattern = bytemuck::bytes_of(&value);
        let Some(first) = pattern.first() else { return Ok(()) };
        if pattern.iter().all(|byte| byte == first) {
            return self.set_bytes(*first);
        }
        let (each, all) = (pattern.len() as u64, self.bytes / pattern.len() as u64);
        let some = all.min((FILL / each).max(1));
        let mut elements = Vec::new();
        if elements.try_reserve_exact(some as usize).is_err() {
            return Err(self.pool.no_host_memory("the elements to fill a buffer with", some * each));
        }
        elements.resize(some as usize, value);
        self.cut(0, some * each).copy_from_host(&elements)?;
        let mut done = some;
        while done < all {
            let more = done.min(all - done);
            self.cut(done * each, more * each).copy_from(self.cut(0, more * each))?;
            done += more;
        }
        Ok(())
    }

    /// From a slice of as many bytes, which has been read on return.
    pub(super) fn copy_from_host<T: Pod>(self, from: &[T]) -> Result<()> {
        debug_assert_eq!(size_of_val(from) as u64, self.bytes);
        if self.bytes > 0 {
            let (handle, _awake) = self.begin_write()?;
            let device = self.stream.device();
            // SAFETY: the slice is readable for its length, which is the part's, and has been read when the call returns; the
            // block as in `set_bytes`.
            unsafe { device.copy_from_host(self.ptr, from.as_ptr().cast(), self.bytes, handle) }?;
        }
        Ok(())
    }

    /// To a slice of as many bytes. Waits for the stream.
    pub(super) fn copy_to_host<T: Pod>(self, to: &mut [T]) -> Result<()> {
        debug_assert_eq!(size_of_val(to) as u64, self.bytes);
        if self.bytes > 0 {
            self.pool.check_process()?;
            let handle = self.stream.handle_here()?;
            // A subscriber may panic, and gets to work once the slice is the caller's again.
            let _quiet = Quiet::begin();
            let awake = self.pool.stay_awake_for(self.stream)?;
            self.check_bytes()?;
            // SAFETY: the slice is writable for its length, and borrowed until the stream is synchronised below; any bytes are
            // a valid `T`. The block as in `set_bytes`.
            let copied = unsafe {
                let device = self.stream.device();
                device.copy_to_host(to.as_mut_ptr().cast(), self.ptr, self.bytes, handle)
            };
            // A sleep waits for the copy.
            drop(awake);
            // Also after an error: part of the copy may be under way. After an error here it is not, as a device promises.
            self.stream.synchronize().and(copied.map_err(Error::from))?;
        }
        Ok(())
    }

    /// Refuses to read what a simulated device does not hold: a program would take the host's memory, as it was, for what it
    /// copied.
    fn check_bytes(self) -> Result<()> {
        let of = self.pool.device.properties();
        if of.kind != Kind::Sim {
            return Ok(());
        }
        let what =
            "reading elements, since it holds no bytes: use Context::host() where a test looks at them";
        Err(DeviceError::Unsupported { device: name_for_error(&of.name), what }.into())
    }

    /// From a part of as many bytes, which may be of another stream, or of another GPU.
    pub(super) fn copy_from(self, from: BlockBytes<'_>) -> Result<()> {
        debug_assert_eq!(from.bytes, self.bytes);
        if self.bytes == 0 {
            return Ok(());
        }
        from.pool.check_process()?;
        let is_elsewhere = from.pool.check_stream(self.stream).is_err();
        // Each device numbers its streams by itself.
        if from.is_shared && (is_elsewhere || from.stream.id() != self.stream.id()) {
            return self.copy_behind_its_stream(from);
        }
        if is_elsewhere {
            return self.copy_from_device(from);
        }
        if self.overlaps(from) {
            return self.copy_by_another_block(from);
        }
        let (handle, _awake) = self.begin_write()?;
        let _from_awake = from.pool.stay_awake_for(self.stream)?;
        let elsewhere = from.stream.id() != self.stream.id();
        if elsewhere {
            self.stream.wait_for(from.stream)?;
        }
        // SAFETY: they do not overlap. Both are valid on this stream, which waits for the other's writes. Its use is recorded
        // before a free, and before a later write of safe code: nobody else has handles of it, unless it is of this stream.
        unsafe {
            self.stream.device().copy(self.ptr, from.ptr, self.bytes, handle)?;
        }
        if elsewhere { from.note_read_on(self.stream) } else { Ok(()) }
    }

    /// From a part of another stream that other handles write to, on other threads as well. It is copied on its own stream first:
    /// nothing comes between there.
    fn copy_behind_its_stream(self, from: BlockBytes<'_>) -> Result<()> {
        let between = allocating::alloc(from.pool, from.bytes, from.stream)?;
        let access = DeviceAccess::none_yet(from.stream);
        let part = BlockBytes { access: &access, block: between, ptr: between, is_shared: false, ..from };
        let copied = part.copy_from(from).and_then(|()| self.copy_from(part));
        // SAFETY: nobody else has it. Its stream knows of what was given there, and of uses elsewhere, or they are complete.
        unsafe { freeing::free(from.pool, between, from.stream) }?;
        copied
    }

    /// From a part of the same block that overlaps it. A device copies between ranges that do not.
    fn copy_by_another_block(self, from: BlockBytes<'_>) -> Result<()> {
        let between = allocating::alloc(self.pool, self.bytes, self.stream)?;
        let device = self.stream.device();
        let copied = self.begin_write().and_then(|(handle, _awake)| {
            // SAFETY: all three are valid on this stream, and the block between overlaps neither.
            unsafe {
                device.copy(between, from.ptr, self.bytes, handle)?;
                Ok(device.copy(self.ptr, between, self.bytes, handle)?)
            }
        });
        // SAFETY: nobody else has it, and its work was given to this stream.
        unsafe { freeing::free(self.pool, between, self.stream) }?;
        copied
    }

    /// As [`copy_from`](Self::copy_from), from a part of another device's memory.
    fn copy_from_device(self, from: BlockBytes<'_>) -> Result<()> {
        peers::check_beside(from.pool, self.stream)?;
        let Some((source, own)) = from.pool.device.peer_id().zip(self.pool.device.peer_id()) else {
            return Err(Error::WrongDevice { what: "buffer", pool: from.pool.name_of() });
        };
        for stream in [self.stream, from.stream] {
            stream.check_not_captured("Buffer::copy_from", "copy between GPUs")?;
        }
        let (handle, _awake) = self.begin_write()?;
        let _from_awake = from.pool.stay_awake_for(from.stream)?;
        self.stream.wait_for(from.stream)?;
        let (copying, has_access) = from.pool.peer_copies.begin(from.pool, from.block, own)?;
        let is_on_host = |pool: &Core| pool.device.properties().memory != MemoryKind::Device;
        if !has_access && (is_on_host(from.pool) || is_on_host(self.pool)) {
            let device = self.pool.device.properties().name.clone();
            let what =
                "a copy between another GPU's memory and the host: use pinned memory of that GPU's context";
            return Err(DeviceError::Unsupported { device, what }.into());
        }
        // SAFETY: both blocks are live, on devices that do not overlap. The stream waits for the source's writes. Its use is
        // recorded before a free, and before a later write of safe code. Access is not taken back while `copying` lives,
        // and later not before the device has done this.
        unsafe { self.stream.device().copy_from_peer(self.ptr, from.ptr, self.bytes, source, handle) }?;
        drop(copying);
        from.note_read_on(self.stream)
    }

    // ---- the host's ------------------------------------------------------------------------------

    /// The elements, in place, for the CPU to read. Waits for the stream.
    ///
    /// # Safety
    /// The part is borrowed as long as the slice: until then, nobody has the device write to it, but by the stream's earlier work.
    pub(super) unsafe fn as_slice<T: Pod>(self, len: usize) -> Result<&'a [T]> {
        self.wait_for_host_access::<T>()?;
        // Nobody writes to the part while the slice lives:
        // - The buffer is borrowed. Safe code has the device write to it through `&mut self` only, on the buffer's stream or on one
        //   that the buffer's then waits for. All that the buffer's stream was given is complete.
        // - Who is given the slice uses it no longer than it is borrowed, as safe functions of Rust do. cudarc's `memcpy_htod` and
        //   `memcpy_dtoh` break that for all page-locked memory, its own `PinnedHostSlice::as_slice` and that of
        //   `cuMemHostRegister` included. No type keeps a slice from them. The documentation warns, and has the ordered calls.
        // - Earlier blocks of the same memory are ordered before work on this stream, and so are complete as well.
        // - The block is not freed, and a live block is not remapped.
        // - A copy in a graph runs when somebody launches the graph. That is no safe call of this crate: who makes it vouches
        //   for the graph's memory, as for kernels, and as who forks vouches for what both processes do with it.
        // SAFETY: the range is as long, and aligned, and of the buffer's live block, which the CPU can read. Any bytes are a valid
        // `T`, and nobody writes to them, as said above.
        Ok(unsafe { std::slice::from_raw_parts(self.host_ptr(), len) })
    }

    /// As [`as_slice`](Self::as_slice). Waits for the event only, where it is known that all writes come before.
    ///
    /// # Safety
    /// As for [`as_slice`](Self::as_slice).
    pub(super) unsafe fn as_slice_after<T: Pod>(self, len: usize, event: &Event) -> Result<&'a [T]> {
        let is_before = |tick| self.stream.was_at(tick, event);
        if self.bytes > 0 && self.access.written().is_some_and(is_before) {
            self.check_host_access::<T>()?;
            event.synchronize()?;
            // SAFETY: as in `as_slice`. All that safe code had the device write comes before the event, by `DeviceAccess`. Nobody
            // was given the address, for kernels that write later.
            return Ok(unsafe { std::slice::from_raw_parts(self.host_ptr(), len) });
        }
        // SAFETY: the caller's promise.
        unsafe { self.as_slice(len) }
    }

    /// The elements, in place, for the CPU to write. Waits for the stream, and for recorded uses of the block.
    ///
    /// # Safety
    /// The part is borrowed for writing as long as the slice.
    pub(super) unsafe fn as_mut_slice<T: Pod>(self, len: usize) -> Result<&'a mut [T]> {
        self.wait_for_host_access::<T>()?;
        if !self.block.is_null() {
            // Also without a noted copy: the program may have recorded uses.
            let mut read_elsewhere = self.access.read_elsewhere.lock();
            freeing::order_after_uses(self.pool, self.block, None)?;
            *read_elsewhere = false;
        }
        // SAFETY: as in `as_slice`. Nobody reads it either: other streams read it by copies of safe code, whose use is
        // recorded, and all recorded uses are complete. It is borrowed for writing, so that no copy can follow.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.host_ptr(), len) })
    }

    /// Waits for the stream, where the CPU can use the memory.
    fn wait_for_host_access<T>(self) -> Result<()> {
        self.check_host_access::<T>()?;
        if self.bytes == 0 {
            return Ok(());
        }
        // To wait would end a capture.
        self.stream.check_not_captured("Buffer::as_slice", "wait for the host")?;
        self.stream.synchronize()
    }

    fn check_host_access<T>(self) -> Result<()> {
        self.pool.check_process()?;
        let properties = self.pool.device.properties();
        if !properties.host_access || self.is_shared {
            return Err(Error::NoHostAccess { pool: self.pool.name_of() });
        }
        let align = align_of::<T>() as u64;
        if !self.ptr.raw().is_multiple_of(align) {
            return Err(Error::BadAlignment { align, largest: self.pool.caches.sizes().bytes(1) });
        }
        Ok(())
    }

    /// Where the CPU finds the elements.
    fn host_ptr<T>(self) -> *mut T {
        if self.ptr.is_null() {
            return std::ptr::dangling_mut();
        }
        // The addresses of memory that the CPU can use are the process's own.
        std::ptr::with_exposed_provenance_mut(self.ptr.raw() as usize)
    }
}
