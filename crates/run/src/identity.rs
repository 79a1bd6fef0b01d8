//! What tells allocations apart that have one address after the other: numbers, for blocks that the program asked about.

use millpond::bindings::{Mutex, PerProcess};
use rustc_hash::FxHashMap;

use crate::shortcuts;

/// What is known of a live block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) number: u64,
    /// Whether the program asked that synchronous copies wait (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`).
    pub(crate) is_synchronous: bool,
    gpu: usize,
}

#[derive(Debug, Default)]
struct Identities {
    by_start: FxHashMap<u64, Identity>,
    last: u64,
}

static IDENTITIES: PerProcess<Mutex<Identities>> = PerProcess::new(Default::default);

/// Beyond the numbers of the driver's own allocations.
const FIRST: u64 = 1 << 62;

/// Changes what is known of a live block of a GPU's pool, and returns it. From now on frees are told here.
pub(crate) fn of(start: u64, gpu: usize, change: impl FnOnce(&mut Identity)) -> Identity {
    let mut identities = IDENTITIES.get().lock();
    if identities.by_start.is_empty() {
        shortcuts::close();
    }
    let next = FIRST + identities.last;
    let new = Identity { number: next, is_synchronous: false, gpu };
    let known = identities.by_start.entry(start).or_insert(new);
    change(known);
    let known = *known;
    identities.last += u64::from(known.number == next);
    known
}

/// A block is freed next.
pub(crate) fn forget(start: u64) {
    if !shortcuts::are_open() {
        change(|known| _ = known.remove(&start));
    }
}

/// All blocks of a GPU's pool are freed next.
pub(crate) fn forget_all_of(ordinal: usize) {
    change(|known| known.retain(|_, identity| identity.gpu != ordinal));
}

fn change(change: impl FnOnce(&mut FxHashMap<u64, Identity>)) {
    let known = &mut IDENTITIES.get().lock().by_start;
    let any = !known.is_empty();
    change(known);
    if any && known.is_empty() {
        shortcuts::reopen();
    }
}
