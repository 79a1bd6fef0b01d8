//! Locks without a table that the whole process shares. Each is a lock of the standard library, one word for the
//! kernel's futex, without poison.
//!
//! Uses nothing of ours. Every floor may use it. parking_lot's locks queue in one table for all locks of a process,
//! which has locks of its own. A thread that queues at a fork holds one of them, in the child for ever. The child's
//! next thread that waits for any lock then hangs, even for a lock of its own.
//!
//! A panic while a lock is held leaves what it guards as it is then: nothing of ours calls the program with a lock held.

use std::sync::{self, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// While it lives, the lock is held.
pub type MutexGuard<'a, T> = sync::MutexGuard<'a, T>;

/// While it lives, nobody writes.
pub(crate) type RwLockReadGuard<'a, T> = sync::RwLockReadGuard<'a, T>;

/// While it lives, nobody else reads or writes.
pub(crate) type RwLockWriteGuard<'a, T> = sync::RwLockWriteGuard<'a, T>;

/// See [`std::sync::Mutex`].
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits until nobody holds the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` where somebody holds the lock.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// As [`try_lock`](Self::try_lock), again each millisecond for so long.
    pub fn try_lock_for(&self, patience: Duration) -> Option<MutexGuard<'_, T>> {
        let began = Instant::now();
        loop {
            if let Some(guard) = self.try_lock() {
                return Some(guard);
            }
            if began.elapsed() >= patience {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Without the lock: nobody else has a reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Without the lock, as for [`get_mut`](Self::get_mut).
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`std::sync::RwLock`].
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    /// Waits until nobody writes.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody reads or writes.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Without the lock: nobody else has a reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`std::sync::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// One that nobody waits for.
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Lets go of the lock until it is notified, or for no reason.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`wait`](Self::wait), for so long at most.
    pub fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, patience: Duration) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, patience).unwrap_or_else(PoisonError::into_inner).0
    }

    /// As [`wait`](Self::wait), until this is no longer so.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        is_so: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.0.wait_while(guard, is_so).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes one who waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_lock_can_be_taken_after_its_holder_panics() {
        let lock = Mutex::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _held = lock.lock();
            panic!("expected by the test");
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.lock(), 1);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn a_wait_for_a_held_lock_ends_after_its_timeout() {
        let lock = Mutex::new(());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock_for(Duration::from_millis(5)).is_none());
        drop(held);
        assert!(lock.try_lock_for(Duration::ZERO).is_some());
    }
}
