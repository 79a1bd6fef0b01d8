//! The steps of random programs over typed buffers: see `typed.rs`.

use proptest::prelude::*;

pub(super) const STREAMS: usize = 4;
/// The device's own, that of a tag, pinned and managed memory.
pub(super) const POOLS: usize = 4;
pub(super) const TAG: usize = 1;

/// A buffer or a stream, by a number that is cut to those that there are; and where a part begins and ends, in parts of 256.
type Part = (u8, (u8, u8));

#[derive(Debug, Clone)]
pub(crate) enum Step {
    New {
        pool: usize,
        stream: usize,
        len: usize,
    },
    Drop {
        buffer: u8,
    },
    /// Another one of the same length gets its memory.
    Replace {
        buffer: u8,
    },
    /// In a function that the stream runs.
    DropOnStream {
        buffer: u8,
        stream: usize,
    },
    DropOnThread {
        buffer: u8,
    },
    Write {
        part: Part,
    },
    Fill {
        part: Part,
    },
    Zero {
        part: Part,
    },
    Copy {
        from: Part,
        to: (u8, u8),
    },
    CopyWithin {
        part: Part,
        to: u8,
    },
    /// By memory of a workspace on the stream.
    CopyByWorkspace {
        from: Part,
        to: (u8, u8),
        stream: usize,
        resets: bool,
    },
    Clone {
        part: Part,
    },
    Cast {
        buffer: u8,
    },
    Resize {
        buffer: u8,
        len: usize,
    },
    Move {
        buffer: u8,
        stream: usize,
    },
    /// On another thread, by its own default stream. The copy stays on that, or moves to the stream.
    CopyOnThread {
        from: Part,
        pool: usize,
        stream: Option<usize>,
    },
    /// A thread that stays gets it on its own default stream, and fills a part.
    Lend {
        part: Part,
    },
    TakeBack {
        stream: usize,
    },
    RecordUse {
        buffer: u8,
        stream: usize,
    },
    Read {
        part: Part,
    },
    ReadInPlace {
        part: Part,
    },
    /// After the event that was last recorded for it, or another one.
    ReadAfter {
        part: Part,
        event: Option<u8>,
    },
    RecordFor {
        buffer: u8,
    },
    WriteInPlace {
        part: Part,
    },
    Record {
        stream: usize,
    },
    Wait {
        stream: usize,
        other: usize,
    },
    Delay {
        stream: usize,
        micros: u64,
    },
    /// The program lets go of a stream, and has a new one. Buffers keep it.
    NewStream {
        stream: usize,
    },
    Evict {
        stream: usize,
    },
    Restore {
        stream: usize,
    },
    RestoreEarly {
        is_whole: bool,
    },
    Sleep,
    Wake,
    Trim {
        pool: usize,
    },
    Synchronize,
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    use Step::*;
    let (stream, pool, buffer, part) = (0..STREAMS, 0..POOLS, any::<u8>(), any::<Part>());
    let len = prop_oneof![4 => 0..3000_usize, 1 => 100_000..1_500_000_usize];
    let copies = prop_oneof![
        6 => (part, any::<(u8, u8)>()).prop_map(|(from, to)| Copy { from, to }),
        3 => (part, any::<u8>()).prop_map(|(part, to)| CopyWithin { part, to }),
        4 => (part, any::<(u8, u8)>(), stream.clone(), any::<bool>())
            .prop_map(|(from, to, stream, resets)| CopyByWorkspace { from, to, stream, resets }),
        3 => part.prop_map(|part| Clone { part }),
        3 => (part, pool.clone(), prop::option::of(stream.clone()))
            .prop_map(|(from, pool, stream)| CopyOnThread { from, pool, stream }),
    ];
    let whole = prop_oneof![
        8 => (pool.clone(), stream.clone(), len.clone()).prop_map(|(pool, stream, len)| New { pool, stream, len }),
        3 => buffer.prop_map(|buffer| Drop { buffer }),
        4 => buffer.prop_map(|buffer| Replace { buffer }),
        2 => part.prop_map(|part| Lend { part }),
        2 => stream.clone().prop_map(|stream| TakeBack { stream }),
        1 => (buffer, stream.clone()).prop_map(|(buffer, stream)| DropOnStream { buffer, stream }),
        1 => buffer.prop_map(|buffer| DropOnThread { buffer }),
        1 => buffer.prop_map(|buffer| Cast { buffer }),
        3 => (buffer, len).prop_map(|(buffer, len)| Resize { buffer, len }),
        3 => (buffer, stream.clone()).prop_map(|(buffer, stream)| Move { buffer, stream }),
        1 => (buffer, stream.clone()).prop_map(|(buffer, stream)| RecordUse { buffer, stream }),
    ];
    let bytes = prop_oneof![
            3 => part.prop_map(|part| Write { part }),
            3 => part.prop_map(|part| Fill { part }),
            2 => part.prop_map(|part| Zero { part }),
            2 => part.prop_map(|part| WriteInPlace { part }),
            2 => part.prop_map(|part| Read { part }),
            2 => part.prop_map(|part| ReadInPlace { part }),
    4 => (part, prop::option::of(any::<u8>())).prop_map(|(part, event)| ReadAfter { part, event }),
            4 => any::<u8>().prop_map(|buffer| RecordFor { buffer }),
        ];
    let streams = prop_oneof![
        3 => stream.clone().prop_map(|stream| Record { stream }),
        1 => (stream.clone(), stream.clone()).prop_map(|(stream, other)| Wait { stream, other }),
        6 => (stream.clone(), 50..600_u64).prop_map(|(stream, micros)| Delay { stream, micros }),
        1 => stream.clone().prop_map(|stream| NewStream { stream }),
    ];
    let pools = prop_oneof![
        3 => stream.clone().prop_map(|stream| Evict { stream }),
        3 => stream.prop_map(|stream| Restore { stream }),
        1 => any::<bool>().prop_map(|is_whole| RestoreEarly { is_whole }),
        1 => Just(Sleep),
        2 => Just(Wake),
        2 => pool.prop_map(|pool| Trim { pool }),
        1 => Just(Synchronize),
    ];
    let step = prop_oneof![3 => whole, 4 => bytes, 4 => copies, 3 => streams, 2 => pools];
    prop::collection::vec(step, 1..100)
}
