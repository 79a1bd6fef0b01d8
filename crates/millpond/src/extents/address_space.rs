//! Address space for regions.

use super::layout::Layout;
use crate::device::{DeviceError, DevicePtr, DeviceResult};
use crate::physical::Pages;
use crate::policy::addresses::LONGEST_REGION;

/// Reserves at least `least` bytes, whole base pages, as a region: its addresses and its bytes. That is far more than the
/// device has, since address space is free; but where it `is_short` as little as a region has.
pub(super) fn reserve(
    pages: &Pages,
    layout: &Layout,
    least: u64,
    is_short: bool,
) -> DeviceResult<(DevicePtr, u64)> {
    let (device, base_page) = (pages.device(), layout.base_page_bytes);
    let total = if is_short { 0 } else { device.properties().total_memory };
    let wanted = total.saturating_mul(8).clamp(LONGEST_REGION / 32, LONGEST_REGION).max(least);
    let mut bytes = wanted.checked_next_multiple_of(base_page).unwrap_or(least);
    let base = loop {
        match device.reserve(bytes) {
            Ok(base) => break base,
            Err(_) if bytes / 2 >= least => bytes = (bytes / 2).next_multiple_of(base_page),
            // The process runs out of addresses, not the device.
            Err(DeviceError::OutOfMemory { call, requested }) => {
                return Err(DeviceError::HostMemory { what: call, bytes: requested });
            }
            Err(other) => return Err(other),
        }
    };
    pages.counters.calls.reserve.add(1);
    Ok((base, bytes))
}

/// Gives the addresses of a region back.
///
/// # Safety
/// They were [reserved](reserve), nothing is mapped there, and the caller forgets them.
pub(super) unsafe fn unreserve(pages: &Pages, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
    // SAFETY: as the caller promises.
    unsafe { pages.device().unreserve(base, bytes) }?;
    pages.counters.calls.unreserve.add(1);
    Ok(())
}
