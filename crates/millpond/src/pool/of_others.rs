//! A context's memory of other processes.
//!
//! A context has one pool of what other processes shared with it. Each block of that pool is a segment
//! ([`ImportedMemory`]), and is unmapped once it was freed and the work on it is complete. The pool allocates nothing else:
//! it is destroyed from the start.

use std::sync::Arc;

use super::{Context, PoolBuilder};
use crate::core::{Core, giving_back::trim};
use crate::device::DevicePtr;
use crate::order::Stream;
use crate::sharing::{
    Import, ImportedMemory, OfOthers, Received, SharedEvent, SharedToken, alloc_import, check_token,
    keep_budget, open_descriptors,
};
use crate::{Error, Result};

const SHARED: &str = "shared";

/// Made when the first is opened. The pool's only handle goes here, so that it is destroyed.
fn new_pool(context: &Context) -> Result<OfOthers> {
    let memory = Arc::new(ImportedMemory::new(context.device().clone()));
    let pool = PoolBuilder::of_others(context, memory.clone(), SHARED).build()?;
    Ok(OfOthers { memory, pool: pool.inner().clone() })
}

/// A block of another process, open in this one.
#[derive(Debug)]
pub(crate) struct OpenedBlock {
    pub(crate) pool: Arc<Core>,
    pub(crate) ptr: DevicePtr,
    pub(crate) bytes: u64,
    pub(crate) event: SharedEvent,
}

/// Opens what another process shared, for work on `stream`, if `accept` takes its token.
pub(crate) fn open_block(
    context: &Context,
    received: Received,
    stream: &Stream,
    accept: impl FnOnce(&SharedToken) -> Result<()>,
) -> Result<OpenedBlock> {
    let timelines = context.timelines();
    timelines.check_process()?;
    if !Arc::ptr_eq(stream.timelines(), timelines) {
        return Err(Error::WrongDevice { what: "stream", pool: SHARED.to_owned() });
    }
    let (token, mut descriptors) = received.into_parts();
    accept(&token)?;
    check_token(context.device().as_ref(), &token)?;
    let counted = keep_budget(&token, &mut descriptors)?;
    let (event, lease, pages) = open_descriptors(timelines, &token, descriptors)?;
    let mut of_others = context.of_others().lock();
    let known = match &mut *of_others {
        Some(known) => known,
        none => none.insert(new_pool(context)?),
    };
    let pool = &known.pool;
    // What is free, but was in use when it was freed.
    trim(pool, 0)?;
    let granularity = context.device().properties().granularity;
    let room = token.byte_len().next_multiple_of(granularity);
    let import = Import::open(&known.memory, pages, (token.header.offset, room), (lease, counted))?;
    event.wait(stream)?;
    let ptr = alloc_import(known, import, token.byte_len(), stream)?;
    Ok(OpenedBlock { pool: pool.clone(), ptr, bytes: token.byte_len(), event })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Received;
    use crate::core::{Registered, recounting::check};
    use crate::device::DeviceError;
    use crate::device::sim::{Call, SimDevice, SimOptions};
    use crate::fixtures::{Bench, Freeing, MIB, nobody_begins};
    use crate::sharing::{Shared, is_shared};
    use crate::{Buffer, Pool};

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
        let imports = context.of_others().lock().as_ref().unwrap().pool.clone();
        check(&imports).unwrap();
        assert_eq!(imports.counted().blocks.current, 8);
        // Some go, and others come: nobody gets what another one had.
        opened.truncate(3);
        context.synchronize().unwrap();
        check(&imports).unwrap();
        assert_eq!(imports.counted().blocks.current, 3);
        opened.extend(buffers.iter().map(open));
        check(&imports).unwrap();
        let mut starts: Vec<_> = opened.iter().map(|opened| opened.buffer.ptr()).collect();
        starts.sort();
        starts.dedup();
        assert_eq!(starts.len(), 7);
        drop(opened);
        context.synchronize().unwrap();
        assert!(imports.holds_nothing());
        check(&imports).unwrap();
    }

    #[test]
    fn an_import_is_unmapped_when_its_stream_is_done() {
        let Bench { context, pool, stream, sim } = Bench::new(|pool| pool);
        let buffer = Buffer::<u8>::new(&pool, 3 << 20, &stream).unwrap();
        let opened = context.open_shared::<u8>(pass(&buffer.share().unwrap()), &stream).unwrap();
        let imports = context.of_others().lock().as_ref().unwrap().pool.clone();
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
    fn pages_that_could_not_be_unmapped_are_unmapped_later() {
        let failed = || DeviceError::Driver {
            call: "test",
            code: 999,
            name: "ASKED".to_owned(),
            text: "asked for".to_owned(),
        };
        for opens_another in [false, true] {
            let Bench { context, pool, stream, sim } = Bench::new(|pool| pool);
            let buffer = Buffer::<u8>::new(&pool, 40 << 20, &stream).unwrap();
            let mapped = || sim.calls()[Call::Map] as i64 - sim.calls()[Call::Unmap] as i64;
            let of_pool = mapped();
            let other = Context::new(sim.clone());
            let others = other.create_stream().unwrap();
            let open = || other.open_shared::<u8>(pass(&buffer.share().unwrap()), &others);
            sim.fail_next(Call::SetAccess, 2, failed());
            sim.fail_next(Call::Unmap, 1, failed());
            open().unwrap_err();
            // Failed calls are counted, too.
            assert_eq!(mapped() + 1, of_pool + 2, "two pages are mapped, and stay");
            if opens_another {
                drop(open().unwrap());
                other.synchronize().unwrap();
                assert_eq!(mapped() + 1, of_pool);
            }
            drop(others);
            drop(other);
            assert_eq!(mapped() + 1, of_pool);
            drop(buffer);
            context.synchronize().unwrap();
            drop(pool);
            assert_eq!(mapped() + 1, 0, "nothing is left");
        }
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
        assert!(!is_shared(pool.inner(), block));
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
        pool.alloc(60 * MIB, &stream).unwrap();
        pool.free_block(long, &stream).unwrap();
        pool.check().unwrap();
    }
}
