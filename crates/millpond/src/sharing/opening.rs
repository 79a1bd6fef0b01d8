//! What another process lent, opened in this one.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::FileType;

use super::event::SharedEvent;
use super::imported::ImportedMemory;
use super::lease::{Borrowed, is_of};
use super::socket::Received;
use super::token::{Flag, SharedToken};
use crate::core::{
    HasCore,
    allocating::hand_out,
    giving_back::{trim, unlock_logging},
    making_room::shortage_of,
};
use crate::device::{Device, DevicePtr, EventExport, PageExport};
use crate::error::{Error, Result};
use crate::extents::MOST_UNITS;
use crate::order::{OwnedEvent, Stream, Timelines};
use crate::system::open_file::{OpenFile, keep_open};

/// Whether this device can map what the token says.
fn check_token(device: &dyn Device, token: &SharedToken) -> Result<()> {
    let bad = |why| Err(Error::BadToken { why });
    if !device.reaches(token.device())? {
        let here = device.identity()?;
        return bad(format!(
            "it is memory of device {}, which device {here} cannot reach: open it with a context of that one",
            token.device()
        ));
    }
    let granularity = device.properties().granularity;
    if let Some(page) =
        token.pages.iter().map(|[_, page]| page).find(|page| !page.is_multiple_of(granularity))
    {
        return bad(format!("its pages of {page} bytes are no multiple of {granularity} bytes"));
    }
    Ok(())
}

/// Keeps the last descriptor's file, without the descriptor, where there is one of a budget.
fn keep_budget(token: &SharedToken, descriptors: &mut Vec<OwnedFd>) -> Result<Option<OpenFile>> {
    let Some(file) = token.has(Flag::Budget).then(|| descriptors.pop()).flatten() else { return Ok(None) };
    let kept = is_of(&file, FileType::RegularFile).then(|| keep_open(&file).ok()).flatten();
    let why = "its last descriptor is no budget's: pass them in the order of Shared::descriptors";
    kept.map(Some).ok_or_else(|| Error::BadToken { why: why.to_owned() })
}

/// A context's memory of other processes: one pool, and the device that it takes as its segments. Each block is a segment, and is
/// unmapped once it was freed and the work on it is complete. The pool allocates nothing else: it is destroyed from the start.
#[derive(Debug)]
pub(crate) struct OfOthers<P> {
    pub(crate) memory: Arc<ImportedMemory>,
    pub(crate) pool: Arc<P>,
}

impl<P: HasCore> OfOthers<P> {
    /// Opens a block of another process, for work on a stream of the same context.
    pub(crate) fn open(&self, received: Received, stream: &Stream) -> Result<(DevicePtr, SharedEvent)> {
        let core = self.pool.core();
        let device = core.timelines.device();
        let Received { token, mut descriptors } = received;
        check_token(device.as_ref(), &token)?;
        let counted = keep_budget(&token, &mut descriptors)?;
        let (event, lease, pages) = open_descriptors(&core.timelines, &token, descriptors)?;
        // What is free, but was in use when it was freed.
        trim(core, 0)?;
        let bytes = token.byte_len();
        let room = bytes.next_multiple_of(device.properties().granularity);
        let (at, import) = self.memory.map(pages, (token.header.offset, room), (lease, counted))?;
        event.wait(stream)?;
        let units = core.caches.sizes().units(bytes);
        if units >= MOST_UNITS {
            return Err(Error::SizeOverflow { bytes, count: 1 });
        }
        let mut state = core.state.lock();
        let enter = || {
            self.memory.open.add(at, import);
            Ok(at)
        };
        let ptr = match state.arenas.own.alloc_as_segment(units, enter) {
            Ok(found) => hand_out(core, &mut state, &found, bytes),
            Err(refusal) => {
                unlock_logging(core, state);
                let no_memory = |_| core.no_host_memory("memory of another process", 0);
                return Err(shortage_of(core, refusal).map_or_else(|error| error, no_memory));
            }
        };
        drop(state);
        core.recording.alloc(ptr, bytes, stream);
        Ok((ptr, event))
    }
}

