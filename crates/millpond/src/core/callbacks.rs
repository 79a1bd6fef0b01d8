//! The program's callbacks: asked when memory is short, told when it ran out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::out_of_memory::OutOfMemory;
use crate::policy::waiting::MOST_NESTED;
use crate::system::lock::{Mutex, this_thread};

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
    all: Mutex<Vec<(u64, Arc<F>)>>,
    /// The threads that are inside of one now.
    under_way: Mutex<Vec<usize>>,
}

/// As long as this lives, the thread is inside of a callback.
pub(crate) struct InCallback<'a>(&'a Mutex<Vec<usize>>);

impl Drop for InCallback<'_> {
    fn drop(&mut self) {
        let thread = this_thread();
        self.0.lock().retain(|other| *other != thread);
    }
}

impl<F: ?Sized> Default for Callbacks<F> {
    fn default() -> Self {
        Self { all: Mutex::default(), under_way: Mutex::default() }
    }
}

impl<F: ?Sized> Callbacks<F> {
    /// Adds a callback, if the pool is this process's, and names it.
    pub(crate) fn add(&self, callback: Arc<F>, is_here: bool) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Before the number: numbers rise in the list.
        let mut all = is_here.then(|| self.all.lock());
        // Relaxed: only uniqueness matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        all.iter_mut().for_each(|all| all.push((number, callback.clone())));
        number
    }

    /// Forgets one of them. What it holds is dropped without the lock.
    pub(crate) fn remove(&self, number: u64) -> bool {
        let removed = self.all.lock().extract_if(.., |(known, _)| *known == number).next();
        removed.is_some()
    }

    /// Forgets all of them. What they hold is dropped without the lock.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.all.lock());
        drop(all);
    }

    /// Whether there are any that a request of this thread may be asked of.
    pub(crate) fn can_be_asked(&self) -> bool {
        !self.under_way.lock().contains(&this_thread()) && !self.all.lock().is_empty()
    }

    /// To be entered before a callback is called; `None` where too many are under way, each of which may wait for this one, or
    /// where this thread is inside one already. That one would be asked for its own requests, without end.
    pub(crate) fn enter(&self) -> Option<InCallback<'_>> {
        let (thread, mut under_way) = (this_thread(), self.under_way.lock());
        let is_refused = under_way.len() >= MOST_NESTED || under_way.contains(&thread);
        if is_refused || under_way.try_reserve(1).is_err() {
            return None;
        }
        under_way.push(thread);
        Some(InCallback(&self.under_way))
    }

    /// Those that are registered now, in that order. The lock is not held in between: they may register and remove others.
    pub(crate) fn each(&self) -> impl Iterator<Item = Arc<F>> {
        let (mut next, last) = (0, self.all.lock().last().map_or(0, |(number, _)| *number));
        std::iter::from_fn(move || {
            let all = self.all.lock();
            let (number, callback) = all.iter().find(|(number, _)| (next..=last).contains(number))?;
            next = number + 1;
            Some(callback.clone())
        })
    }
}
