//! What each call costs the host, and how fast bytes move.

use std::borrow::Cow;

use crate::device::MemoryKind;

/// A cost that depends on a size: measured points, with straight lines between them.
///
/// ```
/// use millpond::device::sim::BySize;
/// let cost = BySize { points: vec![(1 << 20, 100), (3 << 20, 300)].into() };
/// assert_eq!(cost.at(2 << 20), 200);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BySize {
    /// Bytes and nanoseconds, by rising bytes. A smaller size costs as the first point; a larger one goes on
    /// as between the last two.
    pub points: Cow<'static, [(u64, u64)]>,
}

impl BySize {
    const fn of(points: &'static [(u64, u64)]) -> Self {
        Self { points: Cow::Borrowed(points) }
    }

    /// The cost in nanoseconds of `bytes`.
    #[must_use]
    pub fn at(&self, bytes: u64) -> u64 {
        let after = self.points.iter().position(|&(size, _)| bytes <= size);
        match (&*self.points, after) {
            ([], _) => 0,
            (points, Some(0)) => points[0].1,
            (points, Some(next)) => line(points[next - 1], points[next], bytes),
            ([only], None) => only.1,
            ([.., before, last], None) => line(*before, *last, bytes),
        }
    }
}

/// The height at `bytes` of the straight line through two points.
fn line(from: (u64, u64), to: (u64, u64), bytes: u64) -> u64 {
    if from.1 == to.1 {
        return from.1;
    }
    // Nearly always: to divide numbers of 128 bits is a call.
    if let Some(product) =
        to.1.checked_sub(from.1).zip(bytes.checked_sub(from.0)).and_then(|(a, b)| a.checked_mul(b))
    {
        return from.1.saturating_add(product / (to.0 - from.0));
    }
    let rise = i128::from(to.1) - i128::from(from.1);
    let run = i128::from(to.0) - i128::from(from.0);
    let cost = i128::from(from.1) + rise * (i128::from(bytes) - i128::from(from.0)) / run;
    cost.max(0) as u64
}

/// Costs of a device's calls, in nanoseconds of the calling thread unless said otherwise.
///
/// [`CostTable::h200`] has what was measured; [`CostTable::free`] has all zero, for tests. `millpond probe --cost-table` writes
/// those of another machine to a file, for `millpond replay`.
/// [`SimOptions`](super::SimOptions) has an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CostTable {
    /// `cuMemGetInfo`.
    pub memory_info: u64,
    /// `cuMemAddressReserve`, and its counterpart.
    pub reserve: u64,
    /// `cuMemCreate`, by the page's size.
    pub create_page: BySize,
    /// `cuMemMap` of one page.
    pub map: u64,
    /// `cuMemSetAccess`, for each page in the range by its size: a call over n pages costs n times that.
    pub set_access: BySize,
    /// `cuMemUnmap` of one page, by its size.
    pub unmap: BySize,
    /// `cuMemRelease`, by the page's size.
    pub release_page: BySize,
    /// `cuMemAlloc`.
    pub alloc_segment: u64,
    /// `cuMemFree`, besides the wait for all work.
    pub free_segment: u64,
    /// `cuMemAllocAsync` from a pool that has the memory.
    pub alloc_async: u64,
    /// `cuMemFreeAsync`.
    pub free_async: u64,
    /// `cuStreamCreate` and `cuStreamDestroy`, each.
    pub stream_life: u64,
    /// `cuStreamGetId`.
    pub stream_id: u64,
    /// `cuEventCreate` and `cuEventDestroy`, each.
    pub event_life: u64,
    /// `cuEventRecord`.
    pub record_event: u64,
    /// `cuEventQuery`; also taken for `cuStreamQuery` and for a synchronise, besides the wait.
    pub query: u64,
    /// `cuStreamWaitEvent`.
    pub wait_event: u64,
    /// Putting a memset or a copy on a stream.
    pub submit: u64,
    /// Bytes in a microsecond of the stream's time, within device memory.
    pub device_bytes_per_us: u64,
    /// Bytes in a microsecond of the stream's time, between pageable memory of the host and the device.
    pub host_bytes_per_us: u64,
    /// The same, between pinned memory and the device.
    pub pinned_bytes_per_us: u64,
    /// `cuMemCreate` with a host location, by the page's size: the driver sets all bytes to zero.
    pub pinned_create_page: BySize,
    /// `cuMemSetAccess` of such a page, for the device and the host, by its size.
    pub pinned_set_access: BySize,
    /// Populating a segment of pinned memory with several threads and `cuMemHostRegister`, by size.
    pub pinned_alloc_segment: BySize,
    /// `cuMemAllocManaged`.
    pub managed_alloc_segment: u64,
    /// `cuMemPrefetchAsync`, besides the stream's time.
    pub managed_prefetch: u64,
    /// Bytes in a microsecond of the stream's time that a prefetch moves between the device and the host.
    pub managed_prefetch_bytes_per_us: u64,
    /// `cuMemAdvise`, and `cuMemRangeGetAttribute`.
    pub managed_advise: u64,
    /// The stream's time for a page fault: work meets a page that is not on the device.
    pub managed_fault: u64,
    /// Bytes in a microsecond of the stream's time that move after page faults.
    pub managed_fault_bytes_per_us: u64,
    /// `cuMemExportToShareableHandle`, and `cuMemImportFromShareableHandle`, each.
    pub share_page: u64,
    /// `cuMemSetAccess` of one page for each peer, beside the device itself, by the page's size.
    pub set_peer_access: BySize,
    /// `cuMemUnmap` of one page that a peer has access to, by its size.
    pub unmap_with_peers: BySize,
    /// Bytes in a microsecond of the stream's time, from a peer's memory that the device has access to.
    pub peer_bytes_per_us: u64,
    /// The same, from a peer's memory by way of the host.
    pub staged_bytes_per_us: u64,
}

