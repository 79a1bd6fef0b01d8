//! Which allocations go to the memory of a capture. Asked on the slow path only. While there is any route, the threads'
//! caches are paused. So every request comes here, and the fast path need not know.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::arenas::ArenaId;
use crate::order::Stream;
use crate::system::lock::Mutex;

/// Says of a stream whether allocations for work on it belong to a capture.
pub(crate) type Filter = dyn Fn(&Stream) -> bool + Send + Sync;

#[derive(Clone)]
pub(crate) struct Route {
    to: ArenaId,
    takes: Arc<Filter>,
    /// Foreign streams that it took. Else each presentation of such a stream would be a new timeline, without what
    /// earlier ones freed. No stream can be marked while it is being captured.
    seen: Arc<Mutex<Vec<Stream>>>,
}

impl Route {
    /// Closes what was freed on foreign streams while they could not be marked.
    pub(crate) fn close_ticks(&self) {
        self.seen.lock().iter().for_each(|stream| _ = stream.tick());
    }
}

/// The routes of one pool.
#[derive(Default)]
pub(crate) struct Routes {
    count: AtomicUsize,
    all: Mutex<Vec<Route>>,
}

impl Routes {
    /// Adds a route; `false` where there is one to that memory.
    pub(crate) fn add(&self, to: ArenaId, takes: &Arc<Filter>) -> bool {
        let mut all = self.all.lock();
        if all.iter().any(|route| route.to == to) {
            return false;
        }
        all.push(Route { to, takes: takes.clone(), seen: Arc::default() });
        // Relaxed: as for `of`.
        self.count.store(all.len(), Ordering::Relaxed);
        true
    }

    /// Removes the route, and returns it: to be dropped without locks, since the filter is the program's.
    pub(crate) fn remove(&self, to: ArenaId) -> Option<Route> {
        let mut all = self.all.lock();
        let at = all.iter().position(|route| route.to == to)?;
        let removed = all.remove(at);
        self.count.store(all.len(), Ordering::Relaxed);
        Some(removed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        // Relaxed: changed under the pool's lock, and asked there, or by who began a capture.
        self.count.load(Ordering::Relaxed)
    }

    /// The memory that an allocation for work on `stream` belongs to, by the newest route that takes it: one may
    /// begin while another one lasts.
    pub(crate) fn of(&self, stream: &Stream) -> Option<ArenaId> {
        // Relaxed: whoever allocates for a capture knows that it began, and so ordered this after `add`. Other
        // requests belong to no route.
        let newest_first = (0..self.count.load(Ordering::Relaxed)).rev();
        // A copy: filters are the program's, and run without locks. Where another route ends meanwhile, one may be asked twice.
        let mut routes = newest_first.filter_map(|at| self.all.lock().get(at).cloned());
        let route = routes.find(|route| (route.takes)(stream))?;
        if stream.timeline().is_marked_at_once() {
            let mut seen = route.seen.lock();
            // Without memory for it, what is freed on it can be had after a wait for the device.
            if seen.iter().all(|known| known.key() != stream.key()) && seen.try_reserve(1).is_ok() {
                seen.push(stream.clone());
            }
        }
        Some(route.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::device::sim::{SimDevice, SimOptions};
    use crate::order::Timelines;

    #[test]
    fn a_route_knows_each_foreign_stream_once() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let timelines = Timelines::new(sim.clone());
        // SAFETY: it is never destroyed.
        let stream = unsafe { Stream::present(&timelines, sim.create_stream().unwrap()) }.unwrap();
        let (routes, to) = (Routes::default(), ArenaId(1));
        assert!(routes.is_empty());
        let all: Arc<Filter> = Arc::new(|_| true);
        assert!(routes.add(to, &all) && !routes.add(to, &all) && !routes.is_empty());
        (0..3).for_each(|_| assert_eq!(routes.of(&stream), Some(to)));
        let route = routes.remove(to).unwrap();
        assert_eq!(route.seen.lock().len(), 1);
        assert!(routes.is_empty() && routes.of(&stream).is_none());
    }
}
