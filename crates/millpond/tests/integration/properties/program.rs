//! Random programs. A step names things by numbers, taken modulo what there is when it runs, so that every
//! list of steps is a program, and every part of it is one too: that is what makes failures shrink.

use std::fmt;

use proptest::prelude::*;

use super::options::{GRANULARITY, Options, options};

/// Streams and pools that a program holds at once.
pub(crate) const STREAMS: usize = 4;
pub(crate) const POOLS: usize = 2;

/// Where a stream comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Made by the context.
    Own,
    /// Made on the device, and destroyed there at any time.
    Foreign,
    /// The same, and registered.
    Registered,
    /// Made on the device, and destroyed there after the program's last use of it.
    Raw,
    /// The legacy default stream.
    Legacy,
    /// The calling thread's default stream.
    PerThread,
}

impl Kind {
    /// Whether a recorded use of such a stream covers all its work until the free, also what comes later.
    pub(crate) fn covers_later_work(self) -> bool {
        matches!(self, Self::Own | Self::Raw | Self::Legacy)
    }

    /// Whether a buffer may keep such a stream: the program must not destroy it while somebody has it.
    pub(crate) fn may_be_kept(self) -> bool {
        !matches!(self, Self::Foreign | Self::Registered | Self::Raw)
    }
}

/// How a block is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Plain,
    Zeroed,
    /// At a multiple of 2 to this many bytes.
    Aligned(u32),
    Buffer,
    ZeroedBuffer,
    Workspace,
}

/// One step of a program.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Alloc {
        pool: usize,
        stream: usize,
        bytes: u64,
        how: How,
    },
    /// A kernel on a block; `recorded` orders the free behind it by `record_use`, else the program will.
    Use {
        block: usize,
        stream: usize,
        micros: u64,
        recorded: bool,
    },
    Free {
        block: usize,
        stream: usize,
        by_context: bool,
    },
    /// A new buffer, filled from another one.
    CopyBuffer {
        pool: usize,
        stream: usize,
        block: usize,
    },
    /// Moves a block of managed memory; other memory refuses it.
    Prefetch {
        block: usize,
        stream: usize,
        to_host: bool,
    },
    /// Advice on a block, by its number; likewise.
    Advise {
        block: usize,
        advice: usize,
    },
    Record {
        stream: usize,
    },
    Wait {
        stream: usize,
        event: usize,
    },
    WaitFor {
        stream: usize,
        other: usize,
    },
    QueryEvent {
        event: usize,
    },
    SyncEvent {
        event: usize,
    },
    DropEvent {
        event: usize,
    },
    SyncStream {
        stream: usize,
    },
    /// Asks and waits for a stream on another thread than the program's.
    SyncElsewhere {
        stream: usize,
    },
    SyncDevice,
    Advance {
        micros: u64,
    },
    NewStream {
        stream: usize,
        kind: Kind,
    },
    /// Registers a foreign stream, or ends its registration.
    Register {
        stream: usize,
    },
    Hold {
        stream: usize,
    },
    Release {
        stream: usize,
    },
    Trim {
        pool: usize,
        pages: u64,
    },
    /// Takes memory in advance.
    Reserve {
        pool: usize,
        stream: usize,
        bytes: u64,
    },
    SetThreshold {
        pool: usize,
        pages: u64,
    },
    ResetHighWater {
        pool: usize,
    },
    DestroyPool {
        pool: usize,
    },
    NewPool {
        pool: usize,
    },
    Misuse {
        block: usize,
        stream: usize,
        offset: u64,
    },
    /// Makes the `nth` next device call of the kind with this number fail.
    Fail {
        call: usize,
        nth: u64,
    },
}

/// A program and what it runs on. Its debug form can be pasted into `replays.rs`.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) options: Options,
    pub(crate) steps: Vec<Step>,
}

impl fmt::Debug for Case {
    /// One step a line, however the reader wants it: proptest asks for many lines a step.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:?}", self.options).replace("ending: ", "ending: Ending::");
        let text = text.replace("other: Some(", "other: Some(MemoryKind::");
        writeln!(f, "\nCase {{ options: {text}, steps: vec![")?;
        for step in &self.steps {
            let text = format!("{step:?}");
            writeln!(
                f,
                "    Step::{},",
                text.replace("how: ", "how: How::").replace("kind: ", "kind: Kind::")
            )?;
        }
        f.write_str("] }")
    }
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 1..4096_u64,
        2 => 4096..1_u64 << 20,
        2 => (1_u64 << 20)..(4 << 20),
        2 => (1..6_u64).prop_map(|pages| pages * GRANULARITY),
        1 => (1..6_u64, 0..1024_u64).prop_map(|(pages, more)| pages * GRANULARITY + more),
        1 => (1..6_u64, 1..1024_u64).prop_map(|(pages, less)| pages * GRANULARITY - less),
        1 => (6..12_u64).prop_map(|pages| pages * GRANULARITY),
    ]
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![
        8 => Just(How::Plain),
        1 => Just(How::Zeroed),
        2 => (0..22_u32).prop_map(How::Aligned),
        2 => Just(How::Buffer),
        1 => Just(How::ZeroedBuffer),
        1 => Just(How::Workspace),
    ]
}

