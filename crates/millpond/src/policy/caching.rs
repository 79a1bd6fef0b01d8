//! What threads may cache.
//!
//! It may be much, but nothing is lost: whoever needs it takes it back.

/// Threads, but for one, whose caches the fast path finds: each pool has a pointer for each. More threads at once find theirs by a
/// table that grows, and a slower path. A power of two. A model's tables are short.
pub(crate) const NEAR_THREADS: usize = match (cfg!(loom), cfg!(miri)) {
    (true, _) => 2,
    (_, true) => 16,
    _ => 1024,
};

/// Chunks of that table: for more threads than Linux lets live at once, which are 2^22.
pub(crate) const CHUNKS: usize = 13;

/// Entries of a thread's lock, by which it finds a stream's magazines: as many as a byte tells apart, so that finding one takes no
/// instruction. A model tries what may happen at one of them.
pub(crate) const ENTRIES: usize = match (cfg!(loom), cfg!(miri)) {
    (true, _) => 1,
    (_, true) => 4,
    _ => 256,
};

/// Locks that the shelves of a depot are spread over: about as many as threads meet there.
pub(crate) const DEPOT_LOCKS: usize = 16;

/// Most blocks in a magazine. (Half as many of 32 KiB and more, and a quarter of 1 MiB and more, held no less.)
pub(crate) const MOST_BLOCKS: u64 = 64;

/// The longest block that is cached, in throughput mode, and as many bytes as a magazine holds at most.
pub(crate) const MOST_BYTES: u64 = 512 << 20;

/// The longest block that a thread keeps outside of throughput mode. Other threads miss it there. (Jobs of one thread need the same
/// without it.)
const MOST_KEPT: u64 = 64 << 20;

/// Whether a thread keeps a block of so many bytes outside of throughput mode, though it is not cached: one at a time. (Zero bytes wrap
/// around.)
pub(crate) fn may_keep(bytes: u64) -> bool {
    bytes.wrapping_sub(1) < MOST_KEPT
}

/// Blocks in a magazine for blocks of so many bytes.
pub(crate) fn room(bytes: u64) -> usize {
    (MOST_BYTES / bytes).min(MOST_BLOCKS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_magazine_holds_many_small_blocks_and_few_large_ones() {
        assert_eq!([512, 8 << 20, 16 << 20, 512 << 20].map(room), [64, 64, 32, 1]);
    }
}
