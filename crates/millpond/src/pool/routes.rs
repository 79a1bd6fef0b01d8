//! Which allocations go to the memory of a capture. Asked on the slow way only: while there is any route, the
//! threads' caches are paused, so that every request comes this way, and the fast path need not know.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::captured::MemoryId;
use crate::order::Stream;

/// Says of a stream whether allocations for work on it belong to a capture.
pub(super) type Filter = dyn Fn(&Stream) -> bool + Send + Sync;

struct Route {
    to: MemoryId,
    takes: Arc<Filter>,
}

/// The routes of one pool.
#[derive(Default)]
pub(super) struct Routes {
    count: AtomicUsize,
    all: Mutex<Vec<Route>>,
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routes").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Routes {
    /// Adds a route; `false` where there is one to that memory.
    pub(super) fn add(&self, to: MemoryId, takes: Arc<Filter>) -> bool {
        let mut all = self.all.lock();
        if all.iter().any(|route| route.to == to) {
            return false;
        }
        all.push(Route { to, takes });
        // Relaxed: as for `of`.
        self.count.store(all.len(), Ordering::Relaxed);
        true
    }

    /// Removes the route; whether there is none left.
    pub(super) fn remove(&self, to: MemoryId) -> bool {
        let mut all = self.all.lock();
        all.retain(|route| route.to != to);
        self.count.store(all.len(), Ordering::Relaxed);
        all.is_empty()
    }

    /// The memory that an allocation for work on `stream` belongs to, by the oldest route that takes it.
    pub(super) fn of(&self, stream: &Stream) -> Option<MemoryId> {
        // Relaxed: whoever allocates for a capture knows that it began, and so ordered this after `add`. Other
        // requests belong to no route.
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // A copy: filters are the program's, and run without locks.
        let all: Vec<_> = self.all.lock().iter().map(|route| (route.to, route.takes.clone())).collect();
        all.into_iter().find(|(_, takes)| takes(stream)).map(|(to, _)| to)
    }
}
