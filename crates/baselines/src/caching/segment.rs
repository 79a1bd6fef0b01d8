//! One expandable segment: a range of addresses as large as the device and more, and the pages mapped in it.

use std::ops::Range;

use millpond::DeviceCalls;
use millpond::device::{Device, DevicePtr, DeviceResult, PageHandle};

/// Names an expandable segment.
pub(super) type SegmentId = usize;

/// A device whose calls are counted.
#[derive(Debug)]
pub(super) struct Counted<'a> {
    pub(super) device: &'a dyn Device,
    pub(super) calls: &'a mut DeviceCalls,
}

#[derive(Debug)]
pub(super) struct Segment {
    start: DevicePtr,
    bytes: u64,
    page_bytes: u64,
    /// The page mapped at each multiple of `page_bytes`, as far as any was mapped.
    pages: Vec<Option<PageHandle>>,
}

impl Segment {
    /// Reserves addresses for 9/8 of the device's memory: more than it has, so that pages unmapped low down
    /// can come again at the end.
    pub(super) fn reserve(on: Counted<'_>, page_bytes: u64) -> DeviceResult<Self> {
        let properties = on.device.properties();
        let page_bytes = page_bytes.next_multiple_of(properties.granularity);
        // A device may claim any size: what cannot be reserved, it refuses.
        let bytes = properties.total_memory.saturating_add(properties.total_memory / 8);
        let bytes = bytes.checked_next_multiple_of(page_bytes).unwrap_or(u64::MAX / page_bytes * page_bytes);
        let start = on.device.reserve(bytes)?;
        on.calls.reserve += 1;
        Ok(Self { start, bytes, page_bytes, pages: Vec::new() })
    }

    /// Gives the addresses back.
    ///
    /// # Safety
    /// Nothing is mapped, and the segment is not used again.
    pub(super) unsafe fn unreserve(self, on: Counted<'_>) -> DeviceResult<()> {
        debug_assert!(self.pages.iter().all(Option::is_none));
        // SAFETY: the range came from `reserve` with this size; the caller promises the rest.
        unsafe { on.device.unreserve(self.start, self.bytes) }?;
        on.calls.unreserve += 1;
        Ok(())
    }

