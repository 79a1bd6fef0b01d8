//! Where the process has pinned memory of ours. The driver treats it otherwise than a GPU's in two calls.
//!
//! It refuses a memset over several pages, and a graph with such a memset (seen with driver 580). And it copies from host
//! memory to host memory while the caller waits ("API synchronization behavior" in the driver's reference).

use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::device::DevicePtr;
use crate::system::lock::RwLock;

/// Each page begins at a multiple of it: the least granularity of host pages.
const PAGE: u64 = 2 << 20;

/// Start and end, by rising addresses. Of the process, as addresses are.
static RANGES: RwLock<Vec<(u64, u64)>> = RwLock::new(Vec::new());

/// How many there are, for programs without pinned memory.
static COUNT: AtomicUsize = AtomicUsize::new(0);

pub(super) fn add(at: DevicePtr, bytes: u64) {
    let mut ranges = RANGES.write();
    let place = ranges.partition_point(|(start, _)| *start < at.raw());
    ranges.insert(place, (at.raw(), at.raw() + bytes));
    // Relaxed: whoever uses the memory learnt of it after this, through what the program shares it by.
    COUNT.store(ranges.len(), Ordering::Relaxed);
}

pub(super) fn remove(at: DevicePtr) {
    let mut ranges = RANGES.write();
    ranges.retain(|(start, _)| *start != at.raw());
    COUNT.store(ranges.len(), Ordering::Relaxed);
}

pub(super) fn contains(at: DevicePtr) -> bool {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let ranges = RANGES.read();
    let before = ranges.partition_point(|(start, _)| *start <= at.raw());
    before.checked_sub(1).is_some_and(|range| at.raw() < ranges[range].1)
}

/// The range, in parts that lie on one page each: start and bytes.
pub(super) fn by_page(at: DevicePtr, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = at.raw() + bytes;
    let next = move |from: u64| (from + 1).next_multiple_of(PAGE).min(end);
    let starts = iter::successors(Some(at.raw()), move |from| Some(next(*from)).filter(|next| *next < end));
    starts.map(move |from| (from, next(from) - from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_known_until_they_are_removed() {
        let [first, second] = [0x1000_u64, 0x9000].map(|at| DevicePtr::new(at << 40));
        add(second, 100);
        add(first, 100);
        for at in [first, second] {
            assert!(contains(at) && contains(at.offset(99)) && !contains(at.offset(100)));
            assert!(!contains(DevicePtr::new(at.raw() - 1)));
        }
        remove(first);
        assert!(!contains(first) && contains(second));
        remove(second);
        assert!(!contains(second));
    }

    #[test]
    fn parts_lie_on_one_page_each() {
        let parts = |at, bytes| by_page(DevicePtr::new(at), bytes).collect::<Vec<_>>();
        assert_eq!(parts(PAGE, PAGE), [(PAGE, PAGE)]);
        assert_eq!(parts(PAGE + 5, PAGE), [(PAGE + 5, PAGE - 5), (2 * PAGE, 5)]);
        assert_eq!(parts(2 * PAGE - 1, PAGE + 2).iter().map(|part| part.1).collect::<Vec<_>>(), [1, PAGE, 1]);
        assert_eq!(parts(7, 1), [(7, 1)]);
    }
}
