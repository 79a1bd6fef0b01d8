//! What threads may cache: how many blocks a magazine holds, and how many bytes a thread and the depot.
//!
//! It may be much, but nothing is lost: whoever needs it takes it back.

/// Threads that can have caches at the same time: a pool has a pointer for each. The others allocate under its lock.
pub(crate) const MOST_THREADS: usize = if cfg!(miri) { 16 } else { 1024 };

/// Entries of a thread's lock, by which it finds a stream's magazines: as many as a byte tells apart, so that finding one takes no
/// instruction. A model tries what may happen at one of them.
pub(crate) const ENTRIES: usize = match (cfg!(loom), cfg!(miri)) {
    (true, _) => 1,
    (_, true) => 4,
    _ => 256,
};

/// Locks that the shelves of a depot are spread over: about as many as threads meet there.
pub(crate) const DEPOT_LOCKS: usize = 16;

/// Bytes that a thread, and the depot, may cache in a small pool. In a larger one it is a share of what is reserved.
pub(crate) const LEAST_LIMIT: u64 = 64 << 20;

/// What each thread may cache, and what the depot may hold, in bytes: of a pool that holds `reserved` bytes and may grow by
/// `growth`, with so many threads. Magazines count each block as the longest of its class: an eighth more.
pub(crate) fn limits(reserved: u64, growth: u64, threads: u64) -> [u64; 2] {
    let all = (reserved + reserved / 8 + growth).max(LEAST_LIMIT);
    [(all / threads.max(1)).max(LEAST_LIMIT), all]
}

/// Most blocks in a magazine. (Half as many of 32 KiB and more, and a quarter of 1 MiB and more, held no less.)
pub(crate) const MOST_BLOCKS: u64 = 64;

/// Blocks in a magazine whose longest block has so many bytes, of a thread that may cache so many: no magazine takes more
/// than half of that. 0 where the thread may cache none.
pub(crate) fn room(longest: u64, limit: u64) -> usize {
    let fitting = if longest > limit { 0 } else { (limit / 2 / longest).max(1) };
    MOST_BLOCKS.min(fitting) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_magazine_holds_many_small_blocks_and_few_large_ones() {
        let room = |bytes| room(bytes, LEAST_LIMIT);
        assert_eq!([512, 512 << 10, 1 << 20, 16 << 20].map(room), [64, 64, 32, 2]);
        assert_eq!([LEAST_LIMIT, LEAST_LIMIT + 1].map(room), [1, 0]);
    }

    #[test]
    fn threads_share_the_pools_memory_and_all_get_some() {
        assert_eq!(limits(0, 0, 0), [LEAST_LIMIT; 2]);
        // 8 GiB, an eighth of them, and 1 GiB of growth; a fifth for each thread.
        assert_eq!(limits(8 << 30, 1 << 30, 5), [2 << 30, 10 << 30]);
    }
}
