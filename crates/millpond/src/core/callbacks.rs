//! The program's callbacks: asked when memory is short, told when it ran out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::{Mutex, this_thread};
use crate::out_of_memory::OutOfMemory;
use crate::policy::waiting::MOST_NESTED;

/// Names a callback registered with [`Pool::on_reclaim`](crate::Pool::on_reclaim), which has an example. For its removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReclaimId(pub(crate) u64);

/// Names a callback registered with [`Pool::on_out_of_memory`](crate::Pool::on_out_of_memory), for its removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObserverId(pub(crate) u64);

/// Asked when memory is short.
pub(crate) type Reclaimer = dyn Fn(u64) -> bool + Send + Sync;

/// Told when memory ran out.
pub(crate) type Observer = dyn Fn(&OutOfMemory) + Send + Sync;

/// The callbacks of one kind of one pool, by number.
pub(crate) struct Callbacks<F: ?Sized> {
    next: AtomicU64,
    all: Mutex<Vec<(u64, Arc<F>)>>,
    /// The threads that are inside of one now, and how deep each is nested.
    under_way: Mutex<Vec<(usize, u32)>>,
}

/// As long as this lives, the thread is inside of a callback.
pub(crate) struct InCallback<'a> {
    under_way: &'a Mutex<Vec<(usize, u32)>>,
    thread: usize,
}

impl Drop for InCallback<'_> {
    fn drop(&mut self) {
        self.under_way.lock().retain(|(thread, _)| *thread != self.thread);
    }
}

impl<F: ?Sized> Default for Callbacks<F> {
    fn default() -> Self {
        Self { next: AtomicU64::new(0), all: Mutex::default(), under_way: Mutex::default() }
    }
}

impl<F: ?Sized> Callbacks<F> {
    /// Adds a callback, if the pool is this process's, and names it.
    pub(crate) fn add(&self, callback: Arc<F>, is_here: bool) -> u64 {
        // Relaxed: only uniqueness matters.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if is_here {
            self.all.lock().push((number, callback));
        }
        number
    }

    /// Forgets one of them. What it holds is dropped without the lock.
    pub(crate) fn remove(&self, number: u64) -> bool {
        let mut all = self.all.lock();
        let removed = all.iter().position(|(known, _)| *known == number).map(|at| all.remove(at));
        drop(all);
        removed.is_some()
    }

    /// Forgets all of them. What they hold is dropped without the lock.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.all.lock());
        drop(all);
    }

    /// How deep a request that begins now may be nested in callbacks: each that is running may wait for it.
    pub(crate) fn depth(&self) -> u32 {
        self.under_way.lock().iter().map(|(_, depth)| depth + 1).max().unwrap_or(0)
    }

    /// Whether there are any that a request of this thread may be asked of.
    pub(crate) fn can_be_asked(&self) -> bool {
        !is_inside(&self.under_way.lock(), this_thread()) && !self.all.lock().is_empty()
    }

    /// To be entered before a callback is called; `None` where the depth is too great, or where this thread is inside
    /// one already. That one would be asked for its own requests, without end.
    pub(crate) fn enter(&self, depth: u32) -> Option<InCallback<'_>> {
        let (thread, mut under_way) = (this_thread(), self.under_way.lock());
        if depth >= MOST_NESTED || is_inside(&under_way, thread) || under_way.try_reserve(1).is_err() {
            return None;
        }
        under_way.push((thread, depth));
        Some(InCallback { under_way: &self.under_way, thread })
    }

    /// Those that are registered now, in that order. The lock is not held in between: they may register and remove others.
    pub(crate) fn each(&self) -> impl Iterator<Item = Arc<F>> {
        let mut next = 0;
        // Relaxed: a number.
        let end = self.next.load(Ordering::Relaxed);
        std::iter::from_fn(move || {
            let all = self.all.lock();
            let left = all.iter().filter(|(number, _)| (next..end).contains(number));
            let (number, callback) = left.min_by_key(|(number, _)| *number)?;
            next = number + 1;
            Some(callback.clone())
        })
    }
}

fn is_inside(under_way: &[(usize, u32)], thread: usize) -> bool {
    under_way.iter().any(|(other, _)| *other == thread)
}
