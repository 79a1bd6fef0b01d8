//! The table of a named budget: what a process says in its slot, and what follows from all slots.
//!
//! All of it is atomic words, any value of each has a meaning, and sums saturate.

use super::lease::Lease;
use super::modelled::{AtomicU32, AtomicU64, Ordering, PlainWord, SLOTS};

/// Sequentially consistent throughout: all of it is rare, and easier to be right.
pub(super) const ORDER: Ordering = Ordering::SeqCst;

/// What the file holds.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Table {
    /// What the file is, and its version. Two words are left for later ones.
    pub(super) head: [AtomicU64; 4],
    /// Bytes that all processes may hold together.
    pub(super) limit: AtomicU64,
    /// How often it was taken, and in the lowest bits the holder's slot, counted from 1, or 0.
    pub(super) lock: AtomicU64,
    /// Counts requests for memory, and processes that leave. Who wants to hear of them waits for it to change.
    pub(super) asks: AtomicU32,
    /// Counts answers to them.
    pub(super) answers: AtomicU32,
    /// No slot from this one on was ever taken. It only grows, before a slot gets an owner.
    pub(super) used: AtomicU32,
    /// Whether the limit was set for all processes that come, and not by the first of them.
    pub(super) kept: AtomicU32,
    pub(super) slots: [Slot; SLOTS],
}

#[cfg(loom)]
impl Table {
    /// That of a budget which nobody has yet.
    pub(super) fn modelled(limit: u64) -> Self {
        let (head, lock) = Default::default();
        let limit = AtomicU64::new(limit);
        let slots = std::array::from_fn(|_| Slot::default());
        let [asks, answers, used, kept] = Default::default();
        Self { head, limit, lock, asks, answers, used, kept, slots }
    }
}

/// What one process holds and wants. Bytes.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Slot {
    /// The process's lease, or 0.
    pub(super) owner: AtomicU64,
    pub(super) held: AtomicU64,
    /// What is kept for it.
    pub(super) floor: AtomicU64,
    /// What it holds at most.
    pub(super) claim: AtomicU64,
    /// What it asks the others for.
    pub(super) wants: AtomicU64,
    /// The last request that it has answered.
    pub(super) answered: AtomicU32,
    /// Whether the process has joined, and may have set the limit.
    pub(super) joined: AtomicU32,
    /// The owner once more, as soon as it is known to run no more: only its memory is in use.
    pub(super) ended: AtomicU64,
    /// The namespaces in which the owner is the process that it says.
    pub(super) spaces: PlainWord,
}

impl Slot {
    pub(super) fn owner(&self) -> Option<Lease> {
        Lease::from_bits(self.owner.load(ORDER), || self.spaces.load(ORDER))
    }

    /// Requests are counted in a circle.
    pub(super) fn has_answered(&self, ask: u32) -> bool {
        ask.wrapping_sub(self.answered.load(ORDER)).cast_signed() <= 0
    }

    /// Whether its process is known to run no more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(ORDER) == self.owner.load(ORDER)
    }

    /// What the others have to leave to it.
    pub(super) fn counted(&self) -> u64 {
        self.held.load(ORDER).max(self.floor.load(ORDER))
    }

    /// Only what others have open of its memory counts from now on.
    pub(super) fn settle(&self, owner: Lease, lent: u64) {
        let held = self.held.load(ORDER).min(lent);
        // Whoever is stopped here leaves it to who looks next: the owner comes last, and what is held never grows.
        self.ended.store(owner.bits(), ORDER);
        self.held.store(held, ORDER);
        [&self.floor, &self.wants].into_iter().for_each(|word| word.store(0, ORDER));
        if held == 0 {
            self.owner.store(0, ORDER);
        }
    }
}

/// Takes off so much, but not more than there is: others can write there.
pub(super) fn lower(word: &AtomicU64, bytes: u64) {
    let lowered = |held: u64| Some(held.saturating_sub(bytes));
    let done = word.fetch_update(ORDER, ORDER, lowered);
    debug_assert!(done.is_ok(), "there is always a lower figure");
}