const MIB: u64 = 1 << 20;

impl CostTable {
    /// One NVIDIA H200, driver 580, CUDA 13.0, 16 cores: medians of what was measured there.
    /// Where a line says "assumed" there was no measurement, and little depends on it.
    #[must_use]
    pub const fn h200() -> Self {
        Self {
            memory_info: 2_000, // assumed
            reserve: 1_000,     // measured as "instant", of 1 TiB
            create_page: BySize::of(&[
                (2 * MIB, 10_000),
                (20 * MIB, 11_000),
                (128 * MIB, 12_000),
                (1024 * MIB, 23_000),
            ]),
            map: 800,
            set_access: BySize::of(&[(2 * MIB, 24_000), (128 * MIB, 24_000), (1024 * MIB, 61_000)]),
            unmap: BySize::of(&[(2 * MIB, 16_000), (128 * MIB, 16_000), (1024 * MIB, 27_000)]),
            release_page: BySize::of(&[
                (2 * MIB, 12_000),
                (20 * MIB, 20_000),
                (128 * MIB, 66_000),
                (1024 * MIB, 553_000),
            ]),
            // `cudaMalloc` and `cudaFree` of 1 MiB on an idle device: 80 µs together.
            alloc_segment: 40_000,
            free_segment: 40_000,
            // `cudaMallocAsync` and its free, threshold at the maximum: 604 ns together.
            alloc_async: 302,
            free_async: 302,
            stream_life: 5_000, // assumed
            stream_id: 17,
            event_life: 300, // assumed
            record_event: 155,
            query: 157,
            wait_event: 142,
            submit: 2_000,                  // assumed, as a kernel's launch
            device_bytes_per_us: 4_800_000, // data sheet: 4.8 TB/s
            host_bytes_per_us: 6_800,
            pinned_bytes_per_us: 55_000,
            pinned_create_page: BySize::of(&[
                (2 * MIB, 195_000),
                (32 * MIB, 6_500_000),
                (256 * MIB, 57_000_000),
            ]),
            pinned_set_access: BySize::of(&[
                (2 * MIB, 190_000),
                (32 * MIB, 1_450_000),
                (256 * MIB, 10_000_000),
            ]),
            // 16 GiB in 832 ms, with eight threads; that it is as much for each byte is assumed. To register 2 MiB takes 190 µs.
            pinned_alloc_segment: BySize::of(&[(2 * MIB, 290_000), (1024 * MIB, 52_000_000)]),
            managed_alloc_segment: 42_000,         // of 64 MiB
            managed_prefetch: 10_000,              // assumed: the call lasts until most or all has moved
            managed_prefetch_bytes_per_us: 49_000, // to the device; 10,700 to the host
            managed_advise: 10_000,                // assumed
            managed_fault: 30_000,                 // assumed, for the faults on one page of 2 MiB together
            managed_fault_bytes_per_us: 9_300,     // so that 1 GiB takes the 131 ms that were measured
            share_page: 93_000,                    // but 838,000 for the first one
            // For the device and one peer together 966, 1,024 and 1,665 µs; for the device alone 50, 65 and 614 in that run.
            set_peer_access: BySize::of(&[(2 * MIB, 916_000), (32 * MIB, 959_000), (256 * MIB, 1_051_000)]),
            // Measured as 66 to 90; that the longest page takes longest is assumed.
            unmap_with_peers: BySize::of(&[(2 * MIB, 66_000), (256 * MIB, 90_000)]),
            peer_bytes_per_us: 450_000, // data sheet: 900 GB/s by NVLink, both directions together
            staged_bytes_per_us: 25_000, // assumed: half of `pinned_bytes_per_us`, to the host and from it
        }
    }

