//! What a pool is built with where the program says nothing, and what it can be built with.

use std::ops::RangeInclusive;

/// Alignments that a pool can be built with. Kernels of libraries take 256 bytes for granted, which `cudaMalloc` gives; a longer
/// one than a page of 2 MiB would only waste memory.
pub(crate) const ALIGNMENTS: RangeInclusive<u64> = 256..=2 << 20;

/// What addresses are a multiple of by default, as with PyTorch's allocator.
pub(crate) const ALIGNMENT: u64 = 512;

/// The largest page by default. Larger pages cost fewer device calls and hold more memory; see docs/pages.md.
pub(crate) const LARGEST_PAGE: u64 = 32 << 20;

/// Bytes of a pattern that come from the host where a buffer is filled; the device doubles them. A copy of so few bytes costs what
/// one of fewer does.
pub(crate) const FILL: u64 = 4096;
