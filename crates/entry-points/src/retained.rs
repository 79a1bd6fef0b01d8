//! How often the program has retained each GPU's primary context: it ends with the last release. The pools retain it, too.

use std::ffi::c_int;

use millpond::bindings::{Mutex, MutexGuard, PerProcess};
use rustc_hash::FxHashMap;

/// The primary contexts that the program has retained, by GPU.
#[derive(Debug, Default)]
pub(crate) struct Retained(FxHashMap<c_int, Owners>);

#[derive(Debug, Default)]
struct Owners {
    /// Those that were seen to retain it, and did not release it.
    seen: u64,
    /// Whether somebody retains it whose release is not seen: the program used it before anybody was seen to retain it, made green
    /// contexts, or asked for the pool in its code.
    has_others: bool,
}

static RETAINED: PerProcess<Mutex<Retained>> = PerProcess::new(Default::default);

/// All of them. Whoever calls the driver under this lock is before or after the calls of other threads as a whole.
pub(crate) fn lock() -> MutexGuard<'static, Retained> {
    RETAINED.get().lock()
}

/// The program uses a primary context. If nobody was seen to retain it, it has an owner whose release is not seen either.
pub(crate) fn is_used(device: c_int) {
    let mut retained = lock();
    let owners = retained.0.entry(device).or_default();
    owners.has_others |= owners.seen == 0;
}

impl Retained {
    pub(crate) fn add(&mut self, device: c_int) {
        self.0.entry(device).or_default().seen += 1;
    }

    /// Somebody retains it whose release is not seen.
    pub(crate) fn add_other(&mut self, device: c_int) {
        self.0.entry(device).or_default().has_others = true;
    }

    /// Whether a release is the last one.
    pub(crate) fn is_last(&self, device: c_int) -> bool {
        self.0.get(&device).is_some_and(|owners| owners.seen == 1 && !owners.has_others)
    }

    pub(crate) fn remove(&mut self, device: c_int) {
        if let Some(owners) = self.0.get_mut(&device) {
            owners.seen = owners.seen.saturating_sub(1);
        }
    }
}
