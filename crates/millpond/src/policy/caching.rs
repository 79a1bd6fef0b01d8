//! What threads may cache: how many blocks a magazine holds, and how many bytes a thread and the depot.
//!
//! It may be much, but nothing is lost: whoever needs it takes it back.

/// Bytes that a thread, and the depot, may cache in a small pool. In a larger one it is a share of what is reserved.
pub(crate) const LEAST_LIMIT: u64 = 64 << 20;

/// Bytes from which on a magazine holds few blocks.
const LARGE: u64 = 1 << 20;

/// What each thread may cache, and what the depot may hold, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheLimits {
    pub(crate) of_thread: u64,
    pub(crate) of_depot: u64,
}

impl CacheLimits {
    /// Of a pool that holds `reserved` bytes and may grow by `growth`, with so many threads. Magazines count each block as
    /// the longest of its class: an eighth more.
    pub(crate) fn new(reserved: u64, growth: u64, threads: u64) -> Self {
        let all = (reserved + reserved / 8 + growth).max(LEAST_LIMIT);
        Self { of_thread: (all / threads.max(1)).max(LEAST_LIMIT), of_depot: all }
    }
}

/// Most blocks of this size in a magazine. Fewer of large ones: a magazine of several sizes is searched, and may hold
/// many bytes. In throughput mode, fewer visits to the depot count for more.
pub(crate) const fn most_blocks(bytes: u64, in_throughput_mode: bool) -> usize {
    match bytes {
        _ if in_throughput_mode => 64,
        0..=0x8000 => 64,
        0x8001..LARGE => 32,
        LARGE.. => 16,
    }
}

/// Blocks of this size that a magazine may hold next, where room for `room` of them is too little.
pub(crate) fn next_room(room: usize, bytes: u64, in_throughput_mode: bool) -> usize {
    let first = if bytes < LARGE { 4 } else { 1 };
    (2 * room).max(first).min(most_blocks(bytes, in_throughput_mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_magazine_doubles_up_to_what_its_size_allows() {
        let rooms = |bytes| {
            let next = |room: &usize| Some(next_room(*room, bytes, false));
            std::iter::successors(Some(0), next).skip(1).take(7).collect::<Vec<_>>()
        };
        assert_eq!(rooms(512), [4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(rooms(LARGE), [1, 2, 4, 8, 16, 16, 16]);
        assert_eq!(next_room(32, LARGE, true), 64);
    }

    #[test]
    fn threads_share_the_pools_memory_and_all_get_some() {
        let limits = |reserved, growth, threads| CacheLimits::new(reserved, growth, threads);
        assert_eq!(limits(0, 0, 0), CacheLimits { of_thread: LEAST_LIMIT, of_depot: LEAST_LIMIT });
        // 8 GiB, an eighth of them, and 1 GiB of growth; a fifth for each thread.
        assert_eq!(limits(8 << 30, 1 << 30, 5), CacheLimits { of_thread: 2 << 30, of_depot: 10 << 30 });
    }
}
