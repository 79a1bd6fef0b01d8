//! What is known of blocks that the program asked about, or gives to others, until they are freed. So allocations that have one
//! address after the other can be told apart.

use millpond::bindings::{Mutex, PerProcess};
use millpond_offers as offers;
use rustc_hash::FxHashMap;

use crate::fast_path;

/// What is known of a live block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) number: u64,
    /// Whether the program asked that synchronous copies wait (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`).
    pub(crate) is_synchronous: bool,
    /// Whether other processes may open it.
    pub(crate) is_offered: bool,
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
        fast_path::close();
    }
    let next = FIRST + identities.last;
    let new = Identity { number: next, is_synchronous: false, is_offered: false, gpu };
    let known = identities.by_start.entry(start).or_insert(new);
    change(known);
    let known = *known;
    identities.last += u64::from(known.number == next);
    known
}

/// A block is freed next.
pub(crate) fn forget(start: u64) {
    if !fast_path::are_open() {
        change(|known| known.remove(&start).into_iter().map(|gone| (start, gone)).collect());
    }
}

/// All blocks of a GPU's pool are freed next.
pub(crate) fn forget_all_of(ordinal: usize) {
    change(|known| known.extract_if(|_, identity| identity.gpu == ordinal).collect());
}

/// Takes some out, which others cannot open any more.
fn change(take: impl FnOnce(&mut FxHashMap<u64, Identity>) -> Vec<(u64, Identity)>) {
    let mut identities = IDENTITIES.get().lock();
    let known = &mut identities.by_start;
    let any = !known.is_empty();
    let gone = take(known);
    if any && known.is_empty() {
        fast_path::reopen();
    }
    // The end of an offer may wait.
    drop(identities);
    gone.iter().filter(|(_, gone)| gone.is_offered).for_each(|(start, _)| offers::withdraw(*start));
}
