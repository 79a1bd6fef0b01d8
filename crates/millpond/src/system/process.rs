//! `process`: which process made something. A child that was forked has its parent's objects, and must leave them alone.
//!
//! Uses `lock`; every floor may use it.
//!
//! Of the parent's threads only the one that forked lives on in the child. Locks that others held stay locked, and
//! streams whose threads are gone never go on. Data may be half written, and CUDA does not work at all. So each object
//! knows the [`Process`] that made it, and whoever is about to lock, wait or call the device [checks](Process::check)
//! first.
//!
//! **How the child knows.** The C library calls [`in_child`] there before `fork` returns (`pthread_atfork`): it counts
//! the fork, and then calls what was [registered](on_fork). So a check is a load and a comparison. A page that the kernel
//! wipes at a fork (`MADV_WIPEONFORK`) would also know of a raw `clone`, for one load more. But it could not take the
//! forking thread's index away, which closes the fast path at no cost, and it takes a page and Linux. `vfork` and
//! `posix_spawn` need neither: their child runs nothing of ours before it is another program.
//!
//! **What is made while a fork is under way.** The child may have a copy of it, or half of one. Whoever minds asks
//! [`watch_forks`], and makes it again.
//!
//! **What needs no owner.** [`PerProcess`] is for what all of a process shares: a child begins anew. So is [`WhileHeld`], for what
//! goes once nobody holds it. [`OfProcess`] is for what must not be dropped in a child, where it may be half written.

use std::mem::{ManuallyDrop, transmute};
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::log::log;
use crate::system::lock::Mutex;

/// A process: how many forks lie between it and the first of its line that used this library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(u64);

static FORKS: AtomicU64 = AtomicU64::new(0);

impl Default for Process {
    fn default() -> Self {
        Self::here()
    }
}

impl Process {
    /// The present one.
    #[inline]
    #[must_use]
    pub fn here() -> Self {
        watch();
        Self::present()
    }

    #[inline]
    fn present() -> Self {
        // Relaxed: written in a child before its only thread goes on.
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is the present one.
    #[inline]
    #[must_use]
    pub fn is_here(self) -> bool {
        self == Self::present()
    }

    /// Unlike that of its parent.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// What a call answers that concerns an object of this process.
    ///
    /// # Errors
    /// [`Forked`] in another one.
    #[inline]
    pub fn check(self) -> Result<(), Forked> {
        if self.is_here() { Ok(()) } else { Err(Forked) }
    }
}

/// An object was made in the process that this one was forked from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forked;

/// Has the C library tell of forks. No lock: a fork may come in between. To be told twice does no harm.
#[inline]
fn watch() {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    // Acquire: pairs with the Release below. Who made an object after this finds the fork counted in the child.
    if !IS_WATCHED.load(Ordering::Acquire) {
        // Miri neither forks nor knows this function.
        if cfg!(not(miri))
            // SAFETY: functions of this library, which the C library forgets when this one is unloaded.
            && unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) } != 0
        {
            log!(WARN, "a forked child would not know that it is one: pthread_atfork failed");
        }
        IS_WATCHED.store(true, Ordering::Release);
    }
}

/// Forks of this process that began, and that ended.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

extern "C" fn before_fork() {
    BEGUN.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn after_fork() {
    ENDED.fetch_add(1, Ordering::SeqCst);
}

/// What `make` makes, and whether no fork was under way meanwhile, of which the child may have a copy.
pub(crate) fn watch_forks<T>(make: impl FnOnce() -> T) -> (T, bool) {
    watch();
    // Sequentially consistent, as where they are counted: the calls of the system between them are rare and slow.
    let ended = ENDED.load(Ordering::SeqCst);
    let made = make();
    (made, BEGUN.load(Ordering::SeqCst) == ended)
}

/// In the child, on its only thread, before `fork` returns. Takes no lock, and allocates nothing.
extern "C" fn in_child() {
    // Relaxed: see `present`.
    FORKS.fetch_add(1, Ordering::Relaxed);
    // Those under way are the parent's.
    ENDED.store(BEGUN.load(Ordering::SeqCst), Ordering::SeqCst);
    TOLD.each(|tell| tell());
}

static TOLD: Listeners = Listeners::new();

/// Has `tell` called in each forked child before anything else happens there. It must neither lock nor allocate. To name
/// it again does nothing. A process may name 32 of them.
pub fn on_fork(tell: fn()) {
    TOLD.add(tell);
    watch();
}

/// Functions to be called, each once, without a lock. They stay.
#[derive(Debug)]
pub(crate) struct Listeners([AtomicPtr<()>; 32]);

impl Listeners {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; 32])
    }

    pub(crate) fn add(&self, tell: fn()) {
        let tell = tell as *mut ();
        // Relaxed: it is all that is told. Two functions at one address are the same.
        let is_added = |place: &AtomicPtr<()>| {
            let taken = place.compare_exchange(ptr::null_mut(), tell, Ordering::Relaxed, Ordering::Relaxed);
            taken.map_or_else(|other| other == tell, |_| true)
        };
        assert!(self.0.iter().any(is_added), "a process names fewer functions");
    }

    pub(crate) fn each(&self, call: impl Fn(fn())) {
        let added = self.0.iter().map(|place| place.load(Ordering::Relaxed));
        for tell in added.take_while(|tell| !tell.is_null()) {
            // SAFETY: it was such a function in `add`.
            call(unsafe { transmute::<*mut (), fn()>(tell) });
        }
    }
}

