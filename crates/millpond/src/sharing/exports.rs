//! The descriptors of pages that other processes may open: one for each page, whichever blocks on it are shared.
//!
//! A driver takes long to export a page (0.6 ms on an H200), and small blocks share one.

use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;

use crate::device::{Device, DeviceResult, PageExport, PageHandle};
use crate::system::close_on_fork::CloseOnFork;
use crate::system::lock::Mutex;
use crate::system::process::PerProcess;

/// A page's descriptor, and where the page is in its file.
#[derive(Debug, Clone)]
pub(super) struct Export {
    pub(super) descriptor: Arc<CloseOnFork>,
    pub(super) position: u64,
}

/// What all pools have exported, by the pool's number and the page. An entry is of use as long as a shared block on the page has its
/// descriptor.
static EXPORTED: PerProcess<Mutex<Exported>> = PerProcess::new(Mutex::default);

type Exported = FxHashMap<(u64, PageHandle), (Weak<CloseOnFork>, u64)>;

/// The descriptor of a page, by its pool's number and itself, which is opened where no shared block has it.
///
/// # Safety
/// The page backs a block of the pool that stays allocated as long as anybody has what this returns. So no page that comes later has
/// the same handle until then.
pub(super) unsafe fn export(name: (u64, PageHandle), device: &dyn Device) -> DeviceResult<Export> {
    let exported = EXPORTED.get();
    if let Some((descriptor, position)) = exported.lock().get(&name)
        && let Some(descriptor) = descriptor.upgrade()
    {
        return Ok(Export { descriptor, position: *position });
    }
    let mut position = 0;
    let [descriptor] = CloseOnFork::open(|| {
        // SAFETY: the page lives, by the caller's promise.
        let PageExport { descriptor, position: at } = unsafe { device.export_page(name.1) }?;
        position = at;
        DeviceResult::Ok([descriptor])
    })?;
    let export = Export { descriptor: Arc::new(descriptor), position };
    let mut known = exported.lock();
    // Before the table grows. So the entries that are left behind cost nothing in the mean.
    if known.len() == known.capacity() {
        known.retain(|_, (descriptor, _)| descriptor.strong_count() > 0);
    }
    // Without an entry, the page is exported again.
    if known.try_reserve(1).is_ok() {
        known.insert(name, (Arc::downgrade(&export.descriptor), position));
    }
    Ok(export)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::device::sim::Call;
    use crate::fixtures::{Bench, MIB};
    use crate::typed::Buffer;

    #[test]
    fn a_page_is_exported_once_as_long_as_a_block_on_it_is_shared() {
        let Bench { pool, stream, sim, .. } = Bench::new(|pool| pool.page_sizes(2 * MIB, 2 * MIB));
        let exported = || sim.calls()[Call::ExportPage];
        let small: Vec<_> = (0..20).map(|_| Buffer::<u8>::new(&pool, 4096, &stream).unwrap()).collect();
        let mut shared: Vec<_> = small.iter().map(|buffer| buffer.share().unwrap()).collect();
        assert_eq!(exported(), 1);
        // Each block's own descriptors are the lease's and the page's.
        let of_one = shared[0].descriptors().len();
        assert!(shared.iter().all(|shared| shared.descriptors().len() == of_one));
        shared.truncate(1);
        shared.push(small[7].share().unwrap());
        assert_eq!(exported(), 1, "one is left that has it");
        drop(shared);
        let _again = small[7].share().unwrap();
        assert_eq!(exported(), 2, "nobody had it");
    }

    #[test]
    fn pages_that_are_shared_no_more_leave_few_entries() {
        for _ in 0..30 {
            let Bench { pool, stream, .. } = Bench::new(|pool| pool.page_sizes(2 * MIB, 2 * MIB));
            let make = |_| Buffer::<u8>::new(&pool, 2 << 20, &stream).unwrap();
            let buffers: Vec<_> = (0..50).map(make).collect();
            buffers.iter().for_each(|buffer| drop(buffer.share().unwrap()));
        }
        let entries = EXPORTED.get().lock().len();
        assert!(entries < 500, "of 1,500 pages: {entries}");
    }

    #[test]
    fn a_page_that_could_not_be_exported_is_tried_again() {
        let Bench { pool, stream, sim, .. } = Bench::new(|pool| pool);
        let buffer = Buffer::<u8>::new(&pool, 4096, &stream).unwrap();
        let what = "a test asked for it".to_owned();
        sim.fail_next(Call::ExportPage, 1, crate::device::DeviceError::Invalid { call: "test", what });
        buffer.share().unwrap_err();
        let shared = buffer.share().unwrap();
        drop(buffer);
        assert!(pool.allocated().current > 0, "it is shared");
        drop(shared);
        assert_eq!(pool.allocated().current, 0);
    }
}
