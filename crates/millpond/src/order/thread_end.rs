//! Who is told on a thread that ends, while its default streams are still there.

use std::cell::RefCell;
use std::sync::Weak;

/// Told on the thread that ends. Unlike what the caches do then, it may lock: the main thread, which `exit` ends as well, is left out.
pub(super) trait ThreadEnd: Send + Sync {
    fn thread_ends(&self);
}

thread_local! {
    /// Made after the driver's own of the thread, since the thread asked for its stream before. So it is dropped before those.
    static TOLD: Told = const { Told(RefCell::new(Vec::new())) };
}

struct Told(RefCell<Vec<Weak<dyn ThreadEnd>>>);

impl Drop for Told {
    fn drop(&mut self) {
        // The main thread ends with the process. `exit` may come in the handler of a signal, which interrupted anything.
        if rustix::thread::gettid() != rustix::process::getpid() {
            self.0.take().iter().filter_map(Weak::upgrade).for_each(|told| told.thread_ends());
        }
    }
}

/// Has `told` hear of the calling thread's end. `false` where the thread is ending already, or the host has no memory for it.
pub(super) fn tell_end(told: &Weak<dyn ThreadEnd>) -> bool {
    let told = TOLD.try_with(|all| {
        let mut all = all.0.try_borrow_mut().ok()?;
        all.retain(|known| known.strong_count() > 0);
        if !all.iter().any(|known| known.ptr_eq(told)) {
            all.try_reserve(1).ok()?;
            all.push(told.clone());
        }
        Some(())
    });
    matches!(told, Ok(Some(())))
}
