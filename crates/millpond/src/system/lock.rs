//! Locks without a table that the whole process shares. Each is a lock of the standard library, one word for the
//! kernel's futex, without poison.
//!
//! Uses `log` only: while a thread holds a lock, what it says by `tracing` waits. Every floor may use it. parking_lot's locks
//! queue in one table for all locks of a process, which has locks of its own. A thread that queues at a fork holds one of them, in the child for ever. The child's
//! next thread that waits for any lock then hangs, even for a lock of its own.
//!
//! A panic while a lock is held leaves what it guards as it is then: nothing of ours calls the program with a lock held.
//!
//! In debug builds a mutex knows the thread that holds it. A thread that waits for itself would wait for ever: it was
//! interrupted by a signal, whose handler came back here. There the process [ends](end_interrupted) and says why.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{self, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::log::Quiet;

/// While it lives, the lock is held.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    /// Before the lock: nobody else has it when this goes.
    held: Held<'a>,
    guard: sync::MutexGuard<'a, T>,
    /// After the lock: what waited is sent then.
    quiet: Quiet,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// The thread that holds a lock, by the address of something of its own; 0 for none, and in release builds.
#[derive(Debug, Default)]
struct Holder(AtomicUsize);

#[derive(Debug)]
struct Held<'a>(&'a Holder);

/// The calling thread, by the address of something of its own: no other thread has it while this one lives.
pub(crate) fn this_thread() -> usize {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own).addr())
}

impl Holder {
    // Relaxed, all: a thread asks for what it wrote itself. What others wrote is not its address.
    #[inline]
    fn hold(&self) -> Held<'_> {
        if cfg!(debug_assertions) {
            self.0.store(this_thread(), Ordering::Relaxed);
        }
        Held(self)
    }

    #[inline]
    fn is_this_thread(&self) -> bool {
        cfg!(debug_assertions) && self.0.load(Ordering::Relaxed) == this_thread()
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            self.0.0.store(0, Ordering::Relaxed);
        }
    }
}

/// Says that a signal's handler came back to where the thread was interrupted, and ends the process. Without memory and
/// locks: the handler may have interrupted anything.
#[cold]
pub(crate) fn end_interrupted() -> ! {
    const WHY: &str = "millpond: a signal handler called the pool while the thread that it interrupted was inside. This is not \
                       allowed: a release build hangs here, or counts wrong. Set a flag in the handler, and allocate or \
                       free after it.\n";
    // SAFETY: the text is readable for its length.
    unsafe {
        libc::write(libc::STDERR_FILENO, WHY.as_ptr().cast(), WHY.len());
    }
    std::process::abort()
}

/// Waits for a lock where ThreadSanitizer looks on: it sees no wait inside a standard library that is not instrumented.
fn until_some<T>(attempt: impl Fn() -> Option<T>) -> T {
    loop {
        if let Some(taken) = attempt() {
            return taken;
        }
        std::thread::yield_now();
    }
}

/// While it lives, the lock is held for reading or for writing. What waited meanwhile is sent after the lock.
#[derive(Debug)]
pub struct QuietGuard<G> {
    guard: G,
    _quiet: Quiet,
}

impl<G> QuietGuard<G> {
    fn new(guard: G) -> Self {
        Self { guard, _quiet: Quiet::begin() }
    }
}

impl<T, G: Deref<Target = T>> Deref for QuietGuard<G> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, G: DerefMut<Target = T>> DerefMut for QuietGuard<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// While it lives, nobody writes.
pub(crate) type RwLockReadGuard<'a, T> = QuietGuard<sync::RwLockReadGuard<'a, T>>;

/// See [`std::sync::Mutex`].
#[derive(Debug, Default)]
pub struct Mutex<T> {
    holder: Holder,
    lock: sync::Mutex<T>,
}

impl<T> Mutex<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Self {
        Self { holder: Holder(AtomicUsize::new(0)), lock: sync::Mutex::new(value) }
    }

    fn guard<'a>(&'a self, guard: sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { held: self.holder.hold(), guard, quiet: Quiet::begin() }
    }

    /// Waits until nobody holds the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if self.holder.is_this_thread() {
            end_interrupted();
        }
        if cfg!(tsan) {
            return until_some(|| self.try_lock());
        }
        self.guard(self.lock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// `None` where somebody holds the lock.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.lock.try_lock() {
            Ok(guard) => Some(self.guard(guard)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.guard(poisoned.into_inner())),
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
        self.lock.get_mut().unwrap_or_else(PoisonError::into_inner)
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
    pub fn read(&self) -> QuietGuard<sync::RwLockReadGuard<'_, T>> {
        if cfg!(tsan) {
            return QuietGuard::new(until_some(|| self.0.try_read().ok()));
        }
        QuietGuard::new(self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until nobody reads or writes.
    #[inline]
    pub fn write(&self) -> QuietGuard<sync::RwLockWriteGuard<'_, T>> {
        if cfg!(tsan) {
            return QuietGuard::new(until_some(|| self.0.try_write().ok()));
        }
        QuietGuard::new(self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// See [`std::sync::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// One that nobody waits for.
    #[must_use]
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Lets go of the lock until it is notified, or for no reason.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.wait_for(guard, Duration::MAX)
    }

    /// As [`wait`](Self::wait), for so long at most.
    pub fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, patience: Duration) -> MutexGuard<'a, T> {
        let MutexGuard { held, guard, quiet } = guard;
        let holder = held.0;
        drop(held);
        let (guard, _) = self.0.wait_timeout(guard, patience).unwrap_or_else(PoisonError::into_inner);
        MutexGuard { held: holder.hold(), guard, quiet }
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