    pub(super) fn create_page_of(&self, kind: MemoryKind) -> &BySize {
        if kind == MemoryKind::Pinned { &self.pinned_create_page } else { &self.create_page }
    }

    pub(super) fn set_access_of(&self, kind: MemoryKind) -> &BySize {
        if kind == MemoryKind::Pinned { &self.pinned_set_access } else { &self.set_access }
    }

    pub(super) fn unmap_of(&self, has_peers: bool) -> &BySize {
        if has_peers { &self.unmap_with_peers } else { &self.unmap }
    }

    /// All calls take no time, and neither do bytes.
    #[must_use]
    pub const fn free() -> Self {
        const NOTHING: BySize = BySize::of(&[]);
        Self {
            memory_info: 0,
            reserve: 0,
            create_page: NOTHING,
            map: 0,
            set_access: NOTHING,
            unmap: NOTHING,
            release_page: NOTHING,
            alloc_segment: 0,
            free_segment: 0,
            alloc_async: 0,
            free_async: 0,
            stream_life: 0,
            stream_id: 0,
            event_life: 0,
            record_event: 0,
            query: 0,
            wait_event: 0,
            submit: 0,
            device_bytes_per_us: u64::MAX,
            host_bytes_per_us: u64::MAX,
            pinned_bytes_per_us: u64::MAX,
            pinned_create_page: NOTHING,
            pinned_set_access: NOTHING,
            pinned_alloc_segment: NOTHING,
            managed_alloc_segment: 0,
            managed_prefetch: 0,
            managed_prefetch_bytes_per_us: u64::MAX,
            managed_advise: 0,
            managed_fault: 0,
            managed_fault_bytes_per_us: u64::MAX,
            share_page: 0,
            set_peer_access: NOTHING,
            unmap_with_peers: NOTHING,
            peer_bytes_per_us: u64::MAX,
            staged_bytes_per_us: u64::MAX,
        }
    }
}

/// Nanoseconds that `bytes` take at a speed.
pub(super) fn transfer(bytes: u64, bytes_per_us: u64) -> u64 {
    let nanoseconds = u128::from(bytes) * 1_000 / u128::from(bytes_per_us.max(1));
    u64::try_from(nanoseconds).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_interpolated_between_the_measured_sizes() {
        let table = CostTable::h200();
        assert_eq!(table.release_page.at(2 * MIB), 12_000);
        assert_eq!(table.release_page.at(11 * MIB), 16_000);
        assert_eq!(table.release_page.at(1024 * MIB), 553_000);
        assert_eq!(table.create_page.at(MIB), 10_000, "below the first point");
        assert_eq!(table.set_access.at(64 * MIB), 24_000);
    }

    #[test]
    fn pinned_pages_cost_what_was_measured() {
        let table = CostTable::h200();
        let costs = |kind| [table.create_page_of(kind), table.set_access_of(kind)].map(|by| by.at(32 * MIB));
        assert_eq!(costs(MemoryKind::Pinned), [6_500_000, 1_450_000]);
        assert_eq!(costs(MemoryKind::Device), [11_111, 24_000]);
    }

    #[test]
    fn costs_go_on_rising_beyond_the_last_measured_size() {
        let table = CostTable::h200();
        assert!(table.release_page.at(2048 * MIB) > 1_000_000);
        assert_eq!(CostTable::free().release_page.at(2048 * MIB), 0);
    }
}
