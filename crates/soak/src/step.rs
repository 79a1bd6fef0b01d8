//! The steps of a program, and random ones.
//!
//! A step names things by numbers, taken modulo what there is when it runs. So every list of steps is a program, and every
//! part of it is one too: that is how programs are shortened.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::setup::{GRANULARITY, SLOTS};

/// One step of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    Alloc {
        pool: u8,
        stream: u8,
        bytes: u64,
    },
    AllocZeroed {
        pool: u8,
        stream: u8,
        bytes: u64,
    },
    /// At a multiple of 2 to this many bytes.
    AllocAligned {
        pool: u8,
        stream: u8,
        bytes: u64,
        log: u8,
    },
    /// A kernel on a block. Where it is `recorded`, the pool orders the free behind it, else the program does.
    Use {
        block: u8,
        stream: u8,
        micros: u16,
        recorded: bool,
    },
    Free {
        block: u8,
        stream: u8,
    },
    WaitFor {
        stream: u8,
        other: u8,
    },
    Advance {
        micros: u16,
    },
    SyncStream {
        stream: u8,
    },
    SyncDevice,
    NewStream {
        stream: u8,
    },
    Trim {
        pool: u8,
        pages: u8,
    },
    Reserve {
        pool: u8,
        stream: u8,
        pages: u8,
    },
    SetThreshold {
        pool: u8,
        pages: u8,
    },
    /// Destroys a pool, whose blocks are freed later, and builds another.
    NewPool {
        pool: u8,
    },
    /// Captures a graph that allocates, fills and frees so many blocks.
    Capture {
        pool: u8,
        stream: u8,
        blocks: u8,
        bytes: u64,
    },
    Launch {
        graph: u8,
    },
    DropGraph {
        graph: u8,
    },
    Sleep {
        pool: u8,
        keeps: bool,
    },
    Wake {
        pool: u8,
    },
    /// Shares a new block, and opens it as another process would.
    Share {
        pool: u8,
        stream: u8,
        other: u8,
        bytes: u64,
    },
    /// Evicts a tag, or has what came back of it leave again.
    Evict {
        tag: u8,
        stream: u8,
    },
    Restore {
        tag: u8,
        stream: u8,
    },
    /// Begins to bring a tag back, as a whole or as far as memory is free.
    RestoreEarly {
        tag: u8,
        is_whole: bool,
    },
    /// Gives a block to whichever thread takes it.
    HandOver {
        block: u8,
        stream: u8,
    },
    Take {
        stream: u8,
    },
    /// Makes the `nth` device call from here fail.
    Fail {
        nth: u32,
    },
    /// Makes the host refuse the `nth` allocation of the next call of a pool.
    Refuse {
        nth: u8,
    },
}

impl Step {
    /// A step of some bytes, whatever they are.
    pub(crate) fn of_bytes(bytes: [u8; 6]) -> Self {
        let [kind, pool, stream, block, low, high] = bytes;
        let (number, log) = (u16::from_le_bytes([low, high]), low % 32);
        // Short ones exactly, long ones near a power of two.
        let bytes = (u64::from(number >> 5) << (log / 2)).max(1) + u64::from(log & 1);
        let (other, pages, graph) = (high, high, high);
        match kind % 32 {
            0..7 => Self::Alloc { pool, stream, bytes },
            7..13 => Self::Free { block, stream },
            13..16 => Self::Use { block, stream, micros: number, recorded: pool % 2 == 0 },
            16 => Self::AllocZeroed { pool, stream, bytes },
            17 => Self::AllocAligned { pool, stream, bytes, log: pool % 22 },
            18 => Self::WaitFor { stream, other },
            19 => Self::Advance { micros: number },
            20 => Self::SyncStream { stream },
            21 => Self::SyncDevice,
            22 => Self::NewStream { stream },
            23 => Self::Trim { pool, pages },
            24 => Self::Reserve { pool, stream, pages: pages % 32 },
            25 => Self::SetThreshold { pool, pages },
            26 if low % 2 == 0 => Self::NewPool { pool },
            26 if high % 2 == 0 => Self::Evict { tag: pool, stream },
            26 => Self::Share { pool, stream, other, bytes: u64::from(number) + 1 },
            27 => Self::Capture { pool, stream, blocks: block % 8, bytes },
            28 if low % 2 == 0 => Self::Launch { graph },
            28 => Self::DropGraph { graph },
            29 => Self::Sleep { pool, keeps: low % 2 == 0 },
            30 if low % 4 == 0 => Self::Wake { pool },
            30 if low % 4 == 1 => Self::RestoreEarly { tag: pool, is_whole: high % 2 == 0 },
            30 => Self::Restore { tag: pool, stream },
            _ => Self::Fail { nth: u32::from(block) + 1 },
        }
    }
}

/// Random steps of one thread.
#[derive(Debug)]
pub(crate) struct Steps {
    rng: Rng,
    left: usize,
    /// Lengths that come again and again, as those of a program's tensors do.
    lengths: [u64; 16],
    streams: u8,
    is_alone: bool,
    /// For a while most steps are on one pool and one stream, with a few lengths: those of a loop.
    phase: Phase,
}

