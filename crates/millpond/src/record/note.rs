//! What lies in a thread's ring: 24 bytes an event, since every byte goes from one processor to another.
//!
//! What seldom changes from event to event, the pool and stream and the labels, is noted only where it does.

use super::encoder::Kind;

/// See the [module](self).
#[derive(Debug, Clone, Copy)]
pub(super) struct Note {
    /// The time in the clock's ticks since the recorder began, above; what it is, in the low [`CODE_BITS`].
    stamp: u64,
    first: u64,
    second: u64,
}

const CODE_BITS: u32 = 4;
/// The notes that are no events have the last two codes.
const AT: u64 = 14;
const UNDER: u64 = 15;

const KINDS: [Kind; 10] = [
    Kind::Alloc,
    Kind::Free,
    Kind::Use,
    Kind::Live,
    Kind::Reserved,
    Kind::Trim,
    Kind::OutOfMemory,
    Kind::PoolEnd,
    Kind::Evicted,
    Kind::Restored,
];

/// A note, read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Noted {
    Event {
        kind: Kind,
        ticks: u64,
        address: u64,
        size: u64,
    },
    /// The notes that follow are of this pool and stream.
    At {
        pool: u32,
        stream: u64,
    },
    /// The notes that follow are under this tag and call site.
    Under {
        tag: u32,
        site: u32,
    },
}

impl Note {
    #[inline]
    pub(super) fn event(kind: Kind, ticks: u64, address: u64, size: u64) -> Self {
        Self { stamp: ticks << CODE_BITS | kind as u64, first: address, second: size }
    }

    pub(super) fn at(pool: u32, stream: u64) -> Self {
        Self { stamp: AT, first: stream, second: u64::from(pool) }
    }

    pub(super) fn under(tag: u32, site: u32) -> Self {
        Self { stamp: UNDER, first: u64::from(tag), second: u64::from(site) }
    }

    #[inline]
    pub(super) fn read(self) -> Noted {
        let Self { stamp, first, second } = self;
        match stamp & ((1 << CODE_BITS) - 1) {
            AT => Noted::At { pool: second as u32, stream: first },
            UNDER => Noted::Under { tag: first as u32, site: second as u32 },
            code => {
                let kind = KINDS[code as usize % KINDS.len()];
                Noted::Event { kind, ticks: stamp >> CODE_BITS, address: first, size: second }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read() {
        for kind in KINDS {
            let (ticks, address, size) = (u64::MAX >> CODE_BITS, u64::MAX, 7);
            let note = Note::event(kind, ticks, address, size);
            assert_eq!(note.read(), Noted::Event { kind, ticks, address, size });
        }
        assert_eq!(Note::at(3, u64::MAX).read(), Noted::At { pool: 3, stream: u64::MAX });
        assert_eq!(Note::under(1, 2).read(), Noted::Under { tag: 1, site: 2 });
    }
}
