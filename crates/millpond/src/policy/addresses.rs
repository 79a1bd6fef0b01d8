//! How many addresses a pool reserves, of the device and of the host. They are free: memory is taken only where something lies.

/// Bytes of the longest region, unless a block is longer. That is several times what a device has, so that blocks which grow find
/// room beside what is free.
pub(crate) const LONGEST_REGION: u64 = 1 << 40;

/// Blocks that one arena may have allocated, where the process has addresses for so many: 1 GiB for descriptors.
pub(crate) const MOST_ALLOCATED: usize = if cfg!(all(unix, not(miri))) { 1 << 24 } else { 1 << 16 };
