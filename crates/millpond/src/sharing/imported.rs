//! Memory of other processes, as a device: its segments are what was imported.

use std::sync::Arc;

use super::lease::Borrowed;
use crate::device::{Device, DeviceError, DevicePtr, DeviceResult, Forward, PageExport, Properties};
use crate::physical::mapped::{Mapped, MappedSegments};
use crate::system::lock::Mutex;
use crate::system::open_file::OpenFile;
use crate::system::process::OfProcess;

/// What goes with pages as long as they are open: the lease, and the file of the owner's budget. Let go of last: then the owner
/// may use the pages for something else, and nobody's budget counts them.
type Kept = (Arc<Borrowed>, Option<OpenFile>);

/// Pages of another process, mapped one behind the other, and where the memory begins, on the first of them.
pub(super) type Import = (DevicePtr, (Mapped, Kept));

/// See the [module](self). Everything else is the device's below.
#[derive(Debug)]
pub(crate) struct ImportedMemory {
    below: Arc<dyn Device>,
    properties: Properties,
    pub(super) open: MappedSegments<Kept>,
    /// What could not be unmapped. It is tried again before the next import, and at the end.
    stuck: OfProcess<Mutex<Vec<Mapped>>>,
}

impl ImportedMemory {
    pub(crate) fn new(below: Arc<dyn Device>) -> Self {
        // Whatever the device's own memory is: the owner's device goes on writing to this, which no borrow of ours forbids.
        let host_access = false;
        let below_is = below.properties().clone();
        let properties = Properties { virtual_memory: false, memory_pools: false, host_access, ..below_is };
        Self { below, properties, open: MappedSegments::new(), stuck: OfProcess::default() }
    }

    /// Maps pages, given with their lengths. Behind the offset there are at least `room` bytes of address space. Nothing is left
    /// of what fails half way.
    pub(super) fn map(
        &self,
        pages: Vec<(PageExport, u64)>,
        (offset, room): (u64, u64),
        kept: Kept,
    ) -> DeviceResult<Import> {
        // SAFETY: nobody was told of these addresses.
        self.stuck.lock().retain_mut(|mapped| unsafe { mapped.close() }.is_err());
        let granularity = self.properties.granularity;
        let of_pages: u64 = pages.iter().map(|(_, bytes)| bytes).sum();
        let reserved = of_pages.max((offset + room).next_multiple_of(granularity));
        let mut mapped = Mapped::reserve(&self.below, reserved)?;
        let all = pages.into_iter().try_for_each(|(page, bytes)| {
            let page = self.below.import_page(page, bytes)?;
            // SAFETY: imported for this, and the addresses are as long as all pages.
            unsafe { mapped.push(page, bytes) }
        });
        let Err(error) = all else { return Ok((mapped.base().offset(offset), (mapped, kept))) };
        // SAFETY: as above.
        if unsafe { mapped.close() }.is_err() {
            self.stuck.lock().push(mapped);
        }
        Err(error)
    }
}

// SAFETY: a segment is pages that the device below mapped, at addresses that nobody else has.
unsafe impl Forward for ImportedMemory {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn alloc_segment(&self, _bytes: u64) -> DeviceResult<DevicePtr> {
        let what = "memory of other processes";
        Err(DeviceError::Unsupported { device: self.properties.name.clone(), what })
    }

    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.open.close(at) }
    }
}
