//! Sleep and wake: what is copied together, and how long pages are when they wake. The speeds are an H200's,
//! those of the simulated device ([`CostTable::h200`](crate::device::sim::CostTable::h200)).

/// So many free bytes between live ones are copied along: as long as one more copy takes, which is 2 µs at 55 GB/s.
pub(crate) const GAP: u64 = 64 << 10;

/// Bytes that are copied between two looks whether pages can go: 2 ms at 55 GB/s, in which 60 pages can go.
pub(crate) const BATCH: u64 = 128 << 20;

/// Base pages of a page that is worth to be moved by itself. Pages of a tag, which moves as a whole, are at least as long, where their
/// block has room. Pages that wake are joined to be so long. At 55 GB/s, 8 MiB take 150 µs to copy, and 2 MiB 38 µs. A page of any
/// length takes 35 to 60 µs to create and map.
pub(crate) const PAGE_TO_MOVE: u32 = 4;
