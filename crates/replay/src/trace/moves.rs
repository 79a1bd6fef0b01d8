//! Memory that left for a while and came back, as the program had it.

use rustc_hash::FxHashSet;

/// A pool whose memory left: that of a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedPool {
    /// Its number in the recording, and its name.
    pub number: u32,
    /// See there.
    pub name: String,
    /// Its blocks that ever left, as indices into [`Trace::blocks`](super::Trace::blocks).
    pub blocks: FxHashSet<u32>,
}

/// An eviction, or a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedMove {
    /// How many ops of the trace came before it.
    pub before_op: usize,
    /// Microseconds since the trace began.
    pub time_us: u64,
    /// The pool, as an index into [`Moves::pools`].
    pub pool: usize,
    /// Whether the memory left; else it came back.
    pub leaves: bool,
    /// Bytes of pages.
    pub bytes: u64,
}

/// Which pools left and came back in a recording, and when.
#[derive(Debug, Clone, Default)]
pub struct Moves {
    /// The pools, in the order in which they first left.
    pub pools: Vec<MovedPool>,
    /// What happened, in order.
    pub all: Vec<RecordedMove>,
}

impl Moves {
    /// Adds a move of blocks. Returns how many they are.
    pub(super) fn add(
        &mut self,
        (number, name): (u32, &str),
        (before_op, time_us): (usize, u64),
        (leaves, bytes): (bool, u64),
        blocks: impl Iterator<Item = u32>,
    ) -> u64 {
        let known = self.pools.iter().position(|pool| pool.number == number);
        let pool = known.unwrap_or_else(|| {
            self.pools.push(MovedPool { number, name: name.to_owned(), blocks: FxHashSet::default() });
            self.pools.len() - 1
        });
        self.all.push(RecordedMove { before_op, time_us, pool, leaves, bytes });
        let of = &mut self.pools[pool].blocks;
        let leaving = blocks.inspect(|block| {
            if leaves {
                of.insert(*block);
            }
        });
        leaving.count() as u64
    }
}