/// Something that all of a process shares, made when it is first asked for. A forked child makes one of its own: that of
/// the parent may be locked by a thread that is gone, or half written. What the parent had stays in memory.
#[derive(Debug)]
pub struct PerProcess<T> {
    make: fn() -> T,
    /// Leaked.
    present: AtomicPtr<Made<T>>,
}

#[derive(Debug)]
struct Made<T> {
    process: Process,
    value: T,
    /// The parent's, so that tools which look for leaks find it in use.
    _before: *mut Made<T>,
}

impl<T> PerProcess<T> {
    /// One that nobody asked for yet, made by this.
    pub const fn new(make: fn() -> T) -> Self {
        Self { make, present: AtomicPtr::new(ptr::null_mut()) }
    }
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// The present process's.
    #[inline]
    pub fn get(&self) -> &'static T {
        // Acquire: pairs with the Release of `make_slow`.
        let present = self.present.load(Ordering::Acquire);
        // SAFETY: null, or leaked by `make_slow`.
        match unsafe { present.as_ref() } {
            Some(made) if made.process.is_here() => &made.value,
            _ => self.make_slow(present),
        }
    }

    /// Makes it, where this was there before.
    #[cold]
    fn make_slow(&self, before: *mut Made<T>) -> &'static T {
        let made = Made { process: Process::here(), value: (self.make)(), _before: before };
        let new = Box::into_raw(Box::new(made));
        // Release: whoever sees it sees what is in it. Acquire: so does this thread, where another one was first. No lock:
        // a fork may come in between.
        match self.present.compare_exchange(before, new, Ordering::Release, Ordering::Acquire) {
            // SAFETY: leaked above.
            Ok(_) => unsafe { &(*new).value },
            Err(first) => {
                // SAFETY: nobody else knows it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: not null, and leaked by the thread that was first, of this process: each makes one once.
                unsafe { &(*first).value }
            }
        }
    }
}

/// What all of a process shares by a key, as long as anybody holds it.
#[derive(Debug)]
pub(crate) struct WhileHeld<K, T>(PerProcess<Mutex<Known<K, T>>>);

type Known<K, T> = Vec<(K, Weak<T>)>;

impl<K: PartialEq + Send + 'static, T: Send + Sync + 'static> WhileHeld<K, T> {
    pub(crate) const fn new() -> Self {
        Self(PerProcess::new(Default::default))
    }

    /// The one that somebody holds, or a new one.
    pub(crate) fn get<E>(&self, key: K, make: impl FnOnce() -> Result<Arc<T>, E>) -> Result<Arc<T>, E> {
        let mut known = self.0.get().lock();
        known.retain(|(_, held)| held.strong_count() > 0);
        let same = known.iter().find(|(of, _)| *of == key).and_then(|(_, held)| held.upgrade());
        same.map_or_else(|| make().inspect(|made| known.push((key, Arc::downgrade(made)))), Ok)
    }
}

/// Something that is dropped in the process that made it only. In a forked child it may be half written.
#[derive(Debug)]
pub(crate) struct OfProcess<T> {
    value: ManuallyDrop<T>,
    process: Process,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: Process::here() }
    }

    /// The value; `None` in a process that did not make it.
    pub(crate) fn here(this: &Self) -> Option<&T> {
        this.process.is_here().then_some(&this.value)
    }
}

impl<T: Default> Default for OfProcess<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Deref for OfProcess<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for OfProcess<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.process.is_here() {
            // SAFETY: nobody has the value after this.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_per_process_is_made_once() {
        static COUNT: PerProcess<AtomicU64> = PerProcess::new(Default::default);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| COUNT.get().fetch_add(1, Ordering::Relaxed));
            }
        });
        assert_eq!(COUNT.get().load(Ordering::Relaxed), 8);
    }

    #[test]
    fn listeners_are_called_once_each() {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let listeners = Listeners::new();
        for _ in 0..100 {
            listeners.add(|| _ = CALLS.fetch_add(1, Ordering::Relaxed));
            listeners.add(|| _ = CALLS.fetch_add(10, Ordering::Relaxed));
        }
        listeners.each(|tell| tell());
        assert_eq!(CALLS.load(Ordering::Relaxed), 11);
    }

    #[test]
    fn what_another_process_made_is_refused_and_not_dropped() {
        let dropped = std::rc::Rc::new(());
        let mut elsewhere = OfProcess::new(dropped.clone());
        elsewhere.process = Process(u64::MAX);
        assert_eq!(elsewhere.process.check(), Err(Forked));
        drop(elsewhere);
        drop(OfProcess::new(dropped.clone()));
        assert_eq!(std::rc::Rc::strong_count(&dropped), 2);
    }
}
