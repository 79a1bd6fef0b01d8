//! The program's callbacks: asked when memory is short, told when it ran out.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::Mutex;
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
    /// How deep each thread is nested that is inside of one now.
    under_way: Mutex<Vec<u32>>,
}

thread_local! {
    /// The callbacks that this thread is inside of, by where they are kept.
    static ENTERED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// As long as this lives, the thread is inside of a callback.
pub(crate) struct InCallback<'a> {
    under_way: &'a Mutex<Vec<u32>>,
    depth: u32,
}

impl Drop for InCallback<'_> {
    fn drop(&mut self) {
        let mut under_way = self.under_way.lock();
        if let Some(at) = under_way.iter().position(|depth| *depth == self.depth) {
            under_way.swap_remove(at);
        }
        // Fails while the thread's variables are being destroyed: nothing is to be known by then.
        let _ = ENTERED.try_with(|entered| entered.borrow_mut().pop());
    }
}

impl<F: ?Sized> Default for Callbacks<F> {
    fn default() -> Self {
        Self { next: AtomicU64::new(0), all: Mutex::default(), under_way: Mutex::default() }
    }
}

impl<F: ?Sized> fmt::Debug for Callbacks<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").field("count", &self.all.lock().len()).finish()
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
        let removed = {
            let mut all = self.all.lock();
            let at = all.iter().position(|(known, _)| *known == number);
            at.map(|at| all.remove(at))
        };
        removed.is_some()
    }

    /// Forgets all of them. What they hold is dropped without the lock.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.all.lock());
        drop(all);
    }

    /// How deep a request that begins now may be nested in callbacks: each that is running may wait for it.
    pub(crate) fn depth(&self) -> u32 {
        self.under_way.lock().iter().max().map_or(0, |deepest| deepest + 1)
    }

    /// Whether there are any that a request of this thread may be asked of.
    pub(crate) fn can_be_asked(&self) -> bool {
        let at = std::ptr::from_ref(self).addr();
        let is_entered = ENTERED.try_with(|entered| entered.borrow().contains(&at)).unwrap_or(true);
        !is_entered && !self.all.lock().is_empty()
    }

    /// To be entered before a callback is called; `None` where the depth is too great, or where this thread is inside
    /// one already. That one would be asked for its own requests, without end.
    pub(crate) fn enter(&self, depth: u32) -> Option<InCallback<'_>> {
        let at = std::ptr::from_ref(self).addr();
        if depth >= MOST_NESTED {
            return None;
        }
        let entered = ENTERED.try_with(|entered| {
            let mut entered = entered.borrow_mut();
            let is_new = !entered.contains(&at);
            let is_new = is_new && entered.try_reserve(1).is_ok();
            if is_new {
                entered.push(at);
            }
            is_new
        });
        // Not made where nothing was entered: its end leaves.
        if !entered.unwrap_or(false) {
            return None;
        }
        let mut under_way = self.under_way.lock();
        if under_way.try_reserve(1).is_err() {
            // Not by the end of an `InCallback`, which looks for its depth.
            let _ = ENTERED.try_with(|entered| entered.borrow_mut().pop());
            return None;
        }
        under_way.push(depth);
        Some(InCallback { under_way: &self.under_way, depth })
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
