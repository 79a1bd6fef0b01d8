//! What this GPU's pages are created with, and creating them.

use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::{CUdevice, CUmemGenericAllocationHandle};

use super::api::{Api, Code, Failure};
use super::structures::{PageExtras, page_props};
use crate::log::log;

/// All that the GPU offers, unless its driver refused that once.
#[derive(Debug)]
pub(super) struct PageExtrasInUse {
    offered: PageExtras,
    are_refused: AtomicBool,
}

impl PageExtrasInUse {
    pub(super) fn new(offered: PageExtras) -> Self {
        Self { offered, are_refused: AtomicBool::new(false) }
    }

    fn get(&self) -> PageExtras {
        // Relaxed: a page with the extras serves as one without.
        if self.are_refused.load(Ordering::Relaxed) { PageExtras::default() } else { self.offered }
    }

    /// Whether pages that are created from now on can be exported.
    pub(super) fn are_exportable(&self) -> bool {
        self.get().exportable
    }

    /// Creates a page. A driver that offers the extras, and refuses them all the same, gets pages without from then on.
    pub(super) fn create(
        &self,
        api: &Api,
        device: CUdevice,
        bytes: u64,
    ) -> Result<CUmemGenericAllocationHandle, Failure> {
        let extras = self.get();
        let create = |extras| {
            let mut page = 0;
            // SAFETY: `page` is writable and the properties are readable.
            unsafe { api.cuMemCreate(&mut page, bytes as usize, &page_props(device, extras), 0) }
                .map(|()| page)
        };
        match create(extras) {
            Err(failure) if failure.code != Code::OUT_OF_MEMORY && (extras.exportable || extras.rdma) => {
                // Its error, where that is not the reason.
                let page = create(PageExtras::default()).map_err(|_| failure)?;
                self.are_refused.store(true, Ordering::Relaxed);
                log!(
                    INFO,
                    "this GPU's pages cannot be shared with other processes",
                    failure = format_args!("{failure:?}")
                );
                Ok(page)
            }
            created => created,
        }
    }
}