#[derive(Debug, Default)]
struct Phase {
    left: u32,
    pool: u8,
    stream: u8,
    /// The first of its lengths.
    length: usize,
}

/// Lengths of a phase.
const FEW: usize = 2;

/// The longest phase, in steps.
const LONGEST_PHASE: u32 = 1000;

fn length(rng: &mut Rng) -> u64 {
    match rng.u32(..40) {
        0..24 => rng.u64(1..16 << 10),
        24..30 => rng.u64(1..256 << 10),
        30..36 => rng.u64(256 << 10..2 << 20),
        36 => rng.u64(1..6) * GRANULARITY,
        37 => rng.u64(1..6) * GRANULARITY + rng.u64(..1024),
        38 => rng.u64(1..6) * GRANULARITY - rng.u64(1..1024),
        _ => rng.u64(1..24 << 20),
    }
}

impl Steps {
    /// `left` steps, of a thread that has the pools for itself or not.
    pub(crate) fn new(seed: u64, left: usize, streams: usize, is_alone: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let lengths = [(); 16].map(|()| length(&mut rng));
        Self { rng, left, lengths, streams: streams as u8, is_alone, phase: Phase::default() }
    }

    fn bytes(&mut self) -> u64 {
        match self.rng.u32(..64) {
            0 => length(&mut self.rng),
            at @ 1..8 => self.lengths[2 * at as usize],
            at => self.lengths[(self.phase.length + at as usize % FEW) % 16],
        }
    }

    /// The pool and the stream of a step.
    fn place(&mut self) -> (u8, u8) {
        if self.phase.left == 0 {
            self.phase = Phase {
                left: self.rng.u32(1..LONGEST_PHASE),
                pool: self.rng.u8(..SLOTS as u8),
                stream: self.rng.u8(..self.streams),
                length: self.rng.usize(..16),
            };
        }
        self.phase.left -= 1;
        match self.rng.u32(..16) {
            0 => (self.rng.u8(..SLOTS as u8), self.rng.u8(..self.streams)),
            1 => (self.phase.pool, self.rng.u8(..self.streams)),
            _ => (self.phase.pool, self.phase.stream),
        }
    }

    fn common(&mut self) -> Step {
        let (draw, (pool, stream)) = (self.rng.u32(..1000), self.place());
        let block = self.rng.u8(..);
        match draw {
            0..320 => Step::Alloc { pool, stream, bytes: self.bytes() },
            320..630 => Step::Free { block, stream },
            630..880 => {
                Step::Use { block, stream, micros: self.rng.u16(..200), recorded: self.rng.u8(..4) == 0 }
            }
            880..920 => Step::WaitFor { stream, other: self.rng.u8(..self.streams) },
            920..985 => Step::Advance { micros: self.rng.u16(..400) },
            985..990 => Step::SyncStream { stream },
            990..995 => Step::AllocZeroed { pool, stream, bytes: self.bytes() },
            _ => Step::AllocAligned { pool, stream, bytes: self.bytes(), log: self.rng.u8(..22) },
        }
    }

    fn rare(&mut self) -> Step {
        let (draw, pool, stream) =
            (self.rng.u32(..64), self.rng.u8(..SLOTS as u8), self.rng.u8(..self.streams));
        let (pages, graph, other) = (self.rng.u8(..16), self.rng.u8(..), self.rng.u8(..self.streams));
        match draw {
            0..6 => Step::SyncDevice,
            6..9 => Step::Trim { pool, pages },
            9..11 => Step::Reserve { pool, stream, pages: pages / 2 },
            // Nearly always so high that nothing goes back.
            11..13 => Step::SetThreshold { pool, pages: if pages < 3 { graph / 8 } else { u8::MAX } },
            13 => Step::NewPool { pool },
            14 => Step::Share { pool, stream, other, bytes: self.bytes() },
            15..18 => Step::NewStream { stream },
            18..34 if self.is_alone => Step::Launch { graph },
            34..37 if self.is_alone => {
                Step::Capture { pool, stream, blocks: 1 + pages / 2, bytes: self.bytes() }
            }
            37..40 if self.is_alone => Step::DropGraph { graph },
            40 if self.is_alone => Step::Sleep { pool, keeps: pages < 12 },
            41..46 if self.is_alone => Step::Wake { pool },
            46..50 => Step::Refuse { nth: 1 + pages / 4 },
            50..54 if self.is_alone => Step::Evict { tag: pool, stream },
            54..58 if self.is_alone => Step::Restore { tag: pool, stream },
            58..60 if self.is_alone => Step::RestoreEarly { tag: pool, is_whole: pages < 4 },
            _ if self.is_alone => self.common(),
            50..57 => Step::Take { stream },
            _ => Step::HandOver { block: graph, stream },
        }
    }
}

impl Iterator for Steps {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        self.left = self.left.checked_sub(1)?;
        Some(if self.rng.u32(..256) == 0 { self.rare() } else { self.common() })
    }
}
