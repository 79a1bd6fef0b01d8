//! Managed memory of live blocks: where it lies, and how it will be used.
//!
//! The system maps pages (4 KiB on most), and a block may share its first and its last one with neighbours. A prefetch moves
//! these, too: it does not last. Advice lasts, so it is given for the pages that are the block's alone.

use crate::core::{Core, freeing};
use crate::device::{Advice, DevicePtr, MemoryKind, Place, Residency};
use crate::error::{Error, Result};
use crate::order::Stream;

/// The bytes of a live block of managed memory; `None` for null.
fn managed_bytes(core: &Core, what: &'static str, ptr: DevicePtr) -> Result<Option<u64>> {
    if core.device.properties().memory != MemoryKind::Managed {
        return Err(Error::NotManaged { what, pool: core.name_of() });
    }
    if ptr.is_null() {
        return Ok(None);
    }
    let before = ptr.raw() - core.start_of(ptr).raw();
    core.with_live(ptr, |arena, id| arena.bytes(id) - before).map(Some)
}

/// Moves a block. `is_own` says that it belongs to the stream, which needs no recorded use.
pub(crate) fn prefetch(
    core: &Core,
    what: &'static str,
    ptr: DevicePtr,
    to: Place,
    (stream, is_own): (&Stream, bool),
) -> Result<()> {
    let Some(bytes) = managed_bytes(core, what, ptr)? else { return Ok(()) };
    core.check_stream(stream)?;
    stream.check_not_captured(what, "prefetch")?;
    let handle = stream.handle_here()?;
    // SAFETY: the stream is valid, and in no capture. The block is live, and stays so until the stream has done this: its
    // use is recorded below, before a free.
    unsafe { core.device.prefetch(ptr, bytes, to, handle) }?;
    if is_own {
        return Ok(());
    }
    // After it: of a thread's default stream, a recorded use covers only what was given before.
    if let Err(error) = freeing::record_use(core, ptr, stream) {
        // Nobody knows of it, so that nothing could wait for it.
        stream.synchronize()?;
        return Err(error);
    }
    Ok(())
}

pub(crate) fn advise(core: &Core, what: &'static str, ptr: DevicePtr, all: &[Advice]) -> Result<()> {
    let Some(bytes) = managed_bytes(core, what, ptr)? else { return Ok(()) };
    let (at, bytes) = whole_pages(ptr, bytes);
    if bytes == 0 {
        return Ok(());
    }
    let mut given = Ok(());
    for advice in all {
        // One that fails leaves the others to be given.
        given = given.and(core.device.advise(at, bytes, *advice));
    }
    Ok(given?)
}

pub(crate) fn residency(core: &Core, what: &'static str, ptr: DevicePtr) -> Result<Residency> {
    let Some(bytes) = managed_bytes(core, what, ptr)? else { return Ok(Residency::default()) };
    let (at, of) = match whole_pages(ptr, bytes) {
        (_, 0) => (ptr, bytes),
        pages => pages,
    };
    Ok(core.device.residency(at, of)?)
}

/// The pages of the system that lie in a range, from where on, and their bytes.
pub(crate) fn whole_pages(at: DevicePtr, bytes: u64) -> (DevicePtr, u64) {
    let page = rustix::param::page_size() as u64;
    let start = at.raw().next_multiple_of(page);
    let end = (at.raw() + bytes) / page * page;
    (DevicePtr::new(start), end.saturating_sub(start))
}

/// Where plain memory of the host lies, and its bytes.
pub(crate) fn range_of<T>(memory: &[T]) -> (DevicePtr, u64) {
    (DevicePtr::new(memory.as_ptr().expose_provenance() as u64), size_of_val(memory) as u64)
}