    pub(super) fn start(&self) -> DevicePtr {
        self.start
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps new pages for `bytes` from `at` on, where a page starts and none is mapped. Returns the bytes
    /// mapped: `bytes` rounded up to pages.
    ///
    /// # Errors
    /// The device's own; nothing is mapped then.
    pub(super) fn map(&mut self, mut on: Counted<'_>, at: DevicePtr, bytes: u64) -> DeviceResult<u64> {
        let first = self.page_from(at);
        let count = bytes.div_ceil(self.page_bytes) as usize;
        let pages = create_pages(&mut on, self.page_bytes, count)?;
        let mut mapped = 0;
        let done = pages.iter().enumerate().try_for_each(|(i, &page)| {
            // SAFETY: the segment reserved the range, where none is mapped, and the page is new.
            unsafe { on.device.map(self.address(first + i), self.page_bytes, page) }?;
            on.calls.map += 1;
            mapped += 1;
            Ok(())
        });
        let bytes = count as u64 * self.page_bytes;
        // SAFETY: what was mapped above, if all of it was.
        let done = done.and_then(|()| unsafe { on.device.set_access(at, bytes) });
        self.pages.resize(self.pages.len().max(first + count), None);
        for (place, page) in self.pages[first..].iter_mut().zip(&pages) {
            *place = Some(*page);
        }
        if let Err(error) = done {
            // SAFETY: the pages are new, so nobody has used them.
            unsafe { self.drop_pages(on, first..first + count, mapped) }.1.ok();
            return Err(error);
        }
        on.calls.set_access += 1;
        Ok(bytes)
    }

    /// The whole pages inside a range: where they start, and their bytes.
    pub(super) fn whole_pages(&self, start: DevicePtr, bytes: u64) -> Option<(DevicePtr, u64)> {
        let head = start.raw() - self.start.raw();
        let (first, end) = (head.div_ceil(self.page_bytes), (head + bytes) / self.page_bytes);
        let whole = end.checked_sub(first).filter(|&whole| whole > 0)?;
        Some((self.address(first as usize), whole * self.page_bytes))
    }

    /// Unmaps and releases the pages of a range that [`whole_pages`](Self::whole_pages) returned. Returns the
    /// bytes that are unmapped now, from `at` on: fewer than `bytes` where the device refused.
    ///
    /// # Safety
    /// They are all mapped, and no pending or later work uses them.
    pub(super) unsafe fn unmap(
        &mut self,
        on: Counted<'_>,
        at: DevicePtr,
        bytes: u64,
    ) -> (u64, DeviceResult<()>) {
        let first = self.page_from(at);
        let count = (bytes / self.page_bytes) as usize;
        // SAFETY: as the caller promises.
        let (dropped, done) = unsafe { self.drop_pages(on, first..first + count, count) };
        (dropped * self.page_bytes, done)
    }

    /// Unmaps the first `mapped` of these pages and releases all of them. Returns for how many that was done,
    /// up to the first that the device refused.
    ///
    /// # Safety
    /// So many are mapped, and no pending or later work uses them.
    unsafe fn drop_pages(
        &mut self,
        on: Counted<'_>,
        pages: Range<usize>,
        mapped: usize,
    ) -> (u64, DeviceResult<()>) {
        let mut dropped = 0;
        let unmapped_from = pages.start + mapped;
        for i in pages {
            let at = self.address(i);
            let Some(page) = self.pages[i] else { continue };
            if i < unmapped_from {
                // SAFETY: `map` mapped one page here, and the caller promises that no work uses it.
                if let Err(error) = unsafe { on.device.unmap(at, self.page_bytes) } {
                    return (dropped, Err(error));
                }
                on.calls.unmap += 1;
            }
            self.pages[i] = None;
            dropped += 1;
            // SAFETY: the page came from `create_page`, and its only handle was just forgotten.
            if let Err(error) = unsafe { on.device.release_page(page) } {
                return (dropped, Err(error));
            }
            on.calls.release += 1;
        }
        (dropped, Ok(()))
    }

    fn page_from(&self, at: DevicePtr) -> usize {
        let offset = at.raw() - self.start.raw();
        debug_assert!(offset.is_multiple_of(self.page_bytes));
        (offset / self.page_bytes) as usize
    }

    fn address(&self, page: usize) -> DevicePtr {
        self.start.offset(page as u64 * self.page_bytes)
    }
}

/// Creates `count` pages, or none.
fn create_pages(on: &mut Counted<'_>, bytes: u64, count: usize) -> DeviceResult<Vec<PageHandle>> {
    let mut pages = Vec::with_capacity(count);
    while pages.len() < count {
        match on.device.create_page(bytes) {
            Ok(page) => pages.push(page),
            Err(error) => {
                on.calls.create += pages.len() as u64;
                on.calls.release += pages.len() as u64;
                for page in pages {
                    // SAFETY: the page is new and mapped nowhere, and nobody else knows it.
                    unsafe { on.device.release_page(page) }.ok();
                }
                return Err(error);
            }
        }
    }
    on.calls.create += count as u64;
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use millpond::device::DeviceError;
    use millpond::device::sim::{SimDevice, SimOptions};

    use super::*;

    #[test]
    fn a_device_that_claims_everything_makes_no_panic() {
        let device = SimDevice::new(SimOptions::default().capacity(u64::MAX)).unwrap();
        let mut calls = DeviceCalls::default();
        let refused = Segment::reserve(Counted { device: &*device, calls: &mut calls }, 20 << 20);
        assert!(matches!(refused, Err(DeviceError::OutOfMemory { call: "reserve", .. })), "{refused:?}");
    }
}