fn work() -> impl Strategy<Value = Step> {
    let (stream, event, block) = (0..STREAMS, 0..8_usize, any::<u8>().prop_map(usize::from));
    prop_oneof![
        14 => (0..POOLS, stream.clone(), bytes(), how())
            .prop_map(|(pool, stream, bytes, how)| Step::Alloc { pool, stream, bytes, how }),
        8 => (block.clone(), stream.clone(), 0..2000_u64, any::<bool>())
            .prop_map(|(block, stream, micros, recorded)| Step::Use { block, stream, micros, recorded }),
        2 => (0..POOLS, stream.clone(), block.clone())
            .prop_map(|(pool, stream, block)| Step::CopyBuffer { pool, stream, block }),
        2 => (block.clone(), stream.clone(), any::<bool>())
            .prop_map(|(block, stream, to_host)| Step::Prefetch { block, stream, to_host }),
        1 => (block.clone(), 0..8_usize).prop_map(|(block, advice)| Step::Advise { block, advice }),
        10 => (block, stream.clone(), prop::bool::weighted(0.2))
            .prop_map(|(block, stream, by_context)| Step::Free { block, stream, by_context }),
        2 => stream.clone().prop_map(|stream| Step::Record { stream }),
        2 => (stream.clone(), event.clone()).prop_map(|(stream, event)| Step::Wait { stream, event }),
        2 => (stream.clone(), stream.clone())
            .prop_map(|(stream, other)| Step::WaitFor { stream, other }),
        1 => event.clone().prop_map(|event| Step::QueryEvent { event }),
        1 => event.clone().prop_map(|event| Step::SyncEvent { event }),
        1 => event.prop_map(|event| Step::DropEvent { event }),
        1 => stream.clone().prop_map(|stream| Step::SyncStream { stream }),
        1 => stream.prop_map(|stream| Step::SyncElsewhere { stream }),
        1 => Just(Step::SyncDevice),
        2 => (0..4000_u64).prop_map(|micros| Step::Advance { micros }),
    ]
}

fn housekeeping() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        4 => Just(Kind::Own),
        2 => Just(Kind::Foreign),
        2 => Just(Kind::Registered),
        1 => Just(Kind::Raw),
        1 => Just(Kind::Legacy),
        1 => Just(Kind::PerThread)
    ];
    let block = any::<u8>().prop_map(usize::from);
    prop_oneof![
        3 => (0..STREAMS, kind).prop_map(|(stream, kind)| Step::NewStream { stream, kind }),
        2 => (0..STREAMS).prop_map(|stream| Step::Register { stream }),
        3 => (0..POOLS, 0..12_u64).prop_map(|(pool, pages)| Step::Trim { pool, pages }),
        1 => (0..POOLS, 0..STREAMS, 0..4 * GRANULARITY)
            .prop_map(|(pool, stream, bytes)| Step::Reserve { pool, stream, bytes }),
        1 => (0..POOLS, 0..8_u64).prop_map(|(pool, pages)| Step::SetThreshold { pool, pages }),
        1 => (0..POOLS).prop_map(|pool| Step::ResetHighWater { pool }),
        1 => (0..POOLS).prop_map(|pool| Step::DestroyPool { pool }),
        2 => (0..POOLS).prop_map(|pool| Step::NewPool { pool }),
        2 => (block, 0..STREAMS, 1..5000_u64)
            .prop_map(|(block, stream, offset)| Step::Misuse { block, stream, offset }),
    ]
}

fn holds() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..STREAMS).prop_map(|stream| Step::Hold { stream }),
        (0..STREAMS).prop_map(|stream| Step::Release { stream }),
    ]
}

/// The longest program. Longer ones find little that shorter ones do not, and shrink slowly.
const LONGEST: usize = 70;

/// Programs on devices that do as they are told, and finish what they began.
pub(crate) fn plain() -> impl Strategy<Value = Case> {
    let step = prop_oneof![8 => work(), 1 => housekeeping()];
    (options(), prop::collection::vec(step, 1..LONGEST)).prop_map(|(options, steps)| Case { options, steps })
}

/// Programs in which some streams do not finish before they are released.
pub(crate) fn with_held_streams() -> impl Strategy<Value = Case> {
    let step = prop_oneof![8 => work(), 1 => housekeeping(), 1 => holds()];
    (options(), prop::collection::vec(step, 1..LONGEST)).prop_map(|(options, steps)| Case { options, steps })
}

/// Programs on devices whose calls fail: one planned call here and there, or many at random.
pub(crate) fn with_failures() -> impl Strategy<Value = Case> {
    let fail = (0..64_usize, 1..4_u64).prop_map(|(call, nth)| Step::Fail { call, nth });
    let step = prop_oneof![12 => work(), 2 => housekeeping(), 1 => holds(), 2 => fail];
    let failures = prop_oneof![2 => Just(0_u32), 1 => 1..50_u32, 1 => 50..400_u32];
    (options(), failures, prop::collection::vec(step, 1..LONGEST))
        .prop_map(|(options, failures, steps)| Case { options: Options { failures, ..options }, steps })
}