/// The event, the lease, and the pages with their lengths.
type Opened = (SharedEvent, Arc<Borrowed>, Vec<(PageExport, u64)>);

fn open_descriptors(
    timelines: &Arc<Timelines>,
    token: &SharedToken,
    descriptors: Vec<OwnedFd>,
) -> Result<Opened> {
    let missing = || Error::BadToken { why: "descriptors are missing".to_owned() };
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(missing);
    let lease = Arc::new(Borrowed::begin(next()?, &next()?)?);
    let descriptor = if token.has(Flag::Event) { Some(next()?) } else { None };
    if lease.owner_is_gone() {
        return Err(Error::OwnerGone);
    }
    let handle = timelines.device().open_event(EventExport { data: token.header.event, descriptor })?;
    // SAFETY: it was opened above.
    let event = Arc::new(unsafe { OwnedEvent::new(timelines.device(), handle) });
    let event = SharedEvent { event, timelines: timelines.clone(), lease: Some(lease.clone()) };
    let pages = descriptors.zip(&token.pages);
    let pages = pages.map(|(descriptor, &[position, bytes])| (PageExport { descriptor, position }, bytes));
    Ok((event, lease, pages.collect()))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::device::DeviceError;
    use crate::device::sim::{Call, SimDevice, SimOptions};
    use crate::fixtures::{Bench, Freeing, MIB, nobody_begins};
    use crate::pool::{Context, Pool};
    use crate::sharing::Shared;
    use crate::typed::Buffer;

    fn pass(shared: &Shared) -> Received {
        let descriptors =
            shared.descriptors().iter().map(|file| file.try_clone_to_owned().unwrap()).collect();
        Received::new(shared.token().clone(), descriptors).unwrap()
    }

    #[test]
    fn imports_are_segments_of_their_own() {
        let Bench { context, pool, stream, sim } = Bench::new(|pool| pool);
        let buffers: Vec<_> = [300, 5000, 3 << 20, 40 << 20]
            .map(|bytes| Buffer::<u8>::new(&pool, bytes, &stream).unwrap())
            .into_iter()
            .collect();
        let open =
            |buffer: &Buffer<u8>| context.open_shared::<u8>(pass(&buffer.share().unwrap()), &stream).unwrap();
        let taken = sim.calls()[Call::CreatePage];
        let mut opened: Vec<_> = buffers.iter().chain(&buffers).map(open).collect();
        assert_eq!(sim.calls()[Call::CreatePage], taken);
        let imports = context.of_others().unwrap().pool.clone();
        imports.check().unwrap();
        assert_eq!(imports.counted().blocks.current, 8);
        // Some go, and others come: nobody gets what another one had.
        opened.truncate(3);
        context.synchronize().unwrap();
        imports.check().unwrap();
        assert_eq!(imports.counted().blocks.current, 3);
        opened.extend(buffers.iter().map(open));
        imports.check().unwrap();
        let mut starts: Vec<_> = opened.iter().map(|opened| opened.buffer.ptr()).collect();
        starts.sort();
        starts.dedup();
        assert_eq!(starts.len(), 7);
        drop(opened);
        context.synchronize().unwrap();
        assert!(imports.holds_nothing());
        imports.check().unwrap();
    }

    #[test]
    fn an_import_is_unmapped_when_its_stream_is_done() {
        let Bench { context, pool, stream, sim } = Bench::new(|pool| pool);
        let buffer = Buffer::<u8>::new(&pool, 3 << 20, &stream).unwrap();
        let opened = context.open_shared::<u8>(pass(&buffer.share().unwrap()), &stream).unwrap();
        let imports = context.of_others().unwrap().pool.clone();
        stream.synchronize().unwrap();
        let unmapped = sim.calls()[Call::Unmap];
        sim.launch(stream.handle(), Duration::from_millis(5)).unwrap();
        drop(opened);
        assert!(!imports.holds_nothing());
        assert_eq!(sim.calls()[Call::Unmap], unmapped);
        stream.synchronize().unwrap();
        assert!(imports.holds_nothing());
        // One that is idle is unmapped at once.
        let opened = context.open_shared::<u8>(pass(&buffer.share().unwrap()), &stream).unwrap();
        stream.synchronize().unwrap();
        drop(opened);
        assert!(imports.holds_nothing());
    }

    #[test]
    fn an_import_that_fails_half_way_leaves_nothing() {
        let Bench { context, pool, stream, sim } = Bench::new(|pool| pool);
        let buffer = Buffer::<u8>::new(&pool, 40 << 20, &stream).unwrap();
        let mapped = || sim.calls()[Call::Map] - sim.calls()[Call::Unmap];
        let of_pool = mapped();
        let open = || context.open_shared::<u8>(pass(&buffer.share().unwrap()), &stream);
        let what = "a test asked for it".to_owned();
        sim.fail_next(Call::SetAccess, 2, DeviceError::Invalid { call: "test", what });
        open().unwrap_err();
        assert_eq!(mapped(), of_pool);
        open().unwrap();
    }

    #[test]
    fn a_shared_block_goes_back_with_its_context() {
        let Bench { context, pool, stream, sim } = Bench::new(|pool| pool);
        let buffer = Buffer::<u8>::new(&pool, 5 << 20, &stream).unwrap();
        let opened = context.open_shared::<u8>(pass(&buffer.share().unwrap()), &stream).unwrap();
        // The block is kept as long as the import is there, which is longer than the pool.
        drop((buffer, pool));
        sim.launch(stream.handle(), Duration::from_millis(5)).unwrap();
        drop((opened, stream, context));
        let calls = sim.calls();
        assert_eq!(calls[Call::Map], calls[Call::Unmap]);
        assert_eq!(2 * calls[Call::CreatePage], calls[Call::ReleasePage], "an import has handles of its own");
        assert_eq!(calls[Call::Reserve], calls[Call::Unreserve]);
    }

    #[test]
    fn a_block_that_was_freed_meanwhile_is_not_shared() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let block = pool.alloc(4096, &stream).unwrap();
        pool.free_block(block, &stream).unwrap();
        // It lies in a magazine.
        assert!(matches!(pool.share(block, &stream), Err(Error::DoubleFree { .. })));
        assert!(!pool.inner().holds.has(block));
        assert_eq!(pool.alloc(4096, &stream).unwrap(), block);
    }

    #[test]
    fn what_others_use_is_neither_moved_nor_given_back() {
        let _still = nobody_begins();
        let sim = SimDevice::new(SimOptions::default().capacity(256 * MIB)).unwrap();
        let context = Context::new(sim.clone());
        let (pool, stream) = (Pool::builder(&context).build().unwrap(), context.create_stream().unwrap());
        let buffer = Buffer::<u8>::new(&pool, 100 << 20, &stream).unwrap();
        let opened = context.open_shared::<u8>(pass(&buffer.share().unwrap()), &stream).unwrap();
        drop(buffer);
        // What is free is remapped for this one, and that block is not.
        let blocks: Vec<_> = (0..10).map(|_| pool.alloc(10 * MIB, &stream).unwrap()).collect();
        blocks.iter().step_by(2).for_each(|block| pool.free_block(*block, &stream).unwrap());
        let long = pool.alloc(90 * MIB, &stream).unwrap();
        assert_eq!(pool.reserved().current, pool.reserved().high);
        assert!(pool.alloc(60 * MIB, &stream).is_err());
        drop(opened);
        stream.synchronize().unwrap();
        _ = pool.alloc(60 * MIB, &stream).unwrap();
        pool.free_block(long, &stream).unwrap();
        pool.check().unwrap();
    }
}
