//! In which order blocks are placed: each at the lowest address that is free for all of its lifetime.

use std::cmp::Reverse;

use super::lifetimes::Lifetime;

/// An order. Which is best differs from job to job, so several are tried.
///
/// The *load* of a block is the most that is live at once while it lives. Blocks of high load come first in the best orders: the
/// less is live beside a block, the more room there is for it later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// By load, then by size.
    LoadAndSize,
    /// By load, then by lifetime, then by area: minimalloc's order TWA.
    LoadAndLifetime,
    /// By load in 256 steps, then by size times lifetime: near minimalloc's order TAW.
    LoadAndArea,
    /// By size, then by lifetime: the order of TensorFlow Lite and TVM.
    Size,
    /// By lifetime, then by area, then by load: minimalloc's order WAT.
    Lifetime,
    /// As they come: first fit, which needs no knowledge of the future.
    Begin,
}

/// Steps of the load in [`Order::LoadAndArea`].
const LOAD_STEPS: u128 = 256;

impl Order {
    /// All of them, those first that need least on recorded jobs.
    pub const ALL: [Self; 6] = [
        Self::LoadAndSize,
        Self::LoadAndLifetime,
        Self::LoadAndArea,
        Self::Size,
        Self::Lifetime,
        Self::Begin,
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::LoadAndSize => "load, size",
            Self::LoadAndLifetime => "load, lifetime",
            Self::LoadAndArea => "load, area",
            Self::Size => "size",
            Self::Lifetime => "lifetime",
            Self::Begin => "begin",
        }
    }

    /// Blocks in this order, as indices. `bound` is the highest load.
    pub(super) fn sorted(self, all: &[Lifetime], bound: u64) -> Vec<u32> {
        let mut order: Vec<u32> = (0..all.len() as u32).collect();
        order.sort_by_cached_key(|&at| Reverse(self.rank(&all[at as usize], bound)));
        order
    }

    /// What comes first has the highest rank.
    fn rank(self, lifetime: &Lifetime, bound: u64) -> [u128; 3] {
        let [units, periods, load] = [lifetime.units, lifetime.periods(), lifetime.load].map(u128::from);
        match self {
            Self::LoadAndSize => [load, units, periods],
            Self::LoadAndLifetime => [load, periods, units],
            Self::LoadAndArea => [load * LOAD_STEPS / u128::from(bound.max(1)), lifetime.area(), load],
            Self::Size => [units, periods, 0],
            Self::Lifetime => [periods, lifetime.area(), load],
            Self::Begin => [u128::from(u32::MAX - lifetime.begin), 0, 0],
        }
    }
}
